//! What must not be certain: evidence that a cut, a lost file or a stranger's line may have made.

mod common;

use common::{Job, PEER, START, cause, ours, torch};
use firstfault_analysis::schema::Confidence;
use firstfault_analysis::{Options, Report, analyze};

fn traceback(error: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/j/train.py\", line 9, in main\n{error}\n"
    )
}

fn labelled(rank: u32, error: &str) -> String {
    let text = traceback(error);
    text.lines()
        .map(|line| format!("[rank{rank}]: {line}\n"))
        .collect()
}

fn failed(status: i32, local: u32, pid: u32) -> String {
    format!(
        "E1129 16:33:27.4 77 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {status}) local_rank: {local} (pid: {pid}) of binary: /v/python\n"
    )
}

fn closing(pid: u32) -> String {
    format!(
        "W1129 16:33:27.4 77 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process {pid} closing signal SIGTERM\n"
    )
}

/// A summary of ranks of one host, the first of them as the root cause.
fn summary(entries: &[(u32, i32, u32)]) -> String {
    let entry = |(rank, status, pid): &(u32, i32, u32)| {
        format!(
            "[0]:\n  time      : 2026-11-29_16:33:26\n  host      : n\n  rank      : {rank} (local_rank: {rank})\n  \
             exitcode  : {status} (pid: {pid})\n  error_file: <N/A>\n  traceback : -\n"
        )
    };
    let others: String = entries[1..].iter().map(entry).collect();
    let root = entry(&entries[0]);
    format!("Failures:\n{others}------\nRoot Cause (first observed failure):\n{root}=====\n")
}

fn sure(report: &Report) -> bool {
    cause(report).2 == Confidence::High
}

#[test]
fn an_exception_of_the_programs_own_may_hide_a_lost_peer() {
    let job = Job::new("wrapped");
    let victims: String = (1..4).map(|rank| labelled(rank, PEER)).collect();
    let own = labelled(0, "RuntimeError: training step failed");
    job.write("node0.log", own + &victims);
    assert_eq!(cause(&job.report()).0, Some(0));
    assert!(!sure(&job.report()));
    let all = |ranks| Options::default().with_world_size(Some(ranks));
    let counted = |ranks| analyze(std::slice::from_ref(&job.0), &all(ranks)).expect("readable");
    assert!(sure(&counted(4)));
    assert!(!sure(&counted(8)), "four are not here");
    // What the text itself says is no wrapper's.
    let full = labelled(0, "OSError: [Errno 28] No space left on device");
    job.write("node0.log", full + &victims);
    assert!(sure(&job.report()));
}

#[test]
fn what_failed_while_another_was_handled_is_named_with_that() {
    let first = "ValueError: bad batch";
    let full = "OSError: [Errno 28] No space left on device";
    let text = |rank: u32| {
        let context = "During handling of the above exception, another exception occurred:";
        let text = format!("{}\n{context}\n\n{}", traceback(first), traceback(full));
        text.lines()
            .map(|line| format!("[rank{rank}]: {line}\n"))
            .collect::<String>()
    };
    let victims: String = (1..4).map(|rank| labelled(rank, PEER)).collect();
    for (name, log) in [
        ("one", text(0) + &victims),
        ("alike", (0..4).map(text).collect()),
    ] {
        let job = Job::new(&format!("handled_{name}"));
        job.write("node0.log", log);
        let options = Options::default().with_world_size(Some(4));
        let report = analyze(std::slice::from_ref(&job.0), &options).expect("readable");
        let told = report.root_cause.as_ref().expect("a cause");
        assert_eq!(
            (told.category.as_str(), told.confidence),
            ("disk_full", Confidence::Medium),
            "{name}"
        );
        let reasons = told.evidence.join("\n");
        assert!(reasons.contains(first), "{name}: {reasons}");
    }
}

#[test]
fn a_record_of_an_unknown_exception_does_not_clear_those_that_left_nothing() {
    let job = Job::new("records");
    let path = |rank: u32| format!("job/attempt_0/rank_{rank}.node{}.100{rank}.json", rank / 2);
    job.record(&path(0), &ours(0, "RuntimeError: step failed", START));
    for rank in [1, 2] {
        job.record(&path(rank), &ours(rank, PEER, START));
    }
    assert_eq!(cause(&job.report()).0, Some(0));
    assert!(!sure(&job.report()));
    job.record(&path(3), &ours(3, PEER, START));
    assert!(sure(&job.report()));
}

#[test]
fn a_line_without_an_end_may_have_said_more() {
    let job = Job::new("torn");
    let text = traceback("torch.distributed.DistBackendError: NCCL err");
    for rank in 0..3 {
        job.write(&format!("rank{rank}.log"), text.trim_end());
    }
    let all = Options::default().with_world_size(Some(3));
    let found = analyze(std::slice::from_ref(&job.0), &all).expect("readable");
    assert!(!sure(&found));
    for rank in 0..3 {
        job.write(&format!("rank{rank}.log"), traceback("KeyError: 'a'"));
    }
    let found = analyze(std::slice::from_ref(&job.0), &all).expect("readable");
    assert_eq!(cause(&found).2, Confidence::High);
}

#[test]
fn what_nobody_owns_may_have_come_first() {
    let job = Job::new("nobodys");
    let alike: String = (0..4)
        .map(|rank| labelled(rank, "RuntimeError: barrier failed"))
        .collect();
    let full = traceback("OSError: [Errno 28] No space left on device");
    let all = Options::default().with_world_size(Some(4));
    job.write("train.log", &alike);
    let found = analyze(std::slice::from_ref(&job.0), &all).expect("readable");
    assert!(sure(&found));
    job.write("train.log", full + &alike);
    let found = analyze(std::slice::from_ref(&job.0), &all).expect("readable");
    assert!(!sure(&found));
}

#[test]
fn whom_a_launcher_asked_to_end_is_not_told_by_a_log_without_its_beginning() {
    let job = Job::new("beginning");
    let victims = labelled(2, PEER) + &labelled(3, PEER);
    let end = failed(1, 0, 10) + &summary(&[(0, 1, 10), (1, -15, 11)]);
    job.write("console.log", format!("{victims}{end}"));
    assert_ne!(
        cause(&job.report()).0,
        Some(1),
        "nothing says that another sent it"
    );
    // The launcher of another container asked one of its own, and has the same number there.
    let end = closing(99) + &failed(1, 0, 10) + &summary(&[(0, 1, 10), (1, -15, 11)]);
    job.write("console.log", format!("{victims}{end}"));
    assert_ne!(cause(&job.report()).0, Some(1));
    // It asked another, and not this one.
    let asked = &[(0, 1, 10), (1, -15, 11), (4, -15, 12)];
    let end = closing(12) + &failed(1, 0, 10) + &summary(asked);
    job.write("console.log", format!("{victims}{end}"));
    assert_eq!(cause(&job.report()).0, Some(1));
    // Whether it killed one that did not end when asked is lost with the beginning too.
    let end = failed(1, 0, 10) + &summary(&[(0, 1, 10), (1, -9, 11), (4, 3, 14)]);
    job.write("console.log", format!("{victims}{end}"));
    assert!(!sure(&job.report()));
}

#[test]
fn a_rank_that_is_waited_for_may_have_failed_where_its_files_are() {
    let waits = "torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/3";
    let job = Job::new("absent");
    for rank in 0..3 {
        let path = format!("node0/none_abcd1234/attempt_0/{rank}/error.json");
        job.record(&path, &torch(waits, START));
    }
    assert_eq!(
        cause(&job.report()),
        (Some(3), "never_arrived", Confidence::Medium)
    );
    job.write("node0/none_abcd1234/attempt_0/3/stderr.log", "importing\n");
    assert_eq!(
        cause(&job.report()),
        (Some(3), "never_arrived", Confidence::High)
    );
}

#[test]
fn a_kernels_word_is_of_the_process_that_it_names() {
    for (program, expected) in [
        ("kworker", "killed_unknown"),
        ("python3", "host_oom_killed"),
    ] {
        let job = Job::new("number");
        let end = closing(40) + &failed(-9, 1, 41) + &summary(&[(1, -9, 41), (0, -15, 40)]);
        job.write("train.log", end);
        let line = format!(
            "[12.3] Memory cgroup out of memory: Killed process 41 ({program}) total-vm:9kB\n"
        );
        job.write("dmesg.txt", line);
        assert_eq!(cause(&job.report()).1, expected, "{program}");
    }
}

#[test]
fn a_list_of_events_may_be_of_another_pod() {
    let job = Job::new("events");
    job.write("train.log", "step 1\nstep 2\n");
    job.write(
        "events.txt",
        "4m   Warning   Evicted   pod/redis-0   The node was low on resource: memory. Container redis was using 5Gi\n",
    );
    let found = job.report();
    assert_eq!(cause(&found).1, "preempted");
    assert!(!sure(&found));
}

#[test]
fn words_without_an_exception_are_no_proof() {
    let job = Job::new("words");
    let said = |rank: u32| {
        format!(
            "[rank{rank}]:[E115 15:39:38.0 ProcessGroupNCCL.cpp:1899] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n"
        )
    };
    let victims: String = [0, 1, 3].map(|rank| labelled(rank, PEER)).concat();
    job.write("train.log", said(2) + &victims);
    let all = Options::default().with_world_size(Some(4));
    let found = analyze(std::slice::from_ref(&job.0), &all).expect("readable");
    assert_eq!(cause(&found), (Some(2), "ecc_error", Confidence::Medium));
    let everywhere: String = (0..4).map(said).collect();
    job.write("train.log", everywhere);
    let found = analyze(std::slice::from_ref(&job.0), &all).expect("readable");
    assert_eq!(cause(&found), (None, "ecc_error", Confidence::Medium));
}

#[test]
fn of_several_launchers_without_summaries_nothing_tells_the_ranks() {
    let job = Job::new("launchers");
    job.write(
        "train.log",
        failed(1, 1, 20).replace(" 77 ", " 78 ") + &failed(-11, 0, 30),
    );
    let found = job.report().root_cause.expect("a worker crashed");
    assert_eq!((found.rank, found.category.as_str()), (None, "segfault"));
    // The log of the first of them, by its name.
    let job = Job::new("first");
    job.write("worker-0.log", failed(-11, 1, 20));
    job.write("worker-1.log", closing(30));
    assert_eq!(cause(&job.report()).0, Some(1));
}

#[test]
fn a_traceback_without_a_beginning_may_be_that_of_a_handler() {
    let missing = labelled(
        1,
        "FileNotFoundError: [Errno 2] No such file or directory: 'a'",
    );
    let (_, cut) = missing.split_once('\n').expect("a line");
    for (words, expected) in [
        (missing.as_str(), Confidence::High),
        (
            &format!("most recent call last):\n{cut}"),
            Confidence::Medium,
        ),
    ] {
        let job = Job::new("headless");
        job.write(
            "console.log",
            words.to_owned() + &labelled(0, PEER) + &labelled(2, PEER),
        );
        assert_eq!(cause(&job.report()), (Some(1), "missing_file", expected));
    }
}

#[test]
fn a_failure_of_nobody_may_have_come_first() {
    let error = traceback("ValueError: bad batch");
    let zero = closing(21) + &failed(3, 0, 20) + &summary(&[(1, 1, 21), (0, 3, 20)]);
    let job = Job::new("nobodys");
    job.write("train-worker-0.log", error + &zero);
    job.write("train-worker-1.log", labelled(2, PEER) + &labelled(3, PEER));
    let found = job.report();
    assert!(!sure(&found), "{:?}", found.root_cause);
    // Which of the two it is, the order does not tell.
    assert_eq!(found.ranks.primary, "0-1");
}

#[test]
fn an_error_after_which_the_program_goes_on_is_no_end() {
    let said = |end: &str| -> String {
        (0..4).map(|task| format!("{task}: step 0\n{task}: could not write the plot: PermissionError: [Errno 13] Permission denied\n{end}")
            .replace("{task}", &task.to_string())).collect()
    };
    let report = |text: String| {
        let job = Job::new("survived");
        job.write("slurm-1.out", text);
        job.report()
    };
    assert!(
        report(said("{task}: training finished\n"))
            .root_cause
            .is_none()
    );
    assert!(report(said("")).root_cause.is_some());
}
