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
