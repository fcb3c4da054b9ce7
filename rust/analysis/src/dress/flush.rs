//! Tracebacks whose lines lost their indentation, as a form or a chat takes it off, indented again.

const START: &str = "Traceback (most recent call last):\nFile \"";

/// Returns a text whose tracebacks are indented, line by line; `None` where they are so already.
pub(super) fn indented(text: &str) -> Option<String> {
    memchr::memmem::find(text.as_bytes(), START.as_bytes())?;
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    let mut place = Place::Outside;
    for line in text.split_inclusive('\n') {
        let is_frame = is_frame(line);
        let (margin, next) = match place {
            _ if line.starts_with("Traceback (most recent call last):") => ("", Place::Frames),
            Place::Frames | Place::Source if is_frame => ("  ", Place::Source),
            // The source of a frame, where it is shown: what ends the traceback names a class.
            Place::Source if !is_end(line) => ("    ", Place::Frames),
            Place::Frames if line.trim().chars().all(|c| matches!(c, '^' | '~' | ' ')) => {
                ("    ", Place::Frames)
            }
            _ => ("", Place::Outside),
        };
        place = next;
        out.push_str(margin);
        out.push_str(line);
    }
    Some(out)
}

#[derive(Clone, Copy)]
enum Place {
    Outside,
    /// A frame, or the end of the traceback, comes next.
    Frames,
    /// The source of a frame may come next.
    Source,
}

fn is_frame(line: &str) -> bool {
    line.starts_with("File \"") && line.contains("\", line ") && line.contains(", in ")
}

fn is_end(line: &str) -> bool {
    crate::traceback::is_headline(line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_traceback_is_indented() {
        let text = "x\nTraceback (most recent call last):\nFile \"a.py\", line 1, in f\ng()\nFile \"b.py\", line 2, in g\nRuntimeError: bad: x\nnext\n";
        let expected = "x\nTraceback (most recent call last):\n  File \"a.py\", line 1, in f\n    g()\n  File \"b.py\", line 2, in g\nRuntimeError: bad: x\nnext\n";
        assert_eq!(indented(text).as_deref(), Some(expected));
        assert_eq!(indented(expected), None);
    }
}
