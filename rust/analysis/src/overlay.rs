//! What a host's kernel or the scheduler says, laid over what the ranks say: it turns "killed" into who did it.

use crate::date::month_and_day;
use crate::decide::{Attempt, Decision, Subject, count};
use crate::descendants::names_worker;
use crate::hosts::HostFact;
use crate::outcome::{End, Outcome};
use crate::schema::Confidence;

/// Ends that say only that somebody ended the process, by rule.
const FROM_OUTSIDE: &[&str] = &[
    "terminated-by-unknown",
    "sent-signal",
    "interrupted",
    "preempted",
    "silent",
    "killed",
    "vanished",
    "hang",
];

/// Rules of what tells of all jobs of a place, so that a line may be another job's.
const OF_OTHERS: &[&str] = &["sacct-", "kubernetes-"];

/// A scheduler's last word is followed by little: more is another run, appended to the same log.
const LAST_LINES: usize = 50;

impl Attempt<'_> {
    /// Returns the decision with what the hosts say of it.
    pub(crate) fn overlay(&self, decision: Option<Decision>) -> Option<Decision> {
        if self.job.facts.is_empty() || self.job.succeeded {
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
        let ended = self.job.facts.iter().find(|fact| fact.ends_job());
        if let Some((fact, fit)) = told {
            if fact.rule.category != decision.rule.category {
                decision.rule = fact.rule;
            }
            // What ended the whole job is no rank's.
            if fact.rule.job && ranks.len() == self.total() {
                decision.subject = Subject::Job(None);
            }
            decision.confidence = match fit {
                Fit::Process => Confidence::High,
                // The host agrees with what the rank says.
                Fit::HostThatDay if self.victims() >= 2 => Confidence::High,
                // The line may be of another process, or of another time.
                _ => decision
                    .confidence
                    .clamp(Confidence::Low, Confidence::Medium),
            };
            let perhaps = match fit {
                Fit::OtherNumber => " of a process of another number, as one has in a container",
                _ => "",
            };
            decision.reasons.push(format!(
                "its host says{perhaps}: {} ({})",
                fact.text.trim(),
                fact.source()
            ));
        } else if let Some(fact) = ended {
            decision.reasons.push(format!(
                "the scheduler says: {} ({})",
                fact.text.trim(),
                fact.source()
            ));
        }
        Some(decision)
    }

    /// The scheduler ended the job, and no rank failed by itself before.
    fn by_scheduler(&self, decision: &Decision) -> Option<Decision> {
        let mut facts = self.job.facts.iter();
        let fact = facts.find(|fact| fact.ends_job() && fact.rest < LAST_LINES)?;
        // Ranks that lost a peer, or waited for one, tell of something that came before.
        let is_lost = fact.rule.category == "host_lost";
        if !is_lost && self.victims() > 0 || !self.job.dumps.is_empty() {
            return None;
        }
        // A host may say why.
        let mut facts = self.job.facts.iter().filter(|why| !why.rule.job);
        let why = facts.find(|why| why.rule.explains.contains(&fact.rule.category));
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
        let said = |fact: &HostFact| format!("{} ({})", fact.text.trim(), fact.source());
        let mut reasons = vec![format!("the scheduler says: {}", said(fact))];
        reasons.extend(why.map(|why| format!("and before that: {}", said(why))));
        if ended > 0 {
            reasons.push(format!("{} ended when asked to", count(ended, "rank")));
        }
        // What it ended may have hung before.
        let suspects = self.stood_apart();
        let subject = match named {
            Some(key) if fact.rule.category == "host_lost" => Subject::Host(key),
            _ => Subject::Job(None),
        };
        Some(Decision {
            subject,
            rule: why.map_or(fact.rule, |why| why.rule),
            confidence: if OF_OTHERS.iter().any(|of| fact.rule.id.starts_with(of))
                || !suspects.is_empty()
                || why.is_some()
            {
                Confidence::Medium
            } else {
                Confidence::High
            },
            also: Vec::new(),
            suspects,
            reasons,
        })
    }

    /// No rank says anything: what a host or the scheduler says is all there is.
    fn nothing_but_facts(&self) -> Option<Decision> {
        let fact = self
            .job
            .facts
            .iter()
            .find(|fact| !fact.rule.job || fact.rest < LAST_LINES)?;
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

    /// Whether a number that a kernel's line names may be that of a trainer in a container, whose own number is another.
    fn may_be_outside(&self, pid: u32, line: &str) -> bool {
        let mut ranks = self.job.all_ranks();
        is_trainers(line) && !ranks.any(|rank| rank.pids().any(|own| own == pid))
    }

    /// Returns how closely a fact is about a rank, `None` where it explains nothing of how that ended.
    fn fits(&self, fact: &HostFact, outcome: &Outcome<'_>) -> Option<Fit> {
        let rule = &outcome.finding.as_ref()?.rule;
        if !fact.rule.explains.contains(&rule.category) {
            return None;
        }
        // A step of which nothing ran leaves by the number of that error, or as a shell does, and has said nothing.
        if fact.rule.job {
            let status = outcome.evidence.status.as_ref().map(|status| status.value);
            if !matches!(status, Some(2 | 13 | 126 | 127)) || outcome.evidence.words.is_some() {
                return None;
            }
        }
        // A line of another day is of another job.
        let failed = outcome.time_ns.map(month_and_day);
        if let (Some(day), Some(failed)) = (fact.day, failed)
            && !near(day, failed)
        {
            return None;
        }
        let label = self.job.hosts.get(&outcome.evidence.host);
        let label = label.map_or("", |host| host.label.as_str());
        let named = fact.host.as_deref();
        let here = named.map(|name| same_host(label, name));
        let known = !label.is_empty() && label != "localhost";
        if here == Some(false) && known {
            return None;
        }
        if let Some(pid) = fact.pid {
            let own = outcome.evidence.pids().any(|own| own == pid);
            // In a container the numbers are small, and another process of the host may have the same.
            let own = own && is_trainers(&fact.text);
            if own || names_worker(pid, &outcome.title) {
                return Some(Fit::Process);
            }
            if outcome.evidence.pids().next().is_some() {
                // A text that tells the number of the child that died tells that it was another.
                let told = outcome.title.contains("DataLoader worker (pid");
                let outside = !told && self.may_be_outside(pid, &fact.text);
                return outside.then_some(Fit::OtherNumber);
            }
        }
        match here {
            Some(true) if fact.day.is_some() && failed.is_some() => Some(Fit::HostThatDay),
            Some(true) => Some(Fit::Host),
            // A host whose part in the job nothing tells.
            Some(false) => None,
            None => Some(Fit::Job),
        }
    }
}

/// Whether a kernel's line names a program as trainers and their children are called.
fn is_trainers(line: &str) -> bool {
    const NAMES: &[&str] = &[
        "python",
        "pt_main_thread",
        "pt_data_worker",
        "ray::",
        "torchrun",
    ];
    NAMES.iter().any(|name| {
        let before = ["(", "task=", " "];
        before
            .iter()
            .any(|before| line.contains(&format!("{before}{name}")))
    })
}

/// Whether two days are at most one apart, whatever the time zones.
fn near(one: (u32, u32), other: (u32, u32)) -> bool {
    let day = |(month, day): (u32, u32)| i64::from(month) * 31 + i64::from(day);
    // Months of fewer days make a gap of up to three.
    let apart = (day(one) - day(other)).abs();
    apart <= 1 || one.0 != other.0 && (apart <= 4 || apart >= 12 * 31 - 1)
}

/// How closely a fact is about a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// About a process of such a name, with another number, as its host's kernel gives one in a container.
    OtherNumber,
    /// About the job that it is of.
    Job,
    /// About its host, at some time.
    Host,
    /// About its host, on the day of the failure.
    HostThatDay,
    /// About its process, or one of its children.
    Process,
}

/// Whether two names are of one host: with its domain or without.
fn same_host(one: &str, other: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or("").to_ascii_lowercase();
    !one.is_empty() && short(one) == short(other)
}
