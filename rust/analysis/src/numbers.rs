//! Which global rank a worker directory or a loose error file belongs to.

use crate::scan::{Evidence, Record, SlotKey};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Which rank each worker directory belongs to.
pub(crate) struct Numbers {
    /// The rank of local rank 0, by run directory and attempt.
    bases: HashMap<(PathBuf, u32), u32>,
    /// Run directories whose ranks nothing tells.
    pub(crate) assumed: BTreeMap<PathBuf, u32>,
}

impl Numbers {
    pub(crate) fn of(evidence: &Evidence) -> Self {
        let mut bases = HashMap::new();
        let mut set = |slot: &SlotKey, rank: u32| {
            // Torchrun numbers the workers of one launcher consecutively.
            if let Some(base) = rank.checked_sub(slot.local_rank) {
                bases
                    .entry((slot.run.clone(), slot.attempt))
                    .or_insert(base);
            }
        };
        for record in &evidence.records {
            let rank = record
                .failure
                .section
                .as_ref()
                .and_then(|section| section.rank.rank);
            if let (Some(slot), Some(rank)) = (&record.slot, rank) {
                set(slot, rank);
            }
        }
        let slots: HashMap<PathBuf, &SlotKey> = evidence
            .slots
            .iter()
            .map(|slot| (tail_of(&slot.key), &slot.key))
            .collect();
        for entry in evidence.agents.iter().flat_map(|agent| &agent.entries) {
            let suffix = entry.error_file.as_deref().and_then(last_three);
            if let Some(slot) = suffix.and_then(|suffix| slots.get(&suffix)) {
                set(slot, entry.rank);
            }
        }
        for slot in &evidence.slots {
            if let Some(rank) = slot.printed_rank {
                set(&slot.key, rank);
            }
        }
        let mut numbers = Self {
            bases,
            assumed: BTreeMap::new(),
        };
        numbers.by_agents_place(evidence);
        numbers.assume(evidence);
        numbers
    }

    fn knows(&self, run: &Path) -> bool {
        self.bases.keys().any(|(known, _)| known == run)
    }

    /// A launcher whose summary names no file, and the only run directory below the log's own directory.
    fn by_agents_place(&mut self, evidence: &Evidence) {
        let runs: BTreeSet<&PathBuf> = evidence.slots.iter().map(|slot| &slot.key.run).collect();
        for agent in &evidence.agents {
            let Some(entry) = agent
                .entries
                .first()
                .filter(|_| agent.entries.iter().all(|entry| entry.error_file.is_none()))
            else {
                continue;
            };
            let directory = agent
                .path
                .parent()
                .and_then(|parent| std::path::absolute(parent).ok())
                .unwrap_or_default();
            let mut below = runs
                .iter()
                .filter(|run| run.starts_with(&directory) && !self.knows(run));
            if let (Some(run), None, Some(base)) = (
                below.next(),
                below.next(),
                entry.rank.checked_sub(entry.local_rank),
            ) {
                let attempt = u32::try_from(agent.failed.len().saturating_sub(1)).unwrap_or(0);
                self.bases.insert(((*run).clone(), attempt), base);
            }
        }
    }

    /// What is left: the directories' order, the largest number of workers seen.
    fn assume(&mut self, evidence: &Evidence) {
        let mut workers: BTreeMap<&PathBuf, u32> = BTreeMap::new();
        for slot in &evidence.slots {
            let count = workers.entry(&slot.key.run).or_default();
            *count = (*count).max(slot.key.local_rank + 1);
        }
        let widest = workers.values().copied().max().unwrap_or(1);
        let taken: BTreeSet<u32> = self.bases.values().copied().collect();
        let mut free = (0..)
            .step_by(widest as usize)
            .filter(|base| !taken.contains(base));
        for run in workers.keys() {
            if !self.knows(run) {
                self.assumed
                    .extend(free.next().map(|base| ((*run).clone(), base)));
            }
        }
    }

    pub(crate) fn base(&self, run: &Path, attempt: u32) -> Option<u32> {
        let own = self.bases.get(&(run.to_owned(), attempt)).copied();
        let other = || {
            self.bases
                .iter()
                .filter(|((known, _), _)| known == run)
                .min_by_key(|((_, attempt), _)| *attempt)
        };
        own.or_else(|| other().map(|(_, &base)| base))
            .or_else(|| self.assumed.get(run).copied())
    }

    pub(crate) fn rank(&self, slot: &SlotKey) -> Option<u32> {
        self.base(&slot.run, slot.attempt)?
            .checked_add(slot.local_rank)
    }
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
    let stated = |record: &Record| {
        let section = record.failure.section.as_ref();
        section.is_some_and(|section| section.rank.rank.is_some())
    };
    let loose = || {
        records
            .iter()
            .enumerate()
            .filter(|(_, record)| record.slot.is_none() && !stated(record))
    };
    let slots = evidence
        .slots
        .iter()
        .filter_map(|slot| known.rank(&slot.key));
    let sections = records
        .iter()
        .filter_map(|record| record.failure.section.as_ref()?.rank.rank);
    let mut taken: BTreeSet<u32> = slots.chain(sections).collect();
    let mut numbers = HashMap::new();
    for (index, record) in loose() {
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
        }
    }
    let mut free = (0..).filter(|number| !taken.contains(number));
    for (index, _) in loose() {
        if let Entry::Vacant(vacant) = numbers.entry(index) {
            vacant.insert((free.next().unwrap_or(u32::MAX), false));
        }
    }
    numbers
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
