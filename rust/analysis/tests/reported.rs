//! Programs that tell of their ends in their own words, without a traceback.

mod common;

use common::{Job, PEER, cause};
use firstfault_analysis::Report;
use firstfault_analysis::schema::Confidence;

const TIMEOUT: &str =
    "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete";
const ELASTIC: &str = "torch/distributed/elastic/multiprocessing/api.py";
const LEFT_THREAD: &str = "terminate called without an active exception\n";

/// How a program's logger tells of what its handler caught.
fn told(text: &str) -> String {
    format!("2026-11-30 14:37:44,786 [ERROR] trainer: training failed: {text}\n")
}

/// A launcher's word on two workers, the first of which failed first.
fn ended(host: &str, base: u32, first: (u32, i32), second: (u32, i32)) -> String {
    let entry = |number: u32, (local, status): (u32, i32)| {
        format!(
            "[{number}]:\n  time      : 2026-11-29_16:33:26\n  host      : {host}\n  rank      : {} (local_rank: {local})\n  \
             exitcode  : {status} (pid: 2{local})\n  error_file: <N/A>\n  traceback : x\n",
            base + local
        )
    };
    let asked = match second.1 {
        -15 => format!(
            "W1129 16:33:27.4 18 {ELASTIC}:897] Sending process 2{} closing signal SIGTERM\n",
            second.0
        ),
        _ => String::new(),
    };
    let (local, status) = first;
    format!(
        "{asked}E1129 16:33:27.4 18 {ELASTIC}:869] failed (exitcode: {status}) local_rank: {local} (pid: 2{local}) of binary: python\n\
         Failures:\n{}Root Cause (first observed failure):\n{}",
        entry(1, second),
        entry(0, first)
    )
}

fn pods(name: &str, zero: &str, one: &str) -> Report {
    let job = Job::new(name);
    job.write("train-worker-0.log", zero);
    job.write("train-worker-1.log", one);
    job.report()
}

#[test]
fn who_tells_of_a_lost_peer_is_a_victim() {
    // One of the victims could not end its threads.
    let zero = told(PEER) + &told(PEER) + LEFT_THREAD + &ended("node0", 0, (1, 1), (0, -6));
    let one = told("8 features expected") + &told(PEER) + &ended("node1", 2, (0, 1), (1, -15));
    let found = pods("caught", &zero, &one);
    assert_eq!(
        cause(&found),
        (Some(2), "exit_without_traceback", Confidence::Medium)
    );
    assert_eq!(found.ranks.collateral, "0-1");
}

#[test]
fn who_tells_that_it_waited_did_not_hang() {
    let zero = told(TIMEOUT) + &told(TIMEOUT) + &ended("node0", 0, (0, 1), (1, -15));
    let one = told(TIMEOUT) + &ended("node1", 2, (1, 1), (0, -15));
    let found = pods("waited", &zero, &one);
    assert_eq!(cause(&found), (Some(2), "hang", Confidence::Medium));
    assert_eq!(found.ranks.collateral, "0-1,3");
}

#[test]
fn a_rank_whose_log_ends_in_an_error_is_the_one() {
    let lost = |rank: u32| {
        let text =
            format!("Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n{PEER}\n");
        let lines = text.lines().map(|line| format!("[rank{rank}]: {line}\n"));
        lines.collect::<String>()
    };
    for (last, category) in [
        ("step 1\nERROR:root:no samples\n", "exit_without_traceback"),
        (
            "{\"level\": \"error\", \"msg\": \"no samples\"}\n",
            "exit_without_traceback",
        ),
        ("ERROR:root:a sample is broken\nstep 1\nstep 2\n", "unknown"),
    ] {
        let job = Job::new("alone");
        job.write("worker-0.log", lost(0));
        job.write("worker-1.log", lost(1));
        job.write("worker-2.log", last);
        let found = job.report();
        assert_eq!((cause(&found).0, cause(&found).1), (Some(2), category));
        assert!(cause(&found).2 < Confidence::High, "{last}");
    }
}

#[test]
fn errors_of_all_are_told_where_nothing_else_is() {
    let job = Job::new("all-alone");
    for number in 0..3 {
        job.write(
            &format!("worker-{number}.log"),
            "2026-11-30 14:35:21.250 | ERROR    | trainer.data:next:88 - no samples\n",
        );
    }
    let found = job.report();
    assert_eq!(cause(&found).0, None);
    assert!(cause(&found).2 <= Confidence::Low);
}

#[test]
fn an_exit_with_words_of_its_own_says_more_than_one_without() {
    let zero = ended("node0", 0, (0, 1), (1, -15));
    let one = told("8 features expected") + &ended("node1", 2, (0, 1), (1, -15));
    let found = pods("words", &zero, &one);
    assert_eq!(cause(&found).0, Some(2));
    assert!(cause(&found).2 < Confidence::High);
}
