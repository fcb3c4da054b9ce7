//! The real binary: what it prints, and how it exits.
//!
//! After a wanted change of the report: `FIRSTFAULT_UPDATE=1 cargo test -p firstfault --test cli`.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

fn firstfault() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstfault"));
    command
        .current_dir(data().join("corpus"))
        .env_remove("NO_COLOR");
    command
}

fn run(arguments: &[&str]) -> Output {
    firstfault().args(arguments).output().expect("it runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn reports_are_the_golden_ones() {
    for (case, format, ending) in [
        ("segv_0", "text", "txt"),
        ("config_0", "text", "txt"),
        ("sigkill_0", "text", "txt"),
        ("wrapped_0", "text", "txt"),
        ("raise_0", "json", "json"),
        ("raise_0", "markdown", "md"),
        ("segv_0", "digest", "digest"),
        ("segv_0", "line", "line"),
    ] {
        let output = run(&["report", case, "--format", format]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let golden = data().join("reports").join(format!("{case}.{ending}"));
        if std::env::var_os("FIRSTFAULT_UPDATE").is_some() {
            std::fs::write(&golden, &output.stdout).expect("writable");
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(stdout(&output), expected, "{}", golden.display());
    }
}

#[test]
fn a_crash_is_shown_as_the_golden_one() {
    let output = run(&["show", "../reports/show_crash.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let golden = data().join("reports/show_crash.txt");
    if std::env::var_os("FIRSTFAULT_UPDATE").is_some() {
        std::fs::write(&golden, &output.stdout).expect("writable");
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(stdout(&output), expected);
    let json = stdout(&run(&["show", "../reports/show_crash.json", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        json["firstfault"]["threads"][0]["native"][2]["inlined"],
        true
    );
    assert_eq!(json["without_symbols"][1]["reason"], "not on this machine");
}

const BOXES: [(&str, &str); 2] = [
    (
        "killed_records/firstfault/41478/attempt_0/rank_2.node1.21.21.box",
        "show_box.txt",
    ),
    (
        "null_thread_both/firstfault/41694/attempt_0/rank_0.node0.23.23.box",
        "show_crashed_box.txt",
    ),
];

#[test]
fn black_boxes_are_shown_as_the_golden_ones() {
    for (name, golden) in BOXES {
        let output = run(&["show", name]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let golden = data().join("reports").join(golden);
        if std::env::var_os("FIRSTFAULT_UPDATE").is_some() {
            std::fs::write(&golden, &output.stdout).expect("writable");
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(stdout(&output), expected, "{}", golden.display());
    }
}

#[test]
fn a_black_box_is_json_for_programs() {
    let [killed, crashed] = BOXES.map(|(name, _)| {
        let output = run(&["show", name, "--json"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")
    });
    assert_eq!(killed["black_box"]["state"], "running");
    assert_eq!(killed["black_box"]["process"], "unknown");
    assert_eq!(killed["firstfault"]["rank"]["rank"], 2);
    assert_eq!(killed["firstfault"]["breadcrumbs"][0]["value"], "main");
    assert!(killed["error_code"].is_null());
    assert_eq!(crashed["black_box"]["state"], "crashed");
    assert_eq!(crashed["error_code"], -11);
    assert_eq!(crashed["firstfault"]["signal"]["address"], "0x0");
}

#[test]
fn the_function_that_crashed_is_in_the_first_lines() {
    let text = stdout(&run(&["report", "segv_0"]));
    let head: Vec<&str> = text.lines().take(3).collect();
    assert_eq!(
        head[0],
        "ROOT CAUSE  rank 1 (local rank 1 on host node0): segfault, confidence high"
    );
    assert_eq!(
        head[2],
        "  in string_at (ctypes/__init__.py:519), called from main (train.py:36)"
    );
}

#[test]
fn check_tells_by_the_exit_status() {
    assert_eq!(run(&["report", "segv_0", "--check"]).status.code(), Some(1));
    assert_eq!(run(&["report", "segv_0"]).status.code(), Some(0));
}

#[test]
fn wrong_usage_and_missing_files_are_status_2() {
    for (arguments, text) in [
        (&["report"][..], "<PATH>"),
        (
            &["report", "/nonexistent/job"],
            "/nonexistent/job: No such file or directory",
        ),
        (&["report", "segv_0", "--world-size", "0"], "--world-size"),
        (
            &["report", "segv_0", "--output", "/nonexistent/report"],
            "/nonexistent/report: No such file",
        ),
        (&["report", "segv_0", "--interval", "1"], "--follow"),
        (
            &["report", "segv_0", "--follow", "--interval", "0"],
            "between 0.01",
        ),
        (
            &["report", "segv_0", "--rules", "/nonexistent/rules"],
            "/nonexistent/rules: No such file or directory",
        ),
        (
            &["report", "segv_0", "--rules", "segv_0/agent0.err"],
            "segv_0/agent0.err: line 1: ",
        ),
        (&["show", "segv_0"], "a directory"),
        (&["show", "segv_0/agent0.err"], "segv_0/agent0.err: "),
        (&["bogus"], "bogus"),
        (&["demo", "segv"], "python -m firstfault demo"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            stderr(&output).contains(text),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
}

#[test]
fn an_empty_directory_gets_advice() {
    let empty = std::env::temp_dir().join(format!("firstfault-empty-{}", std::process::id()));
    std::fs::create_dir_all(&empty).expect("a directory");
    let output = firstfault()
        .arg("report")
        .arg(&empty)
        .output()
        .expect("it runs");
    std::fs::remove_dir(&empty).expect("still empty");
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains(empty.to_str().expect("UTF-8")) && text.contains("--log-dir"),
        "{text}"
    );
}

#[test]
fn help_says_what_it_does_and_how_it_exits() {
    let output = run(&["report", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    for part in [
        "Exit status: 0 when",
        "--check",
        "--world-size <N>",
        "[possible values: text, json, markdown, digest, line]",
        "--rules <FILE>",
        "--redact",
        "--follow",
        "--interval <SECONDS>",
    ] {
        assert!(
            text.contains(part) || part.starts_with('[') && text.contains("Possible values:"),
            "{part}: {text}"
        );
    }
    let commands = stdout(&run(&["--help"]));
    for command in ["report", "schema", "demo"] {
        assert!(commands.contains(command), "{commands}");
    }
    assert_eq!(run(&["--version"]).status.code(), Some(0));
}

#[test]
fn schemas_are_printed() {
    for (name, key) in [("error-file", "py_callstack"), ("report", "root_cause")] {
        let output = run(&["schema", name]);
        let committed = data().join(format!("../../python/firstfault/schema/{name}.json"));
        assert_eq!(
            stdout(&output),
            std::fs::read_to_string(committed).expect("committed")
        );
        assert!(stdout(&output).contains(key));
    }
}

#[test]
fn output_goes_to_a_file() {
    let path = std::env::temp_dir().join(format!("firstfault-output-{}", std::process::id()));
    let output = firstfault()
        .args(["report", "segv_0", "--output"])
        .arg(&path)
        .output()
        .expect("it runs");
    let text = std::fs::read_to_string(&path).expect("written");
    std::fs::remove_file(&path).expect("there");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert!(text.starts_with("ROOT CAUSE"), "{text}");
}

#[test]
fn paths_that_are_not_utf8_work() {
    let path = std::env::temp_dir().join(OsStr::from_bytes(
        format!("firstfault-\u{e9}-{}", std::process::id()).as_bytes(),
    ));
    let path = path.join(OsStr::from_bytes(b"\xff\xfe"));
    std::fs::create_dir_all(&path).expect("a directory");
    std::fs::write(
        path.join("error.json"),
        br#"{"message": "ValueError: x", "timestamp": 1790000000}"#,
    )
    .expect("written");
    let output = firstfault()
        .arg("report")
        .arg(&path)
        .output()
        .expect("it runs");
    std::fs::remove_dir_all(path.parent().expect("a parent")).expect("there");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("ValueError: x"));
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let mut child = firstfault()
        .args(["report", "segv_0", "--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    drop(child.stdout.take());
    let status = child.wait().expect("it ends");
    let mut text = String::new();
    child
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut text)
        .expect("UTF-8");
    assert_eq!((status.code(), text.as_str()), (Some(0), ""));
}

#[test]
fn no_colour_reaches_a_pipe() {
    assert!(!stdout(&run(&["report", "segv_0"])).contains('\x1b'));
    assert!(!stdout(&run(&["--help"])).contains('\x1b'));
}

#[test]
fn no_evidence_is_overwritten() {
    let directory =
        std::env::temp_dir().join(format!("firstfault-overwrite-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("error.json");
    std::fs::write(&file, "{\"message\": \"x\"}").expect("written");
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    for input in [&directory, &file] {
        let output = run(&["report", &path(input), "--output", &path(&file)]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert_eq!(
            std::fs::read_to_string(&file).expect("there"),
            "{\"message\": \"x\"}"
        );
    }
    std::fs::remove_dir_all(&directory).expect("removed");
    assert_eq!(
        run(&["report", "raise_0", "--world-size", "1048577"])
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn the_plain_doctor_looks_at_the_machine_alone() {
    let output = run(&["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let names: Vec<&str> = found["probes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|probe| probe["name"].as_str())
        .collect();
    let host = [
        "core dumps",
        "open files",
        "stack",
        "/dev/shm",
        "seccomp",
        "ptrace",
    ];
    assert_eq!(names[0], "capture");
    assert_eq!(names[1..], host);
    assert_eq!(
        found["probes"][0]["advice"],
        "run python -m firstfault doctor"
    );
    let output = run(&["doctor", "--import", "torch"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("python -m firstfault doctor"));
}

/// After a change of the types: `FIRSTFAULT_UPDATE=1 cargo test -p firstfault --test cli`.
#[test]
fn the_committed_schema_of_the_doctor_is_the_types_own() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../python/firstfault/schema/doctor.json");
    let generated = stdout(&run(&["schema", "doctor"]));
    if std::env::var_os("FIRSTFAULT_UPDATE").is_some() {
        std::fs::write(&path, &generated).expect("writable");
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap_or_default(),
        generated
    );
}

/// Returns the code block of a language in the documentation of rules.
fn documented_rules() -> String {
    let path = data().join("../../docs/rules.md");
    let text = std::fs::read_to_string(path).expect("readable");
    let (_, rest) = text.split_once("```toml\n").expect("an example");
    rest.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn the_documented_rules_work_and_do_not_outlive_the_call() {
    let directory = std::env::temp_dir().join(format!("firstfault-rules-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let rules = directory.join("site-rules.toml");
    std::fs::write(&rules, documented_rules()).expect("written");
    let message = "CatalogueError: catalogue is locked by indexer";
    let record = serde_json::json!({"message": {"message": message, "extraInfo": {"py_callstack": "", "timestamp": "1"}}});
    let error = directory.join("error.json");
    std::fs::write(&error, record.to_string()).expect("written");
    let (error, rules) = (
        error.to_str().expect("UTF-8"),
        rules.to_str().expect("UTF-8"),
    );
    let plain = stdout(&run(&["report", error, "--format", "json"]));
    assert!(
        plain.contains("\"category\": \"python_exception\""),
        "{plain}"
    );
    let text = stdout(&run(&["report", error, "--rules", rules]));
    assert!(
        text.contains(": site_catalogue_locked, confidence"),
        "{text}"
    );
    assert!(
        text.contains("Wait until the nightly indexing is done"),
        "{text}"
    );

    let wrong = directory.join("wrong.toml");
    std::fs::write(
        &wrong,
        documented_rules().replace("locked by indexer", "open to indexer"),
    )
    .expect("written");
    let output = run(&["report", error, "--rules", wrong.to_str().expect("UTF-8")]);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(2), "")
    );
    let complaint = stderr(&output);
    assert!(
        complaint.contains("wrong.toml: rule `site-catalogue-locked`: samples: "),
        "{complaint}"
    );
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[test]
fn a_users_rule_about_hosts_is_heard() {
    let directory =
        std::env::temp_dir().join(format!("firstfault-host-rules-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let rules = directory.join("site-rules.toml");
    std::fs::write(&rules, documented_rules()).expect("written");
    let log = directory.join("ctl.log");
    std::fs::write(
        &log,
        "Nov 29 19:46:06 ctl nodeagent: draining node0 for maintenance\n",
    )
    .expect("written");
    let log = log.to_str().expect("UTF-8");
    let without = stdout(&run(&["report", "sigkill_0", log]));
    let text = stdout(&run(&[
        "report",
        "sigkill_0",
        log,
        "--rules",
        rules.to_str().expect("UTF-8"),
    ]));
    std::fs::remove_dir_all(&directory).expect("removed");
    assert!(!without.contains("preempted"), "{without}");
    assert!(text.contains(": preempted, confidence"), "{text}");
}

#[test]
fn no_form_names_a_host_once_redacted() {
    for format in ["text", "json", "markdown", "digest", "line"] {
        let text = stdout(&run(&["report", "segv_0", "--format", format, "--redact"]));
        assert!(
            text.contains("node-a") && !text.contains("node0"),
            "{format}: {text}"
        );
    }
}
