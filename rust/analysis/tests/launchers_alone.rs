//! What a launcher's log says where the workers left little or nothing, and when nothing can be told.

mod common;

use common::{Job, PEER, START, cause, ours, torch};
use firstfault_analysis::schema::Confidence;
use firstfault_analysis::{ErrorKind, Options, analyze, report};

const ENDED: &str = "W1 api.py:753] Received 15 death signal, shutting down workers\nW1 api.py:1028] Sending process 727 closing signal SIGTERM\n\
    torch.distributed.elastic.multiprocessing.api.SignalException: Process 582 got signal: 15\n";
const FAILED: &str =
    "E1 api.py:1002] failed (exitcode: -9) local_rank: 2 (pid: 42) of binary: python\n";

#[test]
fn a_launcher_that_was_ended_is_no_success() {
    for (text, category) in [
        (ENDED.to_owned(), "preempted"),
        (ENDED.replace("15", "2"), "interrupted"),
    ] {
        for workers in [0, 2] {
            let job = Job::new("ended");
            job.write("agent.err", &text);
            for local in 0..workers {
                job.write(&format!("none_abcd1234/attempt_0/{local}/stderr.log"), "");
            }
            let found = job.report();
            assert_eq!(cause(&found), (None, category, Confidence::Medium));
            assert!(!found.is_undetermined());
        }
    }
}

#[test]
fn one_line_about_a_failed_worker_is_enough() {
    for workers in [0, 3] {
        for label in ["", "2026-11-29T20:01:41.461Z ", "[node0] "] {
            let job = Job::new("one-line");
            job.write("agent.err", format!("{label}{FAILED}"));
            for local in 0..workers {
                job.write(&format!("none_abcd1234/attempt_0/{local}/stderr.log"), "");
            }
            let found = job.report();
            assert_eq!(
                cause(&found),
                (Some(2), "killed_unknown", Confidence::Medium),
                "{workers} {label}"
            );
        }
    }
}

#[test]
fn a_summary_alone_tells_the_deepest_cause() {
    let job = Job::new("summary");
    let entry = |rank: u32, status: i32, shown: &str| {
        format!(
            "[{rank}]:\n  time      : 2026-11-29_16:33:26\n  host      : n\n  rank      : {rank} (local_rank: {rank})\n  \
         exitcode  : {status} (pid: 4{rank})\n  error_file: /gone/none_abcd1234/attempt_0/{rank}/error.json\n  traceback : {}\n",
            shown.replace('\n', "\n  ")
        )
    };
    let start = "Traceback (most recent call last):\n  File \"/j/t.py\", line 7, in main\n";
    let cause_text = format!(
        "{start}OSError: [Errno 28] No space left on device\n\n\
        The above exception was the direct cause of the following exception:\n\n{start}RuntimeError: saving failed"
    );
    let text = format!(
        "Failures:\n{}{}------\nRoot Cause (first observed failure):\n{}=====\n",
        entry(0, -15, &format!("{start}{PEER}")),
        entry(1, 1, &format!("{start}{PEER}")),
        entry(2, 1, &cause_text)
    );
    let labelled: String = text.lines().map(|line| format!("0: {line}\n")).collect();
    for text in [text, labelled] {
        job.write("agent.err", text);
        let found = job.report();
        assert_eq!(cause(&found), (Some(2), "disk_full", Confidence::High));
        assert_eq!(found.ranks.collateral, "0-1");
        assert_eq!(
            found
                .groups
                .iter()
                .find(|group| group.role == "primary")
                .expect("a group")
                .example
                .location,
            "in main (t.py:7)"
        );
    }
}

#[test]
fn a_damaged_record_is_a_failure() {
    let torn = "{\"message\": {\"message\": \"ValueError";
    let deep = "[".repeat(100_000);
    for content in [torn, "", &deep] {
        let job = Job::new("torn");
        job.write("none_abcd1234/attempt_0/0/stderr.log", "");
        job.write("none_abcd1234/attempt_0/1/error.json", content);
        let found = job.report();
        assert_eq!(cause(&found), (Some(1), "unknown", Confidence::Low));
        assert_eq!(
            (found.ranks.primary.as_str(), found.ranks.silent.as_str()),
            ("1", "0")
        );
        job.record("none_abcd1234/attempt_0/0/error.json", &torch(PEER, START));
        assert_eq!(cause(&job.report()).2, Confidence::Medium);
    }
    let job = Job::new("torn-archive");
    job.write("job/attempt_0/rank_3.n.42.json", torn);
    assert_eq!(cause(&job.report()).0, Some(3));
    // What a child left torn says nothing of its parent.
    let job = Job::new("torn-child");
    job.write("job/attempt_0/rank_3.n.42.child_43.json", torn);
    job.record(
        "job/attempt_0/rank_2.n.41.json",
        &ours(2, "ValueError: x", START),
    );
    assert_eq!(job.report().ranks.primary, "2");
}

#[test]
fn without_evidence_of_an_end_nothing_ended_well() {
    let job = Job::new("running");
    job.write("none_abcd1234/attempt_0/0/stderr.log", "step 1\n");
    let found = job.report();
    assert!(found.root_cause.is_none() && found.is_undetermined());
    assert!(report::text::render(&found, false).starts_with("Cannot tell: "));
    assert!(report::markdown::render(&found).starts_with("**Cannot tell: "));

    job.write("agent.err", "I1 api.py:900] [default] worker group successfully finished. Waiting 300 seconds for other agents to finish.\n");
    let found = job.report();
    assert!(
        found.root_cause.is_none() && !found.is_undetermined(),
        "{:?}",
        found.ranks
    );
    assert!(
        report::text::render(&found, false).starts_with("No failure found: every rank ended well.")
    );
}

#[test]
fn a_file_that_is_no_evidence_is_nothing_found() {
    let job = Job::new("stranger");
    for (name, content) in [
        ("passwd", &b"root:x:0:0:root:/root:/bin/bash\n"[..]),
        ("binary", b"\x7fELF\x02\x01\0"),
        ("empty", b""),
        ("empty.log", b""),
    ] {
        let path = job.write(name, content);
        let error = analyze(&[path], &Options::default()).expect_err(name);
        assert!(
            matches!(error.kind(), ErrorKind::NothingFound),
            "{name}: {error}"
        );
    }
}

#[test]
fn a_process_that_a_record_names_is_the_rank_of_it() {
    let job = Job::new("by-pid");
    for rank in 0..4 {
        let mut record = ours(rank, PEER, START);
        let pid = 40 + rank;
        record["firstfault"]["process"]["pid"] = serde_json::json!(pid);
        job.record(&format!("attempt_0/rank_{rank}.n.{pid}.json"), &record);
    }
    // No summary tells the launchers' first ranks.
    for (node, pid) in [(0, 41), (1, 43)] {
        let failed = format!(
            "E1 api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: {pid}) of binary: python\n"
        );
        job.write(&format!("agent{node}.err"), failed);
    }
    let found = job.report();
    assert_eq!(found.ranks.collateral, "0-3");
    assert_eq!(found.ranks.primary, "");
}
