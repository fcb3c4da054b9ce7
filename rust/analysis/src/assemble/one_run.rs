//! Of several runs below the same paths, one.

use super::Job;
use crate::decide::count;
use crate::kept::Record;
use crate::scan::{Boxed, Evidence, RunPath, run_id};
use std::collections::{BTreeMap, HashMap};

/// Keeps the run whose failure is the latest.
pub(super) fn one_run(evidence: &mut Evidence, job: &mut Job) {
    let mut runs: BTreeMap<String, i64> = BTreeMap::new();
    // Ten thousand records are of a few runs: their names are made once each.
    let mut names: HashMap<RunPath, String> = HashMap::new();
    for slots in evidence.slots.chunk_by(|a, b| a.key.run == b.key.run) {
        let run = &slots[0].key.run;
        names.entry(run.clone()).or_insert_with(|| run_id(run));
    }
    runs.extend(names.values().map(|run| (run.clone(), 0)));
    for record in &evidence.records {
        let run = run_of(record, &names);
        let time = record.time_ns.unwrap_or(0);
        match runs.get_mut(run) {
            Some(latest) => *latest = (*latest).max(time),
            None => drop(runs.insert(run.to_owned(), time)),
        }
    }
    for boxed in &evidence.boxes {
        let run = run_of_box(boxed, &names).to_owned();
        let latest = runs.entry(run).or_default();
        *latest = (*latest).max(boxed.content.last_ns.unwrap_or(0));
    }
    runs.remove("");
    let Some(latest) = runs
        .iter()
        .max_by_key(|(_, time)| **time)
        .map(|(run, _)| run.clone())
    else {
        return;
    };
    if runs.len() > 1 {
        let others = count(runs.len() - 1, "other run");
        job.notes.push(format!("files of {others} lie below the same paths and were left out; this is run {latest}, the latest"));
        let is_it = |run: &str| run.is_empty() || run == latest;
        evidence.slots.retain(|slot| is_it(&names[&slot.key.run]));
        evidence
            .records
            .retain(|record| is_it(run_of(record, &names)));
        evidence
            .boxes
            .retain(|boxed| is_it(run_of_box(boxed, &names)));
        evidence.damaged.retain(|(_, slot)| {
            slot.as_ref()
                .is_none_or(|slot| names.get(&slot.run).is_none_or(|run| is_it(run)))
        });
    }
    job.run_id = latest;
}

fn run_of<'a>(record: &'a Record, names: &'a HashMap<RunPath, String>) -> &'a str {
    if let Some(slot) = &record.slot {
        return names.get(&slot.run).map_or("", String::as_str);
    }
    let section = record.failure.section.as_ref();
    section
        .and_then(|section| section.run_id.as_deref())
        .unwrap_or("")
}

fn run_of_box<'a>(boxed: &'a Boxed, names: &'a HashMap<RunPath, String>) -> &'a str {
    match &boxed.slot {
        Some(slot) => names.get(&slot.run).map_or("", String::as_str),
        None => boxed.content.rank.run_id.as_deref().unwrap_or(""),
    }
}
