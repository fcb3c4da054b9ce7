//! One error file for a person: what happened, where, and every stack, at most 80 columns wide.

use super::safe;
use crate::error::Error;
use crate::failure::{Deferred, Failure, Frame, Handlers, NativeFrame, Section, Thread};
use crate::scan::read;
use crate::symbolize::Symbolizer;
use crate::{parse, traceback};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// At most so many columns.
pub const MAX_COLUMNS: usize = 80;

/// How many groups of threads besides the crashed one are shown, and how many frames of a stack.
const MAX_GROUPS: usize = 24;
const MAX_FRAMES: usize = 64;
const MAX_FRAMES_OF_OTHERS: usize = 24;
/// How many lines a text for people may have that a record brings along.
const MAX_TEXT_LINES: usize = 200;
/// How many failures are shown that the process survived before.
const MAX_EARLIER: usize = 8;
/// The largest source file that is looked into.
const MAX_SOURCE_BYTES: u64 = 4 << 20;

/// An error file, with the functions of its native frames.
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    /// The error file.
    pub path: String,
    /// The failure in one line.
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

/// Reads an error file and looks its functions up.
///
/// # Errors
/// The file cannot be read, or is no error file.
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
    let failure = read::with_file(read::Location::of(path), |bytes| {
        parse::error_file(path, bytes?)
    })?;
    Ok(look_up(path, failure))
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
        firstfault: section,
    }
}

/// Returns the error file as JSON that ends in a newline.
pub fn json(shown: &Shown) -> String {
    let mut text = serde_json::to_string_pretty(shown).unwrap_or_default();
    text.push('\n');
    text
}

/// Returns the error file as text; with `colour`, its first line carries terminal colours.
///
/// Whatever the record holds, no control character of it reaches the terminal.
pub fn text(shown: &Shown, colour: bool) -> String {
    let mut page = Page {
        lines: Vec::new(),
        sources: Sources::new(shown.time_ns),
    };
    let headline = shown.message.lines().next().unwrap_or_default();
    page.paragraph(0, headline, 4);
    if let (true, Some(first)) = (colour, page.lines.first_mut()) {
        *first = format!("\x1b[1;31m{first}\x1b[0m");
    }
    match &shown.firstfault {
        Some(section) => {
            page.head(shown, section);
            page.threads(shown, section);
            page.handlers(&section.handlers);
        }
        None => page.callstack(&shown.callstack),
    }
    page.notes(shown);
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

struct Page {
    lines: Vec<String>,
    sources: Sources,
}

impl Page {
    fn line(&mut self, indent: usize, text: &str) {
        let text = safe::cut(&safe::one_line(text), MAX_COLUMNS - indent);
        self.lines.push(format!("{}{text}", " ".repeat(indent)));
    }

    fn blank(&mut self) {
        self.lines.push(String::new());
    }

    /// One text over a few lines, broken at spaces where there are any; further ones are indented.
    fn paragraph(&mut self, indent: usize, text: &str, most: usize) {
        let text = safe::one_line(text);
        let columns = MAX_COLUMNS - indent;
        let lines = safe::wrapped(&text, columns, columns - 2, most);
        for (number, line) in lines.into_iter().enumerate() {
            self.line(indent + if number == 0 { 0 } else { 2 }, line);
        }
    }

    fn head(&mut self, shown: &Shown, section: &Section) {
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
        self.fact("who", &who.join(", "));
        let mut when = Vec::new();
        when.extend(shown.time_ns.map(utc));
        when.extend(section.step.map(|step| format!("step {step}")));
        when.extend(
            rank.attempt
                .filter(|attempt| *attempt > 0)
                .map(|attempt| format!("attempt {attempt}")),
        );
        when.extend(rank.run_id.as_ref().map(|run| format!("run {run}")));
        self.fact("when", &when.join(", "));
        if let Some(exception) = &section.cpp_exception {
            let text = parse::headline(&exception.type_name, &exception.what);
            self.fact("C++", &text);
        }
        if let Some(message) = &section.abort_message {
            self.fact("abort", message);
        }
        if let Some(deferred) = &section.deferred {
            self.fact("held", &held(deferred));
        }
        if !section.is_final && section.kind.is_some() {
            self.fact("note", "provisional: the program went on after this");
        }
        for earlier in section.preceded_by.iter().take(MAX_EARLIER) {
            let after = earlier
                .deferred
                .as_ref()
                .map(|deferred| format!(", {deferred}"))
                .or(earlier.place.as_ref().map(|place| format!(", in {place}")))
                .unwrap_or_default();
            let message = earlier.message.lines().next().unwrap_or_default();
            self.fact("after", &format!("{message}{after}"));
        }
    }

    fn fact(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.paragraph(2, &format!("{name:<5} {text}"), 3);
        }
    }

    fn threads(&mut self, shown: &Shown, section: &Section) {
        let (crashed, others): (Vec<_>, Vec<_>) =
            section.threads.iter().partition(|thread| thread.crashed);
        if section.threads.iter().all(is_empty) {
            self.callstack(&shown.callstack);
        }
        for thread in &crashed {
            self.blank();
            self.line(0, &format!("CRASHED THREAD {}", named(thread)));
            self.stacks(section, thread, MAX_FRAMES);
        }
        let groups = groups(&others);
        for group in groups.iter().take(MAX_GROUPS) {
            self.blank();
            let mut title = format!("THREAD {}", named(group[0]));
            if group.len() > 1 {
                title = format!("{title} and {} more with these stacks", group.len() - 1);
            }
            self.line(0, &title);
            self.stacks(section, group[0], MAX_FRAMES_OF_OTHERS);
        }
        let left: usize = groups.iter().skip(MAX_GROUPS).map(Vec::len).sum();
        let total = section.threads_total.unwrap_or(0);
        let unrecorded = total.saturating_sub(section.threads.len() as u64);
        if left > 0 || unrecorded > 0 {
            self.blank();
        }
        if left > 0 {
            self.line(0, &format!("{left} more threads: see --json"));
        }
        if unrecorded > 0 {
            self.line(0, &format!("{unrecorded} more threads were not recorded"));
        }
    }

    fn stacks(&mut self, section: &Section, thread: &Thread, most: usize) {
        let condition = condition(thread);
        if !condition.is_empty() {
            self.line(2, &condition);
        }
        for frame in thread.python.iter().take(most) {
            self.python(frame);
        }
        self.more(thread.python.len(), most);
        if !thread.python.is_empty() && !thread.native.is_empty() {
            self.line(2, "native:");
        }
        for frame in thread.native.iter().take(most) {
            self.native(section, frame);
        }
        self.more(thread.native.len(), most);
        if is_empty(thread) && condition.is_empty() {
            self.line(2, "no frame was found");
        }
    }

    fn more(&mut self, count: usize, most: usize) {
        if count > most {
            self.line(2, &format!("and {} more frames: see --json", count - most));
        }
    }

    fn python(&mut self, frame: &Frame) {
        let place = format!("({}:{})", traceback::short(&frame.file), frame.line);
        self.frame(&frame.function, &place);
        if let Some(line) = self.sources.line(&frame.file, frame.line) {
            self.line(6, &line);
        }
    }

    fn native(&mut self, section: &Section, frame: &NativeFrame) {
        let module = frame.module.and_then(|index| section.modules.get(index));
        let module = module.map(|module| traceback::short(&module.path));
        let offset = frame.offset.as_deref().unwrap_or("?");
        let at = match (&frame.file, frame.line) {
            (Some(file), Some(line)) => Some(format!("{}:{line}", last(file))),
            _ => None,
        };
        match (&frame.symbol, module) {
            (Some(_), _) if frame.inlined => {
                let place =
                    at.map_or_else(|| "(inlined)".to_owned(), |at| format!("(inlined, {at})"));
                self.frame(frame.symbol.as_deref().unwrap_or_default(), &place);
            }
            (Some(symbol), module) => {
                let module = last(module.unwrap_or("?"));
                let place =
                    at.map_or_else(|| format!("({module})"), |at| format!("({module}, {at})"));
                self.frame(symbol, &place);
            }
            (None, Some(module)) => self.line(4, &format!("{}+{offset}", last(module))),
            (None, None) => self.line(4, &frame.address),
        }
    }

    /// A function and its place, on one line or, where they do not fit, on two.
    fn frame(&mut self, function: &str, place: &str) {
        let both = format!("{function} {place}");
        if safe::width(&safe::one_line(&both)) <= MAX_COLUMNS - 4 {
            self.line(4, &both);
        } else {
            self.line(4, function);
            self.line(6, place);
        }
    }

    fn callstack(&mut self, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        self.blank();
        for line in text.lines().take(MAX_TEXT_LINES) {
            let indent = line.len() - line.trim_start_matches(' ').len();
            self.paragraph(indent.min(MAX_COLUMNS / 4), line.trim_start_matches(' '), 3);
        }
        let left = text.lines().skip(MAX_TEXT_LINES).count();
        if left > 0 {
            self.line(0, &format!("{left} more lines: see --json"));
        }
    }

    /// Who else handled crash signals; those with the same neighbours on one line.
    fn handlers(&mut self, handlers: &[Handlers]) {
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
        self.blank();
        self.line(0, "SIGNAL HANDLERS");
        for (text, signals) in groups.iter().take(MAX_GROUPS) {
            self.paragraph(2, &format!("{}: {text}", signals.join(", ")), 4);
        }
    }

    fn notes(&mut self, shown: &Shown) {
        if shown.without_symbols.is_empty() && shown.notes.is_empty() {
            return;
        }
        self.blank();
        self.line(0, "NOTES");
        for module in shown.without_symbols.iter().take(MAX_GROUPS) {
            let name = last(&module.path);
            self.line(2, &format!("no functions of {name}: {}", module.reason));
        }
        if shown.without_symbols.len() > MAX_GROUPS {
            let left = shown.without_symbols.len() - MAX_GROUPS;
            self.line(2, &format!("nor of {left} more: see --json"));
        }
        for note in &shown.notes {
            self.paragraph(2, note, 3);
        }
    }
}

fn is_empty(thread: &Thread) -> bool {
    thread.python.is_empty() && thread.native.is_empty()
}

/// What a reader of its stacks must know of a thread; most threads just sleep.
fn condition(thread: &Thread) -> String {
    let mut parts = Vec::new();
    if thread.answered == Some(false) {
        parts.push("did not answer".to_owned());
        parts.extend((!thread.state.is_empty()).then(|| thread.state.clone()));
    }
    parts.extend((thread.holds_gil == Some(true)).then(|| "holds the GIL".to_owned()));
    parts.join(", ")
}

fn named(thread: &Thread) -> String {
    let id = thread
        .tid
        .map(|tid| format!(" ({tid})"))
        .unwrap_or_default();
    format!("'{}'{id}", thread.name)
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

/// Threads whose stacks are equal, in the order of the record.
fn groups<'a>(threads: &[&'a Thread]) -> Vec<Vec<&'a Thread>> {
    let mut groups: Vec<Vec<&Thread>> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for thread in threads {
        let stacks = (condition(thread), &thread.python, &thread.native);
        let key = serde_json::to_string(&stacks).unwrap_or_default();
        match known.get(&key) {
            Some(index) => groups[*index].push(thread),
            None => {
                known.insert(key, groups.len());
                groups.push(vec![thread]);
            }
        }
    }
    groups
}

/// Returns a time as `2026-11-29 16:33:26.123456 UTC`.
///
/// Source: Hinnant, chrono-compatible date algorithms: the year is taken to begin in March.
fn utc(time_ns: i64) -> String {
    let seconds = time_ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, month + 3);
    let (month, carry) = if month > 12 {
        (month - 12, 1)
    } else {
        (month, 0)
    };
    format!(
        "{:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:06} UTC",
        year + era * 400 + carry,
        second / 3_600,
        second / 60 % 60,
        second % 60,
        time_ns.rem_euclid(1_000_000_000) / 1_000
    )
}

/// Lines of the program's source, where the file here is not newer than the failure.
struct Sources {
    time_ns: Option<i64>,
    files: HashMap<String, Option<String>>,
}

impl Sources {
    fn new(time_ns: Option<i64>) -> Self {
        Self {
            time_ns,
            files: HashMap::new(),
        }
    }

    fn line(&mut self, file: &str, line: u32) -> Option<String> {
        if !self.files.contains_key(file) {
            let text = self.text(Path::new(file));
            self.files.insert(file.to_owned(), text);
        }
        let text = self.files.get(file)?.as_deref()?;
        let line = text
            .lines()
            .nth(usize::try_from(line).ok()?.checked_sub(1)?)?;
        Some(line.trim().to_owned()).filter(|line| !line.is_empty())
    }

    fn text(&self, path: &Path) -> Option<String> {
        // The record may name anything: a relative path means another directory here, a device would never end.
        let status = path.metadata().ok()?;
        if !path.is_absolute() || !status.is_file() || status.len() > MAX_SOURCE_BYTES {
            return None;
        }
        let changed = status.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        if i64::try_from(changed.as_nanos()).ok()? > self.time_ns? {
            return None;
        }
        let mut bytes = Vec::new();
        let mut file = File::open(path).ok()?.take(MAX_SOURCE_BYTES);
        file.read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Module;

    fn shown(section: Section) -> Shown {
        Shown {
            path: "error.json".to_owned(),
            message: "SIGSEGV".to_owned(),
            error_code: Some(-11),
            time_ns: Some(1_795_970_005_123_456_789),
            without_symbols: Vec::new(),
            notes: Vec::new(),
            callstack: String::new(),
            firstfault: Some(Box::new(section)),
        }
    }

    #[test]
    fn a_time_is_a_date() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000000 UTC");
        assert_eq!(
            utc(951_827_696_000_000_001),
            "2000-02-29 12:34:56.000000 UTC"
        );
        assert_eq!(
            utc(1_735_689_599_999_999_999),
            "2024-12-31 23:59:59.999999 UTC"
        );
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

    #[test]
    fn a_source_that_is_newer_than_the_failure_is_not_quoted() {
        let file = file!();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/show.rs");
        let path = path.to_str().unwrap();
        assert!(file.ends_with("show.rs"));
        assert_eq!(Sources::new(Some(0)).line(path, 1), None);
        assert_eq!(Sources::new(None).line(path, 1), None);
        assert_eq!(Sources::new(Some(i64::MAX)).line("show.rs", 1), None);
        assert_eq!(Sources::new(Some(i64::MAX)).line("/dev/zero", 1), None);
        let line = Sources::new(Some(i64::MAX)).line(path, 1).unwrap();
        assert!(line.starts_with("//! One error file"), "{line}");
    }
}
