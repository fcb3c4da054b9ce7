//! A job to a report: which attempt is judged, who is the cause, and everything that is said about it.

mod cause;

pub(crate) use cause::{host_of, one_line, shown};

use crate::Options;
use crate::assemble::{Job, assemble};
use crate::black_box::Fate;
use crate::by_rank::ByRank;
use crate::date::utc;
use crate::decide::{Attempt, Decision, count};
use crate::groups::{Fingerprint, ranges};
use crate::history::{self, Judged};
use crate::outcome::{End, Outcome, outcome};
use crate::parse::begin;
use crate::scan::Evidence;
use crate::schema::{self, Confidence, Example, Group, Ranks, Report, Suspect};
use cause::{root_cause, second_fault};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// At most so many further failures and suspects are listed one by one.
const MAX_LISTED: usize = 16;

/// Ranks from here on are not missed when nothing of them is found.
const MAX_WORLD: u32 = 1 << 20;

/// Returns the report on the evidence. Pure: the same evidence gives the same report.
pub fn judge(evidence: Evidence, options: &Options) -> Report {
    let job = assemble(evidence, options);
    let attempts: Vec<(u32, Attempt<'_>)> = job
        .attempts
        .keys()
        .map(|&number| (number, attempt(&job, number)))
        .collect();
    let decisions: Vec<Option<Decision>> = attempts
        .iter()
        .map(|(_, attempt)| attempt.by_nobodys_words(attempt.overlay(attempt.decide())))
        .collect();
    // The first attempt with a cause: what failed after it did not recover from it. That later ranks are silent is none.
    let first = decisions.iter().position(Option::is_some);
    let is_cause = |(index, decision): (usize, &Option<Decision>)| {
        decision.as_ref().is_some_and(|decision| {
            let tells = first == Some(index) || decision.rule.id != "silent";
            decision.confidence > Confidence::None && tells
        })
    };
    let judged = decisions.iter().enumerate().position(is_cause);
    let judged = judged.or(first).unwrap_or(0);

    let mut report = Report {
        schema_version: schema::REPORT_VERSION,
        ..Report::default()
    };
    report.job = schema::Job {
        run_id: job.run_id.clone(),
        world_size: job.world_size,
        attempts: u32::try_from(job.attempts.len()).unwrap_or(u32::MAX),
        hosts: u32::try_from(job.hosts.len()).unwrap_or(u32::MAX),
    };
    report.host_names = job.host_names();
    report.is_complete = attempts.last().is_some_and(|(_, last)| {
        job.is_counted && last.missing.is_empty() && last.with_end(End::Silent).is_empty()
    });
    report.damaged_files.clone_from(&job.damaged);
    report.incomplete.clone_from(&job.notes);
    let all: Vec<Judged<'_>> = attempts
        .iter()
        .zip(&decisions)
        .map(|((number, attempt), decision)| (*number, attempt, decision.as_ref()))
        .collect();
    report.attempts = history::attempts(&all, judged);
    if let Some((number, attempt)) = attempts.get(judged) {
        describe_attempt(&mut report, attempt);
        if let Some(decision) = &decisions[judged] {
            for (all, what) in [
                (decision.also.len(), "further failure"),
                (decision.suspects.len(), "further suspect"),
            ] {
                if let Some(more) = all.checked_sub(MAX_LISTED).filter(|&more| more > 0) {
                    let more = count(more, what);
                    report
                        .incomplete
                        .push(format!("{more} left out of the list"));
                }
            }
            let mut cause = root_cause(attempt, decision, *number);
            history::compare(&all, judged, &mut cause);
            report.root_cause = Some(cause);
            let also = decision.also.iter().take(MAX_LISTED);
            report.also_primary = also
                .map(|&rank| second_fault(attempt, rank, *number))
                .collect();
            let suspects = decision.suspects.iter().take(MAX_LISTED);
            report.suspects = suspects
                .map(|(rank, reason)| Suspect {
                    rank: *rank,
                    host: host_of(attempt, *rank),
                    reason: reason.clone(),
                })
                .collect();
        }
    }
    // To free ten thousand ranks' texts takes as long as to judge them: nobody has to wait for it.
    drop((decisions, attempts));
    rayon::spawn(move || drop(job));
    report
}

fn attempt(job: &Job, number: u32) -> Attempt<'_> {
    let ranks = &job.attempts[&number];
    let reported = |rank: &crate::assemble::RankEvidence| {
        job.hosts.get(&rank.host).is_some_and(|host| {
            // A launcher sums up its last attempt only.
            let last = job.attempts.keys().next_back() == Some(&number);
            host.reported && host.last_attempt.map_or(last, |last| last == number)
        })
    };
    let last = job.attempts.keys().next_back() == Some(&number);
    let outcomes: Vec<(u32, Outcome<'_>)> = ranks
        .par_iter()
        .map(|(&number, rank)| {
            let ended_well = last && job.succeeded && rank.status.is_none();
            (number, outcome(rank, reported(rank), ended_well))
        })
        .collect();
    // A number of ranks beyond any machine is a mistake in a file, not a list to write out.
    let missing: BTreeSet<u32> = (0..job.world_size.min(MAX_WORLD))
        .filter(|rank| !ranks.contains_key(rank))
        .collect();
    let mut attempt = Attempt {
        job,
        outcomes: ByRank::in_order(outcomes),
        missing,
    };
    attempt.note_followers();
    attempt
}

fn describe_attempt(report: &mut Report, attempt: &Attempt<'_>) {
    let silent = attempt
        .with_end(End::Silent)
        .into_iter()
        .chain(attempt.missing.iter().copied());
    let collateral = attempt
        .with_end(End::Collateral)
        .into_iter()
        .chain(attempt.with_end(End::Timeout));
    report.ranks = Ranks {
        primary: ranges(attempt.with_end(End::Primary)),
        collateral: ranges(collateral),
        terminated: ranges(attempt.with_end(End::Terminated)),
        silent: ranges(silent),
        succeeded: ranges(attempt.with_end(End::Succeeded)),
    };
    report.groups = groups(attempt);
    if !attempt.missing.is_empty() {
        report.incomplete.push(format!(
            "nothing at all was found of ranks {}",
            ranges(attempt.missing.iter().copied())
        ));
    }
    let unread = attempt
        .outcomes
        .values()
        .filter(|outcome| outcome.evidence.record.is_none() && outcome.evidence.status.is_none());
    let unread: Vec<u32> = unread
        .filter(|outcome| outcome.end == End::Silent)
        .map(|outcome| outcome.evidence.rank)
        .collect();
    let (boxed, unread): (Vec<u32>, Vec<u32>) = unread
        .into_iter()
        .partition(|rank| attempt.outcomes[rank].evidence.black_box.is_some());
    let (alive, far): (Vec<u32>, Vec<u32>) = boxed.into_iter().partition(|rank| {
        let boxed = attempt.outcomes[rank].evidence.black_box.as_ref();
        boxed.is_some_and(|boxed| boxed.fate == Fate::Alive)
    });
    if !alive.is_empty() {
        report
            .incomplete
            .push(format!("ranks {} are still running", ranges(alive)));
    }
    if !far.is_empty() {
        let last = far.iter().filter_map(|rank| {
            let boxed = attempt.outcomes[rank].evidence.black_box.as_ref()?;
            boxed.content.last_ns
        });
        let (first, last) = (last.clone().min(), last.max());
        let spell = |time: Option<i64>| time.map_or_else(|| "?".to_owned(), utc);
        report.incomplete.push(format!(
            "ranks {} left black boxes, whose processes cannot be looked for from here: last heard of at {} to {}",
            ranges(far),
            spell(first),
            spell(last)
        ));
    }
    if !unread.is_empty() {
        report.incomplete.push(format!(
            "ranks {} left no error file, and no launcher's log says how they ended",
            ranges(unread)
        ));
    }
    let provisional = attempt.outcomes.values().filter(|outcome| {
        outcome.finding.is_none()
            && outcome
                .evidence
                .section()
                .is_some_and(|section| !section.is_final)
    });
    let provisional: Vec<&Outcome<'_>> = provisional.collect();
    if let Some(first) = provisional.first() {
        report.incomplete.push(format!(
            "{} of failures that nothing says ended a rank, as of rank {}: {}",
            count(provisional.len(), "provisional record"),
            first.evidence.rank,
            first_line(&first.title)
        ));
    }
    let children: usize = attempt
        .outcomes
        .values()
        .map(|outcome| outcome.evidence.others.len())
        .sum();
    if children > 0 {
        report.incomplete.push(format!(
            "{} of later failures and of child processes were found beside and not judged",
            count(children, "record")
        ));
    }
}

fn groups(attempt: &Attempt<'_>) -> Vec<Group> {
    let mut by: BTreeMap<(&str, Fingerprint), Vec<&Outcome<'_>>> = BTreeMap::new();
    for outcome in attempt.outcomes.values() {
        let role = match outcome.end {
            End::Primary => "primary",
            End::Collateral => "collateral",
            End::Timeout => "timeout",
            _ => continue,
        };
        if let Some(finding) = &outcome.finding {
            by.entry((role, finding.fingerprint))
                .or_default()
                .push(outcome);
        }
    }
    let mut groups: Vec<Group> = by
        .into_iter()
        .map(|((role, fingerprint), members)| Group {
            fingerprint: fingerprint.to_string(),
            category: members[0].category().to_owned(),
            role: role.to_owned(),
            ranks: ranges(members.iter().map(|member| member.evidence.rank)),
            count: u32::try_from(members.len()).unwrap_or(u32::MAX),
            title: first_line(&members[0].title),
            example: example(members[0]),
        })
        .collect();
    groups.sort_by(|a, b| {
        b.count
            .cmp(&a.count)
            .then_with(|| a.role.cmp(&b.role).reverse())
            .then_with(|| a.ranks.cmp(&b.ranks))
    });
    groups
}

fn example(outcome: &Outcome<'_>) -> Example {
    let frames = outcome.frames();
    let record = outcome.evidence.record.as_ref();
    let message = record.map_or(&*outcome.title, |record| &*record.failure.message);
    Example {
        rank: Some(outcome.evidence.rank),
        message: begin(message, 4096).to_owned(),
        location: outcome.location(frames),
        frames: frames
            .iter()
            .take(16)
            .map(|frame| format!("{} ({}:{})", frame.function, frame.file, frame.line))
            .collect(),
        file: outcome.file(),
    }
}

pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or("").trim_end();
    begin(line, 500).to_owned()
}
