//! Runs of one name that came one after another into the same directories: told apart by when their processes lived.

use crate::assemble::attempt_of;
use crate::numbers::last_three;
use crate::scan::{Evidence, RunPath};
use std::collections::{BTreeMap, BTreeSet};

/// Processes of one run start within this time of the end of another of its processes, in nanoseconds.
const GAP_NS: i64 = 60_000_000_000;

/// Keeps the run that a launcher's log names, else the latest; returns a path of each other one.
///
/// All ranks of one attempt live at the same time, so a process that started well after all others of its attempt had
/// ended is of another run. What states no times stays with the run kept, unless its run directory is another's.
pub(crate) fn latest(evidence: &mut Evidence) -> Vec<String> {
    let mut lives: Vec<(i64, i64, u32, usize)> = Vec::new();
    for (index, record) in evidence.records.iter().enumerate() {
        if let (Some(start), Some(end)) = (record.identity.start_time_ns, record.time_ns) {
            lives.push((start, end.max(start), attempt_of(record), index));
        }
    }
    lives.sort_unstable();
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let (mut ended, mut last) = (i64::MIN, 0);
    for (start, end, attempt, index) in lives {
        let apart = start > ended.saturating_add(GAP_NS) && attempt <= last;
        match runs.last_mut().filter(|_| !apart) {
            Some(run) => run.push(index),
            None => runs.push(vec![index]),
        }
        last = if apart { attempt } else { last.max(attempt) };
        ended = ended.max(end);
    }
    if runs.len() < 2 {
        return Vec::new();
    }
    let entries = evidence.agents.iter().flat_map(|agent| &agent.entries);
    let tails: Vec<_> = entries
        .filter_map(|entry| last_three(entry.error_file.as_deref()?))
        .collect();
    let directory = |index: &usize| Some(&evidence.records[*index].slot.as_ref()?.run);
    let is_named = |run: &Vec<usize>| {
        run.iter().filter_map(directory).any(|run| {
            run.file_name()
                .is_some_and(|name| tails.iter().any(|tail| tail.starts_with(name)))
        })
    };
    let chosen = runs.iter().rposition(is_named).unwrap_or(runs.len() - 1);
    let kept: BTreeSet<RunPath> = runs[chosen].iter().filter_map(directory).cloned().collect();
    let mut dropped = BTreeSet::new();
    let mut directories: BTreeSet<RunPath> = BTreeSet::new();
    let mut paths: BTreeMap<usize, String> = BTreeMap::new();
    for (number, run) in runs
        .iter()
        .enumerate()
        .filter(|(number, _)| *number != chosen)
    {
        dropped.extend(run.iter().copied());
        directories.extend(
            run.iter()
                .filter_map(directory)
                .filter(|run| !kept.contains(run))
                .cloned(),
        );
        let path = directory(&run[0])
            .filter(|run| !kept.contains(*run))
            .map(|run| run.display().to_string());
        paths.insert(
            number,
            path.unwrap_or_else(|| evidence.records[run[0]].path.display().to_string()),
        );
    }
    let mut index = 0;
    evidence.records.retain(|record| {
        let of_other = record
            .slot
            .as_ref()
            .is_some_and(|slot| directories.contains(&slot.run));
        index += 1;
        !dropped.contains(&(index - 1)) && !of_other
    });
    evidence
        .slots
        .retain(|slot| !directories.contains(&slot.key.run));
    evidence.damaged.retain(|(_, slot)| {
        slot.as_ref()
            .is_none_or(|slot| !directories.contains(&slot.run))
    });
    paths.into_values().collect()
}
