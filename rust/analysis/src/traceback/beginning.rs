//! A traceback up to its message, and where in it the parts of its frames stand.
//!
//! Most ranks of a job fail in one of a few places, and differ in their messages: each thread keeps the last few beginnings
//! that it read, as they stand in a text and in JSON.

use super::{FrameRef, START, frame, lines};
use memchr::memchr2_iter;
use std::cell::RefCell;
use std::ops::Range;

/// So many are kept, none longer than this in bytes.
const MAX_KEPT: usize = 8;
const MAX_BYTES: usize = 64 << 10;

pub(crate) struct Beginning {
    text: String,
    /// The same inside a string of JSON, where it was read from one.
    json: String,
    frames: Vec<(Range<usize>, u32, Range<usize>)>,
}

impl Beginning {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Calls `then` with the beginning of a text; not where that is no traceback.
    pub(super) fn with_text<T>(text: &str, then: impl FnOnce(&Self) -> T) -> Option<T> {
        if !text.starts_with(START) {
            return None;
        }
        let is_it = |known: &Self| text.starts_with(&known.text);
        let new = || {
            let mut lines = lines(text).skip(1);
            let (end, _) = lines.find(|(_, line)| !line.starts_with("  "))?;
            Self::new(text[..end].to_owned(), String::new())
        };
        Self::with(is_it, new, then)
    }

    /// Calls `then` with the beginning of what a string in JSON holds, whose opening quote the text follows, and with
    /// the length of the beginning in JSON.
    pub(crate) fn with_json<T>(json: &str, then: impl FnOnce(&Self, usize) -> T) -> Option<T> {
        if !json.starts_with(START) {
            return None;
        }
        let is_it = |known: &Self| !known.json.is_empty() && json.starts_with(&known.json);
        let new = || {
            let json = &json[..end_in_json(json)?];
            let text = serde_json::from_str(&format!("\"{json}\"")).ok()?;
            Self::new(text, json.to_owned())
        };
        Self::with(is_it, new, |known| then(known, known.json.len()))
    }

    fn with<T>(
        is_it: impl Fn(&Self) -> bool,
        new: impl FnOnce() -> Option<Self>,
        then: impl FnOnce(&Self) -> T,
    ) -> Option<T> {
        thread_local! {
            /// The last read first.
            static KNOWN: RefCell<Vec<Beginning>> = RefCell::default();
        }
        KNOWN.with_borrow_mut(|known| {
            let at = match known.iter().position(is_it) {
                Some(at) => at,
                None => {
                    let new = new()?;
                    known.truncate(MAX_KEPT - 1);
                    known.push(new);
                    known.len() - 1
                }
            };
            known[..=at].rotate_right(1);
            Some(then(&known[0]))
        })
    }

    fn new(text: String, json: String) -> Option<Self> {
        if text.len().max(json.len()) > MAX_BYTES {
            return None;
        }
        let within = |part: &str| {
            let start = part.as_ptr().addr() - text.as_ptr().addr();
            start..start + part.len()
        };
        let frames = lines(&text).skip(1).filter_map(|(_, line)| {
            let frame = frame(line.get(2..)?, ", in ")?;
            Some((within(frame.file), frame.line, within(frame.function)))
        });
        let frames = frames.collect();
        Some(Self { text, json, frames })
    }

    /// Returns the frames of a text that begins so, outermost first.
    pub(super) fn frames_in<'a>(&self, text: &'a str) -> Vec<FrameRef<'a>> {
        let frames = self.frames.iter().map(|(file, line, function)| FrameRef {
            file: &text[file.clone()],
            line: *line,
            function: &text[function.clone()],
        });
        frames.collect()
    }
}

/// Returns where the first line that is not indented begins; nothing where the string ends before it.
fn end_in_json(json: &str) -> Option<usize> {
    let bytes = json.as_bytes();
    let mut escaped = None;
    for at in memchr2_iter(b'"', b'\\', bytes) {
        if escaped == Some(at) {
            continue;
        }
        if bytes[at] == b'"' {
            return None;
        }
        escaped = Some(at + 1);
        let next = json.get(at..).and_then(|rest| rest.strip_prefix("\\n"));
        if next.is_some_and(|next| !next.starts_with("  ")) {
            return Some(at + 2);
        }
    }
    None
}
