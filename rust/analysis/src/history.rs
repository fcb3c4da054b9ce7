//! The attempts of a job as a history: what the first failure was, why restarts did not recover, what came back.

use crate::classify::Role;
use crate::decide::{Attempt, Decision, count};
use crate::groups::{Fingerprint, ranges};
use crate::outcome::End;
use crate::schema::{self, Confidence, Retry, RootCause};
use crate::verdict::{first_line, host_of, one_line, shown};
use std::collections::BTreeMap;

/// An attempt, its number, and what was decided on it.
pub(crate) type Judged<'a> = (u32, &'a Attempt<'a>, Option<&'a Decision>);

/// Returns each attempt in a line; `judged` is the one that the verdict is about.
pub(crate) fn attempts(all: &[Judged<'_>], judged: usize) -> Vec<schema::Attempt> {
    let told = all
        .iter()
        .enumerate()
        .map(|(index, (number, attempt, decision))| {
            let ends = attempt.outcomes.values().map(|outcome| outcome.end);
            let failed = ends.filter(|end| !matches!(end, End::Silent | End::Succeeded));
            schema::Attempt {
                attempt: *number,
                failed: u32::try_from(failed.count()).unwrap_or(u32::MAX),
                root_cause: match decision {
                    // Ranks that could not find each other again are no news.
                    Some(_) if index > judged && is_fallout(attempt) => {
                        format!(
                            "no cause of its own: the restart did not recover{}",
                            fallout(attempt)
                        )
                    }
                    Some(decision) => one_line(attempt, decision),
                    None => String::new(),
                },
            }
        });
    told.collect()
}

fn is_fallout(attempt: &Attempt<'_>) -> bool {
    attempt.with_end(End::Primary).is_empty()
}

/// What most ranks of an attempt without a cause say.
fn fallout(attempt: &Attempt<'_>) -> String {
    let mut said: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in attempt.outcomes.values() {
        if matches!(outcome.end, End::Collateral | End::Timeout) {
            *said.entry(&*outcome.title).or_default() += 1;
        }
    }
    let most = said
        .into_iter()
        .max_by_key(|(title, number)| (*number, std::cmp::Reverse(*title)));
    most.map_or_else(String::new, |(title, number)| {
        format!(" ({}: {})", count(number, "rank"), first_line(title))
    })
}

/// Adds to the cause what the attempts after it tell of it: whether it came back, or its host failed otherwise.
pub(crate) fn compare(all: &[Judged<'_>], judged: usize, cause: &mut RootCause) {
    let own = all.get(judged).and_then(|judged| sign(judged));
    let later = all.iter().skip(judged + 1);
    let fallen: Vec<u32> = later
        .clone()
        .filter(|(_, attempt, decision)| decision.is_some() && is_fallout(attempt))
        .map(|(number, ..)| *number)
        .collect();
    if !fallen.is_empty() {
        let numbers = ranges(fallen.iter().copied());
        cause.evidence.push(format!(
            "restarts did not recover and have no cause of their own: attempts {numbers}"
        ));
    }
    let Some((fingerprint, host)) = own else {
        return;
    };
    let signs: Vec<(u32, Fingerprint, String)> = later
        .filter_map(|judged| {
            let (fingerprint, host) = sign(judged)?;
            Some((judged.0, fingerprint, host))
        })
        .collect();
    let numbers = |fits: &dyn Fn(&Fingerprint, &str) -> bool| -> Vec<u32> {
        let fitting = signs.iter().filter(|(_, print, host)| fits(print, host));
        fitting.map(|(number, ..)| *number).collect()
    };
    let again = numbers(&|print, _| *print == fingerprint);
    let several = all
        .iter()
        .any(|(_, attempt, _)| attempt.job.hosts.len() > 1);
    let there = numbers(&|print, other| *print != fingerprint && other == host);
    if !again.is_empty() {
        if matches!(cause.retry, Retry::Once | Retry::Unknown) {
            cause.retry = Retry::No;
        }
        let numbers = ranges(again);
        cause
            .evidence
            .push(format!("the same failure came back in attempts {numbers}"));
    } else if !there.is_empty() && several && !matches!(host.as_str(), "" | "localhost") {
        cause.retry = Retry::ExcludeHost;
        let numbers = ranges(there);
        cause.evidence.push(format!(
            "other failures came from the same host, {host}, in attempts {numbers}"
        ));
    }
}

/// What a failure of its own is known by: its fingerprint, and the host it happened on.
fn sign((_, attempt, decision): &Judged<'_>) -> Option<(Fingerprint, String)> {
    let decision = decision.filter(|decision| decision.confidence > Confidence::Low)?;
    let rank = shown(decision)?;
    let finding = attempt.outcomes.get(&rank)?.finding.as_ref()?;
    let own = matches!(finding.rule.role, Role::Primary | Role::Ambiguous);
    own.then(|| (finding.fingerprint, host_of(attempt, rank)))
}
