//! What logs in which many ranks speak add to a job: the last words of ranks that left nothing else.

mod first;
mod late;
mod own;
mod parts;

use crate::assemble::{HostKey, Job, RankEvidence, Status};
use crate::console::{Console, Label, Output};
use crate::dress::host_of_name;
use crate::hearsay::{Hearsay, named_rank};
use crate::hosts;
use crate::kept::Shared;
use crate::logs::AgentLog;
use crate::reported;
use crate::traceback;
use crate::words::{Words, last_words};
pub(crate) use first::rank_of_line;
use parts::attempts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Job {
    pub(crate) fn add_consoles(
        &mut self,
        consoles: Vec<Console>,
        agents: &[AgentLog],
        numbered: &BTreeMap<PathBuf, u32>,
    ) {
        let mut nobodys: Vec<(Console, Vec<usize>)> = Vec::new();
        let mut lost = 0;
        for mut console in consoles {
            self.folded |= console.is_folded();
            let of_file = agents.iter().filter(|agent| agent.path == console.path);
            let of_file: Vec<&AgentLog> = of_file.collect();
            let late = late::take_late(&mut console.ranks, &of_file);
            // Of several launchers' words in one log nothing tells where an attempt of one ends.
            let agent = match of_file[..] {
                [agent] => Some(agent),
                _ => None,
            };
            let ends = agent.map_or_else(Vec::new, AgentLog::ends);
            let numbers = Numbering::of(&console, &of_file);
            let host = console.host().map(str::to_owned);
            let mut locals: Vec<(u32, Output)> = Vec::new();
            for (label, mut output) in std::mem::take(&mut console.ranks) {
                if let Label::Local(_) = label {
                    lost += usize::from(output.cut_after_summary(agent));
                }
                match numbers.rank(label) {
                    Some((rank, assumed)) => {
                        for (attempt, part) in attempts(output, &ends) {
                            let host = host.as_deref();
                            self.add_words(attempt, rank, assumed, part, &console.path, host);
                        }
                    }
                    None if matches!(label, Label::Process(_)) => {
                        let is_its = |agent: &&AgentLog| {
                            let process = agent.process.map(Label::Process);
                            agent.path == console.path && process == Some(label)
                        };
                        // Of a launcher's pod it is what its ranks say.
                        match agents.iter().find(is_its) {
                            Some(its) => {
                                self.add_hosts_words(output, Some(its));
                            }
                            None => {
                                console.ranks.insert(label, output);
                            }
                        }
                    }
                    None => match label {
                        Label::Local(local) => locals.push((local, output)),
                        Label::Task(task) => {
                            let is_its = |agent: &&AgentLog| {
                                agent.path == console.path && agent.task == Some(task)
                            };
                            let its = agents.iter().find(is_its);
                            lost += usize::from(!self.add_hosts_words(output, its));
                        }
                        _ => lost += 1,
                    },
                }
            }
            for said in late {
                let ranks = self.attempts.get(&said.attempt);
                let known = ranks.and_then(|ranks| ranks.get(&said.rank));
                // What it wrote at once says more of its end.
                if known.is_none_or(|known| known.words.is_none()) {
                    let (attempt, rank) = (said.attempt, said.rank);
                    let path = &console.path;
                    self.add_words(attempt, rank, said.assumed, said.output, path, None);
                }
            }
            for (local, output) in locals {
                lost += usize::from(!self.add_local_words(local, output, &console.path, &of_file));
            }
            let by_series = || numbered.get(&console.path).copied();
            if let Some(rank) = rank_of_name(&console.path).or_else(by_series) {
                let output = std::mem::take(&mut console.unlabelled);
                self.add_words(0, rank, true, output, &console.path, None);
            } else if !console.unlabelled.text.is_empty() || !console.ranks.is_empty() {
                nobodys.push((console, ends));
            }
        }
        // Of the rank of a log in which nobody speaks it is known that it was there.
        for &rank in numbered.values() {
            let evidence = self.rank(0, rank, None, HostKey::Name(String::new()));
            evidence.assumed |= evidence.words.is_none();
        }
        if lost > 0 {
            self.notes.push(format!(
                "the words of {} are left out: their labels do not tell a rank",
                crate::decide::count(lost, "process label")
            ));
        }
        // Where no rank is known, each of several logs may be of another.
        let unknown = self.attempts.is_empty();
        let mut first = 0;
        for (mut console, ends) in nobodys {
            let path = std::mem::take(&mut console.path);
            if unknown {
                first = self.add_voices(console, &path, first);
            } else {
                self.add_nobodys(console, path, &ends);
            }
        }
    }

    /// The ranks that a launcher saw end by themselves in a log that has no words of theirs.
    fn ended_silently(&mut self, path: &Path) -> impl Iterator<Item = &mut RankEvidence> {
        let ranks = self.attempts.values_mut().flat_map(BTreeMap::values_mut);
        let ranks = ranks.map(Box::as_mut);
        ranks.filter(move |rank| rank.ended_silently(path))
    }

    /// Adds what a rank says whose label is that of one on each host; returns whether it is told which.
    fn add_local_words(
        &mut self,
        local: u32,
        mut output: Output,
        path: &Path,
        launchers: &[&AgentLog],
    ) -> bool {
        let shared = Arc::clone(&self.shared);
        let whose = self.ended_silently(path);
        let whose = whose.filter(|rank| rank.local_rank == Some(local));
        let mut whose: Vec<&mut RankEvidence> = whose.collect();
        if let [rank] = &mut whose[..] {
            let is_its = |launcher: &&&AgentLog| {
                let mut entries = launcher.entries.iter();
                entries.any(|entry| entry.rank == rank.rank)
            };
            let launcher = launchers.iter().find(is_its).copied();
            let is_cut = output.cut_after_summary(launcher);
            rank.set_words(&output, path, &shared);
            rank.output_shared = true;
            return !is_cut;
        }
        if first::give_to_one(&mut whose, &output, path, &shared) {
            return true;
        }
        let mut said = Hearsay::of(path, &output.text, &output.lines);
        if let Some(said) = &mut said {
            said.local_rank = Some(local);
        }
        self.nobodys_words |= said.is_some();
        self.hearsay.extend(said);
        false
    }

    fn add_words(
        &mut self,
        attempt: u32,
        rank: u32,
        assumed: bool,
        output: Output,
        path: &Path,
        host: Option<&str>,
    ) {
        if output.text.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let host = hosts::of_nccl(&output.text).or(host).unwrap_or("");
        let host = HostKey::Name(host.to_owned());
        let evidence = self.rank(attempt, rank, None, host.clone());
        evidence.host_is(host);
        if evidence.record.is_none() && (evidence.words.is_none() || evidence.by_summary) {
            evidence.assumed |= assumed;
            evidence.set_words(&output, path, &shared);
        } else if evidence.record.is_none() {
            // Which of the two is of this job nothing tells.
            evidence.assumed = true;
            let first = evidence.output_path.as_deref().unwrap_or(Path::new(""));
            let note = format!(
                "several logs speak of the same ranks, of one job or of two; of {} and {} the first is believed",
                first.display(),
                path.display()
            );
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// Words without a label are those of a rank that ended by itself, and of which nothing else is known but that.
    fn add_nobodys(&mut self, mut console: Console, path: PathBuf, ends: &[usize]) {
        // Where ranks are known, names of processes that are none of them tell no more than no label.
        for (_, output) in std::mem::take(&mut console.ranks) {
            console.unlabelled.append(output);
        }
        let mut lost = false;
        for (attempt, part) in attempts(console.unlabelled, ends) {
            lost |= self.add_common(attempt, part, &path, |_| true) == Whose::Unclear;
        }
        self.nobodys_words |= lost;
        if lost {
            self.notes.push(format!(
                "{}: different failures in it have no label that tells whose they are",
                path.display()
            ));
        }
    }
}

/// Whose some words without a label are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Those of all ranks that they may be of.
    Known,
    Nobodys,
    /// Some rank's, of several.
    Unclear,
}

impl Job {
    /// Adds what the ranks of one launcher say, which srun labels as one task; returns whether it is any rank's.
    fn add_hosts_words(&mut self, output: Output, launcher: Option<&AgentLog>) -> bool {
        let Some((launcher, base)) = launcher.and_then(|it| Some((it, it.base()?))) else {
            return false;
        };
        let failed = launcher.failed.iter().map(|failed| failed.local_rank);
        let unlisted = launcher.unlisted().into_iter().map(|(local, _)| local);
        let told = failed.chain(unlisted);
        let told = told.map(|local| base.saturating_add(local));
        let listed = launcher.entries.iter().map(|entry| entry.rank);
        let own: BTreeSet<u32> = told.chain(listed).collect();
        let parts = attempts(output, &launcher.ends()).into_iter();
        let whose = parts.map(|(attempt, part)| {
            self.add_common(attempt, part, &launcher.path, |rank| own.contains(&rank))
        });
        whose.collect::<Vec<_>>().contains(&Whose::Known)
    }

    /// Adds words without a label to the ranks that ended by themselves and of which nothing else is known but that.
    fn add_common(
        &mut self,
        attempt: u32,
        mut part: Output,
        path: &Path,
        is_its: impl Fn(u32) -> bool,
    ) -> Whose {
        let shared = Arc::clone(&self.shared);
        let ranks = self.attempts.get_mut(&attempt);
        let ranks = ranks.into_iter().flat_map(BTreeMap::values_mut);
        let ranks = ranks.map(Box::as_mut).filter(|rank| is_its(rank.rank));
        let silent: Vec<&mut RankEvidence> = ranks.filter(|rank| rank.is_silent_in(path)).collect();
        let all_lost = all_lost(&part.text, silent.len());
        let of_whom = |rank: &&mut RankEvidence| all_lost || rank.ended_silently(path);
        let mut whose: Vec<&mut RankEvidence> = silent.into_iter().filter(of_whom).collect();
        let alike = whose.len() <= 1
            || all_lost
            || self::all_lost(&part.text, whose.len())
            || says_alike(&part.text, whose.len())
            || part.become_common(whose.len());
        if !alike && first::give_to_one(&mut whose, &part, path, &shared) {
            return Whose::Known;
        }
        let found = match whose.len() {
            _ if !alike => Whose::Unclear,
            0 => Whose::Nobodys,
            _ => Whose::Known,
        };
        if found != Whose::Known {
            self.hearsay
                .extend(Hearsay::of(path, &part.text, &part.lines));
        }
        let chorus = if whose.len() == 1 { chorus(&part) } else { 0 };
        for rank in whose.into_iter().filter(|_| alike) {
            rank.set_words(&part, path, &shared);
            (rank.output_shared, rank.chorus) = (true, chorus);
            rank.hear_among_others(&part);
        }
        found
    }

    /// Adds what processes say of which not even the number is known: each traceback at the end of a log is one's.
    ///
    /// They are numbered from `first` on; returns the number of the next.
    fn add_voices(&mut self, console: Console, path: &Path, first: u32) -> u32 {
        let shared = Arc::clone(&self.shared);
        let own = own::rank_of(&console, path);
        let names = console.names;
        let named = console.ranks.into_iter().filter_map(|(label, output)| {
            let Label::Process(index) = label else {
                return None;
            };
            let name = names.get(index as usize).map(String::as_str);
            Some((host_of_name(name.unwrap_or("")), output))
        });
        let all = named.chain([(String::new(), console.unlabelled)]);
        let all: Vec<(String, Output)> = all.filter(|(_, output)| output.speaks()).collect();
        let named = all.iter().find_map(|(_, output)| named_rank(&output.text));
        let said = all.iter();
        let said = said.filter_map(|(_, output)| Hearsay::of(path, &output.text, &output.lines));
        let mut said: Vec<Hearsay> = said.collect();
        let mut voices: Vec<(String, Output)> = all
            .into_iter()
            .flat_map(|(host, output)| {
                let apart = crate::voices::apart(output);
                apart.into_iter().map(move |voice| (host.clone(), voice))
            })
            .collect();
        let raises = |voice: &(String, Output)| traceback::has_start(&voice.1.text);
        // A launcher's word on a worker is about what its driver raises, and no end of another.
        if named.is_some() && voices.iter().any(raises) {
            voices.retain(raises);
        }
        let named = named.filter(|_| voices.len() == 1);
        said.iter_mut().for_each(|said| said.rank = named);
        self.hearsay.extend(said);
        let own = own.filter(|_| voices.len() == 1);
        let named = named.or(own);
        if voices.len() > 1 {
            self.notes.push(format!(
                "{}: nothing tells the ranks of {} that failed in it; they are numbered as they come",
                path.display(),
                crate::decide::count(voices.len(), "process"),
            ));
        }
        let next = u32::try_from(voices.len()).map_or(first, |number| first.saturating_add(number));
        for (number, (host, output)) in (first..next).zip(voices) {
            let rank = named.unwrap_or(number);
            let evidence = self.rank(0, rank, None, HostKey::Name(host));
            (evidence.nameless, evidence.assumed) = (named.is_none(), true);
            evidence.set_words(&output, path, &shared);
            evidence.output_shared = true;
        }
        next
    }
}

/// Returns how many processes end in a text one after another by the same exception; 0 where that is not so.
///
/// A logger prints what is raised again as well: below a line of its own, and mostly from further in than the program's
/// first frame.
fn chorus(part: &Output) -> usize {
    let ends = traceback::ends(&part.text);
    let alike = ends.len() > 1 && ends.iter().all(|end| *end == ends[0]);
    let before = traceback::from_first(&part.text).and_then(|text| text.lines().next());
    let is_logged = before.is_some_and(|line| line.contains("ERROR") || line.contains("xception "));
    if !alike || is_logged {
        return 0;
    }
    let voices = crate::voices::apart(part.clone());
    let frame = |voice: &Output| {
        let mut lines = voice.text.lines();
        lines
            .find(|line| line.starts_with("  File "))
            .map(str::to_owned)
    };
    let frames: Vec<Option<String>> = voices.iter().map(frame).collect();
    let from_one_line = frames
        .iter()
        .all(|frame| frame.is_some() && *frame == frames[0]);
    if voices.len() > 1 && from_one_line {
        voices.len()
    } else {
        0
    }
}

/// Whether a text holds one exception as often as there are ranks: then it is that of each. Last words count as well.
fn says_alike(text: &str, ranks: usize) -> bool {
    let ends: Vec<(&str, &str)> = traceback::ends(text);
    if let Some((_, said)) = last_words(text).filter(|_| ends.is_empty()) {
        return text.lines().filter(|line| line.trim() == said).count() >= ranks;
    }
    ends.len() >= ranks && ends.iter().all(|end| *end == ends[0])
}

/// Whether as many lines as there are ranks tell of a lost peer without a traceback, and none of another error: then also
/// those lost one that their launcher ended meanwhile.
fn all_lost(text: &str, ranks: usize) -> bool {
    if ranks == 0 || traceback::has_start(text) {
        return false;
    }
    let reported = reported::of(text);
    reported.own.is_none() && reported.consequences >= ranks
}

impl RankEvidence {
    /// Whether a launcher saw it end by itself in a log that has no words of its.
    fn ended_silently(&self, path: &Path) -> bool {
        let by_launcher = self.status.as_ref().is_none_or(Status::by_launcher);
        self.is_silent_in(path) && !by_launcher
    }

    /// Whether a launcher saw it end, by whatever, in a log that has no words of its.
    fn is_silent_in(&self, path: &Path) -> bool {
        let says_nothing = self.words.as_ref().is_none_or(|words| words.say_nothing());
        let silent = self.record.is_none() && says_nothing;
        let ended = |status: &Status| status.value != 0 && status.log == path;
        silent && self.status.as_ref().is_some_and(ended)
    }

    /// Takes the only traceback in the words of several for the end of the one that left by an exception's status, also where
    /// the others have a few words more.
    fn hear_among_others(&mut self, output: &Output) {
        const FEW: usize = 20;
        let left = self.status.as_ref().is_some_and(|status| status.value == 1);
        let Some(words) = self.words.as_mut().filter(|_| self.nameless && left) else {
            return;
        };
        let is_last = matches!(words.after, Some(1..=FEW)) && words.last.is_none();
        if words.finding.is_none() && is_last && !traceback::has_several(&output.text) {
            words.take_passing(&output.text);
            self.words_assumed = true;
        }
    }

    fn set_words(&mut self, output: &Output, path: &Path, shared: &Shared) {
        let text = traceback::strip_prefixes(&output.text);
        let number = |index: usize| output.lines.get(index).copied().unwrap_or(0);
        self.words = Words::of(&text, number, shared);
        self.output_path = Some(path.to_owned());
        (self.uncaught, self.by_summary) = (output.uncaught, false);
        (self.by_logger, self.torn) = (output.by_logger, output.torn);
        self.headless = output.headless;
    }
}

/// How the labels of one log number the ranks.
struct Numbering {
    /// The rank of local rank 0.
    base: Option<u32>,
    has_ranks: bool,
    tasks_are_hosts: bool,
    /// Whether the ranks on a host are those of several hosts.
    of_hosts: bool,
}

impl Numbering {
    fn of(console: &Console, launchers: &[&AgentLog]) -> Self {
        let base = match launchers {
            [launcher] => launcher.base(),
            _ => None,
        };
        let mut labels = console.ranks.keys();
        Self {
            base,
            has_ranks: labels.any(|label| matches!(label, Label::Rank(_))),
            // Under a launcher a task is a node, and what it says is what all its ranks say.
            tasks_are_hosts: !launchers.is_empty(),
            of_hosts: launchers.len() > 1,
        }
    }

    /// Returns the rank, and whether it is no more than likely.
    fn rank(&self, label: Label) -> Option<(u32, bool)> {
        match label {
            Label::Rank(rank) => Some((rank, false)),
            // Beside labels that tell the rank these are of several hosts.
            Label::Local(_) if self.has_ranks || self.of_hosts => None,
            Label::Local(local) => Some((
                self.base.unwrap_or(0).saturating_add(local),
                self.base.is_none(),
            )),
            Label::Task(_) if self.tasks_are_hosts || self.has_ranks => None,
            Label::Task(task) => Some((task, false)),
            Label::Process(_) => None,
        }
    }
}

/// Reads `rank3.log`, `rank_3.out`, `train-rank-3.txt`.
pub(crate) fn rank_of_name(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let (before, after) = name.rsplit_once("rank")?;
    if before.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let digits = after.trim_start_matches(['_', '-']);
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end]
        .parse()
        .ok()
        .filter(|_| !digits[end..].starts_with(|c: char| c.is_ascii_alphabetic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_ranks() {
        for (name, expected) in [
            ("rank3.log", Some(3)),
            ("train-rank_12.out", Some(12)),
            ("rank-0.txt", Some(0)),
            ("frank3.log", None),
            ("rank.log", None),
            ("rank3b.log", None),
            ("node0.log", None),
        ] {
            assert_eq!(rank_of_name(Path::new(name)), expected, "{name}");
        }
    }
}
