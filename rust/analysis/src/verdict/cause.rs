//! What a decision names: who, what happened there, and what is to be done.

use super::first_line;
use crate::classify::Role;
use crate::decide::{Attempt, Decision, Subject, count};
use crate::explain::explain;
use crate::kept::MAX_BREADCRUMBS;
use crate::outcome::{End, Outcome};
use crate::schema::{Confidence, RootCause};

pub(crate) fn host_of(attempt: &Attempt<'_>, rank: u32) -> String {
    let host = attempt
        .outcomes
        .get(&rank)
        .and_then(|outcome| attempt.job.hosts.get(&outcome.evidence.host));
    host.map(|host| host.label.clone()).unwrap_or_default()
}

/// Whether a rank's number was made up, because nothing tells whose the error file is.
fn nameless(attempt: &Attempt<'_>, rank: u32) -> bool {
    attempt
        .outcomes
        .get(&rank)
        .is_some_and(|outcome| outcome.evidence.nameless)
}

/// The rank whose failure shows what happened.
pub(crate) fn shown(decision: &Decision) -> Option<u32> {
    match &decision.subject {
        Subject::Rank(rank) => Some(*rank),
        Subject::Uniform(ranks) => ranks.first().copied(),
        Subject::Job(rank) => *rank,
        Subject::Host(_) => None,
    }
}

fn title(attempt: &Attempt<'_>, decision: &Decision) -> String {
    let outcome = shown(decision).and_then(|rank| attempt.outcomes.get(&rank));
    match (outcome, &decision.subject) {
        (Some(outcome), _) if outcome.finding.is_some() && !outcome.title.is_empty() => {
            first_line(&outcome.title)
        }
        (_, Subject::Host(_) | Subject::Job(None)) if decision.rule.role == Role::Host => {
            said(attempt, decision)
        }
        (_, Subject::Host(_))
            if matches!(decision.rule.id.as_str(), "preempted" | "interrupted") =>
        {
            "the launcher was ended from outside".to_owned()
        }
        (_, Subject::Host(_)) => "nothing came back from this host".to_owned(),
        (_, Subject::Rank(_)) if decision.rule.id == "left-early" => {
            "it ended well before the others".to_owned()
        }
        (_, Subject::Job(None)) if !words(attempt, decision).is_empty() => words(attempt, decision),
        (_, Subject::Job(_)) if decision.rule.id == "left-early" => {
            "several ranks ended well before the others".to_owned()
        }
        (_, Subject::Rank(_)) => "it left no error of its own".to_owned(),
        _ => "several ranks left no error of their own".to_owned(),
    }
}

/// What a kernel or a scheduler said, where that is the cause.
fn said(attempt: &Attempt<'_>, decision: &Decision) -> String {
    let mut facts = attempt.job.facts.iter();
    let fact = facts.find(|fact| fact.rule.id == decision.rule.id);
    fact.map(|fact| first_line(fact.text.trim()))
        .unwrap_or_default()
}

/// What is said of nobody, where that is the cause.
fn words(attempt: &Attempt<'_>, decision: &Decision) -> String {
    let mut said = attempt.job.hearsay.iter();
    let words = said.find(|words| words.rule.id == decision.rule.id);
    words
        .map(|words| first_line(&words.line))
        .unwrap_or_default()
}

fn category(attempt: &Attempt<'_>, decision: &Decision) -> String {
    let is_uniform = match &decision.subject {
        // Some that left with 1 and without a word may be victims.
        Subject::Uniform(ranks) => {
            !attempt.others_ended() || ranks.iter().any(|&rank| !attempt.left_with_one(rank))
        }
        _ => false,
    };
    let uniform = is_uniform
        .then_some(decision.rule.uniform_category.as_ref())
        .flatten();
    uniform.unwrap_or(&decision.rule.category).clone()
}

pub(crate) fn one_line(attempt: &Attempt<'_>, decision: &Decision) -> String {
    let who = match &decision.subject {
        Subject::Rank(rank) if nameless(attempt, *rank) => String::new(),
        Subject::Rank(rank) => format!("rank {rank}: "),
        Subject::Uniform(ranks) => format!("{}: ", count(ranks.len(), "rank")),
        Subject::Host(key) => format!(
            "host {}: ",
            attempt.job.hosts.get(key).map_or("", |host| &host.label)
        ),
        Subject::Job(_) => String::new(),
    };
    format!(
        "{who}{}, {}",
        category(attempt, decision),
        title(attempt, decision)
    )
}

/// The host of ranks that are all on one, where those of others came further: its disk or its image is at fault.
fn only_host(attempt: &Attempt<'_>, ranks: &[u32]) -> String {
    let host = |rank: &u32| attempt.outcomes.get(rank).map(|it| &it.evidence.host);
    let first = ranks.first().and_then(host);
    let elsewhere = |rank: &u32| host(rank) != first;
    let mut others = attempt
        .outcomes
        .keys()
        .filter(|rank| elsewhere(rank))
        .peekable();
    let came_further = |rank: &u32| {
        let end = attempt.outcomes[rank].end;
        matches!(end, End::Collateral | End::Timeout)
    };
    match ranks.first() {
        Some(rank)
            if !ranks.iter().any(elsewhere)
                && others.peek().is_some()
                && others.all(came_further) =>
        {
            host_of(attempt, *rank)
        }
        _ => String::new(),
    }
}

pub(super) fn root_cause(attempt: &Attempt<'_>, decision: &Decision, number: u32) -> RootCause {
    let outcome = shown(decision).and_then(|rank| attempt.outcomes.get(&rank));
    let (rank, host) = match &decision.subject {
        Subject::Rank(rank) => (
            Some(*rank).filter(|_| !nameless(attempt, *rank)),
            host_of(attempt, *rank),
        ),
        Subject::Host(key) => (
            None,
            attempt
                .job
                .hosts
                .get(key)
                .map(|host| host.label.clone())
                .unwrap_or_default(),
        ),
        Subject::Uniform(ranks) => (None, only_host(attempt, ranks)),
        Subject::Job(_) => (None, String::new()),
    };
    let (step, breadcrumbs) = outcome.map_or((None, &[][..]), Outcome::last_words);
    let latest = breadcrumbs.len().saturating_sub(MAX_BREADCRUMBS);
    RootCause {
        rank,
        local_rank: rank.and_then(|rank| attempt.outcomes.get(&rank)?.evidence.local_rank),
        host,
        attempt: number,
        category: category(attempt, decision),
        title: title(attempt, decision),
        class: decision.rule.class,
        confidence: decision.confidence,
        retry: decision.rule.retry,
        owner: decision.rule.owner,
        time_ns: outcome.and_then(|outcome| outcome.time_ns),
        advice: decision.rule.advice.clone(),
        step,
        breadcrumbs: breadcrumbs[latest..].to_vec(),
        evidence: explain(attempt, decision, outcome),
        error_file: outcome
            .and_then(|outcome| outcome.evidence.record.as_ref())
            .map(|record| record.path.display().to_string())
            .unwrap_or_default(),
    }
}

pub(super) fn second_fault(attempt: &Attempt<'_>, rank: u32, number: u32) -> RootCause {
    let outcome = &attempt.outcomes[&rank];
    let rule = outcome.finding.as_ref().map_or_else(
        || crate::classify::rules().by_id("silent"),
        |finding| finding.rule,
    );
    let decision = Decision {
        subject: Subject::Rank(rank),
        rule,
        confidence: Confidence::Low,
        also: Vec::new(),
        suspects: Vec::new(),
        reasons: Vec::new(),
    };
    let mut cause = root_cause(attempt, &decision, number);
    cause.evidence.truncate(2);
    cause
}
