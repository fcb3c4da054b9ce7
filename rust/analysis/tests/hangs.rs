//! Jobs that hung until somebody ended them: the rank that stood elsewhere than the rest.

mod common;

use common::{Job, SECOND, START, cause, ours};
use firstfault_analysis::schema::Confidence;
use serde_json::{Value, json};

const WAITING: &[(&str, u32, &str)] = &[
    (
        "/v/site-packages/torch/distributed/distributed_c10d.py",
        3913,
        "all_reduce",
    ),
    ("/j/train.py", 17, "step"),
    ("/j/train.py", 40, "main"),
];
const LOADING: &[(&str, u32, &str)] = &[
    ("/j/data.py", 12, "load"),
    ("/j/train.py", 15, "step"),
    ("/j/train.py", 40, "main"),
];

/// The snapshot that a rank leaves when it is asked to end.
fn snapshot(rank: u32, stack: &[(&str, u32, &str)]) -> Value {
    let mut record = ours(rank, "x", START + SECOND);
    record["message"]["message"] = json!("SIGTERM (Terminated): sent by process 1 (slurmstepd)");
    let frames: Vec<Value> = stack
        .iter()
        .map(|(file, line, function)| json!({"file": file, "line": line, "function": function}))
        .collect();
    let section = record["firstfault"].as_object_mut().unwrap();
    section.remove("exception");
    section.insert("kind".into(), json!("terminated"));
    section.insert(
        "signal".into(),
        json!({"number": 15, "name": "SIGTERM", "sender": {"pid": 1}}),
    );
    section.insert(
        "threads".into(),
        json!([{"tid": 1000 + rank, "crashed": true, "python": frames}]),
    );
    record
}

fn job(stacks: &[&[(&str, u32, &str)]]) -> Job {
    let job = Job::new("hang");
    for (rank, stack) in (0..).zip(stacks) {
        let name = format!(
            "job/attempt_0/rank_{rank}.node0.{0}.{0}.term.json",
            1000 + rank
        );
        job.record(&name, &snapshot(rank, stack));
    }
    job
}

#[test]
fn the_rank_that_did_not_wait_is_named_with_its_place() {
    let found = job(&[WAITING, WAITING, LOADING, WAITING]).report();
    assert_eq!(cause(&found), (Some(2), "hang", Confidence::Medium));
    let evidence = found.root_cause.unwrap().evidence.join("\n");
    assert!(
        evidence.contains("it stood in load (data.py:12)"),
        "{evidence}"
    );
    assert!(
        evidence.contains("3 ranks waited in all_reduce"),
        "{evidence}"
    );
}

#[test]
fn several_that_did_not_wait_are_suspects() {
    let found = job(&[WAITING, WAITING, LOADING, WAITING, LOADING, WAITING]).report();
    assert_eq!(cause(&found), (None, "hang", Confidence::Low));
    let suspects: Vec<_> = found.suspects.iter().map(|suspect| suspect.rank).collect();
    assert_eq!(suspects, [2, 4]);
}

#[test]
fn ranks_that_wait_at_different_places_are_no_culprits() {
    let mut elsewhere = WAITING.to_vec();
    elsewhere[1].1 = 25;
    let found = job(&[WAITING, WAITING, &elsewhere, WAITING]).report();
    let (rank, _, sure) = cause(&found);
    assert_eq!((rank, sure), (None, Confidence::Low));
    assert_eq!(found.suspects.len(), 1, "{:?}", found.suspects);
}

#[test]
fn ranks_that_worked_when_they_were_ended_did_not_hang() {
    let mut other = LOADING.to_vec();
    other[0].1 = 99;
    let found = job(&[LOADING, LOADING, &other, LOADING]).report();
    assert_ne!(found.root_cause.and_then(|cause| cause.rank), Some(2));
}

#[test]
fn a_job_that_its_scheduler_ended_tells_who_stood_apart() {
    let job = job(&[WAITING, LOADING, WAITING, WAITING]);
    job.write("slurm-1.out", "slurmstepd: error: *** STEP 1.0 ON node0 CANCELLED AT 2026-11-29T20:00:00 DUE TO TIME LIMIT ***\n");
    let found = job.report();
    assert_eq!(cause(&found), (None, "time_limit", Confidence::Medium));
    assert_eq!(
        found
            .suspects
            .iter()
            .map(|suspect| suspect.rank)
            .collect::<Vec<_>>(),
        [1]
    );
    assert!(
        found.suspects[0].reason.contains("data.py:12"),
        "{:?}",
        found.suspects
    );
}
