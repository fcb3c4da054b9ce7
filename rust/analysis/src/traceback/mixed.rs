//! One traceback that several processes print at once, piece by piece: `KeyError: KeyError: 'a''a'`.

use super::{START, is_headline, is_start};

/// More processes than these are not taken apart.
const MOST: usize = 16;

/// A traceback that processes have in common.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Common {
    /// It and what stands before it.
    pub(crate) text: String,
    /// The index of each of its lines among those of the text that was read.
    pub(crate) lines: Vec<usize>,
}

/// Returns the traceback that `processes` print at once in a text; `None` where they do not all print the same.
///
/// Unbuffered, as launchers start it, Python writes the class of an exception, a colon, the message and the end of the
/// line one by one. Source: Python/pythonrun.c, `print_exception`
pub(crate) fn common(text: &str, processes: usize) -> Option<Common> {
    if !(2..=MOST).contains(&processes) {
        return None;
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut starts = (0..lines.len()).filter(|&index| is_start(lines[index].trim()));
    let first = starts.next()?;
    let is_frame = |index: usize| lines[index].starts_with(' ') || lines[index].trim().is_empty();
    let of_tracebacks = |&index: &usize| is_frame(index) || is_start(lines[index].trim());
    let end = (first..lines.len()).find(|index| !of_tracebacks(index))?;
    let begun = 1 + starts.take_while(|&index| index < end).count();
    let said = lines.get(end..end + processes)?.concat();
    let (class, message) = headline(&said, processes)?;
    let headline = match message {
        "" => class.to_owned(),
        _ => format!("{class}: {message}"),
    };
    if begun != processes || !is_headline(&headline) {
        return None;
    }
    let mut kept: Vec<usize> = (0..=first).collect();
    let mut last = START;
    for (index, &line) in lines.iter().enumerate().take(end).skip(first + 1) {
        if !is_start(line.trim()) && !line.trim().is_empty() && line != last {
            kept.push(index);
            last = line;
        }
    }
    let mut text: String = kept
        .iter()
        .flat_map(|&index| [lines[index], "\n"])
        .collect();
    text.push_str(&headline);
    text.push('\n');
    kept.push(end);
    Some(Common { text, lines: kept })
}

/// Returns the class and the message of which a text is so many copies, each in this order and whole.
fn headline(text: &str, copies: usize) -> Option<(&str, &str)> {
    const ENDINGS: &[&str] = &["Error", "Exception", "Interrupt", "SystemExit"];
    let classes = ENDINGS.iter().flat_map(|ending| {
        let found = text.match_indices(ending);
        found.map(move |(at, _)| &text[..at + ending.len()])
    });
    let is_name = |class: &&str| {
        class
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == '.')
    };
    classes.filter(is_name).find_map(|class| {
        let rest = text.len().checked_sub(copies * class.len())?;
        if rest == 0 {
            return is_merged(text, &[class], copies).then_some((class, ""));
        }
        let length = rest.checked_sub(2 * copies)?;
        if length == 0 || length % copies != 0 {
            return None;
        }
        let length = length / copies;
        // The first message is whole, and comes after the first class and the first colon.
        let from = class.len() + 2;
        let messages = (from..text.len()).filter_map(|at| text.get(at..at + length));
        let mut messages = messages.take(copies * from);
        let found = messages.find(|message| is_merged(text, &[class, ": ", message], copies))?;
        Some((class, found))
    })
}

/// Whether a text is made of so many copies of some pieces, each copy in their order, one mixed with the others.
fn is_merged(text: &str, pieces: &[&str], copies: usize) -> bool {
    /// So many ways are tried.
    const MOST_STEPS: usize = 10_000;
    let mut open = vec![(text, vec![0_usize; pieces.len()])];
    for _ in 0..MOST_STEPS {
        let Some((rest, done)) = open.pop() else {
            return false;
        };
        if rest.is_empty() && done.iter().all(|&count| count == copies) {
            return true;
        }
        for (index, piece) in pieces.iter().enumerate() {
            let allowed = if index == 0 { copies } else { done[index - 1] };
            if let Some(rest) = rest.strip_prefix(piece).filter(|_| done[index] < allowed) {
                let mut done = done.clone();
                done[index] += 1;
                open.push((rest, done));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_each_others_way_are_one() {
        for (text, copies, expected) in [
            ("KeyError: KeyError: 'a''a'", 2, ("KeyError", "'a'")),
            ("KeyErrorKeyError: : 'a''a'", 2, ("KeyError", "'a'")),
            ("KeyErrorKeyError: 'a': 'a'", 2, ("KeyError", "'a'")),
            ("KeyError: 'a'KeyError: 'a'", 2, ("KeyError", "'a'")),
            (
                "AttributeError: AttributeErrormodule 'x' has no: y: module 'x' has no: y",
                2,
                ("AttributeError", "module 'x' has no: y"),
            ),
            ("E.MyErrorE.MyErrorE.MyError", 3, ("E.MyError", "")),
        ] {
            assert_eq!(headline(text, copies), Some(expected), "{text}");
        }
        for text in [
            "KeyError: KeyError: 'a''b'",
            "KeyError: ValueError: 'a''a'",
            "step 1 of 2",
            "",
        ] {
            assert_eq!(headline(text, 2), None, "{text}");
        }
    }

    #[test]
    fn a_traceback_that_two_print_at_once() {
        let text = "step 1\nTraceback (most recent call last):\nTraceback (most recent call last):\n  File \"t.py\", line 1, in f\n  \
            File \"t.py\", line 1, in f\n    g()\n    g()\nKeyError: KeyError: 'a''a'\n\nKilled\n";
        let found = common(text, 2).unwrap();
        assert_eq!(
            found.text,
            "step 1\nTraceback (most recent call last):\n  File \"t.py\", line 1, in f\n    g()\nKeyError: 'a'\n"
        );
        assert_eq!(found.lines, [0, 1, 3, 5, 7]);
        assert_eq!(common(text, 3), None);
        assert_eq!(common(&text.replace("'a''a'", "'a''b'"), 2), None);
    }
}
