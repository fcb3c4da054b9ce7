//! Why a verdict is what it is: each reason as one sentence, with the file and line that says so.

use crate::decide::{Attempt, Decision, count};
use crate::groups::ranges;
use crate::outcome::{End, Outcome, describe};
use crate::verdict::first_line;
use std::collections::BTreeMap;

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
                "rank {rank} recorded it: {}",
                record.path.display()
            )),
            (None, _)
                if outcome.evidence.damaged.is_some() && outcome.evidence.output.is_empty() => {}
            (None, _) if outcome.passing().is_some() => {
                lines.push(format!("rank {rank} left no error file"));
            }
            (None, file) if outcome.evidence.by_summary => lines.push(format!(
                "its launcher's summary shows it: {} ({file})",
                outcome.telling_line().map_or("", |(_, line)| line)
            )),
            (None, file) => match outcome.telling_line() {
                Some((0, line)) => lines.push(format!(
                    "rank {rank} left no error file, its stderr says: {} ({file})",
                    first_line(line)
                )),
                Some((number, line)) => {
                    lines.push(format!(
                        "rank {rank} left no error file, its stderr says: {} ({file}:{number})",
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
        if let Some(message) = message.filter(|message| *message != first_line(&outcome.title)) {
            lines.push(format!("it left main as: {message}"));
        }
    }
    lines.extend(decision.reasons.iter().cloned());
    let victims: Vec<&Outcome<'_>> = attempt
        .outcomes
        .values()
        .filter(|outcome| matches!(outcome.end, End::Collateral | End::Timeout))
        .collect();
    let mut by: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
    for victim in &victims {
        let what = if victim.end == End::Timeout {
            "waited in vain"
        } else {
            "failed only because of another"
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
