//! The first labelled torchrun jobs: the verdict names the labelled rank, host and category, as surely as it may.
//!
//! Those with a planted `fault` are scored by `tests/accuracy.py`, and a third of them is looked at by nobody.

use firstfault_analysis::schema::{Confidence, RootCause};
use firstfault_analysis::{Options, Report, analyze};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/corpus")
}

fn report(case: &Path) -> Report {
    analyze(&[case.to_owned()], &Options::default()).expect("a case is readable")
}

fn mistakes(cause: &RootCause, expected: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |what: &str, found: Value, wanted: &Value| {
        if found != *wanted {
            wrong.push(format!("{what}: {found}, not {wanted}"));
        }
    };
    // Of some jobs nothing tells whose mistake it was: to name nobody is right.
    if cause.rank.is_some() || expected["rank_optional"].is_null() {
        check("rank", cause.rank.into(), &expected["rank"]);
        check(
            "local rank",
            cause.local_rank.into(),
            &expected["local_rank"],
        );
        let host = Some(cause.host.as_str()).filter(|host| !host.is_empty());
        // Where records are lost, the launcher's name of the host may be another one.
        let names = expected["node"].as_array().and_then(|names| names.first());
        check("host", host.into(), names.unwrap_or(&expected["node"]));
    }
    let categories = expected["category"].as_array().expect("a list");
    if !categories.contains(&Value::from(cause.category.as_str())) {
        wrong.push(format!(
            "category: {}, not one of {categories:?}",
            cause.category
        ));
    }
    wrong
}

#[test]
fn every_labelled_job_is_judged_right() {
    let mut cases: Vec<PathBuf> = std::fs::read_dir(corpus())
        .expect("tests/data/corpus")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    cases.sort();
    let label = |case: &Path| -> Value {
        let label = std::fs::read_to_string(case.join("expected.json")).expect("a label");
        serde_json::from_str(&label).expect("JSON")
    };
    cases.retain(|case| label(case)["fault"].is_null());
    assert!(cases.len() >= 29, "{cases:?}");
    for case in cases {
        let expected = label(&case);
        let report = report(&case);
        let cause = report
            .root_cause
            .as_ref()
            .unwrap_or_else(|| panic!("{}: no cause", case.display()));
        assert_eq!(
            mistakes(cause, &expected),
            Vec::<String>::new(),
            "{}",
            case.display()
        );
        // What a job leaves may not allow more.
        let sure = match expected["confidence"].as_str() {
            Some("low") => Confidence::Low,
            Some("medium") => Confidence::Medium,
            _ => Confidence::High,
        };
        assert_eq!(cause.confidence, sure, "{}", case.display());
        assert_eq!(report.damaged_files, [], "{}", case.display());
    }
}

#[test]
fn every_rank_is_accounted_for_once() {
    let report = report(&corpus().join("segv_0"));
    assert_eq!(report.ranks.primary, "1");
    assert_eq!(report.ranks.collateral, "0,2-3");
    assert_eq!(report.ranks.silent, "");
    assert_eq!(
        (
            report.job.run_id.as_str(),
            report.job.hosts,
            report.job.world_size
        ),
        ("j47271", 2, 4)
    );
}

#[test]
fn the_verdict_does_not_need_the_launchers_logs() {
    // Only the worker directories of the host that the segfault was on: stderr alone tells it.
    let report = report(&corpus().join("segv_0/node0"));
    let cause = report.root_cause.expect("a cause");
    assert_eq!((cause.rank, cause.category.as_str()), (Some(1), "segfault"));
    assert_eq!(
        cause.confidence,
        Confidence::Medium,
        "one victim is no corroboration"
    );
}

#[test]
fn a_world_size_shows_who_is_missing() {
    let paths = [corpus().join("raise_0")];
    let report = analyze(&paths, &Options::default().with_world_size(Some(6))).expect("readable");
    assert_eq!(report.ranks.silent, "4-5");
    assert!(
        report
            .incomplete
            .iter()
            .any(|line| line.contains("ranks 4-5")),
        "{:?}",
        report.incomplete
    );
}

#[test]
fn the_same_evidence_gives_the_same_report() {
    let case = corpus().join("raise_0");
    let first = report(&case);
    for _ in 0..20 {
        assert_eq!(report(&case), first);
    }
    // The order of paths does not matter, nor that they overlap.
    let parts = ["agent1.err", "node1", "node0", "agent0.err", "node1"].map(|part| case.join(part));
    assert_eq!(
        analyze(&parts, &Options::default())
            .expect("readable")
            .root_cause,
        first.root_cause
    );
}
