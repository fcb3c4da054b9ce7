//! Which global rank a worker directory or a loose error file belongs to.

use crate::kept::Record;
use crate::scan::{Evidence, FileRole, RunPath, SlotKey};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// What the name of a fuller copy ends with, before `.json`.
const COPY: &str = ".firstfault";

/// Which rank each worker directory belongs to.
#[derive(Default)]
pub(crate) struct Numbers {
    runs: HashMap<RunPath, Run>,
}

/// What is known of one run directory.
#[derive(Default)]
struct Run {
    /// The rank of local rank 0, by attempt.
    bases: BTreeMap<u32, u32>,
    /// The same where nothing tells it.
    assumed: Option<u32>,
}

impl Numbers {
    pub(crate) fn of(evidence: &Evidence) -> Self {
        let mut numbers = Self::default();
        for record in &evidence.records {
            if let (Some(slot), Some(rank)) = (&record.slot, record.identity.rank) {
                numbers.set(slot, rank);
            }
        }
        for boxed in &evidence.boxes {
            if let (Some(slot), Some(rank)) = (&boxed.slot, boxed.content.rank.rank) {
                numbers.set(slot, rank);
            }
        }
        if !evidence.agents.is_empty() {
            let slots: HashMap<PathBuf, &SlotKey> = evidence
                .slots
                .iter()
                .map(|slot| (tail_of(&slot.key), &slot.key))
                .collect();
            for entry in evidence.agents.iter().flat_map(|agent| &agent.entries) {
                let suffix = entry.error_file.as_deref().and_then(last_three);
                if let Some(slot) = suffix.and_then(|suffix| slots.get(&suffix)) {
                    numbers.set(slot, entry.rank);
                }
            }
        }
        for slot in &evidence.slots {
            if let Some(rank) = slot.printed_rank {
                numbers.set(&slot.key, rank);
            }
        }
        numbers.by_agents_place(evidence);
        numbers.assume(evidence);
        numbers
    }

    /// Torchrun numbers the workers of one launcher consecutively.
    fn set(&mut self, slot: &SlotKey, rank: u32) {
        if let Some(base) = rank.checked_sub(slot.local_rank) {
            let run = self.runs.entry(slot.run.clone()).or_default();
            run.bases.entry(slot.attempt).or_insert(base);
        }
    }

    /// A launcher whose summary names no file, and the only run directory below the log's own directory.
    fn by_agents_place(&mut self, evidence: &Evidence) {
        let runs: BTreeSet<&RunPath> = evidence.slots.iter().map(|slot| &slot.key.run).collect();
        for agent in &evidence.agents {
            let names_no_file = agent.entries.iter().all(|entry| entry.error_file.is_none());
            let Some(entry) = agent.entries.first().filter(|_| names_no_file) else {
                continue;
            };
            let directory = agent
                .path
                .parent()
                .and_then(|parent| std::path::absolute(parent).ok());
            let directory = directory.unwrap_or_default();
            let mut below = runs
                .iter()
                .filter(|run| run.starts_with(&directory) && !self.runs.contains_key(**run));
            let base = entry.rank.checked_sub(entry.local_rank);
            // Where another directory tells that it is of these ranks, this one is of another launcher.
            let is_free = |base: &u32| {
                let mut known = self.runs.values().flat_map(|run| run.bases.values());
                known.all(|known| known != base)
            };
            let base = base.filter(is_free);
            if let (Some(run), None, Some(base)) = (below.next(), below.next(), base) {
                let attempt = u32::try_from(agent.failed.len().saturating_sub(1)).unwrap_or(0);
                let run = self.runs.entry((*run).clone()).or_default();
                run.bases.insert(attempt, base);
            }
        }
    }

    /// What is left: the order of the directories' names, the largest number of workers seen.
    fn assume<'e>(&mut self, evidence: &'e Evidence) {
        let mut workers: BTreeMap<Vec<NamePart<'e>>, (&'e RunPath, u32)> = BTreeMap::new();
        let mut last: Option<(&RunPath, u32)> = None;
        let mut note = |run: &'e RunPath, most: u32| {
            workers.insert(natural(run), (run, most));
        };
        // Slots are sorted, so those of one run come one after another.
        for slot in &evidence.slots {
            let count = slot.key.local_rank.saturating_add(1);
            last = match last {
                Some((run, most)) if *run == slot.key.run => Some((run, most.max(count))),
                other => {
                    other.into_iter().for_each(|(run, most)| note(run, most));
                    Some((&slot.key.run, count))
                }
            };
        }
        last.into_iter().for_each(|(run, most)| note(run, most));
        let widest = workers.values().map(|(_, most)| *most).max().unwrap_or(1);
        let taken: BTreeSet<u32> = self
            .runs
            .values()
            .flat_map(|run| run.bases.values())
            .copied()
            .collect();
        let mut free = (0..)
            .step_by(widest as usize)
            .filter(|base| !taken.contains(base));
        for (run, _) in workers.into_values() {
            self.runs.entry(run.clone()).or_insert_with(|| Run {
                assumed: free.next(),
                ..Run::default()
            });
        }
    }

    /// Returns whether nothing tells the ranks of a run directory in this attempt: a restart may number them anew.
    pub(crate) fn is_assumed(&self, run: &RunPath, attempt: u32) -> bool {
        self.runs
            .get(run)
            .is_none_or(|run| !run.bases.contains_key(&attempt))
    }

    /// Returns the run directories whose ranks are assumed, in order.
    pub(crate) fn assumed(&self) -> Vec<&RunPath> {
        let mut runs: Vec<&RunPath> = self
            .runs
            .iter()
            .filter(|(_, run)| run.assumed.is_some())
            .map(|(path, _)| path)
            .collect();
        runs.sort_unstable();
        runs
    }

    /// Returns the rank of local rank 0: of this attempt where told, else of the first attempt that tells it.
    pub(crate) fn base(&self, run: &RunPath, attempt: u32) -> Option<u32> {
        let run = self.runs.get(run)?;
        run.bases
            .get(&attempt)
            .or(run.bases.values().next())
            .copied()
            .or(run.assumed)
    }

    pub(crate) fn rank(&self, slot: &SlotKey) -> Option<u32> {
        self.base(&slot.run, slot.attempt)?
            .checked_add(slot.local_rank)
    }
}

/// A part of a name, so that `node2` comes before `node10`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum NamePart<'a> {
    Number(u64, &'a str),
    Text(&'a str),
    Bytes(&'a [u8]),
}

fn natural(path: &Path) -> Vec<NamePart<'_>> {
    let Some(mut rest) = path.to_str() else {
        return vec![NamePart::Bytes(path.as_os_str().as_encoded_bytes())];
    };
    let mut parts = Vec::new();
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = rest
            .find(|c: char| c.is_ascii_digit() != is_number)
            .unwrap_or(rest.len());
        let (part, tail) = rest.split_at(end);
        parts.push(part.parse().map_or(NamePart::Text(part), |number| {
            NamePart::Number(number, part)
        }));
        rest = tail;
    }
    parts
}

/// `<run>/attempt_<n>/<local rank>`, by which a launcher's path and ours are the same wherever the files were copied.
fn tail_of(slot: &SlotKey) -> PathBuf {
    let run = slot.run.file_name().unwrap_or_default();
    Path::new(run)
        .join(format!("attempt_{}", slot.attempt))
        .join(slot.local_rank.to_string())
}

pub(crate) fn last_three(error_file: &Path) -> Option<PathBuf> {
    let directory = error_file.parent()?;
    let parts: Vec<_> = directory.components().rev().take(3).collect();
    Some(parts.into_iter().rev().collect())
}

/// The rank of an error file outside any layout, and whether its name tells it.
///
/// `rank_3.json`, `error_3.json`, `3.json` and `rank3/error.json` tell; the others are numbered as they come.
pub(crate) fn loose_ranks(evidence: &Evidence, known: &Numbers) -> HashMap<usize, (u32, bool)> {
    let records = &evidence.records;
    let loose = || {
        records
            .iter()
            .enumerate()
            .filter(|(_, record)| record.slot.is_none() && record.identity.rank.is_none())
    };
    if loose().next().is_none() {
        return HashMap::new();
    }
    let slots = evidence
        .slots
        .iter()
        .filter_map(|slot| known.rank(&slot.key));
    let stated = records.iter().filter_map(|record| record.identity.rank);
    let mut taken: BTreeSet<u32> = slots.chain(stated).collect();
    let mut numbers = HashMap::new();
    let processes = processes(records);
    let mut known: HashMap<&Process<'_>, (u32, bool)> = HashMap::new();
    for (index, record) in loose() {
        let keys = &processes[&index];
        if let Some(number) = keys.iter().find_map(|key| known.get(key)) {
            numbers.insert(index, *number);
            continue;
        }
        let directory = record.path.parent().and_then(Path::file_name);
        let name = record
            .path
            .file_stem()
            .and_then(|stem| number_after(&stem.to_string_lossy(), &[]));
        let name = name.or_else(|| {
            number_after(
                &directory?.to_string_lossy(),
                &["rank", "local_rank", "worker"],
            )
        });
        if let Some(number) = name.filter(|number| taken.insert(*number)) {
            numbers.insert(index, (number, true));
            known.extend(keys.iter().map(|key| (key, (number, true))));
        }
    }
    let mut free = (0..).filter(|number| !taken.contains(number));
    for (index, _) in loose() {
        if let Entry::Vacant(vacant) = numbers.entry(index) {
            let keys = &processes[&index];
            let number = keys.iter().find_map(|key| known.get(key)).copied();
            let number = number.unwrap_or_else(|| (free.next().unwrap_or(u32::MAX), false));
            known.extend(keys.iter().map(|key| (key, number)));
            vacant.insert(number);
        }
    }
    numbers
}

/// What tells that two files are of one process.
#[derive(PartialEq, Eq, Hash)]
enum Process<'a> {
    /// Its host, its process ID and its start.
    Stated(&'a str, u32, Option<i64>),
    /// The file that the names of its other files begin with: `error.4242.json` goes with `error.json`.
    File(&'a Path, String),
}

fn processes(records: &[Record]) -> HashMap<usize, Vec<Process<'_>>> {
    let stem = |record: &Record| {
        let stem = record.path.file_stem();
        stem.unwrap_or_default().to_string_lossy().into_owned()
    };
    let loose = || {
        records
            .iter()
            .enumerate()
            .filter(|(_, record)| record.slot.is_none())
    };
    let all: BTreeSet<(Option<&Path>, String)> = loose()
        .map(|(_, record)| (record.path.parent(), stem(record)))
        .collect();
    let keys = |record: &'_ Record| {
        let (directory, own) = (record.path.parent(), stem(record));
        let mut begins = own.match_indices('.').map(|(at, _)| own[..at].to_owned());
        let first = begins.find(|begin| all.contains(&(directory, begin.clone())));
        let own = own.strip_suffix(COPY).unwrap_or(&own).to_owned();
        first.unwrap_or(own)
    };
    loose()
        .map(|(index, record)| {
            let mut found = Vec::new();
            if let Some(directory) = record.path.parent() {
                found.push(Process::File(directory, keys(record)));
            }
            let section = record.failure.section.as_ref();
            // A child names itself; its file is named after its parent.
            if let Some(section) = section.filter(|_| record.role != FileRole::Child)
                && let Some(pid) = record.identity.pid
            {
                let start = record.identity.start_time_ns;
                found.push(Process::Stated(&section.host.name, pid, start));
            }
            (index, found)
        })
        .collect()
}

/// Returns the number that a name is, or ends with after one of these words; after any word where none are given.
fn number_after(name: &str, words: &[&str]) -> Option<u32> {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (word, number) = name.split_at(name.len() - digits);
    let word = word.trim_end_matches(['_', '-']);
    let fits = word.is_empty()
        || words.contains(&word)
        || words.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
    number.parse().ok().filter(|_| fits)
}
