//! The report for a place with little room, as a Kubernetes termination message: the essential first, at most 4,000 bytes.

use super::{safe, text};
use crate::parse::begin;
use crate::schema::Report;

/// At most so many bytes. Kubernetes keeps 4,096 of a termination message.
///
/// Source: k8s.io/kubernetes/pkg/kubelet/container, `MaxContainerTerminationMessageLength`
pub const MAX_BYTES: usize = 4000;

/// At most so many bytes of one line.
const MAX_LINE: usize = 400;

/// Returns the report as plain lines, the most important first, so that any beginning of it is worth reading.
///
/// Lines that found no room are counted in the last one.
pub fn render(report: &Report) -> String {
    let lines = lines(report);
    let mut out = String::new();
    for (index, line) in lines.iter().enumerate() {
        let line = short(&safe::one_line(line), MAX_LINE);
        let last = format!("({} more lines)\n", lines.len() - index);
        let is_last = index + 1 == lines.len();
        let room = MAX_BYTES - if is_last { 0 } else { last.len() };
        if out.len() + line.len() + 1 > room {
            out.push_str(&last);
            return out;
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

fn lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let Some(cause) = &report.root_cause else {
        lines.push(text::without_cause(report).to_owned());
        lines.extend(rest(report));
        return lines;
    };
    let (who, sure) = (
        text::subject(report, cause),
        text::confidence(cause.confidence),
    );
    lines.push(format!(
        "ROOT CAUSE {who}: {}, confidence {sure}",
        cause.category
    ));
    lines.push(cause.title.clone());
    let group = text::group_of(report, cause);
    lines.extend(group.map(|group| group.example.location.clone()));
    lines.push(cause.advice.clone());
    lines.push(text::retry_and_owner(cause));
    lines.extend(text::last_words(cause));
    let reasons = cause.evidence.iter().enumerate();
    lines.extend(reasons.map(|(index, reason)| format!("{}. {reason}", index + 1)));
    lines.extend(rest(report));
    lines.retain(|line| !line.is_empty());
    lines
}

fn rest(report: &Report) -> impl Iterator<Item = String> {
    let ranks = Some(text::ranks(report)).filter(|ranks| !ranks.is_empty());
    let ranks = ranks.map(|ranks| format!("RANKS {ranks}"));
    let also = text::also(report).into_iter();
    let also = also.map(|other| format!("ALSO {other}"));
    let suspects = report.suspects.iter();
    let suspects =
        suspects.map(|suspect| format!("SUSPECT rank {}: {}", suspect.rank, suspect.reason));
    let damaged = report.damaged_files.iter();
    let damaged = damaged.map(|file| format!("DAMAGED {}: {}", file.path, file.reason));
    let incomplete = report.incomplete.iter();
    let incomplete = incomplete.map(|note| format!("INCOMPLETE {note}"));
    let rest = ranks.into_iter().chain(also).chain(suspects);
    rest.chain(incomplete).chain(damaged)
}

/// Returns a text cut to so many bytes, `...` where something was cut; never within a character.
pub(super) fn short(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}...", begin(text, most - 3))
}
