//! Jobs whose culprit left nothing: it hung, never arrived, was lost with its host, or others tell its failure.

mod common;

use common::{Job, PEER, START, cause, torch};
use firstfault_analysis::schema::Confidence;

const TIMEOUT: &str =
    "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete";

/// One launcher's summary: rank, local rank and exit code of each worker that did not end well.
fn summary(job: &Job, name: &str, run: &str, workers: &[(u32, u32, i32)]) {
    let mut text = "Failures:\n".to_owned();
    for (rank, local, status) in workers {
        let file = if job
            .0
            .join(run)
            .join(format!("attempt_0/{local}/error.json"))
            .exists()
        {
            format!(
                "/elsewhere/{}/attempt_0/{local}/error.json",
                run.rsplit('/').next().expect("a name")
            )
        } else {
            "<N/A>".to_owned()
        };
        text += &format!(
            "[0]:\n  time      : 2026-11-29_16:33:26\n  host      : localhost\n  rank      : {rank} (local_rank: {local})\n  \
             exitcode  : {status} (pid: {})\n  error_file: {file}\n  traceback : x\n",
            1000 + rank
        );
    }
    job.write(name, text);
}

/// Two hosts of two ranks each: what each rank recorded, and how its launcher saw it end.
fn four(job: &Job, messages: [Option<&str>; 4], statuses: [i32; 4]) {
    for node in 0..2_u32 {
        let run = format!("node{node}/job_{node}bcd1234");
        let mut workers = Vec::new();
        for local in 0..2 {
            let rank = node * 2 + local;
            let index = rank as usize;
            job.write(&format!("{run}/attempt_0/{local}/stderr.log"), "");
            if let Some(message) = messages[index] {
                job.record(
                    &format!("{run}/attempt_0/{local}/error.json"),
                    &torch(message, START),
                );
            }
            workers.push((rank, local, statuses[index]));
        }
        summary(job, &format!("node{node}/agent.log"), &run, &workers);
    }
}

#[test]
fn the_only_rank_that_did_not_time_out_hung() {
    let job = Job::new("hang");
    four(
        &job,
        [Some(TIMEOUT), Some(TIMEOUT), None, Some(TIMEOUT)],
        [1, -15, -15, 1],
    );
    let report = job.report();
    assert_eq!(cause(&report), (Some(2), "hang", Confidence::Medium));
    assert_eq!(report.root_cause.expect("a cause").host, "node1");
}

#[test]
fn a_rank_that_three_wait_for_by_name_never_arrived() {
    let job = Job::new("late");
    let wait = "DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/1";
    four(
        &job,
        [Some(wait), None, Some(wait), Some(wait)],
        [1, -15, 1, -15],
    );
    assert_eq!(
        cause(&job.report()),
        (Some(1), "never_arrived", Confidence::High)
    );
}

#[test]
fn all_ranks_that_time_out_name_no_rank() {
    let job = Job::new("fabric");
    four(&job, [Some(TIMEOUT); 4], [1, -15, 1, -15]);
    let report = job.report();
    assert_eq!(
        cause(&report),
        (None, "collective_timeout", Confidence::None)
    );
}

#[test]
fn a_host_of_which_nothing_came_back_is_lost_unless_its_launcher_spoke() {
    let job = Job::new("lost");
    for local in 0..2 {
        job.record(
            &format!("node0/job_abcd1234/attempt_0/{local}/error.json"),
            &torch(PEER, START),
        );
        job.write(
            &format!("node0/job_abcd1234/attempt_0/{local}/stderr.log"),
            "",
        );
        job.write(
            &format!("node1/job_efgh5678/attempt_0/{local}/stderr.log"),
            "",
        );
    }
    summary(
        &job,
        "agent0.log",
        "node0/job_abcd1234",
        &[(0, 0, 1), (1, 1, 1)],
    );
    let report = job.report();
    assert_eq!(cause(&report), (None, "host_lost", Confidence::Medium));
    assert_eq!(
        (
            report.root_cause.expect("a cause").host.as_str(),
            report.ranks.silent.as_str()
        ),
        ("node1", "2-3")
    );

    job.write(
        "agent1.log",
        "W1 api.py:1028] Sending process 4711 closing signal SIGTERM\n",
    );
    let report = job.report();
    assert_eq!(cause(&report), (None, "unknown", Confidence::Low));
    assert_eq!(
        report
            .suspects
            .iter()
            .map(|suspect| suspect.rank)
            .collect::<Vec<_>>(),
        [2, 3]
    );
}

#[test]
fn a_launcher_that_was_ended_tells_of_its_host() {
    let job = Job::new("preempted");
    four(
        &job,
        [Some(PEER), Some(PEER), None, None],
        [1, -15, -15, -15],
    );
    job.write(
        "node1/slurm.out",
        "W1 api.py:1] Received Signals.SIGTERM death signal, shutting down workers\n",
    );
    let log = std::fs::read_to_string(job.0.join("node1/agent.log")).expect("written");
    job.write(
        "node1/agent.log",
        log + "W1 api.py:1] Received Signals.SIGTERM death signal, shutting down workers\n",
    );
    let report = job.report();
    assert_eq!(cause(&report), (None, "preempted", Confidence::Medium));
    assert_eq!(report.root_cause.expect("a cause").host, "node1");
}

#[test]
fn a_checkpoint_failure_is_the_named_ranks() {
    let job = Job::new("relay");
    four(&job, [None; 4], [1, 1, 1, -15]);
    for rank in 0..4_u32 {
        let text = "Traceback (most recent call last):\n  File \"/j/train.py\", line 86, in main\n    dcp.save()\n\
            torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])\n\
            Traceback (most recent call last): (RANK 2)\n  File \"/j/train.py\", line 84, in write_data\n    raise\n\
            OSError: [Errno 28] No space left on device: '/ckpt/shard_2'\n";
        let labelled: String = text
            .lines()
            .map(|line| format!("[rank{rank}]: {line}\n"))
            .collect();
        job.write(
            &format!(
                "node{0}/job_{0}bcd1234/attempt_0/{1}/stderr.log",
                rank / 2,
                rank % 2
            ),
            labelled,
        );
    }
    let report = job.report();
    assert_eq!(cause(&report), (Some(2), "disk_full", Confidence::High));
    assert_eq!(report.ranks.collateral, "0-1,3");
}

#[test]
fn a_checkpoint_failure_of_several_is_no_single_ranks() {
    for (ranks, expected) in [("0, 1", None), ("0", Some(0))] {
        let text = format!(
            "Traceback (most recent call last):\n  File \"/j/train.py\", line 86, in main\n    dcp.load()\n\
             torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([{ranks}])\n"
        );
        let told = |rank: &str| {
            format!(
                "Traceback (most recent call last): (RANK {rank})\n  File \"/j/train.py\", line 84, in plan\n    raise\n\
                 RuntimeError: Missing key in checkpoint state_dict: step.\n"
            )
        };
        let text: String = ranks
            .split(", ")
            .fold(text, |text, rank| text + &told(rank));
        let job = Job::new("relay");
        let labelled: String = text
            .lines()
            .map(|line| format!("[rank0]: {line}\n"))
            .collect();
        job.write("train.log", labelled);
        let report = job.report();
        assert_eq!(
            (cause(&report).0, cause(&report).1),
            (expected, "checkpoint_mismatch"),
            "{ranks}"
        );
    }
}

#[test]
fn who_reports_a_mismatch_is_not_named() {
    let job = Job::new("mismatch");
    four(
        &job,
        [Some(PEER), None, Some(PEER), Some(PEER)],
        [-15, -6, 1, -15],
    );
    let text = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:456] \
        Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\nFatal Python error: Aborted\n";
    job.write("node0/job_0bcd1234/attempt_0/1/stderr.log", text);
    let report = job.report();
    assert_eq!(
        cause(&report),
        (None, "collective_mismatch", Confidence::Low)
    );
    assert_eq!(report.suspects[0].rank, 1);
}

#[test]
fn a_rank_that_its_launcher_does_not_list_ended_well() {
    let job = Job::new("well");
    for local in 0..2 {
        job.write(&format!("job_abcd1234/attempt_0/{local}/stderr.log"), "");
    }
    job.record(
        "job_abcd1234/attempt_0/1/error.json",
        &torch("ValueError: loss is nan", START),
    );
    summary(&job, "agent.log", "job_abcd1234", &[(1, 1, 1)]);
    let report = job.report();
    assert_eq!(
        (
            report.ranks.succeeded.as_str(),
            report.ranks.primary.as_str()
        ),
        ("0", "1")
    );
}

/// What the watchdog of a rank says that waited in a collective.
fn waited(rank: u32, number: u64, operation: &str, size: u64, group: &str) -> String {
    format!(
        "[rank{rank}]:[E1129 16:33:27.4 ProcessGroupNCCL.cpp:685] {group}Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
    )
}

fn of_world(text: &str, world: u32) -> firstfault_analysis::Report {
    let job = Job::new("watchdogs");
    job.write("slurm-1.out", text);
    let options = firstfault_analysis::Options::default().with_world_size(Some(world));
    firstfault_analysis::analyze(std::slice::from_ref(&job.0), &options).unwrap()
}

#[test]
fn watchdogs_that_wait_in_one_collective_blame_nobody() {
    let text: String = (0..4)
        .map(|rank| waited(rank, 42, "ALLREDUCE", 7, ""))
        .collect();
    let found = of_world(&text, 4);
    assert_eq!(cause(&found), (None, "collective_timeout", Confidence::Low));
    assert!(found.suspects.is_empty());
    let told = found.root_cause.unwrap().evidence.join("\n");
    assert!(told.contains("nobody is behind"), "{told}");
}

#[test]
fn watchdogs_that_wait_in_different_collectives_tell_of_a_mismatch() {
    for (operation, size) in [("BROADCAST", 7), ("ALLREDUCE", 8)] {
        let mut text: String = (0..3)
            .map(|rank| waited(rank, 42, "ALLREDUCE", 7, ""))
            .collect();
        text += &waited(3, 42, operation, size, "");
        let found = of_world(&text, 4);
        let (rank, category, sure) = cause(&found);
        assert_eq!(
            (rank, category),
            (None, "collective_mismatch"),
            "{operation}"
        );
        assert!(sure < Confidence::High);
        assert_eq!(found.suspects[0].rank, 3);
    }
    // Gathered sizes may differ.
    let mut text: String = (0..3)
        .map(|rank| waited(rank, 42, "ALLGATHER", 7, ""))
        .collect();
    text += &waited(3, 42, "ALLGATHER", 8, "");
    assert_eq!(cause(&of_world(&text, 4)).1, "collective_timeout");
}

#[test]
fn a_rank_that_waits_behind_the_others_is_suspected_and_not_blamed() {
    let mut text: String = (0..3)
        .map(|rank| waited(rank, 43, "ALLREDUCE", 7, ""))
        .collect();
    text += &waited(3, 42, "ALLREDUCE", 7, "");
    let found = of_world(&text, 4);
    assert_eq!(cause(&found), (None, "hang", Confidence::Low));
    assert_eq!(
        found
            .suspects
            .iter()
            .map(|suspect| suspect.rank)
            .collect::<Vec<_>>(),
        [3]
    );
}

#[test]
fn a_rank_that_never_entered_what_the_others_wait_in_is_behind() {
    let mut text: String = (0..3)
        .map(|rank| waited(rank, 43, "ALLREDUCE", 7, ""))
        .collect();
    text += "[rank3]:[E1129 16:33:27.4 ProcessGroupNCCL.cpp:685] Observed flight recorder dump signal from another rank via TCPStore. last enqueued work: 42, last completed work: 42\n";
    assert_eq!(
        cause(&of_world(&text, 4)),
        (Some(3), "hang", Confidence::Medium)
    );
}

#[test]
fn numbers_of_different_groups_do_not_compare() {
    // Ranks 0 and 1 are in one group, 2 and 3 in another that has counted less.
    let mut text = String::new();
    for rank in 0..4 {
        let group = rank / 2 + 4;
        let place = format!("[PG ID 2 PG GUID {group}(tp) Rank {}] ", rank % 2);
        text += &waited(rank, if rank < 2 { 43 } else { 12 }, "ALLREDUCE", 7, &place);
    }
    let found = of_world(&text, 4);
    assert_ne!(found.root_cause.as_ref().unwrap().rank, Some(2));
    assert_ne!(found.root_cause.as_ref().unwrap().rank, Some(3));
    assert!(found.suspects.is_empty());
}

#[test]
fn a_silent_rank_is_suspected_before_one_that_waits_behind() {
    let mut text: String = (0..2)
        .map(|rank| waited(rank, 43, "ALLREDUCE", 7, ""))
        .collect();
    text += &waited(2, 42, "ALLREDUCE", 7, "");
    assert_eq!(cause(&of_world(&text, 4)).0, Some(3));
}

#[test]
fn watchdogs_without_a_label_say_their_rank() {
    let line = |rank: u32| {
        format!(
            "[E ProcessGroupNCCL.cpp:475] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=7, NumelOut=7, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
        )
    };
    let text: String = [0, 1, 3].map(line).concat();
    let found = of_world(&text, 4);
    assert_eq!(found.ranks.collateral, "0-1,3");
    assert_eq!(cause(&found).0, Some(2));
}

fn of_nobody_knows_how_many(text: &str) -> firstfault_analysis::Report {
    let job = Job::new("uncounted");
    job.write("slurm-1.out", text);
    job.report()
}

#[test]
fn a_rank_that_two_others_leave_out_may_only_not_be_shown() {
    let of = |ranks: &[u32]| -> String {
        let lines = ranks
            .iter()
            .map(|rank| waited(*rank, 42, "ALLREDUCE", 7, ""));
        lines.collect()
    };
    let named = |ranks: &[u32]| cause(&of_nobody_knows_how_many(&of(ranks))).0;
    assert_eq!(named(&[0, 2]), None);
    assert_eq!(named(&[0, 1, 3]), Some(2));
    assert_eq!(named(&[1, 2]), Some(0));
    assert_eq!(cause(&of_world(&of(&[0, 2]), 3)).0, Some(1));
    // Whose lines are folded into one is not seen.
    let folded = of(&[0, 1, 3]).replace("timing out.", "timing out. [repeated 2x across cluster]");
    assert_eq!(cause(&of_nobody_knows_how_many(&folded)).0, None);
}

#[test]
fn a_limit_of_a_moment_is_nobodys_hang() {
    let text = waited(1, 1, "ALLREDUCE", 1, "").replace("(ms)=600000", "(ms)=10");
    assert_eq!(
        cause(&of_world(&text, 2)),
        (None, "config_error", Confidence::None)
    );
}

#[test]
fn ranks_say_themselves_whom_they_missed_in_a_monitored_barrier() {
    let victim = |rank: u32| {
        format!(
            "2026-11-29 00:11:29,529 INFO uneven workload: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n[/g/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete\nLeaving\n"
        )
    };
    let victims = victim(1) + &victim(3);
    let found = of_nobody_knows_how_many(&victims);
    assert_eq!(cause(&found), (Some(0), "hang", Confidence::Medium));
    assert_eq!(found.ranks.collateral, "1,3");
    let names = "[E ProcessGroupGloo.cpp:138] [Rank 0]: Rank 2 failed to pass monitoredBarrier in 30000 ms\n";
    let found = of_nobody_knows_how_many(&format!("{names}{victims}"));
    assert_eq!(cause(&found), (Some(2), "hang", Confidence::Medium));
    assert_eq!(found.ranks.collateral, "0-1,3");
}

#[test]
fn a_rank_whose_last_word_is_that_it_waits_has_waited() {
    let waits = |rank: u32| {
        format!(
            "[rank{rank}]: Waiting in store based barrier to initialize process group for rank: {rank}, key: store_based_barrier_key:1 (world_size=8, worker_count=2, timeout=0:30:00)\n"
        )
    };
    let text = waits(0) + &waits(1);
    assert_eq!(cause(&of_nobody_knows_how_many(&text)).1, "never_arrived");
    let raises = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/j/train.py\", line 9, in main\n[rank1]: ValueError: x\n";
    let found = of_nobody_knows_how_many(&(text.clone() + raises));
    assert_eq!(
        (cause(&found).0, cause(&found).1),
        (Some(1), "python_exception")
    );
    let went_on = of_nobody_knows_how_many(&format!("{text}[rank0]: step 1\n{raises}"));
    assert_eq!(went_on.ranks.collateral, "");
}
