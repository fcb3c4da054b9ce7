//! A log for each pod or rank: what follows from what torchrun leaves out, and from logs in which nobody speaks.

mod common;

use common::{Job, PEER, cause};
use firstfault_analysis::schema::Confidence;

const TIMEOUT: &str =
    "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete";
const ELASTIC: &str = "torch/distributed/elastic/multiprocessing/api.py";

fn traceback(error: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/j/train.py\", line 9, in main\n    step()\n{error}\n"
    )
}

fn labelled(label: &str, error: &str) -> String {
    let text = traceback(error);
    text.lines()
        .map(|line| format!("{label}{line}\n"))
        .collect()
}

fn failed(local_rank: u32) -> String {
    format!(
        "E1129 16:33:27.4 18 {ELASTIC}:869] failed (exitcode: 1) local_rank: {local_rank} (pid: 2{local_rank}) of binary: python\n"
    )
}

fn closed(local_rank: u32) -> String {
    format!(
        "W1129 16:33:27.4 18 {ELASTIC}:897] Sending process 2{local_rank} closing signal SIGTERM\n"
    )
}

fn summary(host: &str, rank: u32, local_rank: u32) -> String {
    format!(
        "Failures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_16:33:26\n  host      : {host}\n  \
         rank      : {rank} (local_rank: {local_rank})\n  exitcode  : 1 (pid: 2{local_rank})\n  error_file: <N/A>\n  traceback : x\n"
    )
}

#[test]
fn a_worker_that_torchrun_ended_and_did_not_list_was_there() {
    let job = Job::new("unlisted");
    let zero = labelled("[rank0]: ", TIMEOUT) + &labelled("[rank1]: ", TIMEOUT);
    let zero = zero + &closed(0) + &failed(1) + &summary("node0", 1, 1);
    job.write("train-worker-0.log", zero);
    let one = labelled("[rank2]: ", TIMEOUT) + &closed(1) + &failed(0) + &summary("node1", 2, 0);
    job.write("train-worker-1.log", one);
    let found = job.report();
    assert_eq!(cause(&found), (Some(3), "hang", Confidence::Medium));
    assert_eq!(found.root_cause.expect("a cause").host, "node1");
    assert_eq!(found.ranks.collateral, "0-2");
}

#[test]
fn a_mistaken_rank_beside_a_launcher_takes_no_memory() {
    let job = Job::new("mistaken");
    let log = labelled("[rank0]: ", PEER) + &failed(0) + &summary("node0", 0, 0);
    job.write("train-worker-0.log", log);
    let record = r#"{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "", "timestamp": "1795970006"}}, "firstfault": {"final": true, "rank": {"rank": 4294967290}}}"#;
    job.write("error.json", record);
    let found = job.report();
    assert_eq!(
        (
            found.ranks.primary.as_str(),
            found.ranks.collateral.as_str()
        ),
        ("4294967290", "0")
    );
}

#[test]
fn a_rank_that_speaks_in_another_log_is_not_of_the_only_launcher_that_sums_up() {
    let job = Job::new("cut");
    let zero = labelled("[rank0]: ", PEER) + &labelled("[rank1]: ", PEER);
    let zero = zero + &failed(0) + &summary("node0", 0, 0);
    job.write("train-worker-0.log", zero);
    let one = labelled("[rank2]: ", PEER) + &labelled("[rank3]: ", "ValueError: bad batch");
    job.write("train-worker-1.log", one);
    let found = job.report();
    let root = found.root_cause.as_ref().expect("a cause");
    assert_eq!((root.rank, root.host.as_str()), (Some(3), ""));
    assert_eq!(found.ranks.succeeded, "");
}

#[test]
fn whom_a_launcher_ended_in_another_attempt_or_with_itself_is_not_counted() {
    let attempts = closed(1) + &failed(0) + &closed(1) + &failed(0);
    let ended = format!(
        "W1129 16:33:27.4 18 {ELASTIC}:753] Received 15 death signal, shutting down workers\n"
    ) + &closed(1)
        + &failed(0);
    // Workers that ended well leave numbers free.
    let gap = closed(1) + &failed(0);
    for (words, local_rank) in [(attempts, 0), (ended, 0), (gap, 5)] {
        let job = Job::new("not-counted");
        let text = labelled("[rank0]: ", TIMEOUT) + &words;
        job.write(
            "train-worker-0.log",
            text + &summary("node0", local_rank, local_rank),
        );
        let found = job.report();
        let told = found.root_cause.as_ref().and_then(|cause| cause.rank);
        assert_ne!(told, Some(1), "{words}");
        assert!(!found.ranks.terminated.contains('1'), "{words}");
    }
}

#[test]
fn a_traceback_after_the_summary_is_another_hosts() {
    let port = "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use";
    let lost = "torch.distributed.DistNetworkError: failed to recv, got 0 bytes";
    let job = Job::new("after-summary");
    let text = labelled("[default0]:", port) + &closed(1) + &failed(0) + &summary("node0", 0, 0);
    // What the host's own ranks printed before is written late.
    let text = text + "[default0]:step 1\n";
    let others = labelled("[default0]:", lost) + &labelled("[default1]:", lost);
    job.write("console.log", text + &others);
    let found = job.report();
    assert_eq!(
        (cause(&found).0, cause(&found).1),
        (Some(0), "port_in_use"),
        "{:?}",
        found.root_cause
    );
    let notes = found.incomplete.join("\n");
    assert!(notes.contains("labels do not tell"), "{notes}");
}

/// Three pods of one rank each, of which the last leaves these words.
fn series(names: [&str; 3], labels: [&str; 2], last: &str) -> firstfault_analysis::Report {
    let job = Job::new("series");
    for (name, label) in names.iter().zip(labels) {
        job.write(name, labelled(label, PEER));
    }
    job.write(names[2], last);
    job.report()
}

const PODS: [&str; 3] = ["worker-0.log", "worker-1.log", "worker-2.log"];
const RANKS: [&str; 2] = ["[rank0]: ", "[rank1]: "];

#[test]
fn the_rank_in_whose_own_log_nobody_speaks_is_the_one() {
    for last in ["", "step 1\nstep 2\n"] {
        let found = series(PODS, RANKS, last);
        assert_eq!(cause(&found).0, Some(2), "{last}");
        assert!(cause(&found).2 < Confidence::High);
        assert_eq!(found.ranks.silent, "2");
    }
    // What it says itself is its own, with a label or without.
    let crash = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File \"t.py\", line 1 in main\n";
    for (last, category) in [
        (traceback("ValueError: bad batch"), "python_exception"),
        (crash.to_owned(), "segfault"),
    ] {
        let found = series(PODS, RANKS, &last);
        assert_eq!((cause(&found).0, cause(&found).1), (Some(2), category));
    }
    let named = ["rank_0.log", "rank_1.log", "rank_2.log"];
    let found = series(named, ["", ""], "step 1\n");
    assert_eq!(cause(&found).0, Some(2));
}

#[test]
fn the_pod_of_rank_0_has_another_name_than_the_workers_that_are_numbered_after_it() {
    for (names, labels, expected) in [
        (
            ["j-master-0.log", "j-worker-1.log", "j-worker-0.log"],
            ["[rank0]: ", "[rank2]: "],
            1,
        ),
        (["chief_0.log", "worker_0.log", "worker_1.log"], RANKS, 2),
        (
            [
                "j-workerpool1-0.log",
                "j-workerpool1-1.log",
                "j-workerpool0-0.log",
            ],
            ["[rank1]: ", "[rank2]: "],
            0,
        ),
    ] {
        for last in ["", "step 1\n"] {
            let found = series(names, labels, last);
            assert_eq!(cause(&found).0, Some(expected), "{names:?}");
            assert!(cause(&found).2 < Confidence::High);
        }
    }
}

#[test]
fn numbers_in_names_that_are_no_ranks_tell_nothing() {
    for (names, labels) in [
        // Launchers of several ranks each, and a master that is no rank.
        (
            ["j-master-0.log", "j-worker-1.log", "j-worker-0.log"],
            ["[rank0]: ", "[rank4]: "],
        ),
        (
            ["j-worker-0.log", "j-worker-1.log", "j-master-0.log"],
            RANKS,
        ),
        // Nodes of several ranks; names of jobs; a log of another job.
        (PODS, ["[rank0]: ", "[rank4]: "]),
        (["job-70.log", "job-71.log", "job-72.log"], RANKS),
        (["worker-0.log", "worker-1.log", "worker-7.log"], RANKS),
        (["worker-0.log", "worker-1.log", "other-2.log"], RANKS),
    ] {
        let found = series(names, labels, "step 1\n");
        assert_eq!(cause(&found).0, None, "{names:?}");
    }
}

#[test]
fn what_another_launcher_saw_is_not_lost_behind_a_summary() {
    let crash = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad frame\n";
    let rule = "=".repeat(60) + "\n";
    let zero = labelled("[rank0]: ", PEER) + &failed(0) + &summary("node0", 0, 0) + &rule;
    let one = crash.to_owned() + &failed(0).replace("exitcode: 1", "exitcode: -6");
    let one = one + &summary("node1", 1, 0).replace("exitcode  : 1", "exitcode  : -6") + &rule;
    let one = one.replace("pid: 20", "pid: 30");
    for logs in [[&zero, &one], [&one, &zero]] {
        let job = Job::new("two-logs");
        job.write("job.log", logs.map(String::as_str).concat());
        let found = job.report();
        assert_eq!(
            (cause(&found).0, cause(&found).1),
            (Some(1), "cpp_exception")
        );
    }
}

#[test]
fn another_ranks_line_before_what_an_exception_says_hides_nothing() {
    let text = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\nstep 0\n  what():  [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 64 vs 8\n";
    let lost = labelled("[rank1]: ", PEER) + &labelled("[rank2]: ", PEER);
    let status = failed(0).replace("exitcode: 1", "exitcode: -6");
    let summary = summary("node0", 0, 0).replace("exitcode  : 1", "exitcode  : -6");
    let job = Job::new("mixed");
    job.write("job.log", text.to_owned() + &lost + &status + &summary);
    assert_eq!(cause(&job.report()).1, "collective_mismatch");
}

#[test]
fn ranks_that_fail_alike_are_not_sure_where_the_words_of_others_are_not_here() {
    for heard in [false, true] {
        let job = Job::new("unheard");
        for node in 0..2_u32 {
            let mut text = labelled(&format!("[rank{}]: ", 2 * node), "ValueError: bad batch");
            if heard {
                text += &labelled(
                    &format!("[rank{}]: ", 2 * node + 1),
                    "ValueError: bad batch",
                );
            }
            let entry = summary(&format!("node{node}"), 2 * node, 0);
            let second = entry.split_once("[0]:\n").expect("an entry").1;
            let second = second.replace("(local_rank: 0)", "(local_rank: 1)");
            let second = second.replace("pid: 20", "pid: 21");
            let second = second.replace(
                &format!("rank      : {}", 2 * node),
                &format!("rank      : {}", 2 * node + 1),
            );
            text += &(failed(0)
                + &entry.replace("  <NO_OTHER_FAILURES>\n", &format!("[1]:\n{second}")));
            job.write(&format!("train-worker-{node}.log"), text);
        }
        let found = job.report();
        let sure = if heard {
            Confidence::High
        } else {
            Confidence::Medium
        };
        assert_eq!((cause(&found).0, cause(&found).2), (None, sure), "{heard}");
        assert_eq!(found.ranks.primary, "0-3");
    }
}

#[test]
fn a_worker_that_no_launcher_lists_ended_well_where_none_was_asked_to_end() {
    let lost = |rank: u32| labelled(&format!("[rank{rank}]: "), PEER);
    let zero = lost(0) + &failed(0) + &summary("node0", 0, 0);
    let one = lost(2) + &lost(3) + &closed(1) + &failed(0) + &summary("node1", 2, 0);
    let left = (Some(1), "left_early", Confidence::Medium);
    let job = Job::new("left");
    job.write("train-worker-0.log", &zero);
    job.write("train-worker-1.log", &one);
    let found = job.report();
    assert_eq!(cause(&found), left);
    assert_eq!(found.root_cause.expect("a cause").host, "node0");
    // The same in one log, where an orchestrator names the pods of its lines.
    let job = Job::new("left");
    let named = |name: &str, text: &str| {
        let lines = text
            .lines()
            .map(|line| format!("[pod/{name}/pytorch] {line}\n"));
        lines.collect::<String>()
    };
    job.write(
        "job.log",
        named("worker-1", &one) + &named("worker-0", &zero),
    );
    assert_eq!(cause(&job.report()), left);
    // Ranks 2 and 3 of a host that is lost are none of the first launcher's.
    let far = lost(4) + &lost(5) + &closed(1) + &failed(0) + &summary("node2", 4, 0);
    let near = lost(0) + &lost(1) + &closed(1) + &failed(0) + &summary("node0", 0, 0);
    let job = Job::new("lost");
    job.write("train-worker-0.log", near);
    job.write("train-worker-2.log", far);
    let found = job.report();
    assert_ne!(cause(&found).1, "left_early");
    assert_eq!(cause(&found).0, None);
}

#[test]
fn a_worker_that_its_launcher_ended_was_not_lost() {
    // Nothing states how many ranks there are, and another host may be lost.
    let lost = |rank: u32| labelled(&format!("[rank{rank}]: "), PEER);
    let job = Job::new("there");
    let zero = lost(0) + &closed(1) + &failed(0) + &summary("node0", 0, 0);
    job.write("train-worker-0.log", zero);
    let one = lost(2) + &lost(3) + &closed(1) + &failed(0) + &summary("node1", 2, 0);
    job.write("train-worker-1.log", one);
    let found = job.report();
    assert_eq!((cause(&found).0, cause(&found).1), (None, "peer_lost"));
    assert_eq!(found.suspects[0].rank, 1);
}

#[test]
fn a_launchers_log_without_a_word_is_of_a_host_that_is_lost() {
    for (last, category) in [("", "host_lost"), ("step 1\n", "host_lost")] {
        let job = Job::new("quiet");
        for rank in 0..3 {
            let text = labelled(&format!("[rank{rank}]: "), PEER) + &failed(0);
            let text = text + &summary(&format!("node{rank}"), rank, 0);
            job.write(&format!("train-worker-{rank}.log"), text);
        }
        job.write("train-worker-3.log", last);
        let found = job.report();
        assert_eq!(cause(&found), (None, category, Confidence::Low));
    }
}

#[test]
fn ranks_whose_words_are_cut_off_are_no_cause_where_all_others_waited() {
    let job = Job::new("cut");
    let zero = labelled("[rank1]: ", TIMEOUT);
    let text = zero.clone() + &failed(0) + &closed(1) + &summary("node0", 0, 0);
    job.write("train-worker-0.log", text);
    let one = labelled("[rank2]: ", TIMEOUT) + &closed(1) + &failed(0) + &summary("node1", 2, 0);
    job.write("train-worker-1.log", one);
    let found = job.report();
    assert_eq!(cause(&found), (Some(3), "hang", Confidence::Medium));
    // Where others lost a peer, it may have been the first.
    let lost = labelled("[rank1]: ", PEER) + &failed(0) + &summary("node0", 0, 0);
    job.write("train-worker-0.log", lost);
    assert_eq!(cause(&job.report()).1, "exit_without_traceback");
}

#[test]
fn each_of_several_logs_without_labels_has_a_voice() {
    let job = Job::new("voices");
    for (number, error) in [
        (0, PEER),
        (1, "FileNotFoundError: [Errno 2] No such file: 'a'"),
    ] {
        job.write(&format!("out-{number}.txt"), traceback(error));
    }
    assert_eq!(cause(&job.report()).1, "missing_file");
}

#[test]
fn whom_all_waited_for_may_have_been_killed_at_last() {
    for (error, sure) in [(TIMEOUT, Confidence::Medium), (PEER, Confidence::High)] {
        let job = Job::new("killed");
        let zero = labelled("[rank0]: ", error) + &failed(0);
        let entry = summary("node0", 1, 1).replace("exitcode  : 1", "exitcode  : -9");
        // Whom its launcher asked to end is not here.
        let zero = zero.replace(&failed(0), "") + &entry;
        job.write("train-worker-0.log", zero);
        let one = labelled("[rank2]: ", error) + &labelled("[rank3]: ", error);
        job.write(
            "train-worker-1.log",
            one + &failed(0) + &summary("node1", 2, 0),
        );
        let found = job.report();
        assert_eq!(cause(&found), (Some(1), "killed_unknown", sure));
    }
}

#[test]
fn the_first_of_each_host_without_a_word_are_no_proof_of_a_setting() {
    let entry = |host: &str, rank: u32| {
        let first = summary(host, rank, 0);
        let second = summary(host, rank + 1, 1).replace("exitcode  : 1", "exitcode  : -15");
        let second = second.split_once("[0]:\n").expect("an entry").1.to_owned();
        first.replace("  <NO_OTHER_FAILURES>\n", &format!("[1]:\n{second}"))
    };
    let job = Job::new("first");
    for node in 0..2 {
        let text = closed(1) + &failed(0) + &entry(&format!("node{node}"), 2 * node);
        job.write(&format!("train-worker-{node}.log"), text);
    }
    let found = job.report();
    assert_eq!(
        cause(&found),
        (None, "exit_without_traceback", Confidence::Low)
    );
}

#[test]
fn a_line_of_each_task_is_enough_where_srun_speaks() {
    let lost = format!("training failed: {PEER}");
    let said = format!(
        "0: step 0\n1: training failed: IndexError: list index out of range\n2: {lost}\n0: {lost}\n\
         srun: error: node0: task 1: Exited with exit code 1\nsrun: Terminating StepId=41295.0\n\
         srun: error: node0: task 0: Exited with exit code 1\nsrun: error: node1: task 2: Exited with exit code 1\n"
    );
    let job = Job::new("srun-short");
    job.write("slurm-41295.out", said);
    let found = job.report();
    assert_eq!(
        cause(&found),
        (Some(1), "python_exception", Confidence::Medium)
    );
    assert_eq!(found.ranks.collateral, "0,2");
}
