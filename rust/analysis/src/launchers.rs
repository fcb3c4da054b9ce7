//! What launchers' logs add to a job: how each worker ended, and on which host.

use crate::assemble::{HostKey, Job, RankEvidence, Status};
use crate::logs::AgentLog;
use crate::numbers::{Numbers, last_three};
use crate::scan::RunPath;
use crate::words::Words;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

impl Job {
    pub(crate) fn add_agents(&mut self, agents: &[AgentLog], numbers: &Numbers) {
        let runs: BTreeSet<RunPath> = self.all_ranks().filter_map(run).collect();
        let mut by_pid = None;
        // Those that tell their ranks come before one whose ranks are taken to be none of these.
        let (told, untold): (Vec<&AgentLog>, Vec<&AgentLog>) =
            agents.iter().partition(|agent| agent.base().is_some());
        for agent in told.into_iter().chain(untold) {
            let last = u32::try_from(agent.failed.len().saturating_sub(1)).unwrap_or(0);
            let stated = agent
                .entries
                .iter()
                .find_map(|entry| last_three(entry.error_file.as_deref()?));
            let mut components = stated.iter().flat_map(|tail| tail.components());
            let name = components.next();
            let attempt = components
                .next()
                .and_then(|part| crate::scan::attempt_of(Path::new(part.as_os_str())))
                .unwrap_or(last);
            let by_name = name.and_then(|name| {
                runs.iter()
                    .find(|run| run.file_name() == Some(name.as_os_str()))
            });
            let by_rank = || {
                let base = agent.base()?;
                runs.iter().find(|run| {
                    numbers.base(run, attempt) == Some(base) && !numbers.is_assumed(run, attempt)
                })
            };
            // One launcher and one run directory belong together.
            let alone = || (runs.len() == 1 && agents.len() == 1).then(|| runs.first())?;
            // `agent1.err` beside the directory `node1`.
            let by_number = || {
                let number = last_number(agent.path.file_stem()?)?;
                let mut named = runs.iter().filter(|run| {
                    let parent = run.parent().and_then(Path::file_name);
                    parent.and_then(last_number) == Some(number)
                });
                named.next().filter(|_| named.next().is_none())
            };
            let run = by_name.or_else(by_rank).or_else(alone).or_else(by_number);
            self.stray_launcher |= run.is_none();
            // Of rounds with one folder number the last is the one that left files.
            for (run, round) in run
                .iter()
                .flat_map(|run| agent.rounds.iter().map(move |round| (run, round)))
            {
                let place = ((*run).clone(), round.attempt);
                self.masters.insert(place, round.master.clone());
            }
            let last = if agent.failed.is_empty() {
                attempt
            } else {
                last
            };
            let host = match run {
                Some(run) => HostKey::Run(run.clone()),
                None => HostKey::Name(
                    agent
                        .entries
                        .first()
                        .map(|entry| entry.host.clone())
                        .or_else(|| agent.node.clone())
                        .unwrap_or_default(),
                ),
            };
            let at = agent
                .path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            let zone = self.time_zone(agent, attempt);
            let shared = Arc::clone(&self.shared);
            for entry in &agent.entries {
                let evidence = self.rank(attempt, entry.rank, Some(entry.local_rank), host.clone());
                let time_ns =
                    zone.and_then(|zone| (entry.local_time? - zone).checked_mul(1_000_000_000));
                let (asked, forced) = agent.ended(entry.pid);
                evidence.status = entry.status.map(|value| Status {
                    value,
                    time_ns,
                    source: format!("{at}:{}", entry.line),
                    log: agent.path.clone(),
                    pid: entry.pid,
                    forced,
                    asked,
                });
                if evidence.record.is_none() && !entry.traceback.is_empty() {
                    let text = crate::traceback::strip_prefixes(&entry.traceback);
                    evidence.words = Words::of(&text, |_| 0, &shared);
                    evidence.output_path = Some(agent.path.clone());
                    // It is of an error file: what left `main`.
                    (evidence.uncaught, evidence.by_summary) = (true, true);
                }
            }
            self.add_unlisted(agent, last, &host);
            // A launcher that was ended, or names one worker, tells of an attempt even where no worker left anything.
            if run.is_none() && agent.entries.is_empty() && agent.signalled.is_some() {
                self.attempts.entry(last).or_default();
            }
            {
                let stated = agent.base();
                let highest = self.attempts.values().filter_map(BTreeMap::last_key_value);
                let free = highest.map(|(rank, _)| rank.saturating_add(1)).max();
                let free = free.filter(|_| agents.len() > 1).unwrap_or(0);
                // With the directories of all launchers here, what it says is of one of their ranks, not of further ones.
                let whose = run.is_some() || stated.is_some() || runs.len() < agents.len();
                let failures = agent.failed.iter().filter(|_| whose);
                for (attempt, failed) in (0..).zip(failures) {
                    let told = run.and_then(|run| numbers.base(run, attempt)).or(stated);
                    // A record or a black box has the same process ID, where no summary is here.
                    let mut by_pid = || {
                        let known = by_pid.get_or_insert_with(|| self.ranks_by_pid());
                        let rank = (*known.get(&(failed.pid?, failed.local_rank))?)?;
                        rank.checked_sub(failed.local_rank)
                    };
                    let told = told.or_else(&mut by_pid);
                    let base = told.unwrap_or(free);
                    let evidence = self.rank(
                        attempt,
                        base.saturating_add(failed.local_rank),
                        Some(failed.local_rank),
                        host.clone(),
                    );
                    // Which of several launchers is the first, only their numbers tell.
                    let is_new = evidence.record.is_none() && evidence.status.is_none();
                    let is_first = agents.len() == 1 || agent.is_numbered(0);
                    evidence.nameless |= told.is_none() && is_new && !is_first;
                    evidence.assumed |= told.is_none();
                    let source = format!("{at}:{}", failed.line);
                    let (asked, forced) = agent.ended(failed.pid);
                    evidence.status.get_or_insert(Status {
                        value: failed.status,
                        time_ns: None,
                        source,
                        log: agent.path.clone(),
                        pid: failed.pid,
                        forced,
                        asked,
                    });
                }
            }
            let known = self.hosts.entry(host).or_default();
            known.spoke = true;
            known.reported |= !agent.entries.is_empty() || agent.succeeded;
            known.signalled = agent
                .signalled
                .clone()
                .map(|signalled| (agent.path.clone(), signalled))
                .or(known.signalled.take());
            if let Some(entry) = agent.entries.first() {
                known.label.clone_from(&entry.host);
            }
        }
    }

    /// Returns the ranks by process ID and local rank; `None` where these are of several, as those in containers are.
    fn ranks_by_pid(&self) -> BTreeMap<(u32, u32), Option<u32>> {
        let mut found: BTreeMap<(u32, u32), Option<u32>> = BTreeMap::new();
        for rank in self.all_ranks() {
            for (pid, local_rank) in rank.pids().zip(rank.local_rank.into_iter().cycle()) {
                let known = found.entry((pid, local_rank)).or_insert(Some(rank.rank));
                *known = known.filter(|known| *known == rank.rank);
            }
        }
        found
    }

    /// Adds the workers that a launcher ended and did not list.
    fn add_unlisted(&mut self, agent: &AgentLog, attempt: u32, host: &HostKey) {
        let Some(base) = agent.base() else {
            return;
        };
        for (local_rank, pid) in agent.unlisted() {
            let rank = base.saturating_add(local_rank);
            let evidence = self.rank(attempt, rank, Some(local_rank), host.clone());
            evidence.status.get_or_insert_with(|| agent.asked(pid));
        }
    }

    /// The launcher prints its own wall time; a worker of its own that recorded the same second tells the zone.
    fn time_zone(&self, agent: &AgentLog, attempt: u32) -> Option<i64> {
        let ranks = self.attempts.get(&attempt)?;
        agent.entries.iter().find_map(|entry| {
            let record = ranks.get(&entry.rank)?.record.as_ref()?;
            entry.error_file.as_ref()?;
            let offset = entry.local_time? - record.time_ns? / 1_000_000_000;
            let zone = (offset as f64 / 900.0).round() as i64 * 900;
            ((offset - zone).abs() <= 2 && zone.abs() <= 15 * 3600).then_some(zone)
        })
    }
}

impl AgentLog {
    /// How a worker ended that it asked to end, and says no more of.
    pub(crate) fn asked(&self, pid: u32) -> Status {
        let forced = self.forced.contains(&pid);
        let name = self.path.file_name().unwrap_or_default();
        Status {
            value: if forced { -9 } else { -15 },
            time_ns: None,
            source: name.to_string_lossy().into_owned(),
            log: self.path.clone(),
            pid: Some(pid),
            forced: Some(forced),
            asked: Some(true),
        }
    }

    /// Whether this is the number of its task, or the one at the end of its log's name.
    fn is_numbered(&self, number: u32) -> bool {
        let of_name = || self.path.file_stem().and_then(last_number);
        self.task.or_else(of_name) == Some(number)
    }
}

fn last_number(name: &OsStr) -> Option<u32> {
    let name = name.to_str()?;
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    name[name.len() - digits..].parse().ok()
}

fn run(rank: &RankEvidence) -> Option<RunPath> {
    match &rank.host {
        HostKey::Run(run) => Some(run.clone()),
        HostKey::Name(_) => None,
    }
}
