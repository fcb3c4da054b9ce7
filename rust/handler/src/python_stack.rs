//! The text of CPython's dumper, taken apart without allocation.
//!
//! Source: Python/traceback.c, `dump_frame`: `  File "<name>", line <number> in <function>`; names are ASCII, anything
//! else is escaped.

/// One Python frame, as the dumper wrote it.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The source file.
    pub file: &'a [u8],
    /// The line in it; `None` where the dumper printed none.
    pub line: Option<i64>,
    /// The function's name.
    pub function: &'a [u8],
}

/// Returns the frames of one thread's text, innermost first; lines that are no frames are passed over.
pub fn frames(text: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(frame)
}

fn frame(line: &[u8]) -> Option<Frame<'_>> {
    let rest = line.strip_prefix(b"  File ")?;
    // The file's name may hold anything but a line end: what comes after it is found from the right.
    let (file, rest) = rest.split_at_checked(rfind(rest, b", line ")?)?;
    let rest = rest.strip_prefix(b", line ")?;
    let (number, function) = rest.split_at_checked(find(rest, b" in ")?)?;
    Some(Frame {
        file: file
            .strip_prefix(b"\"")
            .and_then(|file| file.strip_suffix(b"\""))
            .unwrap_or(file),
        line: str::from_utf8(number)
            .ok()
            .and_then(|number| number.parse().ok()),
        function: function.strip_prefix(b" in ")?,
    })
}

// `Iterator::position` counts with overflow checks, which would be a panic in the handler.

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    (0..text.len()).find(|start| starts_at(text, *start, wanted))
}

fn rfind(text: &[u8], wanted: &[u8]) -> Option<usize> {
    (0..text.len())
        .rev()
        .find(|start| starts_at(text, *start, wanted))
}

fn starts_at(text: &[u8], start: usize, wanted: &[u8]) -> bool {
    text.get(start..)
        .is_some_and(|rest| rest.starts_with(wanted))
}

/// Returns the text without the dumper's own headline.
pub fn without_headline(text: &[u8]) -> &[u8] {
    match text.strip_prefix(b"Stack (most recent call first):\n") {
        Some(rest) => rest,
        None => text,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn frames_are_read_whatever_their_files_are_called() {
        let text = b"Stack (most recent call first):\n  File \"/a, line 1 in b.py\", line 7 in main\n  ...\n  \
            File \"<string>\", line ??? in <module>\n";
        let found: Vec<_> = frames(text).collect();
        assert_eq!(
            found,
            [
                Frame {
                    file: b"/a, line 1 in b.py",
                    line: Some(7),
                    function: b"main"
                },
                Frame {
                    file: b"<string>",
                    line: None,
                    function: b"<module>"
                },
            ]
        );
        assert!(without_headline(text).starts_with(b"  File"));
    }
}
