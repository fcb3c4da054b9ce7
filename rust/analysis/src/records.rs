//! Which of several records of one rank counts, and which are the same failure told twice.

use crate::kept::Record;
use crate::scan::FileRole;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A launcher copies the record of its first failed worker to its own error file; torch's copies tell no rank.
pub(crate) fn drop_copies(records: &mut Vec<Record>) {
    if records.iter().all(|record| record.slot.is_some()) {
        return;
    }
    let workers: BTreeSet<(Arc<str>, Option<i64>)> = records
        .iter()
        .filter(|record| record.slot.is_some())
        .map(|record| (record.failure.message.clone(), record.time_ns))
        .collect();
    records.retain(|record| {
        let told = record.slot.is_some() || record.failure.section.is_some();
        told || !workers.contains(&(record.failure.message.clone(), record.time_ns))
    });
}

/// Returns the record that tells how a rank ended, and the others; the same failure twice is one.
pub(crate) fn choose(mut records: Vec<Record>) -> (Option<Record>, Vec<Record>) {
    let provisional = |record: &Record| {
        record
            .failure
            .section
            .as_ref()
            .is_some_and(|section| !section.is_final)
    };
    // The fuller first, so that it is the one that stays.
    records.sort_by_key(|record| {
        (
            record.failure.section.is_none(),
            record.slot.is_none(),
            record.role,
        )
    });
    let mut kept: Vec<Record> = Vec::new();
    for record in records {
        if !kept.iter().any(|other| same(other, &record)) {
            kept.push(record);
        }
    }
    kept.sort_by_key(|record| {
        let child = record.role == FileRole::Child;
        let time = record.time_ns.unwrap_or(i64::MAX);
        (
            child,
            provisional(record),
            record.role == FileRole::Later,
            time,
        )
    });
    let own = kept
        .first()
        .is_some_and(|record| record.role != FileRole::Child);
    let record = own.then(|| kept.remove(0));
    (record, kept)
}

fn same(a: &Record, b: &Record) -> bool {
    if let (Some(one), Some(two)) = (&a.failure.section, &b.failure.section) {
        return a.identity.pid == b.identity.pid
            && one.host.name == two.host.name
            && a.time_ns.is_some()
            && a.time_ns == b.time_ns;
    }
    let beside =
        |copy: &Record, main: &Record| copy.role == FileRole::Copy && main.role == FileRole::Main;
    (beside(a, b) || beside(b, a)) && says(&a.failure.message, &b.failure.message)
}

/// Whether two messages are one, of which our writer may have cut its own.
fn says(one: &str, two: &str) -> bool {
    let uncut = |text: &str| {
        text.contains(" bytes cut ...\n")
            .then(|| text.split("\n... ").next().unwrap_or("").to_owned())
    };
    let begins = |whole: &str, cut: &str| uncut(cut).is_some_and(|begin| whole.starts_with(&begin));
    one == two || begins(one, two) || begins(two, one)
}
