//! Hosts and ranks of which nothing is here: whether they were lost, as far as the others tell.

use crate::assemble::HostKey;
use crate::classify::rules;
use crate::decide::{Attempt, Decision, Subject, count};
use crate::outcome::{End, Outcome};
use crate::schema::Confidence;
use std::collections::BTreeMap;

impl Attempt<'_> {
    /// A host all of whose ranks are silent and whose launcher said nothing, while another's spoke.
    pub(super) fn lost_host(&self) -> Option<Decision> {
        let mut by_host: BTreeMap<&HostKey, (usize, usize)> = BTreeMap::new();
        for outcome in self.outcomes.values() {
            let (all, silent) = by_host.entry(&outcome.evidence.host).or_default();
            *all += 1;
            *silent += usize::from(outcome.end == End::Silent);
        }
        let reported = |key: &HostKey| self.job.hosts.get(key).is_some_and(|host| host.reported);
        // A launcher that still spoke at the end was on a host that was still there.
        let spoke = |key: &HostKey| self.job.hosts.get(key).is_some_and(|host| host.spoke);
        // Ranks of which no host is told are on any.
        let is_unknown = |key: &HostKey| matches!(key, HostKey::Name(name) if name.is_empty());
        let lost: Vec<&HostKey> = by_host
            .iter()
            .filter(|(key, (all, silent))| all == silent && !spoke(key) && !is_unknown(key))
            .map(|(key, _)| *key)
            .collect();
        let [key] = lost[..] else { return None };
        if by_host.len() < 2 || self.job.stray_launcher {
            return None;
        }
        let (all, _) = by_host[key];
        let spoke = by_host.keys().filter(|key| reported(key)).count();
        let reasons = vec![
            format!(
                "none of its {} left an error file, and its launcher no summary",
                count(all, "rank")
            ),
            format!(
                "{} elsewhere lost a peer or waited in vain",
                count(self.victims(), "rank")
            ),
        ];
        let confidence = if spoke > 0 {
            Confidence::Medium
        } else {
            Confidence::Low
        };
        let suspects = Vec::new();
        Some(Decision {
            subject: Subject::Host(key.clone()),
            rule: rules().by_id("host-lost"),
            confidence,
            also: Vec::new(),
            suspects,
            reasons,
        })
    }

    /// A host whose launcher has a log, and says nothing in it, where those of the others tell that a peer was lost.
    pub(super) fn quiet_launcher(&self, timeouts: &[u32]) -> Option<Decision> {
        let [path] = &self.job.quiet_launchers[..] else {
            return None;
        };
        if !timeouts.is_empty() || self.victims() < self.total() {
            return None;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let reasons = vec![
            format!("{name} says nothing, and the logs beside it are of launchers"),
            format!(
                "all {} found there lost a peer",
                count(self.total(), "rank")
            ),
        ];
        Some(Decision {
            subject: Subject::Job(None),
            rule: rules().by_id("host-lost"),
            confidence: Confidence::Low,
            also: Vec::new(),
            suspects: Vec::new(),
            reasons,
        })
    }

    /// Whether its launcher ended a rank after another of its own had lost a peer, where nothing states how many ranks
    /// there are: then one may be lost of which nothing is here.
    pub(super) fn was_there(&self, rank: u32) -> bool {
        let Some(outcome) = self.outcomes.get(&rank) else {
            return false;
        };
        let status = outcome.evidence.status.as_ref();
        let ended = status.is_some_and(|status| status.asked == Some(true));
        let is_sibling = |other: &&Outcome<'_>| {
            other.end == End::Collateral && other.evidence.host == outcome.evidence.host
        };
        ended && !self.job.is_stated && self.outcomes.values().any(|other| is_sibling(&other))
    }

    /// Ranks that lost a peer, and one that their launcher ended: somebody else was lost.
    pub(super) fn lost_elsewhere(&self, rank: u32) -> Option<Decision> {
        let decision = self.nobody(&[])?;
        let suspect = "its launcher ended it, and it left no error of its own".to_owned();
        Some(Decision {
            suspects: vec![(rank, suspect)],
            ..decision
        })
    }
}
