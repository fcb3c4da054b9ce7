//! What launchers other than torchrun add to a job: how tasks and processes ended, and on which host.

use crate::assemble::{HostKey, Job, RankEvidence, Status};
use crate::classify::rules;
use crate::console::{Console, Label};
use crate::decide::{Attempt, Decision, Subject};
use crate::exits::{Exit, Who};
use crate::logs::AgentLog;
use crate::outcome::{End, describe};
use crate::schema::Confidence;
use std::collections::{BTreeMap, BTreeSet};

impl Job {
    pub(crate) fn add_exits(
        &mut self,
        exits: Vec<Exit>,
        agents: &[AgentLog],
        consoles: &[Console],
    ) {
        // Torchrun's own words say more, and number what is below it.
        if !agents.is_empty() {
            return;
        }
        let labels = || consoles.iter().flat_map(|console| console.ranks.keys());
        let is_local = |exit: &Exit| matches!(exit.who, Who::Local(_)) || is_launchers(exit);
        let tasks_are_hosts =
            exits.iter().any(is_local) || labels().any(|label| matches!(label, Label::Local(_)));
        let spoken: BTreeSet<u32> = labels()
            .filter_map(|label| match label {
                Label::Rank(rank) | Label::Task(rank) => Some(*rank),
                _ => None,
            })
            .collect();
        let listed: BTreeSet<u32> = exits.iter().filter_map(Exit::task).collect();
        // srun lists every task that failed, mpirun the first: with ranks beyond them, a task may be a host.
        let all_listed = spoken.is_subset(&listed);
        // mpirun gives process IDs, and tells of the first alone.
        let by_step =
            |exit: &Exit| matches!(exit.who, Who::Task(_)) && exit.told_all && exit.pid.is_none();
        self.step_ended = !tasks_are_hosts && exits.iter().any(by_step);
        for exit in exits {
            let rank = match exit.who {
                Who::Task(_) if tasks_are_hosts => continue,
                Who::Task(rank) | Who::Local(rank) | Who::Rank(rank) => Some(rank),
                Who::Unknown => exit.pid.and_then(|pid| self.rank_of(pid)),
            };
            let alone = rank.is_none() && self.attempts.is_empty() && spoken.is_empty();
            let Some(rank) = rank.or(alone.then_some(0)) else {
                self.exits.push(exit);
                continue;
            };
            // A task is the rank that calls itself by its number; a process of a launcher is one of some host.
            let is_task = matches!(exit.who, Who::Task(_)) && (all_listed || exit.pid.is_some());
            let stated = matches!(exit.who, Who::Rank(_)) || is_task && spoken.contains(&rank);
            let host = HostKey::Name(exit.host.clone().unwrap_or_default());
            let known = self.all_ranks().any(|known| known.rank == rank);
            let attempt = self.attempts.keys().next_back().copied().unwrap_or(0);
            let evidence = self.rank(attempt, rank, None, host.clone());
            evidence.assumed |= !stated && !known;
            evidence.nameless |= alone;
            evidence.host_is(host);
            // What is said first may leave out the process ID.
            let status = evidence.status.get_or_insert_with(|| exit.status());
            status.pid = status.pid.or(exit.pid);
        }
    }

    fn rank_of(&self, pid: u32) -> Option<u32> {
        let mut ranks = self.all_ranks();
        let found = ranks.find(|rank| rank.pids().any(|own| own == pid))?;
        Some(found.rank)
    }
}

/// Whether it is the word of a launcher of one host's processes.
fn is_launchers(exit: &Exit) -> bool {
    exit.who == Who::Unknown && exit.pid.is_none()
}

impl RankEvidence {
    pub(crate) fn host_is(&mut self, host: HostKey) {
        if self.host == HostKey::Name(String::new()) {
            self.host = host;
        }
    }
}

impl Exit {
    /// Returns where it stands, as `slurm-1.out:7`.
    fn source(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        format!("{}:{}", name.to_string_lossy(), self.line)
    }

    fn status(&self) -> Status {
        // No launcher ends its processes by SIGHUP.
        let is_others = (self.status == -1).then_some(false);
        Status {
            value: self.status,
            time_ns: None,
            source: self.source(),
            log: self.path.clone(),
            pid: self.pid,
            forced: Some(self.after_others),
            asked: self.after_others.then_some(true).or(is_others),
        }
    }
}

impl Attempt<'_> {
    /// A process that a launcher saw killed, without a word on which.
    pub(crate) fn by_unknown_exit(&self) -> Option<Decision> {
        let kills = |exit: &&Exit| {
            let is_signal = exit.status < 0 || (129..160).contains(&exit.status);
            is_signal && ![-15, 143].contains(&exit.status) && !exit.after_others
        };
        let exit = self.job.exits.iter().find(kills)?;
        let rule = rules().by_status(exit.status);
        let mut reasons = vec![format!(
            "its launcher saw a process end, but does not tell which: {} ({})",
            describe(&exit.status()),
            exit.source()
        )];
        let silent = self.with_end(End::Silent).into_iter();
        let quiet: Vec<u32> = silent.chain(self.missing.iter().copied()).collect();
        let reason = "it said nothing, and some process was killed";
        let suspects: BTreeMap<u32, String> = quiet
            .iter()
            .map(|rank| (*rank, reason.to_owned()))
            .collect();
        let (subject, confidence) = match quiet[..] {
            [rank] if self.victims() >= 2 && self.is_left_out(rank, self.victims()) => {
                reasons.push("it alone said nothing".to_owned());
                (Subject::Rank(rank), Confidence::Medium)
            }
            _ => (Subject::Job(None), Confidence::Low),
        };
        Some(Decision {
            suspects: match subject {
                Subject::Rank(_) => Vec::new(),
                _ => suspects.into_iter().collect(),
            },
            subject,
            rule,
            confidence,
            also: Vec::new(),
            reasons,
        })
    }
}
