//! What a verdict looks at of an error file, without reading the rest of it: what threads did that did nothing, and how a
//! traceback begins that another rank's began with.

use super::Typed;
use crate::failure::{
    Breadcrumb, Clock, Deferred, Exception, Failure, Host, Kind, Leaf, Link, Process, Rank,
    Section, Survived,
};
use crate::traceback::Beginning;
use aho_corasick::Span;
use aho_corasick::packed::Searcher;
use memchr::{memchr, memchr2_iter, memmem};
use serde::Deserialize;
use std::cell::RefCell;
use std::fmt::Write;
use std::sync::LazyLock;

/// A failure without its breadcrumbs, and these as they stand in the file.
pub(crate) struct Gist<'b> {
    pub(crate) failure: Failure,
    breadcrumbs: Option<&'b str>,
}

impl Gist<'_> {
    /// Returns the breadcrumbs; nothing where they are none that [`error_file`](super::error_file) reads as they are.
    pub(crate) fn breadcrumbs(&self) -> Option<Vec<Breadcrumb>> {
        self.breadcrumbs.map_or(Some(Vec::new()), |all| {
            serde_json::from_str::<Vec<Breadcrumb>>(all).ok()
        })
    }
}

/// Returns the same as [`error_file`](super::error_file) without what no verdict looks at where a traceback tells the
/// stack; nothing for what only that can read: other forms, texts to repair, and signals, whose stacks count.
pub(crate) fn gist(bytes: &[u8]) -> Option<Gist<'_>> {
    thread_local! {
        static SHORT: RefCell<String> = RefCell::default();
    }
    // The keys without their first quote, which would be found at every key. None on a processor that has no use for it.
    static KEYS: LazyLock<Option<Searcher>> =
        LazyLock::new(|| Searcher::new(["py_callstack\":", "threads\":", "breadcrumbs\":"]));
    let keys = KEYS.as_ref()?;
    let text = simdutf8::basic::from_utf8(bytes).ok()?;
    if has_odd_escapes(bytes) {
        return None;
    }
    SHORT.with_borrow_mut(|short| {
        short.clear();
        let beginning = shorten(text, keys, short);
        let file: Typed<GistSection> = serde_json::from_str(short).ok()?;
        let places = file.firstfault.as_ref();
        let places = places.and_then(|section| section.breadcrumbs);
        let mut failure = file.into_failure();
        if let (Some(mut whole), Some(rest)) = (beginning, failure.callstack.strip_prefix(CUT)) {
            whole.push_str(rest);
            failure.callstack = whole;
        }
        Some(Gist {
            failure,
            breadcrumbs: match places {
                Some((from, to)) => Some(text.get(from..to)?),
                None => None,
            },
        })
    })
}

/// Lone surrogates, which Python writes, serde_json refuses but not in what it skips; a NUL is ours here.
fn has_odd_escapes(bytes: &[u8]) -> bool {
    static ESCAPE: LazyLock<memmem::Finder<'_>> = LazyLock::new(|| memmem::Finder::new("\\u"));
    let odd = |at: usize| {
        matches!(
            &bytes[at + 2..],
            [b'd' | b'D', ..] | [b'0', b'0', b'0', b'0', ..]
        )
    };
    ESCAPE.find_iter(bytes).any(odd)
}

/// Stands where the beginning of a call stack is cut off; `\u0000` in JSON.
const CUT: char = '\0';

/// So much mostly follows on the beginning that a rank's traceback has in common with another's, bytes.
const USUAL_REST: usize = 512;

const CALLSTACK: usize = 0;
const THREADS: usize = 1;

/// Writes a file's JSON without the elements of `threads` and the beginning of the call stack, which it returns, and with
/// the offsets of their text in place of the breadcrumbs.
///
/// Quotes inside of strings are escaped, so that a key in quotes is one wherever it is found.
fn shorten(text: &str, keys: &Searcher, short: &mut String) -> Option<String> {
    let (mut beginning, mut from, mut done) = (None, 0, 0);
    let whole = |start| Span {
        start,
        end: text.len(),
    };
    while let Some(key) = keys.find_in(text, whole(from)) {
        from = key.end();
        let before = text[..key.start()].strip_suffix('"');
        if before.is_none_or(|before| before.ends_with('\\')) {
            continue;
        }
        let rest = text[from..].trim_start();
        let value = text.len() - rest.len();
        if key.pattern().as_usize() == CALLSTACK {
            let Some(json) = rest.strip_prefix('"').filter(|_| beginning.is_none()) else {
                continue;
            };
            beginning = Beginning::with_json(json, |beginning, length| {
                short.push_str(&text[done..=value]);
                short.push_str("\\u0000");
                done = value + 1 + length;
                let mut whole = String::with_capacity(beginning.text().len() + USUAL_REST);
                whole.push_str(beginning.text());
                whole
            });
        } else if let Some(length) = array(rest) {
            if key.pattern().as_usize() == THREADS {
                short.push_str(&text[done..value]);
                short.push_str("[]");
            } else {
                short.push_str(&text[done..value]);
                let _ = write!(short, "[{value},{}]", value + length);
            }
            done = value + length;
        }
        from = from.max(done);
    }
    short.push_str(&text[done..]);
    beginning
}

/// Returns the length of the JSON array that a text begins with.
fn array(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'[') {
        return None;
    }
    let (mut depth, mut quotes, mut from) = (0_usize, 0, 0);
    for at in memchr2_iter(b'[', b']', bytes) {
        quotes += unescaped_quotes(&bytes[from..at]);
        from = at;
        match (bytes[at], quotes % 2) {
            (_, 1) => {}
            (b'[', _) => depth += 1,
            (_, _) if depth == 1 => return Some(at + 1),
            _ => depth -= 1,
        }
    }
    None
}

fn unescaped_quotes(bytes: &[u8]) -> usize {
    if memchr(b'\\', bytes).is_none() {
        return bytecount::count(bytes, b'"');
    }
    let (mut count, mut escaped) = (0, None);
    for at in memchr2_iter(b'"', b'\\', bytes) {
        if escaped == Some(at) {
            continue;
        }
        match bytes[at] {
            b'\\' => escaped = Some(at + 1),
            _ => count += 1,
        }
    }
    count
}

/// What a verdict looks at of a [`Section`] without a signal.
#[derive(Default, Deserialize)]
#[serde(default)]
struct GistSection {
    schema_version: u32,
    kind: Option<Kind>,
    #[serde(rename = "final")]
    is_final: bool,
    time_ns: Option<i64>,
    clock: Option<Clock>,
    host: Host,
    process: GistProcess,
    rank: Rank,
    exception: Option<GistException>,
    signal: Option<Unread>,
    step: Option<i64>,
    /// Where their text begins and ends in the file.
    breadcrumbs: Option<(usize, usize)>,
    deferred: Option<Deferred>,
    preceded_by: Vec<Survived>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GistProcess {
    pid: Option<u32>,
    start_time_ns: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GistException {
    #[serde(rename = "type")]
    type_name: String,
    message: String,
    chain: Vec<Link>,
    group: Vec<Leaf>,
}

/// No value is one.
#[derive(Deserialize)]
enum Unread {}

impl From<GistSection> for Section {
    fn from(gist: GistSection) -> Self {
        Self {
            schema_version: gist.schema_version,
            kind: gist.kind,
            is_final: gist.is_final,
            time_ns: gist.time_ns,
            clock: gist.clock,
            host: gist.host,
            process: Process {
                pid: gist.process.pid,
                start_time_ns: gist.process.start_time_ns,
                ..Process::default()
            },
            rank: gist.rank,
            exception: gist.exception.map(|exception| Exception {
                type_name: exception.type_name,
                message: exception.message,
                chain: exception.chain,
                group: exception.group,
                ..Exception::default()
            }),
            signal: gist.signal.map(|never| match never {}),
            step: gist.step,
            deferred: gist.deferred,
            preceded_by: gist.preceded_by,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::error_file;
    use std::path::Path;

    /// What is read of a file in both ways.
    fn both(json: &str) -> (Failure, Failure) {
        let gist = gist(json.as_bytes()).unwrap_or_else(|| panic!("{json}"));
        let breadcrumbs = gist.breadcrumbs().unwrap();
        let mut short = gist.failure;
        if let Some(section) = &mut short.section {
            section.breadcrumbs = breadcrumbs;
        }
        let mut whole = error_file(Path::new("x"), json.as_bytes()).unwrap();
        if let Some(section) = &mut whole.section {
            section.threads.clear();
            section.process.argv.clear();
            if let Some(exception) = &mut section.exception {
                exception.mro.clear();
            }
        }
        (short, whole)
    }

    fn file(callstack: &str, section: &str) -> String {
        let callstack = serde_json::to_string(callstack).unwrap();
        format!(
            r#"{{"message": {{"message": "KeyError: 1", "extraInfo": {{"py_callstack": {callstack}, "timestamp": "1790000000"}}}}, "firstfault": {{{section}}}}}"#
        )
    }

    #[test]
    fn the_gist_is_what_the_whole_file_says() {
        let frames = "Traceback (most recent call last):\n  File \"/j/a\\n.py\", line 1, in f\n    x = \"\\u00e9\"\n";
        let callstacks = [
            format!("{frames}KeyError: 1"),
            format!("{frames}  File \"b\", line 2, in g\nKeyError: \"[\\"),
            frames.to_owned(),
            format!("{frames}\nTraceback (most recent call last):\n"),
            frames.replace('\n', "\r\n"),
            String::new(),
        ];
        let sections = [
            "",
            r#""threads": [{"name": "a]b\"[", "python": [{"file": "x", "line": 1}]}], "step": 3"#,
            r#""threads":[], "breadcrumbs":[{"name": "]\\\\", "value": "\"py_callstack\":\"Traceback"}, {"name": "b"}]"#,
            r#""breadcrumbs": [ ], "truncated": {"threads": 3, "breadcrumbs": 1}, "memory": {"threads": 7}"#,
            r#""other_crashes": [{"threads": [1, [2]], "breadcrumbs": ["x"], "py_callstack": "Traceback (most recent call last):\n  x\ny"}], "breadcrumbs": [{"name": "own"}]"#,
            r#""exception": {"type": "KeyError", "message": "\"threads\": [ \"breadcrumbs\": ["}"#,
            r#""process": {"pid": 7, "argv": ["a"], "start_time_ns": 5}, "exception": {"type": "E", "mro": ["E"], "chain": [{"type": "C"}], "message": "m", "group": [{"type": "L"}]}"#,
        ];
        for callstack in &callstacks {
            for section in sections {
                // Twice: what begins alike is known by then.
                for _ in 0..2 {
                    let json = file(callstack, section);
                    let (short, mut whole) = both(&json);
                    if let Some(section) = &mut whole.section {
                        (section.truncated, section.memory) = Default::default();
                        section.other_crashes.clear();
                    }
                    assert_eq!(short, whole, "{json}");
                }
            }
        }
    }

    #[test]
    fn what_only_the_whole_file_tells_is_left_to_it() {
        for section in [
            r#""signal": {"number": 11}"#,
            r#""threads": [{"name": "\udcff"}]"#,
            r#""threads": [{"name": "cut off"#,
            r#""breadcrumbs": 7"#,
        ] {
            assert!(gist(file("", section).as_bytes()).is_none(), "{section}");
        }
        let json = file("\0 traceback", "");
        assert!(gist(json.as_bytes()).is_none());
        let wrong = file("", r#""breadcrumbs": [7]"#);
        assert!(gist(wrong.as_bytes()).unwrap().breadcrumbs().is_none());
    }
}
