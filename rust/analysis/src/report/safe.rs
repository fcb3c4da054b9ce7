//! Text of unknown origin, made safe for a terminal and cut to a width.

use std::fmt::Write;
use unicode_width::UnicodeWidthChar;

/// Returns the text on one line: control characters, terminal escapes and marks that turn the direction of writing are
/// shown as escapes; tabs and line ends become a space.
pub fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\t' | '\n' | '\r' => out.push(' '),
            c if c.is_control() || is_format(c) => {
                let _ = if (c as u32) < 0x100 {
                    write!(out, "\\x{:02x}", c as u32)
                } else {
                    write!(out, "\\u{{{:x}}}", c as u32)
                };
            }
            c => out.push(c),
        }
    }
    out
}

/// Marks that change the order of what follows, or that have no width and no meaning here.
fn is_format(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Returns the columns that a text takes on a terminal.
pub fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// Returns the columns of one character; a selector for emoji widens the one before it.
fn columns(c: char) -> usize {
    if c == '\u{fe0f}' {
        1
    } else {
        c.width().unwrap_or(0)
    }
}

/// Returns the text cut to so many columns, with `…` where something was cut: at the end, but a path keeps its end,
/// where the rank and the file's name are.
pub fn cut(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    if text.starts_with('/') && !text.contains(' ') {
        let mut used = 1;
        let start = text.char_indices().rev().take_while(|(_, c)| {
            used += columns(*c);
            used <= most
        });
        let start = start.last().map_or(text.len(), |(at, _)| at);
        return format!("…{}", &text[start..]);
    }
    let mut out = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += columns(c);
        if used > most {
            break;
        }
        out.push(c);
    }
    out.push('…');
    out
}

/// Returns one line of text broken at spaces, where there are any, into lines of so many columns: the first one, and
/// those after it. The last of at most `most` lines may be longer.
pub fn wrapped(text: &str, first: usize, further: usize, most: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    loop {
        let columns = if lines.is_empty() { first } else { further };
        if lines.len() + 1 >= most || width(rest) <= columns {
            lines.push(rest);
            return lines;
        }
        let mut used = 0;
        let mut end = rest.len();
        for (at, c) in rest.char_indices() {
            used += self::columns(c);
            if used > columns {
                end = at;
                break;
            }
        }
        let end = rest[..end].rfind(' ').filter(|&at| at > 0).unwrap_or(end);
        lines.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_its_end() {
        assert_eq!(cut("/job/attempt_0/2/error.json", 15), "…0/2/error.json");
        assert_eq!(cut("/job/attempt_0 and more", 15), "/job/attempt_0…");
    }

    #[test]
    fn nothing_reaches_the_terminal_as_a_command() {
        assert_eq!(
            one_line("a\x1b[31mb\u{9b}c\0d\ne\u{202e}f\n"),
            "a\\x1b[31mb\\x9bc\\x00d e\\u{202e}f"
        );
    }

    #[test]
    fn width_is_in_columns() {
        assert_eq!(width("漢🏖\u{fe0f}"), 4);
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
    }
}
