//! How a rank ended: what its output holds counts only where it is the end, and where it fits the exit status.

mod common;

use common::{Job, PEER, SECOND, START, cause, ours, signal, torch};
use firstfault_analysis::schema::Confidence;
use serde_json::json;

const HANDLED: &str = "ERROR:root:cache miss, continuing\nTraceback (most recent call last):\n  File \"/j/t.py\", line 7, in main\n    \
    open(x)\nFileNotFoundError: [Errno 2] No such file or directory: '/cache/x'\n";

/// A launcher's log: which workers it asked to end, which failed first, and how each ended.
fn agent(asked: &[u32], failed: (u32, i32), statuses: &[i32]) -> String {
    let mut text = String::new();
    for local in asked {
        text += &format!(
            "W1 api.py:1028] Sending process {} closing signal SIGTERM\n",
            1000 + local
        );
    }
    text += &format!(
        "E1 api.py:1002] failed (exitcode: {}) local_rank: {} (pid: {}) of binary: p\nFailures:\n",
        failed.1,
        failed.0,
        1000 + failed.0
    );
    for (local, status) in statuses.iter().enumerate() {
        text += &format!(
            "[0]:\n  time      : 2026-11-29_16:33:26\n  host      : n\n  rank      : {local} (local_rank: {local})\n  \
             exitcode  : {status} (pid: {})\n  error_file: <N/A>\n  traceback : x\n",
            1000 + local
        );
    }
    text
}

fn job(name: &str, outputs: &[&str], log: &str) -> Job {
    let job = Job::new(name);
    for (local, output) in outputs.iter().enumerate() {
        job.write(&format!("n_abcd1234/attempt_0/{local}/stderr.log"), output);
    }
    job.write("agent.log", log);
    job
}

#[test]
fn an_exception_in_passing_kills_nobody() {
    let after = format!("{HANDLED}{}", "step 1\nstep 2\n".repeat(200));
    for (status, category) in [
        (-9, "killed_unknown"),
        (17, "exit_without_traceback"),
        (-15, "killed_unknown"),
        (-11, "segfault"),
    ] {
        for output in [HANDLED, after.as_str()] {
            let log = agent(&[0], (1, status), &[-15, status]);
            let report = job("passing", &[output, output], &log).report();
            let (rank, found, confidence) = cause(&report);
            assert_eq!((rank, found), (Some(1), category), "{status}");
            assert!(confidence < Confidence::High);
            assert_eq!(report.ranks.terminated, "0");
            let evidence = &report.root_cause.as_ref().expect("a cause").evidence;
            assert!(
                evidence
                    .iter()
                    .any(|line| line.starts_with("context only: ")
                        && line.contains("FileNotFoundError")),
                "{evidence:?}"
            );
        }
    }
}

#[test]
fn an_exception_before_other_output_is_not_what_an_exit_status_tells() {
    let after = format!("{HANDLED}{}", "step 1\n".repeat(200));
    let log = agent(&[0], (1, 1), &[-15, 1]);
    assert_eq!(
        cause(&job("exit-after", &["", &after], &log).report()).1,
        "exit_without_traceback"
    );
    assert_eq!(
        cause(&job("exit-at", &["", HANDLED], &log).report()).1,
        "missing_file"
    );
}

#[test]
fn an_exception_that_torchs_hook_printed_ended_a_rank_that_hung_on_its_way_out() {
    let uncaught: String = HANDLED
        .lines()
        .skip(1)
        .map(|line| format!("[rank0]: {line}\n"))
        .collect();
    let peer = "Traceback (most recent call last):\n  File \"/j/t.py\", line 7, in main\nRuntimeError: Connection closed by peer [10.0.0.2]:1\n";
    let log = agent(&[0], (1, 1), &[-15, 1]);
    let report = job("hung-out", &[&uncaught, peer], &log).report();
    assert_eq!(
        (cause(&report).0, cause(&report).1),
        (Some(0), "missing_file")
    );
}

#[test]
fn a_child_that_crashed_did_not_crash_its_parent() {
    let child = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File \"w.py\", line 1 in f\n";
    let log = agent(&[0], (1, -9), &[-15, -9]);
    assert_eq!(
        cause(&job("child-crash", &["", child], &log).report()).1,
        "killed_unknown"
    );
}

#[test]
fn only_whom_the_launcher_asked_did_it_end() {
    let log = agent(&[0, 1], (2, -15), &[-15, -15, -15]);
    let report = job("asked", &["", "", ""], &log).report();
    let (rank, category, confidence) = cause(&report);
    assert_eq!((rank, category), (Some(2), "killed_unknown"));
    assert!(confidence < Confidence::High);
    assert_eq!(
        (
            report.ranks.primary.as_str(),
            report.ranks.terminated.as_str()
        ),
        ("2", "0-1")
    );
    assert!(
        report
            .root_cause
            .expect("a cause")
            .title
            .contains("sender unknown")
    );
}

#[test]
fn an_exception_that_the_interpreter_ignored_hides_none() {
    let output = format!(
        "{HANDLED}Exception ignored in: <function f at 0x1>\nTraceback (most recent call last):\n  File \"a\", line 1, in f\n\
        AssertionError: can only test a child process\n"
    );
    let log = agent(&[0], (1, 1), &[-15, 1]);
    assert_eq!(
        cause(&job("ignored", &["", &output], &log).report()).1,
        "missing_file"
    );
}

#[test]
fn what_was_recorded_in_passing_is_no_failure_by_itself() {
    let job = Job::new("provisional-alone");
    let mut noted = ours(0, "ValueError: handled", START);
    noted["firstfault"]["final"] = json!(false);
    job.record("n_abcd1234/attempt_0/0/error.json", &noted);
    let report = job.report();
    assert!(report.root_cause.is_none() && report.is_undetermined());
    assert!(
        report
            .incomplete
            .iter()
            .any(|line| line.starts_with("1 provisional record") && line.contains("handled")),
        "{:?}",
        report.incomplete
    );
    job.record(
        "n_abcd1234/attempt_0/1/error.json",
        &ours(1, "KeyError: 'real'", START + SECOND),
    );
    assert_eq!(
        (cause(&job.report()).0, job.report().also_primary.len()),
        (Some(1), 0)
    );
}

#[test]
fn a_rank_that_ended_well_before_the_others_is_suspected() {
    for (others, expected) in [
        (1, (Some(0), Confidence::Medium)),
        (2, (None, Confidence::Low)),
    ] {
        let job = Job::new("early");
        for local in 0..4_u32 {
            job.write(&format!("n_abcd1234/attempt_0/{local}/stderr.log"), "");
        }
        for local in others..4 {
            job.record(
                &format!("n_abcd1234/attempt_0/{local}/error.json"),
                &torch(PEER, START),
            );
        }
        let log = agent(&[], (others, 1), &[1; 4]);
        let whole: Vec<&str> = log.split_inclusive("[0]:\n").collect();
        let kept: String = whole
            .iter()
            .enumerate()
            .filter(|(index, _)| *index == 0 || *index > others as usize)
            .map(|(_, part)| *part)
            .collect();
        job.write("agent.log", kept);
        let report = job.report();
        assert_eq!(
            cause(&report),
            (expected.0, "left_early", expected.1),
            "{:?}",
            report.ranks
        );
    }
}

#[test]
fn a_signal_that_another_process_sent_is_no_bad_address() {
    let job = Job::new("sent");
    let mut record = signal(1, START);
    record["firstfault"]["signal"]["code"] = json!("SI_USER");
    record["firstfault"]["signal"]["sender"] = json!({"pid": 77, "uid": 1000, "comm": "kill"});
    job.record("n_abcd1234/attempt_0/1/error.json", &record);
    let report = job.report();
    assert_eq!(cause(&report).1, "killed_unknown");
    assert_eq!(
        report.root_cause.expect("a cause").title,
        "SIGSEGV sent by process 77 (kill) of user 1000"
    );
}

#[test]
fn a_mismatch_that_only_the_output_of_an_abort_tells() {
    let text = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:456] \
        Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n";
    let job = Job::new("abort-mismatch");
    let mut record = signal(1, START);
    record["message"]["message"] = json!("SIGABRT (Aborted): raised by the process itself");
    record["message"]["errorCode"] = json!(-6);
    record["firstfault"]["signal"] = json!({"number": 6, "name": "SIGABRT"});
    job.record("n_abcd1234/attempt_0/1/error.json", &record);
    job.write("n_abcd1234/attempt_0/1/stderr.log", text);
    let report = job.report();
    assert_eq!(
        cause(&report),
        (None, "collective_mismatch", Confidence::Low)
    );
    assert!(
        report
            .root_cause
            .expect("a cause")
            .title
            .contains("Received data size doesn't match")
    );
}

#[test]
fn clocks_that_the_kernel_does_not_trust_tell_no_order() {
    let job = Job::new("clocks");
    for (rank, message, after) in [(0, "KeyError: 'a'", 0), (2, "ValueError: b", 5 * SECOND)] {
        let mut record = ours(rank, message, START + after);
        record["firstfault"]["clock"] = json!({"max_error_us": 16_000_000, "synchronized": false});
        job.record(&format!("n_abcd1234/attempt_0/{rank}/error.json"), &record);
    }
    let cause = job.report().root_cause.expect("a cause");
    assert_eq!(cause.confidence, Confidence::Low);
    assert!(
        !cause
            .evidence
            .iter()
            .any(|line| line.starts_with("it failed first")),
        "{:?}",
        cause.evidence
    );
}

#[test]
fn a_long_name_of_a_host_leaves_the_confidence_on_the_line() {
    let job = Job::new("long-host");
    let mut record = ours(1, "ValueError: x", START);
    record["firstfault"]["host"]["name"] = json!("h".repeat(300));
    job.record("rank_1.json", &record);
    let text = firstfault_analysis::report::text::render(&job.report(), false);
    assert!(
        text.lines()
            .next()
            .expect("a line")
            .ends_with("confidence medium"),
        "{text}"
    );
}

#[test]
fn a_log_of_a_hundred_thousand_failures_ends_in_time() {
    let job = Job::new("many-failures");
    let text: String = (0..100_000)
        .map(|n| {
            format!(
                "E1 api.py:1002] failed (exitcode: 1) local_rank: {n} (pid: {n}) of binary: p\n"
            )
        })
        .collect();
    job.write("agent.log", text);
    assert!(job.report().root_cause.is_some());
}

/// What hydra prints before it leaves, and what IPython and asyncio do of an exit in a handler.
#[test]
fn an_exit_after_a_traceback_is_no_other_output() {
    const CONTEXT: &str = "\nDuring handling of the above exception, another exception occurred:\n\n\
        Traceback (most recent call last):\n  File \"/j/t.py\", line 9, in main\n    sys.exit(3)\nSystemExit: 3\n";
    let hydra = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n";
    let chained = |status: i32, tail: &str| {
        let log = agent(&[0], (1, status), &[-15, status]);
        let output = format!("{HANDLED}{tail}");
        let report = job("exits", &["", &output], &log).report();
        cause(&report).1.to_owned()
    };
    assert_eq!(chained(1, hydra), "missing_file");
    assert_eq!(chained(3, CONTEXT), "missing_file");
    // It left with another status, or says no status at all: then it was not this exit.
    assert_eq!(chained(4, CONTEXT), "exit_without_traceback");
    assert_eq!(chained(3, hydra), "exit_without_traceback");
}
