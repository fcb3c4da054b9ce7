//! What each thread was doing: the crashed one first, equal stacks once.

use super::super::safe;
use super::page::{MAX_COLUMNS, Page};
use super::sources::Sources;
use super::{MAX_GROUPS, Shown, last};
use crate::failure::{Frame, NativeFrame, Section, Thread};
use crate::traceback;
use std::collections::HashMap;

/// How many frames of a stack are shown.
const MAX_FRAMES: usize = 64;
const MAX_FRAMES_OF_OTHERS: usize = 24;
/// How many lines a text for people may have that a record brings along.
const MAX_TEXT_LINES: usize = 200;

/// Writes stacks to a page.
pub(super) struct Stacks<'p> {
    page: &'p mut Page,
    sources: Sources,
}

impl<'p> Stacks<'p> {
    pub(super) fn on(page: &'p mut Page, shown: &Shown) -> Self {
        let sources = Sources::new(shown.time_ns);
        Self { page, sources }
    }

    pub(super) fn threads(&mut self, shown: &Shown, section: &Section) {
        let (crashed, others): (Vec<_>, Vec<_>) =
            section.threads.iter().partition(|thread| thread.crashed);
        if section.threads.iter().all(is_empty) {
            self.callstack(&shown.callstack);
        }
        for thread in &crashed {
            self.page.blank();
            self.page
                .line(0, &format!("CRASHED THREAD {}", named(thread)));
            self.stacks(section, thread, MAX_FRAMES);
        }
        let groups = groups(&others);
        for group in groups.iter().take(MAX_GROUPS) {
            self.page.blank();
            let mut title = format!("THREAD {}", named(group[0]));
            if group.len() > 1 {
                title = format!("{title} and {} more with these stacks", group.len() - 1);
            }
            self.page.line(0, &title);
            self.stacks(section, group[0], MAX_FRAMES_OF_OTHERS);
        }
        let left: usize = groups.iter().skip(MAX_GROUPS).map(Vec::len).sum();
        let total = section.threads_total.unwrap_or(0);
        let unrecorded = total.saturating_sub(section.threads.len() as u64);
        if left > 0 || unrecorded > 0 {
            self.page.blank();
        }
        if left > 0 {
            self.page
                .line(0, &format!("{left} more threads: see --json"));
        }
        if unrecorded > 0 {
            self.page
                .line(0, &format!("{unrecorded} more threads were not recorded"));
        }
    }

    fn stacks(&mut self, section: &Section, thread: &Thread, most: usize) {
        let condition = condition(thread);
        if !condition.is_empty() {
            self.page.line(2, &condition);
        }
        for frame in thread.python.iter().take(most) {
            self.python(frame);
        }
        self.more(thread.python.len(), most);
        if !thread.python.is_empty() && !thread.native.is_empty() {
            self.page.line(2, "native:");
        }
        for frame in thread.native.iter().take(most) {
            self.native(section, frame);
        }
        self.more(thread.native.len(), most);
        if is_empty(thread) && condition.is_empty() {
            self.page.line(2, "no frame was found");
        }
    }

    fn more(&mut self, count: usize, most: usize) {
        if count > most {
            self.page
                .line(2, &format!("and {} more frames: see --json", count - most));
        }
    }

    fn python(&mut self, frame: &Frame) {
        let place = format!("({}:{})", traceback::short(&frame.file), frame.line);
        self.frame(&frame.function, &place);
        if let Some(line) = self.sources.line(&frame.file, frame.line) {
            self.page.line(6, &line);
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
            (None, Some(module)) => self.page.line(4, &format!("{}+{offset}", last(module))),
            (None, None) => self.page.line(4, &frame.address),
        }
    }

    /// A function and its place, on one line or, where they do not fit, on two.
    fn frame(&mut self, function: &str, place: &str) {
        let both = format!("{function} {place}");
        if safe::width(&safe::one_line(&both)) <= MAX_COLUMNS - 4 {
            self.page.line(4, &both);
        } else {
            self.page.line(4, function);
            self.page.line(6, place);
        }
    }

    pub(super) fn callstack(&mut self, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        self.page.blank();
        for line in text.lines().take(MAX_TEXT_LINES) {
            let indent = line.len() - line.trim_start_matches(' ').len();
            self.page
                .paragraph(indent.min(MAX_COLUMNS / 4), line.trim_start_matches(' '), 3);
        }
        let left = text.lines().skip(MAX_TEXT_LINES).count();
        if left > 0 {
            self.page.line(0, &format!("{left} more lines: see --json"));
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
