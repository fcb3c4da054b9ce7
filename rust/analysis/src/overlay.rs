//! What a host's kernel or the scheduler says, laid over what the ranks say: it turns "killed" into who did it.

use crate::classify::Role;
use crate::decide::{Attempt, Decision, Subject, count};
use crate::hosts::HostFact;
use crate::outcome::{End, Outcome};
use crate::schema::Confidence;

/// Ends that say only that somebody else ended the process, by rule.
const FROM_OUTSIDE: &[&str] = &[
    "killed",
    "terminated-by-unknown",
    "sent-signal",
    "vanished",
    "interrupted",
    "preempted",
    "silent",
    "hang",
];

impl Attempt<'_> {
    /// Returns the decision with what the hosts say of it.
    pub(crate) fn overlay(&self, decision: Option<Decision>) -> Option<Decision> {
        if self.job.facts.is_empty() {
            return decision;
        }
        let mut decision = decision.or_else(|| self.nothing_but_facts())?;
        if let Some(decided) = self.by_scheduler(&decision) {
            return Some(decided);
        }
        let ranks: Vec<u32> = match &decision.subject {
            Subject::Rank(rank) => vec![*rank],
            Subject::Uniform(ranks) => ranks.clone(),
            Subject::Job(_) | Subject::Host(_) => Vec::new(),
        };
        let told = ranks.iter().find_map(|&rank| {
            let outcome = self.outcomes.get(&rank)?;
            let facts = self.job.facts.iter();
            facts
                .filter_map(|fact| Some((fact, self.fits(fact, outcome)?)))
                .max_by_key(|(_, fit)| *fit)
        });
        if let Some((fact, fit)) = told {
            let overrides = fact.rule.role == Role::Host && fact.rule.category != "unknown";
            if overrides && fact.rule.category != decision.rule.category {
                decision.rule = fact.rule;
            }
            let least = match fit {
                Fit::Process => Confidence::High,
                Fit::Host => Confidence::Medium,
                // The line may be of another process or host.
                Fit::Job => Confidence::Low,
            };
            let agreed = fit == Fit::Process || self.victims() >= 2 && fit == Fit::Host;
            decision.confidence = if agreed {
                Confidence::High
            } else {
                decision.confidence.min(Confidence::Medium).max(least)
            };
            decision.reasons.push(format!(
                "its host says: {} ({})",
                fact.text.trim(),
                fact.source()
            ));
        }
        Some(decision)
    }

    /// The scheduler ended the job, and no rank failed by itself before.
    fn by_scheduler(&self, decision: &Decision) -> Option<Decision> {
        let fact = self.job.facts.iter().find(|fact| fact.rule.job)?;
        let outside = FROM_OUTSIDE.contains(&decision.rule.id.as_str());
        let primary = self
            .outcomes
            .values()
            .filter(|outcome| outcome.end == End::Primary)
            .any(|outcome| {
                let rule = outcome
                    .finding
                    .as_ref()
                    .map(|finding| finding.rule.id.as_str());
                rule.is_some_and(|rule| !FROM_OUTSIDE.contains(&rule))
            });
        if primary || !outside && decision.confidence > Confidence::Low {
            return None;
        }
        let named = fact.host.as_deref().and_then(|name| {
            let mut hosts = self
                .job
                .hosts
                .iter()
                .filter(|(_, host)| same_host(&host.label, name));
            Some(hosts.next()?.0.clone())
        });
        let ended = self.with_end(End::Terminated).len();
        let mut reasons = vec![format!(
            "the scheduler says: {} ({})",
            fact.text.trim(),
            fact.source()
        )];
        if ended > 0 {
            reasons.push(format!("{} ended when asked to", count(ended, "rank")));
        }
        let subject = match named {
            Some(key) if fact.rule.category == "host_lost" => Subject::Host(key),
            _ => Subject::Job(None),
        };
        Some(Decision {
            subject,
            rule: fact.rule,
            confidence: Confidence::High,
            also: Vec::new(),
            suspects: self.stood_apart(),
            reasons,
        })
    }

    /// No rank says anything: what a host or the scheduler says is all there is.
    fn nothing_but_facts(&self) -> Option<Decision> {
        let fact = self.job.facts.first()?;
        let bad = self
            .outcomes
            .values()
            .any(|outcome| outcome.end != End::Succeeded);
        (bad || self.outcomes.is_empty()).then(|| Decision {
            subject: Subject::Job(None),
            rule: fact.rule,
            confidence: Confidence::Low,
            also: Vec::new(),
            suspects: Vec::new(),
            reasons: vec![format!("{} ({})", fact.text.trim(), fact.source())],
        })
    }

    /// Returns how closely a fact is about a rank, `None` where it explains nothing of how that ended.
    fn fits(&self, fact: &HostFact, outcome: &Outcome<'_>) -> Option<Fit> {
        let rule = &outcome.finding.as_ref()?.rule;
        if !fact.rule.explains.contains(&rule.category) {
            return None;
        }
        if let Some(pid) = fact.pid {
            let own = outcome.evidence.pids().any(|own| own == pid);
            // A worker of the rank's own: "DataLoader worker (pid 4242) is killed by signal".
            let child = format!("pid {pid}");
            let childs = format!("pid(s) {pid}");
            if own || outcome.title.contains(&child) || outcome.title.contains(&childs) {
                return Some(Fit::Process);
            }
            if outcome.evidence.pids().next().is_some() {
                return None;
            }
        }
        let label = self
            .job
            .hosts
            .get(&outcome.evidence.host)
            .map_or("", |host| host.label.as_str());
        match &fact.host {
            Some(name) if !label.is_empty() && label != "localhost" => {
                same_host(label, name).then_some(Fit::Host)
            }
            _ if self.job.hosts.len() <= 1 => Some(Fit::Host),
            _ => Some(Fit::Job),
        }
    }
}

/// How closely a fact is about a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// About the job that it is of.
    Job,
    /// About its host.
    Host,
    /// About its process, or one of its children.
    Process,
}

/// Whether two names are of one host: with its domain or without.
fn same_host(one: &str, other: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or("").to_ascii_lowercase();
    !one.is_empty() && short(one) == short(other)
}
