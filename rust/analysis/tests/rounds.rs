//! Jobs that were restarted: which round a failure was in, whether it came back, and why restarts did not recover.

mod common;

use common::{Job, PEER, SECOND, START, cause, ours, torch};
use firstfault_analysis::Report;
use firstfault_analysis::schema::Retry;
use serde_json::Value;

const FALLOUT: &str =
    "RuntimeError: Gloo connectFullMesh failed with [/g/pair.cc:152] timed out connecting";

fn at(rank: u32, attempt: u32, message: &str, seconds: i64) -> Value {
    let mut record = ours(rank, message, START + seconds * SECOND + i64::from(rank));
    record["firstfault"]["rank"]["attempt"] = attempt.into();
    record
}

/// Two nodes of two ranks; each line is a node, an attempt of its folder, its two messages, and when it failed.
fn job(lines: &[(u32, u32, [&str; 2], i64)]) -> Job {
    let job = Job::new("rounds");
    for (node, attempt, messages, seconds) in lines {
        for (local, message) in (0..).zip(messages) {
            let name = format!("node{node}/run_abcdefgh/attempt_{attempt}/{local}/error.json");
            job.record(&name, &at(node * 2 + local, *attempt, message, *seconds));
        }
    }
    job
}

fn told(report: &Report) -> String {
    report.root_cause.as_ref().unwrap().evidence.join("\n")
}

#[test]
fn attempts_go_by_rounds_where_a_launcher_overwrote_its_own() {
    // The first round failed on node1 alone; node0 restarted without counting it, so that its folders are one behind.
    let job = job(&[
        (1, 0, ["ValueError: first", PEER], 0),
        (1, 1, [PEER, PEER], 100),
        (0, 0, [PEER, "KeyError: 'second'"], 99),
    ]);
    let found = job.report();
    let root = found.root_cause.as_ref().unwrap();
    assert_eq!(
        (root.rank, root.attempt, root.title.as_str()),
        (Some(2), 0, "ValueError: first")
    );
    assert!(found.also_primary.is_empty(), "{:?}", found.also_primary);
    assert!(
        found.attempts[1].root_cause.contains("rank 1"),
        "{:?}",
        found.attempts
    );
    let notes = found.incomplete.join("\n");
    assert!(notes.contains("matched by rendezvous"), "{notes}");
}

#[test]
fn attempts_whose_times_may_be_clocks_errors_go_by_their_folders() {
    let job = job(&[
        (1, 0, ["ValueError: first", PEER], 0),
        (1, 1, [PEER, PEER], 8),
        (0, 0, [PEER, PEER], 5),
    ]);
    let found = job.report();
    assert_eq!(cause(&found).0, Some(2));
    assert_eq!(found.ranks.collateral, "0-1,3");
}

#[test]
fn what_the_launchers_say_of_their_rounds_is_believed_before_the_clocks() {
    let job = job(&[
        (1, 0, ["ValueError: first", PEER], 0),
        (1, 1, [FALLOUT, FALLOUT], 4),
        (0, 0, [FALLOUT, FALLOUT], 3),
    ]);
    let round = |attempt: u32, port: u32| {
        format!(
            "I1129 16:33:27.4 9 torch/distributed/elastic/agent/server/api.py:525] [default] Rendezvous complete for workers. Result:\n  restart_count={attempt}\n  master_addr=node0\n  master_port={port}\n  group_rank=0\n"
        )
    };
    let failed = |local: u32| {
        format!(
            "E1129 16:33:27.4 9 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: {local} (pid: 7) of binary: python3\n"
        )
    };
    job.write("agent0.err", round(0, 1) + &round(0, 2) + &failed(0));
    job.write(
        "agent1.err",
        round(0, 1) + &failed(0) + &round(1, 2) + &failed(0),
    );
    let found = job.report();
    assert_eq!(cause(&found).0, Some(2));
    assert_eq!(found.attempts[0].failed, 2, "{:?}", found.attempts);
    assert_eq!(found.attempts[1].failed, 4, "{:?}", found.attempts);
    let second = &found.attempts[1].root_cause;
    assert!(
        second.contains("did not recover") && second.contains("connectFullMesh"),
        "{second}"
    );
    assert!(
        told(&found).contains("restarts did not recover"),
        "{}",
        told(&found)
    );
}

#[test]
fn a_failure_that_comes_back_is_not_worth_another_try() {
    let same = job(&[
        (0, 0, ["RuntimeError: bad batch 17", PEER], 0),
        (1, 0, [PEER, PEER], 0),
        (0, 1, ["RuntimeError: bad batch 18", PEER], 100),
        (1, 1, [PEER, PEER], 100),
    ]);
    let found = same.report();
    assert_eq!(found.root_cause.as_ref().unwrap().retry, Retry::No);
    assert!(
        told(&found).contains("came back in attempts 1"),
        "{}",
        told(&found)
    );
    let once = job(&[
        (0, 0, ["RuntimeError: bad batch 17", PEER], 0),
        (1, 0, [PEER, PEER], 0),
    ]);
    assert_eq!(once.report().root_cause.unwrap().retry, Retry::Once);
}

#[test]
fn different_failures_of_one_host_speak_for_excluding_it() {
    let job = job(&[
        (0, 0, ["ValueError: bad batch", PEER], 0),
        (1, 0, [PEER, PEER], 0),
        (0, 1, [PEER, "KeyError: 'x'"], 100),
        (1, 1, [PEER, PEER], 100),
    ]);
    let found = job.report();
    assert_eq!(found.root_cause.as_ref().unwrap().retry, Retry::ExcludeHost);
    assert!(
        told(&found).contains("same host, node0"),
        "{}",
        told(&found)
    );
}

#[test]
fn records_without_times_go_by_their_folders() {
    let job = Job::new("no-times");
    for (node, attempt) in [(0, 0), (1, 0), (1, 1)] {
        let mut record = torch(PEER, START);
        record["message"]["extraInfo"]["timestamp"] = "".into();
        job.record(
            &format!("node{node}/run_abcdefgh/attempt_{attempt}/0/error.json"),
            &record,
        );
    }
    assert_eq!(job.report().attempts[0].failed, 2);
}

#[test]
fn that_later_ranks_are_silent_is_no_cause_beside_what_the_first_say() {
    let failed = |pid: u32| {
        format!(
            "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 0 (pid: {pid}) of binary: python\n"
        )
    };
    let waited = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLGATHER, Timeout(ms)=1800000) ran for 1800081 milliseconds before timing out.";
    let timed_out = format!(
        "[E ProcessGroupNCCL.cpp:828] {waited}\nterminate called after throwing an instance of 'std::runtime_error'\n  what():  {waited}\n"
    );
    let lost = "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out.\nterminate called after throwing an instance of 'std::runtime_error'\n  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\nncclRemoteError: A call failed\n";
    let job = Job::new("rounds");
    let text = format!("{timed_out}{}{lost}{}", failed(95_313), failed(104_471));
    job.write("mpirun.log", &text);
    let found = job.report();
    assert_eq!(cause(&found).1, "collective_timeout");
    assert_eq!(found.root_cause.unwrap().attempt, 0);
}
