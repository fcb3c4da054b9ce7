//! The blanks before all lines of a paste, as a page shows code by them.

use crate::traceback;
use std::borrow::Cow;

/// Returns a text without the blanks that stand before each of its lines.
pub(super) fn dedented(text: Cow<'_, str>) -> Cow<'_, str> {
    let margin = {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or("");
        let mut margin = blanks(first);
        for line in lines {
            if margin.is_empty() {
                break;
            }
            margin = common(margin, line);
        }
        margin.to_owned()
    };
    // Frames without the lines around them are indented by themselves.
    let is_whole = |line: &str| {
        let rest = line.strip_prefix(&margin);
        rest.is_some_and(|rest| blanks(rest).is_empty() && !rest.starts_with("File \""))
    };
    if margin.is_empty() || !text.lines().any(is_whole) {
        return text;
    }
    let lines = text
        .lines()
        .map(|line| line.strip_prefix(&margin).unwrap_or(""));
    let mut whole: String = lines.flat_map(|line| [line, "\n"]).collect();
    // Whether its last line is whole, the end of a log tells.
    if !text.ends_with('\n') {
        whole.pop();
    }
    Cow::Owned(whole)
}

fn blanks(line: &str) -> &str {
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// Returns the part of a margin that stands before a line too.
fn common<'m>(margin: &'m str, line: &str) -> &'m str {
    let same = margin.bytes().zip(line.bytes());
    &margin[..same.take_while(|(one, other)| one == other).count()]
}

/// At most so many tracebacks are looked at.
const MOST_TRACEBACKS: usize = 20;

/// Whether an empty line stands after each line of a log, as where it was copied from a page: its tracebacks tell.
pub(super) fn is_spaced(text: &str) -> bool {
    let starts = memchr::memmem::find_iter(text.as_bytes(), traceback::START);
    let mut all = starts.take(MOST_TRACEBACKS).peekable();
    let spaced = |at: usize| {
        let mut lines = text[at..].lines().skip(1);
        let (empty, frame) = (lines.next(), lines.next());
        empty.is_some_and(|line| line.trim().is_empty())
            && frame.is_some_and(|line| line.contains("  File \""))
    };
    all.peek().is_some() && all.all(spaced)
}

/// Returns a text without its empty lines.
pub(super) fn without_spaces(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// So many lines tell whether each stands twice.
const LOOKED_AT: usize = 400;

/// Whether a log has each line twice, as where its two handlers or streams end in one file.
///
/// Processes that print the same in step do not do so with the lines that name a rank or an exit status.
pub(super) fn is_doubled(text: &str) -> bool {
    const ONCE: &[&str] = &["[rank", "exitcode"];
    let (mut last, mut all, mut seconds, mut told) = (None, 0_usize, 0_usize, false);
    let mut before = "";
    for line in text.lines().take(LOOKED_AT) {
        all += 1;
        if is_second(&mut last, line) {
            // What a program says again and again is no copy.
            if line == before && !line.is_empty() {
                return false;
            }
            before = line;
            seconds += 1;
            told |= ONCE.iter().any(|words| line.contains(words));
        }
    }
    told && seconds * 20 >= all * 9
}

/// Whether a line is the one before it once more; `last` is the line before, if that is not such a one itself.
pub(super) fn is_second<'t>(last: &mut Option<&'t str>, line: &'t str) -> bool {
    if last.take() == Some(line) {
        return true;
    }
    *last = Some(line);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_lines_have_is_taken_off() {
        for (text, expected) in [
            ("    a\n\n      b\n    c\n", "a\n\n  b\nc\n"),
            ("\ta\n\t  b", "a\n  b"),
            ("    a\nb\n", "    a\nb\n"),
            ("  File \"x\"\n    y\n", "  File \"x\"\n    y\n"),
            ("", ""),
        ] {
            assert_eq!(dedented(Cow::Borrowed(text)), expected, "{text}");
        }
    }

    #[test]
    fn a_log_is_spaced_where_its_tracebacks_are() {
        let log = "step 1\nTraceback (most recent call last):\n  File \"t.py\", line 1, in f\n    x\nKeyError: 'a'\n";
        assert!(is_spaced(&log.replace('\n', "\n\n")));
        assert!(!is_spaced(log));
        assert!(!is_spaced(&format!("{log}{}", log.replace('\n', "\n\n"))));
        assert!(!is_spaced("step 1\n\nstep 2\n\n"));
    }

    #[test]
    fn a_log_is_doubled_where_a_ranks_own_lines_are() {
        let twice = |text: &str| -> String {
            let lines = text.lines();
            lines.map(|line| format!("{line}\n{line}\n")).collect()
        };
        assert!(is_doubled(&twice("step 1\n\n\n[rank1]: KeyError: 'a'\n")));
        // Two processes in step, a program that repeats itself, and a log without a copy.
        assert!(!is_doubled(&twice("step 1\nKeyError: 'a'\n")));
        assert!(!is_doubled(&"[rank1]: waits\n".repeat(9)));
        assert!(!is_doubled(
            "[rank1]: a\n[rank1]: a\n[rank1]: b\n[rank1]: c\n"
        ));
    }
}
