//! Evidence to a job: which rank, of which attempt, on which host, each piece belongs to.

mod finish;
mod one_run;
mod rank;

pub(crate) use rank::{RankEvidence, Status};

use crate::Options;
use crate::decide::count;
use crate::exits::Exit;
use crate::hearsay::Hearsay;
use crate::hosts::HostFact;
use crate::kept::{Record, Shared};
use crate::logs::Signalled;
use crate::numbered::{quiet_launchers, ranks_of};
use crate::numbers::{Numbers, loose_ranks};
use crate::recorder::Dump;
use crate::records::{choose, drop_copies};
use crate::scan::{Boxed, Evidence, FileRole, RunPath, Slot};
use crate::schema::DamagedFile;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A job's evidence, by attempt and rank.
#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) run_id: String,
    pub(crate) world_size: u32,
    /// Whether the number of ranks is stated, or every launcher told of all of its own.
    pub(crate) is_counted: bool,
    /// Whether the number of ranks is stated.
    pub(crate) is_stated: bool,
    /// Boxed, since a map moves its values as it grows, and these are large.
    pub(crate) attempts: BTreeMap<u32, BTreeMap<u32, Box<RankEvidence>>>,
    pub(crate) hosts: BTreeMap<HostKey, HostEvidence>,
    /// Whether a launcher left a log that fits none of the hosts.
    pub(crate) stray_launcher: bool,
    /// Whether every launcher that left a log says that its workers ended well.
    pub(crate) succeeded: bool,
    /// Whether there are failures in some log that nothing gives to a rank.
    pub(crate) nobodys_words: bool,
    /// Whether lines of several processes stand in a log as one, so that ranks that spoke are not seen.
    pub(crate) folded: bool,
    /// Lines of logs that tell of a failure and not whose it was.
    pub(crate) hearsay: Vec<Hearsay>,
    /// Where launchers' rounds met, by run directory and folder number.
    pub(crate) masters: BTreeMap<(RunPath, u32), String>,
    /// What kernels and schedulers say.
    pub(crate) facts: Vec<HostFact>,
    /// Ends of processes of which nothing tells whose they were.
    pub(crate) exits: Vec<Exit>,
    /// Whether srun ended a step and told how its tasks ended by that: it told of all that did not end well.
    pub(crate) step_ended: bool,
    /// Logs beside those of launchers in which nobody speaks.
    pub(crate) quiet_launchers: Vec<PathBuf>,
    /// What flight recorders dumped.
    pub(crate) dumps: Vec<Dump>,
    pub(crate) damaged: Vec<DamagedFile>,
    pub(crate) notes: Vec<String>,
    /// What records and outputs have in common.
    pub(crate) shared: Arc<Shared>,
}

/// What one launcher's ranks have in common: its run directory, or the name of its host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum HostKey {
    Run(RunPath),
    Name(String),
}

/// A host, more exactly: a launcher.
#[derive(Debug, Default)]
pub(crate) struct HostEvidence {
    /// Its name for people; empty where nothing tells it.
    pub(crate) label: String,
    /// Whether its launcher left a log.
    pub(crate) spoke: bool,
    /// Whether its launcher said how its workers ended.
    pub(crate) reported: bool,
    /// The last attempt of its ranks, where rounds number them otherwise than its folders.
    pub(crate) last_attempt: Option<u32>,
    /// The signal that ended the launcher, and the log that says so.
    pub(crate) signalled: Option<(PathBuf, Signalled)>,
}

/// Returns the job that the evidence tells of; where it tells of several, the one with the latest failure.
pub(crate) fn assemble(mut evidence: Evidence, options: &Options) -> Job {
    let mut job = Job {
        notes: std::mem::take(&mut evidence.notes),
        shared: evidence.shared.take().unwrap_or_default(),
        ..Job::default()
    };
    one_run::one_run(&mut evidence, &mut job);
    job.notes.extend(crate::jobs::latest(&mut evidence));
    let others = crate::runs::latest(&mut evidence);
    if !others.is_empty() {
        let mut paths = others
            .iter()
            .take(3)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        if others.len() > 3 {
            paths.push_str(" …");
        }
        let runs = count(others.len(), "other run");
        job.notes.push(format!(
            "{runs} found here and left out; give one of these alone to judge it: {paths}"
        ));
    }
    let numbers = Numbers::of(&evidence);
    let assumed = numbers.assumed();
    if !assumed.is_empty() {
        // Each host's launcher may have used the same name.
        let names: BTreeSet<_> = assumed.iter().filter_map(|run| run.file_name()).collect();
        let mut runs: Vec<String> = names
            .iter()
            .take(3)
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        if names.len() > runs.len() {
            runs.push(format!("{} more names", names.len() - runs.len()));
        }
        let number = match assumed.len() {
            1 => String::new(),
            number => format!(" ({number} directories)"),
        };
        job.notes.push(format!(
            "ranks below {}{number} are numbered by the order of the directories: nothing tells them",
            runs.join(", ")
        ));
    }
    let mut nameless = 0;
    drop_copies(&mut evidence.records);
    let loose = loose_ranks(&evidence, &numbers);
    for slot in std::mem::take(&mut evidence.slots) {
        job.add_slot(slot, &numbers);
    }
    for (index, record) in std::mem::take(&mut evidence.records)
        .into_iter()
        .enumerate()
    {
        let stated = record.identity.rank;
        let attempt = attempt_of(&record);
        let from_slot = record.slot.as_ref().and_then(|slot| numbers.rank(slot));
        let by_name = loose.get(&index).copied().unwrap_or_default();
        let rank = stated.or(from_slot).unwrap_or(by_name.0);
        let entry = job.rank(attempt, rank, local_rank_of(&record), host_of(&record));
        if stated.or(from_slot).is_none() {
            nameless += usize::from(!by_name.1 && !entry.nameless);
            entry.assumed = !by_name.1;
            entry.nameless = !by_name.1;
        }
        match entry.record {
            None => entry.record = Some(record),
            Some(_) => entry.others.push(record),
        }
    }
    for evidence in job.attempts.values_mut().flat_map(BTreeMap::values_mut) {
        let is_child = |record: &Record| record.role == FileRole::Child;
        if !evidence.others.is_empty() || evidence.record.as_ref().is_some_and(is_child) {
            let mut found = std::mem::take(&mut evidence.others);
            found.extend(evidence.record.take());
            (evidence.record, evidence.others) = choose(found);
        }
    }
    job.add_boxes(std::mem::take(&mut evidence.boxes), &numbers);
    for record in std::mem::take(&mut evidence.terminated) {
        job.add_terminated(record, &numbers);
    }
    if nameless > 0 {
        let files = count(nameless, "error file");
        job.notes
            .push(format!("{files} without a rank are numbered as they come"));
    }
    for (file, slot) in std::mem::take(&mut evidence.damaged) {
        let of = slot.as_ref().and_then(|slot| {
            Some((
                slot.attempt,
                numbers.rank(slot)?,
                HostKey::Run(slot.run.clone()),
            ))
        });
        let of = of.or_else(|| archived(Path::new(&file.path)));
        let role = Path::new(&file.path).file_name().map(crate::scan::role);
        let own = role.is_some_and(|role| role.is_error_file() && role != FileRole::Child);
        if let Some((attempt, rank, host)) = of.filter(|_| own) {
            let evidence = job.rank(attempt, rank, None, host);
            evidence.damaged.get_or_insert_with(|| file.path.clone());
        }
        job.damaged.push(file);
    }
    let agents = &evidence.agents;
    job.succeeded = !agents.is_empty()
        && agents
            .iter()
            .all(|agent| agent.succeeded && agent.entries.is_empty());
    job.add_agents(&evidence.agents, &numbers);
    job.judge_children();
    job.facts = std::mem::take(&mut evidence.facts);
    job.dumps = std::mem::take(&mut evidence.dumps);
    let told = !job.facts.is_empty() || !job.dumps.is_empty();
    if told && job.attempts.is_empty() {
        job.attempts.entry(0).or_default();
    }
    let exits = std::mem::take(&mut evidence.exits);
    let numbered = ranks_of(
        &evidence.consoles,
        &evidence.agents,
        &exits,
        &evidence.silent_logs,
    );
    job.quiet_launchers = quiet_launchers(&evidence.agents, &evidence.silent_logs);
    job.add_exits(exits, &evidence.agents, &evidence.consoles);
    let consoles = std::mem::take(&mut evidence.consoles);
    job.add_consoles(consoles, &evidence.agents, &numbered);
    job.fill_blocks(&evidence.agents);
    job.match_rounds();
    job.finish(&evidence, options);
    job
}

/// The attempt and the rank that the path of an archived record tells: `attempt_0/rank_3.host.4242.json`.
fn archived(path: &Path) -> Option<(u32, u32, HostKey)> {
    let name = path.file_name()?.to_str()?.strip_prefix("rank_")?;
    let rank = name.split('.').next()?.parse().ok()?;
    let attempt = crate::scan::attempt_of(path.parent()?)?;
    Some((attempt, rank, HostKey::Name(String::new())))
}

pub(crate) fn attempt_of(record: &Record) -> u32 {
    let slot = record.slot.as_ref().map(|slot| slot.attempt);
    slot.or(record.identity.attempt)
        .or_else(|| crate::scan::attempt_of(record.path.parent()?))
        .unwrap_or(0)
}

fn local_rank_of(record: &Record) -> Option<u32> {
    let slot = record.slot.as_ref().map(|slot| slot.local_rank);
    record.identity.local_rank.or(slot)
}

fn host_of(record: &Record) -> HostKey {
    let stated = || Some(record.failure.section.as_ref()?.host.name.clone());
    match &record.slot {
        Some(slot) => HostKey::Run(slot.run.clone()),
        None => HostKey::Name(stated().unwrap_or_default()),
    }
}

impl Job {
    pub(crate) fn rank(
        &mut self,
        attempt: u32,
        rank: u32,
        local_rank: Option<u32>,
        host: HostKey,
    ) -> &mut RankEvidence {
        let ranks = self.attempts.entry(attempt).or_default();
        let evidence = ranks
            .entry(rank)
            .or_insert_with(|| Box::new(RankEvidence::new(rank, local_rank, host.clone())));
        if matches!((&evidence.host, &host), (HostKey::Name(_), HostKey::Run(_))) {
            evidence.host = host;
        }
        evidence.local_rank = evidence.local_rank.or(local_rank);
        evidence
    }

    fn add_boxes(&mut self, boxes: Vec<Boxed>, numbers: &Numbers) {
        let mut without_rank = 0;
        for boxed in boxes {
            let content = &boxed.content;
            let slot = boxed.slot.as_ref();
            let rank = content
                .rank
                .rank
                .or_else(|| slot.and_then(|slot| numbers.rank(slot)));
            // A process alone in its job needs no number to be the one that is spoken of.
            let is_alone = rank.is_none() && self.attempts.is_empty();
            let Some(rank) = rank.or(is_alone.then_some(0)) else {
                without_rank += 1;
                continue;
            };
            let attempt = slot
                .map(|slot| slot.attempt)
                .or(content.rank.attempt)
                .or_else(|| crate::scan::attempt_of(boxed.path.parent()?))
                .unwrap_or(0);
            let local_rank = content.rank.local_rank.or(slot.map(|slot| slot.local_rank));
            let host = match slot {
                Some(slot) => HostKey::Run(slot.run.clone()),
                None => HostKey::Name(content.host.name.clone()),
            };
            let entry = self.rank(attempt, rank, local_rank, host);
            entry.nameless |= is_alone;
            let known = entry.black_box.as_ref();
            if known.is_none_or(|known| known.content.install_ns < content.install_ns) {
                entry.black_box = Some(Box::new(boxed));
            }
        }
        if without_rank > 0 {
            let boxes = count(without_rank, "black box");
            self.notes
                .push(format!("{boxes} of processes without a rank are left out"));
        }
    }

    /// Adds a snapshot; without a rank it says nothing.
    fn add_terminated(&mut self, record: Record, numbers: &Numbers) {
        let stated = record.identity.rank;
        let from_slot = record.slot.as_ref().and_then(|slot| numbers.rank(slot));
        let Some(rank) = stated.or(from_slot) else {
            return;
        };
        let (local_rank, host) = (local_rank_of(&record), host_of(&record));
        let entry = self.rank(attempt_of(&record), rank, local_rank, host);
        // The first in order of names is the snapshot itself.
        entry.terminated.get_or_insert_with(|| Box::new(record));
    }

    fn add_slot(&mut self, slot: Slot, numbers: &Numbers) {
        let Some(rank) = numbers.rank(&slot.key) else {
            return;
        };
        let host = HostKey::Run(slot.key.run.clone());
        let evidence = self.rank(slot.key.attempt, rank, Some(slot.key.local_rank), host);
        evidence.torn = slot.words.is_some() && slot.torn;
        evidence.words = slot.words;
        evidence.uncaught = slot.uncaught;
        evidence.output_path = slot.stderr;
        evidence.assumed |= numbers.is_assumed(&slot.key.run, slot.key.attempt);
    }

    pub(crate) fn all_ranks(&self) -> impl Iterator<Item = &RankEvidence> {
        let ranks = self.attempts.values().flat_map(BTreeMap::values);
        ranks.map(Box::as_ref)
    }

    /// Returns every name of a host that the evidence tells, in order.
    pub(crate) fn host_names(&self) -> Vec<String> {
        let labels = self.hosts.values().map(|host| host.label.as_str());
        let stated = self.all_ranks().flat_map(|rank| {
            let boxed = rank.black_box.as_ref();
            let boxed = boxed.map(|boxed| boxed.content.host.name.as_str());
            let stated = rank.section().map(|section| section.host.name.as_str());
            stated.into_iter().chain(boxed)
        });
        let told = self.facts.iter().filter_map(|fact| fact.host.as_deref());
        let names: BTreeSet<&str> = labels.chain(stated).chain(told).collect();
        names.into_iter().map(str::to_owned).collect()
    }
}
