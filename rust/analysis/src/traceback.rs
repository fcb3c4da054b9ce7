//! Reads Python tracebacks and faulthandler's dumps out of text: which exceptions, deepest first, and in which functions.

mod beginning;
mod crash;
mod mixed;
mod place;

pub(crate) use beginning::Beginning;
pub use crash::{Fatal, fatal, terminate};
pub(crate) use crash::{RAY_UNHANDLED, first_crash_line};
pub(crate) use mixed::common;
pub use place::{is_library, location, short};

use crate::failure::Frame;
use memchr::{memchr, memchr_iter, memmem, memrchr};
use std::borrow::Cow;
use std::sync::LazyLock;

/// One exception of a chain, as a traceback prints it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Raised<'a> {
    /// The name of its class, without the module; empty where the text is cut before it.
    pub type_name: &'a str,
    /// Its text, which may have several lines.
    pub message: &'a str,
    /// Its frames, innermost first.
    pub frames: Vec<FrameRef<'a>>,
    /// Whether the next one in the chain was raised `from` it (else: while it was being handled).
    pub is_cause: bool,
}

/// One frame, borrowed from the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRef<'a> {
    /// The source file.
    pub file: &'a str,
    /// The line, from 1.
    pub line: u32,
    /// The function.
    pub function: &'a str,
}

impl Frame {
    pub(crate) fn as_ref(&self) -> FrameRef<'_> {
        FrameRef {
            file: &self.file,
            line: self.line,
            function: &self.function,
        }
    }
}

impl FrameRef<'_> {
    /// Returns an owned copy.
    pub fn to_frame(self) -> Frame {
        Frame {
            file: self.file.to_owned(),
            line: self.line,
            function: self.function.to_owned(),
        }
    }
}

pub(crate) const START: &str = "Traceback (most recent call last):";
const CAUSE: &str = "The above exception was the direct cause of the following exception:";

const CONTEXT: &str = "During handling of the above exception, another exception occurred:";

/// Whether the first traceback of a text is of an exception that was raised while another was handled, which is cut off.
pub(crate) fn is_of_handler(text: &str) -> bool {
    from_first(text).is_some_and(|found| found.trim_start().starts_with(CONTEXT))
}

/// Returns the text with what a launcher or an exception group puts before each line removed.
///
/// torchrun's `--tee` and torch's own `sys.excepthook` print `[rank3]: `; groups print `  | `.
pub fn strip_prefixes(text: &str) -> Cow<'_, str> {
    static GROUP: LazyLock<memmem::Finder<'_>> =
        LazyLock::new(|| memmem::Finder::new("Exception Group Traceback"));
    let bytes = text.as_bytes();
    // A label stands before every line, so a bare traceback has none further down.
    let bare = text.starts_with(START);
    let bracketed =
        !bare && (bytes.first() == Some(&b'[') || memmem::find(bytes, b"\n[").is_some());
    let labelled = bracketed && text.lines().any(|line| label(line) > 0);
    let grouped = GROUP.find(bytes).is_some();
    if !labelled && !grouped {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let line = &line[label(line)..];
        out.push_str(if grouped { ungroup(line) } else { line });
        out.push('\n');
    }
    Cow::Owned(out)
}

/// Returns the length of a `[rank3]: ` or `[default3]:` before a line.
fn label(line: &str) -> usize {
    let bracketed = || {
        let (name, after) = line.strip_prefix('[')?.split_once(']')?;
        Some((name, after.strip_prefix(':')?))
    };
    let Some((name, after)) = bracketed() else {
        return 0;
    };
    let digits = name.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '_');
    if name.len() > 40
        || digits.len() == name.len()
        || digits.is_empty()
        || !digits.bytes().all(|b| b.is_ascii_digit())
    {
        return 0;
    }
    line.len() - after.strip_prefix(' ').unwrap_or(after).len()
}

/// Returns whether a text may hold more than one exception: a chain, a group, or a traceback inside a message.
pub(crate) fn has_several(text: &str) -> bool {
    static CALLS: LazyLock<memmem::Finder<'_>> =
        LazyLock::new(|| memmem::Finder::new("(most recent call last)"));
    CALLS.find_iter(text.as_bytes()).nth(1).is_some()
}

/// Returns the rank that torch's `sys.excepthook` printed before a line: `[rank3]: `.
pub fn printed_rank(text: &str) -> Option<u32> {
    lines_after_label(text).find_map(|(rank, _)| rank.parse().ok())
}

/// Yields what stands in the labels `[rank…]:` before lines, and what follows them.
pub(crate) fn lines_after_label(text: &str) -> impl Iterator<Item = (&str, &str)> {
    const LABEL: &str = "[rank";
    let lines = beginning_with(text, LABEL).filter_map(|at| text[at..].lines().next());
    lines.filter_map(|line| line[LABEL.len()..].split_once("]:"))
}

/// Yields where lines begin with some words.
fn beginning_with<'t>(text: &'t str, words: &'t str) -> impl Iterator<Item = usize> + 't {
    let starts = |&at: &usize| at == 0 || text.as_bytes()[at - 1] == b'\n';
    memmem::find_iter(text.as_bytes(), words).filter(starts)
}

fn ungroup(line: &str) -> &str {
    let rest = line.trim_start_matches(' ');
    match rest.strip_prefix(['|', '+']) {
        Some(inner) => inner.strip_prefix(' ').unwrap_or(inner),
        None => line,
    }
}

/// Returns the last chain of exceptions in a text, deepest first; the one that nothing caught is last.
///
/// A traceback inside a message ("Original Traceback", a checkpoint's "Traceback … (RANK 2)") and the leaves of a group
/// count as deeper than what carries them. Empty where there is no traceback. The text is to be without prefixes
/// ([`strip_prefixes`]).
pub fn chain(text: &str) -> Vec<Raised<'_>> {
    let Some(text) = from_first(text) else {
        return Vec::new();
    };
    let mut reader = Reader::default();
    let begun = Beginning::with_text(text, |beginning| {
        reader.current = Some(Raised {
            frames: beginning.frames_in(text),
            ..Raised::default()
        });
        beginning.text().len()
    });
    let begun = begun.unwrap_or(0);
    for (start, line) in lines(&text[begun..]) {
        reader.line(text, (begun + start, line));
    }
    reader.finish(text);
    reader.chain
}

#[derive(Default)]
struct Reader<'a> {
    chain: Vec<Raised<'a>>,
    /// How many at the end of the chain carry the one being read.
    outer: usize,
    current: Option<Raised<'a>>,
    /// Where the message began and ends so far.
    message: Option<(usize, usize)>,
    link: Link,
    /// Whether what is being read is an exception that ended nothing.
    ignored: bool,
}

/// Whether NCCL's own logger wrote a line, which is no part of a message.
fn is_nccls(line: &str) -> bool {
    line.contains(" NCCL WARN ") || line.contains(" NCCL INFO ")
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Link {
    #[default]
    Unrelated,
    Cause,
    Context,
    Leaf,
}

impl<'a> Reader<'a> {
    fn line(&mut self, text: &'a str, (start, line): (usize, &'a str)) {
        if let (Some(current), None, true) =
            (&mut self.current, self.message, line.starts_with("  "))
        {
            // Frames are indented by two; deeper is the source, which may say anything.
            current
                .frames
                .extend(line.get(2..).and_then(|rest| frame(rest, ", in ")));
            return;
        }
        let trimmed = line.trim();
        if self.ignored {
            // The traceback of an exception that the interpreter ignored, up to its message.
            self.ignored = line.starts_with(' ') || trimmed.is_empty() || is_start(trimmed);
            return;
        }
        if crate::ending::is_ignored(line) {
            self.finish(text);
            self.ignored = true;
            return;
        }
        if trimmed == CAUSE || trimmed == CONTEXT {
            self.finish(text);
            self.link = if trimmed == CAUSE {
                Link::Cause
            } else {
                Link::Context
            };
        } else if is_start(trimmed) {
            self.start(text);
        } else if trimmed.starts_with('-')
            && trimmed.contains("---------------- ")
            && self.current.is_some()
        {
            self.finish(text);
            self.link = Link::Leaf;
        } else if let Some(current) = &mut self.current {
            match self.message {
                None if line.starts_with(' ') || trimmed.is_empty() => {}
                None => {
                    let end = start + line.len();
                    let (type_name, _) = split(line);
                    current.type_name = type_name;
                    self.message = Some((end - split(line).1.len(), end));
                }
                Some(_) if trimmed.is_empty() || is_nccls(line) => self.finish(text),
                Some((from, _)) => self.message = Some((from, start + line.len())),
            }
        }
    }

    fn start(&mut self, text: &'a str) {
        // A traceback that begins inside a message belongs to that message.
        let inside = self.message.is_some();
        self.finish(text);
        match (inside, self.link) {
            (true, _) | (_, Link::Leaf) if !self.chain.is_empty() => {
                if self.link != Link::Leaf || self.outer == 0 {
                    self.outer += 1;
                }
            }
            (_, Link::Unrelated) => {
                self.chain.clear();
                self.outer = 0;
            }
            _ => {
                let before = self.chain.len().wrapping_sub(self.outer + 1);
                if let Some(previous) = self.chain.get_mut(before) {
                    previous.is_cause = self.link == Link::Cause;
                }
            }
        }
        self.link = Link::Unrelated;
        self.current = Some(Raised::default());
    }

    fn finish(&mut self, text: &'a str) {
        let Some(mut raised) = self.current.take() else {
            return;
        };
        raised.frames.reverse();
        if let Some((from, to)) = self.message.take() {
            raised.message = &text[from..to];
        }
        if raised.type_name.is_empty()
            && let Some((type_name, message)) = last_whole(raised.message)
        {
            (raised.type_name, raised.message) = (type_name, message);
        }
        let at = self.chain.len() - self.outer.min(self.chain.len());
        raised.is_cause = self.outer > 0;
        self.chain.insert(at, raised);
    }
}

/// Returns the last headline among the lines of a message that has no class: processes that print at once tear most of
/// theirs, and one may stay whole.
fn last_whole(message: &str) -> Option<(&str, &str)> {
    let is_whole = |(class, said): &(&str, &str)| {
        !said.is_empty() && (class.ends_with("Error") || class.ends_with("Exception"))
    };
    message.lines().skip(1).map(split).filter(is_whole).last()
}

/// Returns the exceptions that tracebacks of a text end in, as class and text, each up to the end of its line.
pub(crate) fn ends(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut open = false;
    for (_, line) in lines(text) {
        if is_start(line.trim()) {
            open = true;
        } else if open && !line.starts_with([' ', '\t']) && !line.trim().is_empty() {
            found.push(split(line));
            open = false;
        }
    }
    found
}

/// Yields the ranks whose tracebacks a text repeats, as a sharded checkpoint does: `Traceback …: (RANK 2)`.
pub(crate) fn repeated(text: &str) -> impl Iterator<Item = u32> {
    static REPEATED: LazyLock<memmem::Finder<'_>> =
        LazyLock::new(|| memmem::Finder::new("(most recent call last): (RANK "));
    REPEATED.find_iter(text.as_bytes()).filter_map(|at| {
        let (rank, _) = text[at..].split_once("(RANK ")?.1.split_once(')')?;
        rank.parse().ok()
    })
}

/// Returns whether a traceback begins anywhere in a text.
pub(crate) fn has_start(text: &str) -> bool {
    first_start(text).is_some()
}

fn first_start(text: &str) -> Option<usize> {
    static STARTS: LazyLock<memmem::Finder<'_>> = LazyLock::new(|| memmem::Finder::new(START));
    STARTS.find(text.as_bytes())
}

/// Returns a text from its first traceback on, with the line before it that says whether the interpreter ignored it.
pub(crate) fn from_first(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let line_of = |at: usize| memrchr(b'\n', &bytes[..at]).map_or(0, |newline| newline + 1);
    let mut start = line_of(first_start(text)?);
    while start > 0 {
        start = line_of(start - 1);
        let line = &text[start..];
        let is_between = line.starts_with(' ')
            || line
                .lines()
                .next()
                .is_none_or(|line| line.trim().is_empty());
        if !is_between {
            break;
        }
    }
    Some(&text[start..])
}

pub(crate) fn is_start(trimmed: &str) -> bool {
    let rest = trimmed
        .strip_prefix("Original ")
        .or_else(|| trimmed.strip_prefix("Exception Group "))
        .unwrap_or(trimmed);
    rest.starts_with(START)
}

/// Whether the traceback that a line begins belongs to no exception before it, whose last line this is.
pub(crate) fn starts_another(start: &str, before: &str) -> bool {
    let inside = before.ends_with(':') || before.ends_with("\"\"\"");
    start == START && !inside
}

/// Returns the lines of a text with the offset at which each starts.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    // One search for all ends: to begin a new one at each short line costs more than to search it.
    let ends = memchr_iter(b'\n', text.as_bytes()).chain(Some(text.len()));
    ends.filter_map(move |end| {
        let line = text.get(start..end)?;
        let from = std::mem::replace(&mut start, end + 1);
        Some((from, line.strip_suffix('\r').unwrap_or(line)))
    })
    .filter(move |&(from, _)| from < text.len())
}

/// Reads `File "train.py", line 33, in main`; faulthandler has no comma before `in`.
pub(crate) fn frame<'a>(trimmed: &'a str, before_function: &str) -> Option<FrameRef<'a>> {
    let rest = trimmed.strip_prefix("File \"")?;
    let (file, rest) = rest.split_at(memchr(b'"', rest.as_bytes())?);
    let rest = rest.strip_prefix("\", line ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (line, rest) = rest.split_at(digits);
    let function = rest.strip_prefix(before_function)?.trim_end();
    Some(FrameRef {
        file,
        line: line.parse().ok()?,
        function,
    })
}

/// Splits `torch.distributed.DistStoreError: wait timeout` into the class's own name and the text.
pub fn split(headline: &str) -> (&str, &str) {
    let bytes = headline.as_bytes();
    let colon = memchr_iter(b':', bytes).find(|at| bytes.get(at + 1) == Some(&b' '));
    let (class, message) = match colon {
        Some(at) => (&headline[..at], &headline[at + 2..]),
        None => (headline.trim_end().trim_end_matches(':'), ""),
    };
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    if class.is_empty()
        || !class.chars().all(is_name)
        || class.starts_with(|c: char| c.is_ascii_digit())
    {
        return ("", headline);
    }
    (class.rsplit('.').next().unwrap_or(class), message)
}

/// Returns whether a line is how a traceback ends: a class that is named as exceptions are, and its text.
pub(crate) fn is_headline(line: &str) -> bool {
    const ENDINGS: &[&str] = &["Error", "Exception", "Interrupt", "SystemExit"];
    let (class, _) = split(line);
    // Loggers begin lines with `Error: ` too.
    ENDINGS.iter().any(|ending| class.ends_with(ending)) && !["Error", "Exception"].contains(&class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(text: &str) -> Vec<&str> {
        chain(text).iter().map(|raised| raised.type_name).collect()
    }

    #[test]
    fn of_torn_headlines_the_whole_one_is_taken() {
        let start = "Traceback (most recent call last):\n  File \"t.py\", line 1, in step\n    raise Exception(\n";
        let torn = "Exception  File \"t.py\", line 1, in step\n: Loss scale at its minimum.\n    raise Exception(\n";
        let whole = "Exception: Loss scale at its minimum.\n";
        let raised = |text: &str| {
            let chain = chain(text);
            (chain[0].type_name.to_owned(), chain[0].message.to_owned())
        };
        let expected = ("Exception".into(), "Loss scale at its minimum.".into());
        assert_eq!(raised(&format!("{start}{torn}{whole}")), expected);
        assert_eq!(raised(&format!("{start}{torn}")).0, "");
        // A message of several lines that has its class keeps it.
        let first = format!("{start}ValueError: first\nTypeError: second\n");
        assert_eq!(raised(&first).0, "ValueError");
    }

    const WRAPPED: &str = "Traceback (most recent call last):\n  File \"/j/t.py\", line 65, in main\n    try: raise X\n         ^^^\n\
        FileNotFoundError: [Errno 2] No such file\n\nThe above exception was the direct cause of the following exception:\n\n\
        Traceback (most recent call last):\n  File \"/e/site-packages/torch/x.py\", line 367, in wrapper\n    return f()\n  \
        File \"/j/t.py\", line 66, in main\nRuntimeError: data pipeline failed\n";

    #[test]
    fn a_chain_is_deepest_first() {
        let chain = chain(WRAPPED);
        assert_eq!(types(WRAPPED), ["FileNotFoundError", "RuntimeError"]);
        assert_eq!(chain[0].message, "[Errno 2] No such file");
        assert!(chain[0].is_cause && !chain[1].is_cause);
        assert_eq!(
            chain[1].frames[0],
            FrameRef {
                file: "/j/t.py",
                line: 66,
                function: "main"
            }
        );
        let context = WRAPPED.replace(CAUSE, CONTEXT);
        assert!(!super::chain(&context)[0].is_cause);
    }

    #[test]
    fn a_handler_whose_exception_is_cut_off_is_seen() {
        let text = WRAPPED.replace(CAUSE, CONTEXT);
        let cut = &text[text.find(CONTEXT).expect("a link")..];
        assert!(is_of_handler(cut) && is_of_handler(&format!("\n{cut}")));
        assert!(!is_of_handler(&text) && !is_of_handler(""));
    }

    #[test]
    fn only_the_last_chain_counts() {
        let text = format!(
            "{WRAPPED}\nretrying\nTraceback (most recent call last):\n  File \"a\", line 1, in f\nKeyError: 'x'\n"
        );
        assert_eq!(types(&text), ["KeyError"]);
    }

    #[test]
    fn a_traceback_in_a_message_is_deeper() {
        let text = "Traceback (most recent call last):\n  File \"t\", line 1, in main\nValueError: Caught ValueError in DataLoader \
            worker process 1.\nOriginal Traceback (most recent call last):\n  File \"t\", line 16, in __getitem__\n    raise\n\
            OSError: [Errno 28] No space left on device\n";
        let chain = chain(text);
        assert_eq!(types(text), ["OSError", "ValueError"]);
        assert_eq!(chain[0].frames[0].function, "__getitem__");
        assert_eq!(
            chain[1].message,
            "Caught ValueError in DataLoader worker process 1."
        );
    }

    #[test]
    fn the_leaves_of_a_group_are_deeper_than_the_group() {
        let text = "  + Exception Group Traceback (most recent call last):\n  |   File \"g.py\", line 1, in main\n  |     raise g\n  \
            | ExceptionGroup: both (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    \
            |   File \"g.py\", line 2, in one\n    | ValueError: first\n    +---------------- 2 ----------------\n    \
            | Traceback (most recent call last):\n    |   File \"g.py\", line 3, in two\n    | TypeError: second\n    \
            +------------------------------------\n";
        let text = strip_prefixes(text);
        assert_eq!(types(&text), ["ValueError", "TypeError", "ExceptionGroup"]);
    }

    #[test]
    fn labels_are_stripped_and_other_brackets_kept() {
        assert_eq!(
            strip_prefixes("[rank12]: a\n[default0]:b\n[W1129 x]: c\n"),
            "a\nb\n[W1129 x]: c\n"
        );
        assert!(matches!(strip_prefixes("a\nb"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_crash_is_the_current_threads() {
        let text = "x\nFatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n  File \"w.py\", line 1 in wait\n\n\
            Current thread 0x2 [python3] (most recent call first):\n  File \"/usr/lib/python3.11/ctypes/__init__.py\", line 519 in string_at\n  \
            File \"/j/train.py\", line 36 in main\n\nExtension modules: a (total: 1)\n";
        let fatal = fatal(text).unwrap();
        assert_eq!(fatal.title, "Segmentation fault");
        let place = location(fatal.frames.into_iter());
        assert_eq!(
            place,
            "in string_at (ctypes/__init__.py:519), called from main (train.py:36)"
        );
    }

    #[test]
    fn files_of_packages_and_of_the_program() {
        for (file, library, shown) in [
            (
                "/e/lib/python3.11/site-packages/torch/x/y.py",
                true,
                "torch/x/y.py",
            ),
            (
                "/usr/lib/python3/dist-packages/numpy/a.py",
                true,
                "numpy/a.py",
            ),
            (
                "/usr/lib/python3.11/ctypes/__init__.py",
                true,
                "ctypes/__init__.py",
            ),
            ("<frozen runpy>", true, "<frozen runpy>"),
            ("/src/python/firstfault/_record.py", true, "_record.py"),
            (
                "/e/site-packages/firstfault/_demo/worker.py",
                false,
                "firstfault/_demo/worker.py",
            ),
            ("/home/me/train.py", false, "train.py"),
        ] {
            assert_eq!((is_library(file), short(file)), (library, shown), "{file}");
        }
    }

    #[test]
    fn what_a_cpp_exception_said() {
        let text = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail] 12 vs 8. \nFatal";
        assert_eq!(
            terminate(text),
            Some(("gloo::EnforceNotMet", "[enforce fail] 12 vs 8."))
        );
        assert_eq!(
            terminate("terminate called without an active exception"),
            None
        );
        let ray = "[2026-11-29 13:17:59,227 E 41 42] logging.cc:97: Unhandled exception: N3c105ErrorE. what(): Collective call returned error\nException raised from operator()";
        assert_eq!(
            terminate(ray),
            Some(("N3c105ErrorE", "Collective call returned error"))
        );
        assert_eq!(terminate("x: Unhandled exception: KeyError\n"), None);
    }
}
