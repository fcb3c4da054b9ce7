//! The report as markdown, for issues and chats.

use super::{safe, text};
use crate::schema::Report;
use std::fmt::Write;

/// Returns the report as markdown.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    match &report.root_cause {
        None => {
            let _ = writeln!(out, "**{}**", text::without_cause(report));
        }
        Some(cause) => {
            let (who, sure) = (
                text::subject(report, cause),
                text::confidence(cause.confidence),
            );
            let _ = writeln!(
                out,
                "**Root cause: {}: {}** (confidence {sure})\n",
                plain(&who),
                plain(&cause.category)
            );
            let _ = writeln!(out, "{}\n", code(&cause.title));
            if let Some(group) =
                text::group_of(report, cause).filter(|group| !group.example.location.is_empty())
            {
                let _ = writeln!(out, "{}\n", code(&group.example.location));
            }
            if let Some(words) = text::last_words(cause) {
                let _ = writeln!(out, "{}\n", code(&words));
            }
            let _ = writeln!(out, "{}\n", plain(&cause.advice));
            for line in &cause.evidence {
                let _ = writeln!(out, "1. {}", plain(line));
            }
        }
    }
    if !report.groups.is_empty() {
        out.push_str(
            "\n| role | category | count | ranks | failure |\n| --- | --- | --- | --- | --- |\n",
        );
        for group in report.groups.iter().take(20) {
            let title = code(&safe::cut(&group.title, 120)).replace('|', "\\|");
            let ranks = text::ranges(&group.ranks, 40);
            let _ = writeln!(
                out,
                "| {} | {} | {} | {ranks} | {title} |",
                group.role, group.category, group.count
            );
        }
    }
    let files = report
        .damaged_files
        .iter()
        .take(10)
        .map(|file| format!("damaged: {}: {}", file.path, file.reason));
    let notes: Vec<String> = files
        .chain(report.incomplete.iter().take(10).cloned())
        .collect();
    if !notes.is_empty() {
        out.push('\n');
        for note in notes {
            let _ = writeln!(out, "- {}", plain(&note));
        }
    }
    out
}

/// Text in which nothing is markup.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for c in safe::one_line(text).chars() {
        if matches!(
            c,
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#'
        ) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn code(text: &str) -> String {
    format!("`{}`", safe::one_line(text).replace('`', "'"))
}
