//! Children whose end is why their rank ended, and children that have nothing to do with it.

mod common;

use common::{Job, PEER, SECOND, START, cause, ours, signal};
use firstfault_analysis::schema::Confidence;
use serde_json::{Value, json};

fn victims(job: &Job) {
    for rank in [0, 1, 3] {
        let record = ours(rank, PEER, START + 3 * SECOND + i64::from(rank));
        job.record(&format!("rank_{rank}.node{}.1.json", rank / 2), &record);
    }
}

/// The crash of a child of rank 2.
fn child(pid: u32, time_ns: i64) -> Value {
    let mut record = signal(2, time_ns);
    record["firstfault"]["process"] = json!({"pid": pid, "ppid": 1002});
    record
}

fn status(code: i32) -> String {
    format!(
        "E1 api.py:1002] failed (exitcode: {code}) local_rank: 2 (pid: 1002) of binary: python\n"
    )
}

#[test]
fn a_workers_crash_is_why_its_parent_failed() {
    let job = Job::new("worker");
    victims(&job);
    let error =
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Segmentation fault. ";
    job.record("rank_2.node1.1002.json", &ours(2, error, START + SECOND));
    job.record(
        "rank_2.node1.1002.1002.child_4242.json",
        &child(4242, START),
    );
    job.record(
        "rank_2.node1.1002.1002.child_4243.json",
        &child(4243, START - 9 * SECOND),
    );
    let found = job.report();
    assert_eq!(cause(&found), (Some(2), "segfault", Confidence::High));
    let root = found.root_cause.unwrap();
    assert!(
        root.error_file.contains("child_4242"),
        "{}",
        root.error_file
    );
    let evidence = root.evidence.join("\n");
    assert!(
        evidence.contains("DataLoader worker (pid 4242)"),
        "{evidence}"
    );
}

#[test]
fn a_child_that_the_rank_survived_is_not_judged() {
    let job = Job::new("survived");
    victims(&job);
    job.record(
        "rank_2.node1.1002.json",
        &ours(2, "ValueError: bad batch", START + SECOND),
    );
    job.record(
        "rank_2.node1.1002.1002.child_4242.json",
        &child(4242, START),
    );
    let found = job.report();
    assert_eq!(found.root_cause.unwrap().title, "ValueError: bad batch");
    // Nor is one that a launcher's own end of the rank took with it.
    let job = Job::new("survived-kill");
    victims(&job);
    job.record(
        "rank_2.node1.1002.1002.child_4242.json",
        &child(4242, START),
    );
    job.write("agent.err", status(-9));
    assert_eq!(cause(&job.report()).1, "killed_unknown");
}

#[test]
fn a_wrapper_passes_its_childs_end_on() {
    // As a shell names it, as `os._exit` cuts it, and as most wrappers do.
    for code in [139, 245, 1] {
        let job = Job::new("wrapper");
        victims(&job);
        job.record(
            "rank_2.node1.1002.1002.child_4242.json",
            &child(4242, START),
        );
        job.write("agent.err", status(code));
        assert_eq!(cause(&job.report()).1, "segfault", "{code}");
        assert_eq!(cause(&job.report()).0, Some(2), "{code}");
    }
    // Another code is the wrapper's own.
    let job = Job::new("wrapper-own");
    victims(&job);
    job.record(
        "rank_2.node1.1002.1002.child_4242.json",
        &child(4242, START),
    );
    job.write("agent.err", status(7));
    assert_eq!(cause(&job.report()).1, "exit_without_traceback");
}

#[test]
fn a_command_that_failed_is_told_by_its_own_record() {
    for (error, category) in [
        (
            "subprocess.CalledProcessError: Command '['x']' died with <Signals.SIGSEGV: 11>.",
            "segfault",
        ),
        (
            "subprocess.CalledProcessError: Command '['x']' returned non-zero exit status 3.",
            "python_exception",
        ),
        (
            "ProcessExitedException: process 1 terminated with signal SIGSEGV",
            "segfault",
        ),
        (
            "ProcessExitedException: process 1 terminated with exit code 3",
            "python_exception",
        ),
        (
            "SystemExit: 1, after child process 4242 failed: SIGSEGV",
            "segfault",
        ),
        (
            "SystemExit: 1, after child process 42 failed: SIGSEGV",
            "python_exception",
        ),
    ] {
        let job = Job::new("command");
        victims(&job);
        job.record("rank_2.node1.1002.json", &ours(2, error, START + SECOND));
        job.record(
            "rank_2.node1.1002.1002.child_4242.json",
            &child(4242, START),
        );
        assert_eq!(cause(&job.report()).1, category, "{error}");
    }
}

/// The parent's exception is all there is of a child that SIGKILL ended.
#[test]
fn a_signal_that_ended_a_child_without_a_record_is_told_by_its_parent() {
    for (error, category) in [
        (
            "ProcessExitedException: process 1 terminated with signal SIGKILL",
            "killed_unknown",
        ),
        (
            "subprocess.CalledProcessError: Command '['x']' died with <Signals.SIGSEGV: 11>.",
            "segfault",
        ),
        (
            "ProcessExitedException: process 1 terminated with <Unknown signal 77>",
            "python_exception",
        ),
        (
            "ValueError: process 1 terminated with signal SIGKILL",
            "python_exception",
        ),
    ] {
        let job = Job::new("child-signal");
        victims(&job);
        job.record("rank_2.node1.1002.json", &ours(2, error, START));
        assert_eq!(cause(&job.report()).1, category, "{error}");
        assert_eq!(cause(&job.report()).0, Some(2), "{error}");
    }
}
