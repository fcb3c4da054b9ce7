//! The blanks before all lines of a paste, as a page shows code by them.

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
}
