//! The report for a person at three in the morning: the verdict first, at most 60 lines of at most 100 columns.

use super::safe;
use crate::schema::{Confidence, Group, Report, Retry, RootCause};

/// At most so many lines, whatever the number of ranks.
pub const MAX_LINES: usize = 60;

/// At most so many columns.
pub const MAX_COLUMNS: usize = 100;

/// At most so many reasons.
const MAX_REASONS: usize = 8;

/// Returns the report as text; with `colour`, the verdict's line carries terminal colours.
///
/// Whatever the messages hold, no control character of theirs reaches the terminal.
pub fn render(report: &Report, colour: bool) -> String {
    let mut page = Page {
        lines: Vec::new(),
        colour,
    };
    match &report.root_cause {
        Some(cause) => verdict(&mut page, report, cause),
        None => page.line(0, without_cause(report)),
    }
    page.wrapped("ALSO", also(report).into_iter(), 12);
    page.wrapped(
        "SUSPECTS",
        report
            .suspects
            .iter()
            .map(|suspect| format!("rank {}: {}", suspect.rank, suspect.reason)),
        6,
    );
    page.ranks(report);
    if report.attempts.len() > 1 {
        let attempts = report.attempts.iter().map(|attempt| {
            let cause = if attempt.root_cause.is_empty() {
                "no failure found"
            } else {
                &attempt.root_cause
            };
            format!("{}: {} failed, {cause}", attempt.attempt, attempt.failed)
        });
        page.wrapped("ATTEMPTS", attempts, 6);
    }
    let damaged = report.damaged_files.iter().map(|file| {
        let bytes = if file.first_bytes.is_empty() {
            String::new()
        } else {
            format!(", begins {}", file.first_bytes)
        };
        format!("{}: {}{bytes}", file.path, file.reason)
    });
    page.wrapped("DAMAGED", damaged, 5);
    page.wrapped("INCOMPLETE", report.incomplete.iter().cloned(), 8);
    page.finish()
}

/// Returns what is said where no failure was found.
pub(super) fn without_cause(report: &Report) -> &'static str {
    match report.is_undetermined() {
        true => "Cannot tell: no failure found, and nothing says how the ranks ended.",
        false => "No failure found: every rank ended well.",
    }
}

fn verdict(page: &mut Page, report: &Report, cause: &RootCause) {
    let who = subject(report, cause);
    let sure = confidence(cause.confidence);
    // Whatever a host is called, the category and how sure it is stay on the line.
    let end = format!(": {}, confidence {sure}", cause.category);
    let begin = format!("ROOT CAUSE  {who}");
    let columns = MAX_COLUMNS.saturating_sub(safe::width(&end));
    page.head(&format!("{}{end}", safe::cut(&begin, columns)));
    page.paragraph(2, &cause.title, 3);
    if let Some(group) = group_of(report, cause).filter(|group| !group.example.location.is_empty())
    {
        page.line(2, &group.example.location);
    }
    if let Some(words) = last_words(cause) {
        page.paragraph(2, &words, 2);
    }
    if !cause.advice.is_empty() {
        page.paragraph(2, &cause.advice, 2);
    }
    page.line(2, &retry_and_owner(cause));
    page.line(0, "WHY");
    for (index, line) in cause.evidence.iter().take(MAX_REASONS).enumerate() {
        page.item(&format!("{}. ", index + 1), line);
    }
    if let Some(more) = cause.evidence.len().checked_sub(MAX_REASONS + 1) {
        page.line(2, &format!("and {} more", more + 1));
    }
}

/// Returns whether to run again and who can repair it, as `retry: once · owner: user`.
pub(super) fn retry_and_owner(cause: &RootCause) -> String {
    let retry = match cause.retry {
        Retry::Yes => "yes",
        Retry::ExcludeHost => "yes, without this host",
        Retry::Once => "once",
        Retry::No => "not before something is changed",
        Retry::Unknown => "unknown",
    };
    format!("retry: {retry} · owner: {}", name(&cause.owner))
}

/// Returns what the rank noted last, as `at step 1200, after: load=shard 7, forward`.
pub(super) fn last_words(cause: &RootCause) -> Option<String> {
    let notes: Vec<String> = cause
        .breadcrumbs
        .iter()
        .rev()
        .map(|note| match &note.value {
            Some(value) => format!("{}={value}", note.name),
            None => note.name.clone(),
        })
        .collect();
    let step = cause.step.map(|step| format!("at step {step}"));
    let notes = (!notes.is_empty()).then(|| format!("latest breadcrumbs: {}", notes.join(" < ")));
    let parts: Vec<String> = step.into_iter().chain(notes).collect();
    (!parts.is_empty()).then(|| parts.join(" · "))
}

/// Returns whose failure it is, as `rank 2 (local rank 0 on host node1)`.
pub(super) fn subject(report: &Report, cause: &RootCause) -> String {
    let attempt = if report.job.attempts > 1 {
        format!(", attempt {}", cause.attempt)
    } else {
        String::new()
    };
    let host = safe::cut(&safe::one_line(&cause.host), 30);
    match (cause.rank, cause.local_rank, host.as_str()) {
        (Some(rank), Some(local), "") => format!("rank {rank} (local rank {local}{attempt})"),
        (Some(rank), Some(local), host) => {
            format!("rank {rank} (local rank {local} on host {host}{attempt})")
        }
        (Some(rank), None, "") => format!("rank {rank}"),
        (Some(rank), None, host) => format!("rank {rank} (on host {host}{attempt})"),
        (None, _, "") => {
            let alike =
                group_of(report, cause).filter(|group| group.role == "primary" && group.count > 1);
            alike.map_or_else(
                || "no rank can be named".to_owned(),
                |group| format!("{} ranks alike, no single one", group.count),
            )
        }
        (None, _, host) => format!("host {host}, no single rank"),
    }
}

/// Returns how sure a verdict is, as the JSON form spells it.
pub(super) fn confidence(confidence: Confidence) -> String {
    name(&confidence)
}

fn name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Returns each other failure that is no consequence of the first, with the ranks that had it.
pub(super) fn also(report: &Report) -> Vec<String> {
    let first = report.root_cause.as_ref().and_then(|cause| {
        let group = group_of(report, cause)?;
        Some((group.fingerprint.as_str(), group.category.as_str()))
    });
    let primary = report.groups.iter().filter(|group| group.role == "primary");
    let others = primary.filter_map(|group| {
        let ranks = ranges(&group.ranks, MAX_RANGES);
        let ranks = format!(
            "{} {ranks}",
            if group.count == 1 { "rank" } else { "ranks" }
        );
        let is_first = first == Some((&group.fingerprint, &group.category));
        let named = report.root_cause.as_ref().and_then(|cause| cause.rank);
        match (is_first, named) {
            (false, _) => Some(format!("{ranks}: {}, {}", group.category, group.title)),
            (true, Some(_)) if group.count > 1 => {
                Some(format!("{ranks} alike: the same as the first"))
            }
            (true, _) => None,
        }
    });
    // Who left no text of its own is in no group.
    let alone = report
        .also_primary
        .iter()
        .filter(|cause| group_of(report, cause).is_none_or(|group| group.role != "primary"));
    let alone = alone.map(|cause| {
        let rank = cause.rank.map(|rank| format!("rank {rank}: "));
        format!(
            "{}{}, {}",
            rank.unwrap_or_default(),
            cause.category,
            cause.title
        )
    });
    others.chain(alone).collect()
}

/// Columns that a list of ranks may take.
const MAX_RANGES: usize = 40;

/// Returns a list of ranges with whole ranges alone, and how many were cut.
pub(super) fn ranges(list: &str, most: usize) -> String {
    if list.len() <= most {
        return list.to_owned();
    }
    let room = most.saturating_sub(" and 1000000 more".len());
    let end = list[..room].rfind(',').unwrap_or(0);
    let cut = list[end..].split(',').filter(|range| !range.is_empty());
    let cut: u64 = cut.map(size).sum();
    match end {
        0 => format!("{cut} in all"),
        end => format!("{} and {cut} more", &list[..end]),
    }
}

/// The number of ranks in one range.
fn size(range: &str) -> u64 {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    (number(last) + 1).saturating_sub(number(first))
}

/// Returns the group that the verdict's failure belongs to.
pub(super) fn group_of<'a>(report: &'a Report, cause: &RootCause) -> Option<&'a Group> {
    let holds = |group: &&Group, rank: u32| {
        group.ranks.split(',').any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse().is_ok_and(|first: u32| first <= rank)
                && last.parse().is_ok_and(|last: u32| rank <= last)
        })
    };
    match cause.rank {
        Some(rank) => report.groups.iter().find(|group| holds(group, rank)),
        None => report
            .groups
            .iter()
            .find(|group| group.title == cause.title),
    }
}

struct Page {
    lines: Vec<String>,
    colour: bool,
}

impl Page {
    fn line(&mut self, indent: usize, text: &str) {
        let text = safe::cut(&safe::one_line(text), MAX_COLUMNS - indent);
        self.lines.push(format!("{}{text}", " ".repeat(indent)));
    }

    fn head(&mut self, text: &str) {
        self.line(0, text);
        if let (true, Some(line)) = (self.colour, self.lines.last_mut()) {
            *line = format!("\x1b[1;31m{line}\x1b[0m");
        }
    }

    /// One text over a few lines, broken at spaces where there are any.
    fn paragraph(&mut self, indent: usize, text: &str, most: usize) {
        self.hanging(&" ".repeat(indent), &safe::one_line(text), most);
    }

    fn item(&mut self, mark: &str, text: &str) {
        self.hanging(&format!("  {mark}"), &safe::one_line(text), 2);
    }

    fn hanging(&mut self, first: &str, text: &str, most: usize) {
        let indent = " ".repeat(safe::width(first));
        let columns = MAX_COLUMNS - indent.len();
        let mut rest = text;
        for number in 1..=most {
            let lead = if number == 1 { first } else { &indent };
            if number == most || safe::width(rest) <= columns {
                self.lines
                    .push(format!("{lead}{}", safe::cut(rest, columns)));
                return;
            }
            let mut end = rest.len();
            let mut used = 0;
            for (at, c) in rest.char_indices() {
                used += safe::width(c.encode_utf8(&mut [0; 4]));
                if used > columns {
                    end = at;
                    break;
                }
            }
            let end = rest[..end]
                .rfind(' ')
                .filter(|&space| space > 0)
                .unwrap_or(end);
            self.lines.push(format!("{lead}{}", &rest[..end]));
            rest = rest[end..].trim_start();
        }
    }

    fn wrapped(&mut self, title: &str, items: impl ExactSizeIterator<Item = String>, most: usize) {
        let total = items.len();
        if total == 0 {
            return;
        }
        self.line(0, title);
        for item in items.take(most) {
            self.line(2, &item);
        }
        if total > most {
            self.line(2, &format!("and {} more", total - most));
        }
    }

    fn ranks(&mut self, report: &Report) {
        let ranks = ranks(report);
        if !ranks.is_empty() {
            self.hanging("RANKS  ", &safe::one_line(&ranks), 4);
        }
    }

    fn finish(mut self) -> String {
        if self.lines.len() > MAX_LINES {
            let cut = self.lines.len() - MAX_LINES + 1;
            self.lines.truncate(MAX_LINES - 1);
            self.lines
                .push(format!("({cut} more lines: see --format json)"));
        }
        self.lines.push(String::new());
        self.lines.join("\n")
    }
}

/// Returns how all ranks ended, as `primary 2 · collateral 0-1,3 (peer_lost 3)`.
pub(super) fn ranks(report: &Report) -> String {
    let ranks = &report.ranks;
    let mut parts = Vec::new();
    let mut part = |name: &str, list: &str, detail: String| {
        if !list.is_empty() {
            parts.push(format!("{name} {}{detail}", ranges(list, MAX_RANGES)));
        }
    };
    part("primary", &ranks.primary, String::new());
    part("collateral", &ranks.collateral, categories(report));
    let ended = " (collateral too: their launcher ended them)".to_owned();
    part("terminated", &ranks.terminated, ended);
    part("silent", &ranks.silent, String::new());
    part("succeeded", &ranks.succeeded, String::new());
    parts.join(" · ")
}

/// At most so many categories are counted one by one.
const MAX_CATEGORIES: usize = 4;

fn categories(report: &Report) -> String {
    let mut counts: Vec<(&str, u32)> = Vec::new();
    for group in report.groups.iter().filter(|group| group.role != "primary") {
        match counts
            .iter_mut()
            .find(|(category, _)| *category == group.category)
        {
            Some((_, count)) => *count += group.count,
            None => counts.push((&group.category, group.count)),
        }
    }
    let more = counts.len().saturating_sub(MAX_CATEGORIES);
    let list: Vec<String> = counts
        .iter()
        .take(MAX_CATEGORIES)
        .map(|(category, count)| format!("{category} {count}"))
        .collect();
    match (list.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(" ({})", list.join(", ")),
        (false, more) => format!(" ({} and {more} more)", list.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Attempt, DamagedFile, Suspect};

    #[test]
    fn a_report_full_of_everything_still_fits_on_a_page() {
        let long = "word ".repeat(100);
        let cause = RootCause {
            title: long.clone(),
            advice: long.clone(),
            evidence: vec![long.clone(); 50],
            ..RootCause::default()
        };
        let report = Report {
            root_cause: Some(cause.clone()),
            also_primary: (0..16)
                .map(|rank| RootCause {
                    rank: Some(rank),
                    ..cause.clone()
                })
                .collect(),
            suspects: vec![Suspect::default(); 16],
            attempts: vec![Attempt::default(); 100],
            damaged_files: vec![DamagedFile::default(); 1000],
            incomplete: vec![long; 100],
            ..Report::default()
        };
        let text = render(&report, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), MAX_LINES);
        assert!(
            lines[MAX_LINES - 1].ends_with("more lines: see --format json)"),
            "{text}"
        );
        assert!(
            lines.iter().all(|line| safe::width(line) <= MAX_COLUMNS),
            "{text}"
        );
    }

    #[test]
    fn colour_is_on_the_verdict_only() {
        let report = Report {
            root_cause: Some(RootCause::default()),
            ..Report::default()
        };
        assert!(!render(&report, false).contains('\x1b'));
        assert_eq!(render(&report, true).matches('\x1b').count(), 2);
    }
}
