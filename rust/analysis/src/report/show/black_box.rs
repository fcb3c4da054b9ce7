//! A black box as `show` has it: how far the process got, and what became of it.

use super::page::Page;
use super::{Shown, utc_to_microseconds};
use crate::black_box::{self, BlackBox, Fate, State};
use crate::error::Error;
use crate::failure::{Breadcrumb, Section};
use crate::scan::whole_box;
use firstfault_format::{files, signals};
use serde::Serialize;
use std::path::Path;

/// What a black box says of the life of its process.
#[derive(Debug, Clone, Serialize)]
pub struct LastHeard {
    /// `running`, `exiting`, `finished` or `crashed`; `unknown` is a state of a later version.
    pub state: &'static str,
    /// Whether the process is there: `alive` or `gone`; `unknown` where this machine cannot tell.
    pub process: &'static str,
    /// When the box was made, in nanoseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began_ns: Option<i64>,
    /// When the process last wrote into it, in nanoseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ns: Option<i64>,
    /// The signal that asked the process to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
}

/// Returns whether a file is, or by its name should be, a black box.
pub(super) fn is_one(path: &Path, bytes: &[u8]) -> bool {
    let is_named_so = path.to_string_lossy().ends_with(files::BLACK_BOX);
    is_named_so || black_box::begins_like_one(bytes)
}

/// Returns what a box says.
///
/// # Errors
/// The bytes are no black box of this version.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<BlackBox, Error> {
    black_box::parse(bytes).map_err(|reason| Error::malformed(path, reason))
}

/// Looks for the process of a box by the process file system at `proc`, and for the box where a file only points at it.
pub(super) fn shown(path: &Path, found: BlackBox, proc: &Path) -> Shown {
    let content = whole_box(found);
    let fate = content.fate(proc);
    let (message, section) = match content.failure() {
        Some(failure) => (failure.message, failure.section),
        None => (
            ended(content.state, fate).to_owned(),
            Some(Box::new(content.section())),
        ),
    };
    let crash = content.crash.as_ref();
    Shown {
        path: path.display().to_string(),
        message,
        error_code: crash.map(|crash| i64::from(-crash.signal)),
        time_ns: crash.map_or(content.last_ns, |crash| crash.time_ns),
        without_symbols: Vec::new(),
        notes: notes(&content),
        callstack: String::new(),
        black_box: Some(LastHeard {
            state: state(content.state),
            process: match fate {
                Fate::Alive => "alive",
                Fate::Gone => "gone",
                Fate::Unknown => "unknown",
            },
            began_ns: content.install_ns,
            last_ns: content.last_ns,
            asked_by: content.request.map(signal),
        }),
        firstfault: section,
    }
}

fn state(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Exiting => "exiting",
        State::Finished => "finished",
        State::Crashed => "crashed",
        State::Unknown => "unknown",
    }
}

fn signal(number: i32) -> String {
    signals::by_number(number).map_or_else(
        || format!("signal {number}"),
        |signal| signal.name.to_owned(),
    )
}

/// How the process of a box ended that tells of no crash, in one line.
fn ended(state: State, fate: Fate) -> &'static str {
    match (state, fate) {
        (_, Fate::Alive) => "The process is alive",
        (State::Running, Fate::Gone) => {
            "The process vanished while main ran: no error file, no exit"
        }
        (State::Running, Fate::Unknown) => "Last heard of while main ran",
        (State::Exiting, Fate::Gone) => "The process ended without a word after main had ended",
        (State::Exiting, Fate::Unknown) => "Last heard of after main had ended",
        (State::Finished, _) => "The process finished, and could not remove its black box",
        _ => "The process was last heard of in a state that is not known here",
    }
}

fn notes(content: &BlackBox) -> Vec<String> {
    let elsewhere = content.elsewhere.as_ref().map(|path| {
        let host = &content.host.name;
        format!("the box itself is {}, on host {host}", path.display())
    });
    elsewhere.into_iter().collect()
}

/// Writes what is known of the life of the process.
pub(super) fn head(page: &mut Page, life: &LastHeard) {
    let mut parts = vec![life.state.to_owned()];
    parts.extend(
        life.began_ns
            .map(|time| format!("since {}", utc_to_microseconds(time))),
    );
    page.fact("state", &parts.join(", "));
    if let Some(signal) = &life.asked_by {
        page.fact("asked", &format!("to end, by {signal}"));
    }
}

/// Writes what the program noted on its way, the latest last.
pub(super) fn breadcrumbs(page: &mut Page, section: &Section) {
    if section.breadcrumbs.is_empty() {
        return;
    }
    page.blank();
    page.line(0, "BREADCRUMBS, the latest last");
    for Breadcrumb {
        time_ns,
        name,
        value,
    } in &section.breadcrumbs
    {
        let time = time_ns.map(utc_to_microseconds).unwrap_or_default();
        // Of `2026-11-29 19:46:06.759123 UTC` the time of day: the date stands above.
        let time = time.split(' ').nth(1).unwrap_or("?");
        let value = value.as_ref().map(|value| format!(" {value}"));
        page.line(2, &format!("{time}  {name}{}", value.unwrap_or_default()));
    }
}
