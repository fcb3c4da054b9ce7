//! `report --follow`: reports come as the files do, and it ends with the job.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A directory that goes away with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("firstfault-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// Files appear whole, as record writes them.
    fn record(&self, rank: u32, type_name: &str, message: &str) {
        let record = serde_json::json!({
            "message": {"message": format!("{type_name}: {message}"), "extraInfo": {"py_callstack": "", "timestamp": "1795970000"}},
            "firstfault": {
                "schema_version": 1, "kind": "exception", "final": true, "time_ns": 1_795_970_000_000_000_000_i64 + i64::from(rank),
                "host": {"name": "node0"}, "process": {"pid": 1000 + rank},
                "rank": {"rank": rank, "local_rank": rank, "world_size": 3, "run_id": "job", "attempt": 0},
                "exception": {"type": type_name, "message": message},
            },
        });
        let directory = self.0.join("logs/job/attempt_0");
        fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join(format!("rank_{rank}.node0.{}.json", 1000 + rank));
        let temporary = self.0.join("new");
        fs::write(&temporary, record.to_string()).expect("written");
        fs::rename(temporary, path).expect("renamed");
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const PEER: &str = "[pair.cc:553] Connection closed by peer [127.0.0.1]:4039. This is typically";

/// Starts it, killed after a minute should it wait for what never comes.
fn follow(directory: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_firstfault")]);
    spawn(command, directory, arguments)
}

fn spawn(mut command: Command, directory: &Path, arguments: &[&str]) -> Child {
    command
        .current_dir(directory)
        .args(["report", "logs", "--follow", "--interval", "0.05"])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs")
}

#[test]
fn reports_come_with_the_files_until_every_rank_is_accounted_for() {
    let directory = Directory::new("follow");
    let mut child = follow(&directory.0, &["--format", "line", "--check"]);
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut waiting = String::new();
    stderr.read_line(&mut waiting).expect("it says so");
    assert!(
        waiting.contains("logs: No such file or directory; waiting for it"),
        "{waiting}"
    );

    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = || {
        let mut line = String::new();
        stdout.read_line(&mut line).expect("UTF-8");
        line
    };
    directory.record(0, "RuntimeError", PEER);
    assert!(line().starts_with("no rank can be named: "));
    directory.record(1, "ValueError", "loss is nan");
    assert!(line().starts_with("rank 1 on node0: nan_loss (confidence "));
    directory.record(2, "RuntimeError", PEER);
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("UTF-8");
    // The last word is said with everything in it; nothing is said twice.
    assert!(rest.lines().count() <= 2, "{rest}");
    let mut complaints = String::new();
    stderr.read_to_string(&mut complaints).expect("UTF-8");
    assert_eq!(complaints, "");
}

#[test]
fn an_output_among_the_inputs_is_refused_before_it_exists() {
    let directory = Directory::new("follow-output");
    fs::create_dir(directory.0.join("logs")).expect("a directory");
    let ended = follow(&directory.0, &["--output", "logs/report.txt"])
        .wait_with_output()
        .expect("it ends");
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("lies among the inputs"));
}

#[test]
fn ctrl_c_ends_it() {
    let directory = Directory::new("follow-interrupt");
    // Whoever runs the tests in the background has SIGINT ignored, which is inherited.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_firstfault")]);
    let mut child = spawn(command, &directory.0, &[]);
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    stderr.read_line(&mut String::new()).expect("it waits");
    let pid = child.id().to_string();
    let status = Command::new("kill")
        .args(["-INT", &pid])
        .status()
        .expect("it runs");
    assert!(status.success());
    let ended = child.wait().expect("it ends");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&ended),
        Some(2)
    );
}
