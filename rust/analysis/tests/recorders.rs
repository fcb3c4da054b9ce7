//! PyTorch's flight recorders: who is behind, who entered another collective, and what is neither.

mod common;

use common::{Job, cause};
use firstfault_analysis::schema::Confidence;
use serde_json::{Value, json};

type Entered<'a> = (&'a str, u64, &'a str, Value, i64);

/// Writes the dump of one rank: group, number, operation, sizes and time of each collective.
fn dump(job: &Job, name: &str, entries: &[Entered<'_>]) {
    let entries: Vec<Value> = entries
        .iter()
        .map(|(group, number, operation, sizes, time)| {
            json!({"process_group": [group, "x"], "collective_seq_id": number, "is_p2p": false, "profiling_name": operation,
                   "input_sizes": sizes, "time_created_ns": time})
        })
        .collect();
    let config = json!({"0": {"name": "0", "desc": "", "ranks": "[0, 1, 2]"}});
    job.record(
        name,
        &json!({"version": "2.10", "pg_config": config, "entries": entries}),
    );
}

#[test]
fn uneven_sizes_of_what_may_be_uneven_are_no_mismatch() {
    let job = Job::new("uneven");
    for rank in 0..3 {
        let behind = [("0", 1, "nccl:all_to_all", json!([[rank]]), 1)];
        let other = [
            behind[0].clone(),
            ("0", 2, "nccl:all_to_all", json!([[9 - rank]]), 2),
        ];
        dump(
            &job,
            &format!("fr_rank_{rank}.json"),
            if rank == 1 { &behind } else { &other },
        );
    }
    assert_eq!(cause(&job.report()), (Some(1), "hang", Confidence::Medium));
}

#[test]
fn other_sizes_of_a_reduction_are_a_mismatch() {
    let job = Job::new("sizes");
    for rank in 0..3 {
        let size = if rank == 2 { 8 } else { 4 };
        dump(
            &job,
            &format!("fr_rank_{rank}.json"),
            &[("0", 7, "gloo:all_reduce", json!([[size]]), 1)],
        );
    }
    let found = job.report();
    assert_eq!(
        cause(&found),
        (None, "collective_mismatch", Confidence::Medium)
    );
    assert_eq!(found.suspects[0].rank, 2);
}

#[test]
fn the_group_that_was_in_use_last_counts() {
    let job = Job::new("groups");
    for rank in 0..3 {
        // In the old group rank 2 was done one earlier; in the one of now rank 1 is behind.
        let old = (
            "0",
            if rank == 2 { 4 } else { 5 },
            "nccl:all_reduce",
            json!([[1]]),
            10,
        );
        let new = (
            "1",
            if rank == 1 { 90 } else { 100 },
            "nccl:all_reduce",
            json!([[1]]),
            99,
        );
        dump(&job, &format!("fr_rank_{rank}.json"), &[old, new]);
    }
    assert_eq!(cause(&job.report()).0, Some(1));
}

#[test]
fn a_ring_that_lost_a_group_is_no_missing_dump() {
    let job = Job::new("ring");
    for rank in 0..3 {
        let one = ("0", 5, "nccl:all_reduce", json!([[1]]), 10);
        let two = ("1", 5, "nccl:all_reduce", json!([[1]]), 20);
        let both = [one, two];
        dump(
            &job,
            &format!("fr_rank_{rank}.json"),
            if rank == 2 { &both[1..] } else { &both },
        );
    }
    assert!(
        job.report()
            .root_cause
            .is_none_or(|cause| cause.rank.is_none())
    );
}

#[test]
fn of_two_attempts_the_later_dump_counts() {
    let job = Job::new("dumps");
    for rank in 0..3 {
        let old = (
            "0",
            if rank == 0 { 1 } else { 2 },
            "nccl:all_reduce",
            json!([[1]]),
            10,
        );
        let new = (
            "0",
            if rank == 1 { 6 } else { 7 },
            "nccl:all_reduce",
            json!([[1]]),
            99,
        );
        dump(&job, &format!("a/fr_rank_{rank}.json"), &[old]);
        dump(&job, &format!("b/fr_rank_{rank}.json"), &[new]);
    }
    assert_eq!(cause(&job.report()).0, Some(1));
}
