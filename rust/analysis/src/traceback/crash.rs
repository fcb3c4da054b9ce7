//! What faulthandler and `std::terminate` print of a crash.

use super::{FrameRef, beginning_with, frame};
use memchr::memmem;
use std::sync::LazyLock;

/// What faulthandler printed about a crash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fatal<'a> {
    /// What it called it, as `Segmentation fault`.
    pub title: &'a str,
    /// The frames of the thread that crashed, innermost first; of the first thread shown where that one had none.
    pub frames: Vec<FrameRef<'a>>,
}

/// Returns the last crash that faulthandler dumped into a text.
///
/// Source: Python/pylifecycle.c, Python/traceback.c
pub fn fatal(text: &str) -> Option<Fatal<'_>> {
    static FATAL: LazyLock<memmem::Finder<'_>> =
        LazyLock::new(|| memmem::Finder::new("Fatal Python error: "));
    // Forwards, which is many times as fast as backwards: most texts have none.
    let start = FATAL.find_iter(text.as_bytes()).last()?;
    let mut lines = text[start..].lines();
    let title = lines
        .next()?
        .trim_start_matches("Fatal Python error: ")
        .trim();
    let mut current = Vec::new();
    let mut first = Vec::new();
    let mut threads = 0;
    let mut in_current = false;
    for line in lines {
        let trimmed = line.trim();
        if trimmed.ends_with("(most recent call first):") {
            threads += 1;
            in_current = trimmed.starts_with("Current thread");
        } else if let Some(frame) = frame(trimmed, " in ") {
            if in_current {
                current.push(frame);
            } else if threads == 1 {
                first.push(frame);
            }
        }
    }
    Some(Fatal {
        title,
        frames: if current.is_empty() { first } else { current },
    })
}

/// Before the exception that a process of Ray ended by, in one line with what it says.
///
/// Source: ray/src/ray/util/logging.cc, `TerminateHandler`
pub(crate) const RAY_UNHANDLED: &str = ": Unhandled exception: ";

/// Returns the C++ exception that `std::terminate` reported in a text, as its type and `what()`.
///
/// Source: libstdc++, libsupc++/vterminate.cc
pub fn terminate(text: &str) -> Option<(&str, &str)> {
    const CALL: &str = "terminate called after throwing an instance of '";
    // Forwards, as above.
    let after = |words: &str| {
        let start = memmem::find_iter(text.as_bytes(), words).last()?;
        Some(&text[start + words.len()..])
    };
    let Some(called) = after(CALL) else {
        let (type_name, what) = after(RAY_UNHANDLED)?
            .lines()
            .next()?
            .split_once(". what(): ")?;
        return Some((type_name, what.trim_end()));
    };
    let (type_name, rest) = called.split_once('\'')?;
    let what = rest
        .trim_start()
        .strip_prefix("what():")
        .unwrap_or("")
        .trim_start();
    Some((type_name, what.lines().next().unwrap_or("").trim_end()))
}

/// Returns where the first line begins that faulthandler or `std::terminate` announces a crash by.
pub(crate) fn first_crash_line(text: &str) -> Option<usize> {
    let both = ["Fatal Python error: ", "terminate called after"];
    let begins = both
        .into_iter()
        .filter_map(|words| beginning_with(text, words).next());
    let of_ray = memmem::find(text.as_bytes(), RAY_UNHANDLED.as_bytes())
        .map(|at| text[..at].rfind('\n').map_or(0, |newline| newline + 1));
    begins.chain(of_ray).min()
}
