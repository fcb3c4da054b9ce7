//! Labelled jobs whose ranks deferred an error: the one that had it is named, with time, step and place.

use firstfault_analysis::report::{show, text};
use firstfault_analysis::schema::Confidence;
use firstfault_analysis::{Options, Report, analyze};
use std::path::{Path, PathBuf};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/corpus/{name}"))
}

fn report(path: &Path) -> Report {
    analyze(&[path.to_owned()], &Options::default()).expect("a case is readable")
}

/// The worker directories alone: what ranks say of themselves, without their launcher.
fn records(name: &str) -> PathBuf {
    case(name).join("node0")
}

fn error_file(name: &str, rank: u32) -> PathBuf {
    let attempt = std::fs::read_dir(records(name)).expect("a run").next();
    let run = attempt.expect("one run").expect("an entry").path();
    run.join(format!("attempt_0/{rank}/error.json"))
}

#[test]
fn the_rank_that_deferred_the_error_is_the_cause_with_step_and_place() {
    for path in [case("deferred_full"), records("deferred_full")] {
        let report = report(&path);
        let cause = report.root_cause.as_ref().expect("a cause");
        assert_eq!(
            (cause.rank, cause.category.as_str()),
            (Some(0), "disk_full")
        );
        assert_eq!(
            cause.title,
            "OSError: [Errno 28] No space left on device, deferred at step 17 in \"metadata\""
        );
        assert_eq!((cause.step, cause.confidence), (Some(17), Confidence::High));
        assert_eq!(report.ranks.primary, "0");
        assert_eq!(report.ranks.collateral, "1-3");
        let evidence = cause.evidence.join("\n");
        for part in [
            "it deferred the error; the ranks stopped at step 17",
            "3 ranks only stopped with it, as all had agreed (stopped_by_agreement): 1-3",
            "3 other ranks point at it: ranks 1-3",
        ] {
            assert!(evidence.contains(part), "{part} in {evidence}");
        }
        let page = text::render(&report, false);
        assert!(
            page.starts_with("ROOT CAUSE  rank 0 (local rank 0"),
            "{page}"
        );
    }
}

#[test]
fn the_time_is_that_of_the_error_and_not_of_the_way_out() {
    let mut times = Vec::new();
    for rank in 0..4 {
        let bytes = std::fs::read(error_file("deferred_full", rank)).expect("a record");
        let file: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        let section = &file["firstfault"];
        assert_eq!(
            (&section["kind"], &section["final"]),
            (&"deferred".into(), &true.into())
        );
        times.push(section["time_ns"].as_i64().expect("a time"));
    }
    assert!(times[1..].iter().all(|time| *time > times[0]), "{times:?}");
    let cause = report(&case("deferred_full")).root_cause.expect("a cause");
    assert_eq!(cause.time_ns, Some(times[0]));
}

#[test]
fn two_ranks_with_the_same_error_are_both_the_cause() {
    let report = report(&case("deferred_both"));
    let cause = report.root_cause.expect("a cause");
    assert_eq!(cause.category, "disk_full");
    assert_eq!(report.ranks.primary, "0,2");
    assert_eq!(report.ranks.collateral, "1,3");
}

#[test]
fn a_later_death_is_the_cause_and_tells_what_was_pending() {
    let pending =
        "deferred at step 17 in \"metadata\": OSError: [Errno 28] No space left on device";
    for (name, category) in [
        ("deferred_crash", "segfault"),
        ("deferred_kill", "killed_unknown"),
    ] {
        let report = report(&case(name));
        let cause = report.root_cause.as_ref().expect("a cause");
        assert_eq!(cause.rank, Some(0), "{name}");
        assert_eq!(cause.category, category, "{name}");
        assert!(!cause.title.contains("deferred"), "{name}: {}", cause.title);
        let told = cause.evidence.iter().any(|line| line.contains(pending));
        assert!(told, "{name}: {:?}", cause.evidence);
        let left = cause.evidence.iter().any(|line| line.contains("left main"));
        assert!(!left, "{name}: {:?}", cause.evidence);
    }
}

#[test]
fn one_file_says_what_was_deferred_or_that_its_rank_only_stopped() {
    for (name, rank, part) in [
        (
            "deferred_full",
            0,
            "held  deferred at step 17 in \"metadata\", stopped at step 17",
        ),
        (
            "deferred_full",
            1,
            "held  another rank's error was deferred, stopped at step 17",
        ),
        (
            "deferred_crash",
            0,
            "after OSError: [Errno 28] No space left on device, deferred at step 17",
        ),
        (
            "deferred_kill",
            0,
            "note  provisional: the program went on after this",
        ),
    ] {
        let shown = show::read(&error_file(name, rank)).expect("a record");
        let text = show::text(&shown, false);
        assert!(text.contains(part), "{name} {rank}: {text}");
    }
}
