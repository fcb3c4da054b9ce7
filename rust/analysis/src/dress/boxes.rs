//! Tracebacks as rich and loguru draw them, turned into Python's own form.

use memchr::memmem;
use regex::Regex;
use std::sync::LazyLock;

const TITLE: &str = "Traceback (most recent call last)";

/// What may stand before a box: a label, a time.
const MAX_MARGIN: usize = 80;

/// Returns a text with its drawn tracebacks in Python's form, line by line; `None` where it has none.
pub(super) fn opened(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let rich = memmem::find(
        bytes,
        "\u{2500} Traceback (most recent call last) ".as_bytes(),
    );
    let loguru = memmem::find(bytes, b"> File \"").is_some();
    if rich.is_none() && !loguru {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        match rich.and_then(|_| of_box(line)).or_else(|| caught(line)) {
            Some(line) => out.push_str(&line),
            None => out.push_str(line),
        }
        out.push_str(end);
    }
    Some(out)
}

/// A line of rich's box. Source: rich/traceback.py
fn of_box(line: &str) -> Option<String> {
    static FRAME: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^ ?([^ ].*):(\d+)(?: in (.+))?$").expect("a constant"));
    let at = line.find(['╭', '│', '╰'])?;
    let (margin, rest) = (line[..at].to_owned(), line[at..].trim_end());
    if at > MAX_MARGIN || !rest.ends_with(['╮', '│', '╯']) {
        return None;
    }
    let drawn = rest.trim_matches(['╭', '╮', '│', '╯', '╰']);
    if rest.starts_with('╭') && drawn.contains(TITLE) {
        return Some(format!("{margin}{TITLE}:"));
    }
    let inner = drawn.trim_end();
    if rest.starts_with('│')
        && let Some(frame) = FRAME.captures(inner)
        && is_file(&frame[1])
    {
        let function = frame.get(3).map_or("?", |function| function.as_str());
        let (file, line) = (&frame[1], &frame[2]);
        return Some(format!(
            "{margin}  File \"{file}\", line {line}, in {function}"
        ));
    }
    // The source, the locals, the rules: deeper than a frame, so that none of it is taken for one.
    let inner = if rest.starts_with('│') { inner } else { "" };
    Some(format!("{margin}    {inner}"))
}

fn is_file(name: &str) -> bool {
    !name.contains('│')
        && (name.contains(['/', '\\']) || name.ends_with(".py") || name.starts_with('<'))
}

/// The frame that loguru marks because the exception was caught there.
fn caught(line: &str) -> Option<String> {
    let rest = line.strip_prefix("> File \"")?;
    Some(format!("  File \"{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traceback;

    #[test]
    fn richs_boxes_are_read() {
        let text = "step 1\n\
            ╭─────────────────── Traceback (most recent call last) ───────────────────╮\n\
            │ /j/train.py:41 in main                                                  │\n\
            │                                                                         │\n\
            │   38 │   for batch in loader:                                           │\n\
            │ ❱ 41 │   │   step(batch, \"/tmp/x:3 in y\")                               │\n\
            │                                                                         │\n\
            │ /j/model.py:12 in step                                                  │\n\
            │ ╭──────── locals ────────╮                                              │\n\
            │ │ batch = None           │                                              │\n\
            │ ╰────────────────────────╯                                              │\n\
            ╰─────────────────────────────────────────────────────────────────────────╯\n\
            ValueError: bad batch\n";
        let opened = opened(text).unwrap();
        assert_eq!(opened.lines().count(), text.lines().count());
        let chain = traceback::chain(&opened);
        assert_eq!(
            (chain[0].type_name, chain[0].message),
            ("ValueError", "bad batch")
        );
        let frames: Vec<_> = chain[0]
            .frames
            .iter()
            .map(|f| (f.file, f.line, f.function))
            .collect();
        assert_eq!(
            frames,
            [("/j/model.py", 12, "step"), ("/j/train.py", 41, "main")]
        );
    }

    #[test]
    fn logurus_tracebacks_are_read() {
        let text = "Traceback (most recent call last):\n\n  File \"/j/train.py\", line 20, in <module>\n    main()\n    └ <function main at 0x7f>\n\n\
            > File \"/j/train.py\", line 12, in main\n    step(None)\n    │    └ None\n    └ <function step at 0x7f>\n\n\
            \x20 File \"/j/train.py\", line 5, in step\n    raise ValueError(\"bad batch\")\n\nValueError: bad batch\n";
        let opened = opened(text).unwrap();
        let chain = traceback::chain(&opened);
        assert_eq!(
            (chain[0].type_name, chain[0].message),
            ("ValueError", "bad batch")
        );
        assert_eq!(chain[0].frames.len(), 3);
    }

    #[test]
    fn tables_that_are_no_tracebacks_stay() {
        for text in [
            "│ /j/a.py:3 in f │\n",
            "╭──╮\n│ x │\n╰──╯\n",
            "a > File b\n",
        ] {
            assert_eq!(opened(text), None, "{text}");
        }
    }
}
