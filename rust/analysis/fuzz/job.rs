//! What must hold for the report on any job, whatever its files hold.

use firstfault_analysis::report::{digest, json, line, markdown, redact, text};
use firstfault_analysis::{Options, Report, analyze};
use std::path::Path;

/// The limits that the report's documentation states.
const MAX_LINES: usize = 60;
const MAX_DIGEST_BYTES: usize = 4_000;

/// Judges the files below a directory, twice, and checks all forms of the report.
pub fn check(directory: &Path) {
    let judge = || analyze(&[directory.to_owned()], &Options::default());
    let (Ok(report), Ok(again)) = (judge(), judge()) else {
        return;
    };
    assert!(report == again, "the same files gave two reports");
    check_forms(report);
}

/// Checks that each form of a report keeps its limits, and holds nothing that a terminal would obey.
pub fn check_forms(report: Report) {
    let plain = text::render(&report, false);
    assert!(plain.lines().count() <= MAX_LINES, "too many lines:\n{plain}");
    let is_safe = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
    assert!(is_safe(&plain), "a control character in {plain:?}");
    let short = digest::render(&report);
    assert!(short.len() <= MAX_DIGEST_BYTES, "a digest of {} bytes", short.len());
    assert!(is_safe(&short), "a control character in {short:?}");
    let one = line::render(&report);
    assert!(one.trim_end().lines().count() <= 1, "several lines: {one:?}");
    assert!(is_safe(&one), "a control character in {one:?}");
    markdown::render(&report);
    json::render(&redact::redacted(report));
}
