//! Why a verdict is what it is: each reason as one sentence, with the file and line that says so.

use crate::black_box::{Fate, State};
use crate::date::utc;
use crate::decide::{Attempt, Decision, count};
use crate::groups::ranges;
use crate::outcome::{End, Outcome, describe};
use crate::verdict::first_line;
use std::collections::BTreeMap;

/// What the black box says of a rank that recorded nothing itself.
fn last_heard(outcome: &Outcome<'_>) -> Option<String> {
    let boxed = outcome.evidence.black_box.as_ref()?;
    if outcome.evidence.record.is_some() {
        return None;
    }
    let fate = match (boxed.fate, boxed.content.state) {
        (Fate::Gone, State::Running) => "its process is gone, though main ran",
        (Fate::Gone, _) => "its process is gone",
        (Fate::Alive, _) => "its process is still running",
        (Fate::Unknown, _) => "its process cannot be looked for from here",
    };
    let asked = boxed
        .content
        .request
        .map(|signal| format!(", after signal {signal} asked it to end"))
        .unwrap_or_default();
    let time = boxed.content.last_ns.map_or_else(|| "?".to_owned(), utc);
    Some(format!(
        "its black box was last written at {time}; {fate}{asked} ({})",
        boxed.path.display()
    ))
}

/// What a rank had deferred, and where it stopped for that; also before it failed in another way.
fn deferred(outcome: &Outcome<'_>) -> Vec<String> {
    let Some(record) = &outcome.evidence.record else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    if let Some(deferred) = outcome.evidence.deferred() {
        let more = match deferred.suppressed {
            0 => String::new(),
            more => format!(", and {} after it", count(more as usize, "more error")),
        };
        let stopped = deferred
            .stopped_at
            .map(|step| format!("; the ranks stopped at step {step}"))
            .unwrap_or_default();
        let what = match outcome.is_pending() {
            true => format!(
                "before that it had an error {deferred}: {}",
                first_line(&record.failure.message)
            ),
            false => "it deferred the error".to_owned(),
        };
        lines.push(format!("{what}{more}{stopped}"));
    }
    let section = record.failure.section.as_deref();
    let earlier = section.map_or(&[][..], |section| &section.deferred_before);
    lines.extend(earlier.iter().filter_map(|earlier| {
        let deferred = earlier.deferred.as_ref()?;
        Some(format!(
            "before that it had an error {deferred}: {}",
            first_line(&earlier.message)
        ))
    }));
    lines
}

/// Returns the reasons, strongest first; `outcome` is that of the rank which shows what happened.
pub(crate) fn explain(
    attempt: &Attempt<'_>,
    decision: &Decision,
    outcome: Option<&Outcome<'_>>,
) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(outcome) = outcome {
        let rank = outcome.evidence.rank;
        match (&outcome.evidence.record, outcome.file()) {
            (Some(record), _) => lines.push(format!(
                "rank {rank} recorded {}: {}",
                match outcome.is_pending() {
                    true => "what it had deferred, and nothing later",
                    false => "it",
                },
                record.path.display()
            )),
            (None, _) if outcome.evidence.damaged.is_some() && outcome.evidence.words.is_none() => {
            }
            (None, _) if outcome.passing().is_some() => {
                lines.push(format!("rank {rank} left no error file"));
            }
            (None, file) if outcome.evidence.by_summary => lines.push(format!(
                "its launcher's summary shows it: {} ({file})",
                outcome.telling_line().map_or("", |(_, line)| line)
            )),
            (None, file) => match outcome.telling_line() {
                Some((0, line)) => lines.push(format!(
                    "rank {rank} left no error file, its output says: {} ({file})",
                    first_line(line)
                )),
                Some((number, line)) => {
                    lines.push(format!(
                        "rank {rank} left no error file, its output says: {} ({file}:{number})",
                        first_line(line)
                    ));
                }
                None => lines.push(format!("rank {rank} left no error file")),
            },
        }
        if let Some((title, after)) = outcome.passing() {
            let where_ = match after {
                0 => "at the end of its output".to_owned(),
                after => format!("{} before the end", count(after, "line")),
            };
            lines.push(format!(
                "context only: its last traceback, {where_}: {}",
                first_line(&title)
            ));
        }
        if let Some(status) = &outcome.evidence.status {
            lines.push(format!(
                "its launcher saw it end: {} ({})",
                describe(status),
                status.source
            ));
        }
        lines.extend(last_heard(outcome));
        if let Some(damaged) = &outcome.evidence.damaged {
            lines.push(format!(
                "the error file of rank {rank} is damaged: {damaged}"
            ));
        }
        let message = outcome
            .evidence
            .record
            .as_ref()
            .map(|record| first_line(&record.failure.message));
        let message = message.filter(|message| !outcome.title.starts_with(message));
        if let Some(message) = message.filter(|_| !outcome.is_pending()) {
            lines.push(format!("it left main as: {message}"));
        }
        lines.extend(deferred(outcome));
    }
    lines.extend(decision.reasons.iter().cloned());
    let victims: Vec<&Outcome<'_>> = attempt
        .outcomes
        .values()
        .filter(|outcome| matches!(outcome.end, End::Collateral | End::Timeout))
        .collect();
    let mut by: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
    for victim in &victims {
        let what = match victim.end {
            End::Timeout => "waited in vain",
            _ if victim.is_stopped() => "only stopped with it, as all had agreed",
            _ => "failed only because of another",
        };
        by.entry((what, victim.category()))
            .or_default()
            .push(victim.evidence.rank);
    }
    for ((what, category), ranks) in by {
        lines.push(format!(
            "{} {what} ({category}): {}",
            count(ranks.len(), "rank"),
            ranges(ranks)
        ));
    }
    lines
}
