//! What says itself whose it is: heads of tracebacks, a process's own rank, a launcher's word on a worker; and jobs of
//! which nothing began.

mod common;

use common::{Job, cause};
use firstfault_analysis::Report;
use firstfault_analysis::schema::Confidence;

const STACK: &str = "Traceback (most recent call last):\n  File \"/j/scheduler.py\", line 40, in load\n    raise E\n";
const LOST: &str = "RuntimeError: [/g/pair.cc:553] Connection closed by peer [10.0.0.2]:40339.";

fn report(files: &[(&str, String)]) -> Report {
    let job = Job::new("self-named");
    for (name, text) in files {
        job.write(name, text);
    }
    job.report()
}

fn server(head: &str, error: &str) -> String {
    format!("{head}{STACK}{error}\n\n")
}

#[test]
fn the_head_of_a_traceback_tells_whose_it_is() {
    let of_tp = |margin: &str, error: &str| {
        server(&format!("[{margin}] Scheduler hit an exception: "), error)
    };
    let of_rank = |rank: u32, error: &str| {
        let head = format!(
            "2026-11-29 10:42:00,218 - lmdeploy - ERROR - model_agent.py:489 - Rank[{rank}] failed.\n"
        );
        server(&head, error)
    };
    let value = "ValueError: no such layer: 7";
    let cases = [
        (of_tp("2026-11-29 18:11:31 TP2", value), Some(2)),
        (of_tp(" TP3", value), Some(3)),
        (of_tp("2026-11-29 18:11:31 PP0 TP1", value), Some(1)),
        (of_tp("2026-11-29 18:11:31 DP1 TP9 EP9", value), Some(9)),
        // Of the second stage the number is that of its group alone.
        (of_tp("2026-11-29 18:11:31 PP1 TP1", value), None),
        (of_rank(2, value), Some(2)),
        (
            of_tp("2026-11-29 18:11:31 TP0", LOST) + &of_tp("2026-11-29 18:11:31 TP1", value),
            Some(1),
        ),
        (of_rank(1, value) + &of_rank(0, LOST), Some(1)),
    ];
    for (text, expected) in cases {
        let log = format!(
            "[2026-11-29 18:11:12] server_args=ServerArgs()\n{text}[2026-11-29 18:11:32] Received sigquit from a child process.\n"
        );
        let report = report(&[("server.log", log)]);
        assert_eq!(
            (cause(&report).0, cause(&report).1),
            (expected, "python_exception"),
            "{text}"
        );
    }
}

#[test]
fn what_follows_a_headed_traceback_is_not_its_ranks() {
    let head = "[2026-11-29 18:11:31 TP1] Scheduler hit an exception: ";
    let log = format!(
        "{}[2026-11-29 18:11:32 TP0] waits\n{STACK}{LOST}\n",
        server(head, "KeyError: 'a'")
    );
    let report = report(&[("server.log", log)]);
    assert_eq!(cause(&report).0, Some(1));
    let shown = report.root_cause.expect("a cause");
    assert!(shown.title.contains("KeyError"), "{}", shown.title);
}

#[test]
fn a_process_that_gives_itself_a_rank_has_it() {
    let added = |rank: u32| {
        format!("INFO Added key: store_based_barrier_key:1 to store for rank: {rank}\n")
    };
    let step = |rank: u32| {
        format!(
            "DEBUG Batch 1/0 loss 11.3 lr 0.07 rank {rank}\nDEBUG Batch 1/100 loss 9.1 lr 0.07 rank {rank}\n"
        )
    };
    let read = "tarfile.ReadError: ('unexpected end of data', {'__url__': 'a.tar', '__rank__': '(18, 32)'})";
    let value = "ValueError: no such layer: 7";
    for (name, before, error, expected) in [
        ("worker.log", added(3), value, Some(3)),
        ("worker-5.log", step(5), value, Some(5)),
        ("worker-1.log", String::new(), read, Some(18)),
        // The first may be the only one that logs, others may be named, and a name alone may be a host's.
        ("worker.log", added(0), value, None),
        ("worker.log", added(3) + &added(2), value, None),
        ("worker-5.log", step(5) + &step(4), value, None),
        ("worker-5.log", step(6), value, None),
        ("node-5.log", step(5), value, None),
        ("worker-0.log", step(0), value, None),
    ] {
        let report = report(&[(name, format!("{before}{STACK}{error}\n"))]);
        assert_eq!(cause(&report).0, expected, "{name} {before}");
        assert!(cause(&report).2 < Confidence::High);
    }
}

#[test]
fn a_launchers_word_on_a_worker_stands_where_the_others_go_on_to_wait() {
    let wait = |minute: u32| {
        format!(
            "DEBUG 07-04 17:{minute}:10 [shm_broadcast.py:456] No available block found in 60 second.\n"
        )
    };
    let died = "ERROR 07-04 17:35:16 [multiproc_executor.py:140] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n";
    let waits: String = (36..44).map(wait).collect();
    let log = format!("{}{died}{waits}", wait(35));
    let found = report(&[("server.log", log)]);
    assert_eq!(cause(&found), (Some(1), "killed_unknown", Confidence::Low));
}

#[test]
fn a_step_whose_program_is_not_there_has_no_culprit() {
    let missing = "slurmstepd: error: execve(): torchrun: No such file or directory\n";
    let ended = |tasks: &str| format!("srun: error: node1: {tasks}: Exited with exit code 2\n");
    let alone = report(&[("slurm-1.out", format!("{missing}{}", ended("task 0")))]);
    assert_eq!((cause(&alone).0, cause(&alone).1), (None, "missing_file"));
    let all = report(&[(
        "slurm-1.out",
        format!("{missing}{missing}{}", ended("tasks 0-1")),
    )]);
    assert_eq!((cause(&all).0, cause(&all).1), (None, "missing_file"));
    // One host lacks it.
    let log = format!(
        "{missing}{}slurmstepd: error: *** STEP 1.0 ON node0 CANCELLED AT 2026-11-29T10:00:00 ***\nsrun: error: node0: task 0: Terminated\n",
        ended("task 1")
    );
    let one = report(&[("slurm-1.out", log)]);
    assert_eq!((cause(&one).0, cause(&one).1), (Some(1), "missing_file"));
}

#[test]
fn a_host_says_why_no_daemon_began() {
    let orte = "ORTE was unable to reliably start one or more daemons.\n";
    let name = "ssh: Could not resolve hostname node9: Temporary failure in name resolution\n";
    let why = report(&[("mpi.log", format!("{name}{orte}"))]);
    assert_eq!(cause(&why), (None, "dns_failure", Confidence::Medium));
    let bare = report(&[("mpi.log", orte.to_owned())]);
    assert_eq!(cause(&bare), (None, "never_arrived", Confidence::High));
}

#[test]
fn two_ranks_that_happen_to_be_shown_make_no_suspects_of_those_between() {
    let mesh = "RuntimeError: Gloo connectFullMesh failed with [/g/pair.cc:144] no error";
    let lines = |rank: u32| -> String {
        let text = format!("{STACK}{mesh}\n");
        text.lines()
            .map(|line| format!("[rank{rank}]: {line}\n"))
            .collect()
    };
    let two = report(&[("paste.txt", lines(0) + &lines(3))]);
    assert_eq!((cause(&two).0, cause(&two).1), (None, "rendezvous_failed"));
    assert_eq!(two.suspects, []);
}
