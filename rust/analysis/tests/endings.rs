//! How a rank ended: what its output holds counts only where it is the end, and where it fits the exit status.

mod common;

use common::{Job, cause};
use firstfault_analysis::schema::Confidence;

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
