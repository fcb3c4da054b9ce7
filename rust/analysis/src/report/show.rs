//! One error file or black box for a person: what happened, where, and every stack, at most 80 columns wide.

mod black_box;
mod page;
mod sources;
mod stacks;

pub use black_box::LastHeard;
pub use page::MAX_COLUMNS;

use crate::black_box::BlackBox;
use crate::date::utc_to_microseconds;
use crate::error::Error;
use crate::failure::{Deferred, Failure, Handlers, Section};
use crate::parse;
use crate::scan::read;
use crate::symbolize::Symbolizer;
use page::Page;
use serde::Serialize;
use stacks::Stacks;
use std::path::Path;

/// How many groups of threads besides the crashed one, of handlers and of modules are shown.
const MAX_GROUPS: usize = 24;
/// How many failures are shown that the process survived before.
const MAX_EARLIER: usize = 8;

/// An error file, with the functions of its native frames, or a black box.
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    /// The file.
    pub path: String,
    /// The failure in one line; of a black box without a crash, how its process ended.
    pub message: String,
    /// An exit code, or minus a signal's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<i64>,
    /// When it happened, in nanoseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<i64>,
    /// Modules whose functions are unknown, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_symbols: Vec<WithoutSymbols>,
    /// What the reader should know about how this was read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The stacks as the record has them for people.
    pub callstack: String,
    /// What a black box says of the life of its process; `None` for an error file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub black_box: Option<LastHeard>,
    /// The record's own section, its native frames with `symbol`, `file` and `line` where they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firstfault: Option<Box<Section>>,
}

/// A module whose functions are unknown.
#[derive(Debug, Clone, Serialize)]
pub struct WithoutSymbols {
    /// Its file.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// What a file is. It is read before anything else is: one file at a time uses the buffer.
enum Parsed {
    ErrorFile(Failure),
    BlackBox(Box<BlackBox>),
}

/// Reads an error file and looks its functions up, or reads a black box and looks for its process on this machine.
///
/// # Errors
/// The file cannot be read, or is neither.
pub fn read(path: &Path) -> Result<Shown, Error> {
    // A FIFO or a device would never end.
    let status = path.metadata().map_err(|error| Error::io(path, error))?;
    if !status.is_file() {
        let what = if status.is_dir() {
            "a directory"
        } else {
            "something else"
        };
        return Err(Error::not_a_file(path, what));
    }
    let parsed = read::with_file(read::Location::of(path), |bytes| {
        let bytes = bytes?;
        Ok(if black_box::is_one(path, bytes) {
            Parsed::BlackBox(Box::new(black_box::parse(path, bytes)?))
        } else {
            Parsed::ErrorFile(parse::error_file(path, bytes)?)
        })
    })?;
    Ok(match parsed {
        Parsed::BlackBox(found) => black_box::shown(path, *found, Path::new("/proc")),
        Parsed::ErrorFile(failure) => look_up(path, failure),
    })
}

fn look_up(path: &Path, failure: Failure) -> Shown {
    let mut section = failure.section;
    let without = section
        .as_mut()
        .map(|section| Symbolizer::new().section(section))
        .unwrap_or_default();
    Shown {
        path: path.display().to_string(),
        message: failure.message,
        error_code: failure.error_code,
        time_ns: failure.time_ns,
        without_symbols: without
            .into_iter()
            .map(|(path, reason)| WithoutSymbols { path, reason })
            .collect(),
        notes: failure.notes,
        callstack: failure.callstack,
        black_box: None,
        firstfault: section,
    }
}

/// Returns the file as JSON that ends in a newline.
pub fn json(shown: &Shown) -> String {
    let mut text = serde_json::to_string_pretty(shown).unwrap_or_default();
    text.push('\n');
    text
}

/// Returns the file as text; with `colour`, its first line carries terminal colours.
///
/// Whatever the record holds, no control character of it reaches the terminal.
pub fn text(shown: &Shown, colour: bool) -> String {
    let mut page = Page::default();
    let headline = shown.message.lines().next().unwrap_or_default();
    page.paragraph(0, headline, 4);
    if let (true, Some(first)) = (colour, page.lines.first_mut()) {
        *first = format!("\x1b[1;31m{first}\x1b[0m");
    }
    match &shown.firstfault {
        Some(section) => {
            head(&mut page, shown, section);
            if let Some(life) = &shown.black_box {
                black_box::head(&mut page, life);
            }
            Stacks::on(&mut page, shown).threads(shown, section);
            handlers(&mut page, &section.handlers);
            black_box::breadcrumbs(&mut page, section);
        }
        None => Stacks::on(&mut page, shown).callstack(&shown.callstack),
    }
    notes(&mut page, shown);
    page.lines.push(String::new());
    page.lines.join("\n")
}

/// What a record says about a deferred error, in one line.
fn held(deferred: &Deferred) -> String {
    let mut parts = Vec::new();
    if deferred.place.is_some() {
        parts.push(deferred.to_string());
        if deferred.suppressed > 0 {
            parts.push(format!("{} more after it", deferred.suppressed));
        }
    } else {
        parts.push("another rank's error was deferred".to_owned());
    }
    parts.extend(
        deferred
            .stopped_at
            .map(|step| format!("stopped at step {step}")),
    );
    parts.join(", ")
}

fn head(page: &mut Page, shown: &Shown, section: &Section) {
    let rank = &section.rank;
    let mut who = Vec::new();
    if let Some(number) = rank.rank {
        who.push(match rank.world_size {
            Some(size) => format!("rank {number} of {size}"),
            None => format!("rank {number}"),
        });
    }
    who.extend(rank.local_rank.map(|number| format!("local rank {number}")));
    if !section.host.name.is_empty() {
        who.push(format!("host {}", section.host.name));
    }
    who.extend(section.process.pid.map(|pid| format!("pid {pid}")));
    page.fact("who", &who.join(", "));
    let mut when = Vec::new();
    when.extend(shown.time_ns.map(utc_to_microseconds));
    when.extend(section.step.map(|step| format!("step {step}")));
    when.extend(
        rank.attempt
            .filter(|attempt| *attempt > 0)
            .map(|attempt| format!("attempt {attempt}")),
    );
    when.extend(rank.run_id.as_ref().map(|run| format!("run {run}")));
    page.fact("when", &when.join(", "));
    if let Some(exception) = &section.cpp_exception {
        let text = parse::headline(&exception.type_name, &exception.what);
        page.fact("C++", &text);
    }
    if let Some(message) = &section.abort_message {
        page.fact("abort", message);
    }
    if let Some(deferred) = &section.deferred {
        page.fact("held", &held(deferred));
    }
    if !section.is_final && section.kind.is_some() {
        page.fact("note", "provisional: the program went on after this");
    }
    for earlier in section.preceded_by.iter().take(MAX_EARLIER) {
        let after = earlier
            .deferred
            .as_ref()
            .map(|deferred| format!(", {deferred}"))
            .or(earlier.place.as_ref().map(|place| format!(", in {place}")))
            .unwrap_or_default();
        let message = earlier.message.lines().next().unwrap_or_default();
        page.fact("after", &format!("{message}{after}"));
    }
}

/// Who else handled crash signals; those with the same neighbours on one line.
fn handlers(page: &mut Page, handlers: &[Handlers]) {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for found in handlers {
        let above = found.above.as_deref().map(|above| {
            let place = placed(above, found.above_symbol.as_deref());
            if above.starts_with("SIG_") {
                format!("{place} in place of ours")
            } else {
                format!("{place}, then ours")
            }
        });
        let below = found.below.as_deref().map(|below| {
            let place = placed(below, found.below_symbol.as_deref());
            format!("then {place}")
        });
        let text = match (above, below) {
            (Some(above), Some(below)) => format!("{above}, {below}"),
            (Some(above), None) => above,
            (None, Some(below)) => format!("ours, {below}"),
            (None, None) => continue,
        };
        match groups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, signals)) => signals.push(&found.signal),
            None => groups.push((text, vec![&found.signal])),
        }
    }
    if groups.is_empty() {
        return;
    }
    page.blank();
    page.line(0, "SIGNAL HANDLERS");
    for (text, signals) in groups.iter().take(MAX_GROUPS) {
        page.paragraph(2, &format!("{}: {text}", signals.join(", ")), 4);
    }
}

fn notes(page: &mut Page, shown: &Shown) {
    if shown.without_symbols.is_empty() && shown.notes.is_empty() {
        return;
    }
    page.blank();
    page.line(0, "NOTES");
    for module in shown.without_symbols.iter().take(MAX_GROUPS) {
        let name = last(&module.path);
        let but = match has_exported(shown, &module.path) {
            true => " but exported ones",
            false => "",
        };
        page.line(
            2,
            &format!("no functions of {name}{but}: {}", module.reason),
        );
    }
    if shown.without_symbols.len() > MAX_GROUPS {
        let left = shown.without_symbols.len() - MAX_GROUPS;
        page.line(2, &format!("nor of {left} more: see --json"));
    }
    for note in &shown.notes {
        page.paragraph(2, note, 3);
    }
}

/// Returns whether the record itself names functions of a module.
fn has_exported(shown: &Shown, path: &str) -> bool {
    let section = shown.firstfault.as_deref();
    section.is_some_and(|section| {
        let frames = section.threads.iter().flat_map(|thread| &thread.native);
        let mut named = frames.filter(|frame| frame.symbol.is_some());
        named.any(|frame| {
            let module = frame.module.and_then(|module| section.modules.get(module));
            module.is_some_and(|module| module.path == path)
        })
    })
}

/// A handler as the record names it, its module's directory left out, with its function where that is known.
fn placed(handler: &str, symbol: Option<&str>) -> String {
    match symbol {
        Some(symbol) => format!("{symbol} ({})", last(handler)),
        None => last(handler).to_owned(),
    }
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::super::safe;
    use super::*;
    use crate::failure::{Frame, Module, NativeFrame, Thread};

    fn shown(section: Section) -> Shown {
        Shown {
            path: "error.json".to_owned(),
            message: "SIGSEGV".to_owned(),
            error_code: Some(-11),
            time_ns: Some(1_795_970_005_123_456_789),
            without_symbols: Vec::new(),
            notes: Vec::new(),
            callstack: String::new(),
            black_box: None,
            firstfault: Some(Box::new(section)),
        }
    }

    #[test]
    fn no_line_is_too_long_and_nothing_is_a_command() {
        let evil = "x\x1b[31m\u{9b}".repeat(60);
        let frame = Frame {
            file: evil.clone(),
            line: 7,
            function: evil.clone(),
        };
        let native = NativeFrame {
            symbol: Some(evil.clone()),
            file: Some(evil.clone()),
            line: Some(1),
            module: Some(0),
            ..NativeFrame::default()
        };
        let thread = |number: u32| Thread {
            name: evil.clone(),
            state: evil.clone(),
            answered: Some(false),
            tid: Some(number),
            crashed: number == 0,
            python: vec![frame.clone(); number as usize],
            native: vec![native.clone(); 200],
            ..Thread::default()
        };
        let mut shown = shown(Section {
            threads: (0..60).map(thread).collect(),
            threads_total: Some(100),
            modules: vec![Module {
                path: evil.clone(),
                ..Module::default()
            }],
            abort_message: Some(evil.clone()),
            ..Section::default()
        });
        shown.message = evil.clone();
        shown.notes = vec![evil.clone()];
        shown.without_symbols = vec![WithoutSymbols {
            path: evil.clone(),
            reason: evil,
        }];
        let text = text(&shown, false);
        assert!(!text.contains(['\x1b', '\u{9b}']), "{text}");
        assert!(
            text.lines().all(|line| safe::width(line) <= MAX_COLUMNS),
            "{text}"
        );
        assert!(
            text.contains("\n35 more threads: see --json\n40 more threads were not recorded\n")
        );
    }

    #[test]
    fn equal_stacks_are_shown_once() {
        let thread = |tid, address: &str| Thread {
            name: "worker".to_owned(),
            tid: Some(tid),
            native: vec![NativeFrame {
                address: address.to_owned(),
                ..NativeFrame::default()
            }],
            ..Thread::default()
        };
        let threads = vec![thread(1, "0x10"), thread(2, "0x20"), thread(3, "0x10")];
        let text = text(
            &shown(Section {
                threads,
                ..Section::default()
            }),
            false,
        );
        assert!(
            text.contains(
                "THREAD 'worker' (1) and 1 more with these stacks\n    0x10\n\nTHREAD 'worker' (2)\n"
            ),
            "{text}"
        );
    }
}
