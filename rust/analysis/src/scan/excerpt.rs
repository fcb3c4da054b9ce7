//! A log of any size as a text of bounded size: its beginning, its end, and what follows the first lines in between that
//! say something.

use crate::literals::Literals;
use crate::rules::rules;
use crate::traceback::RAY_UNHANDLED;
use crate::work;
use memchr::{memchr_iter, memrchr};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;

/// How much of a log is read at a time.
const CHUNK: usize = 1 << 20;

/// So many of these are searched at a time.
const SEARCHED: usize = 8;

/// At most so many places in the middle of a log are kept, each with so many bytes after it.
const MAX_PLACES: usize = 64;
const PLACE: usize = 8 << 10;

/// A log, or the parts of it that count.
#[derive(Debug, Default)]
pub(super) struct Excerpt {
    pub(super) text: String,
    /// Where lines are left out: the first line of the text after a gap, from 1, and how many are missing before it.
    gaps: Vec<(usize, usize)>,
    /// How many bytes are left out.
    pub(super) skipped: usize,
}

impl Excerpt {
    /// Returns the number in the log of a line of the text; both from 1.
    pub(super) fn line(&self, number: usize) -> usize {
        let after = self.gaps.partition_point(|(first, _)| *first <= number);
        number + after.checked_sub(1).map_or(0, |gap| self.gaps[gap].1)
    }
}

/// Reads a log to its end; its first `head` bytes and its last `tail` are in the text, to whole lines.
pub(super) fn excerpt(mut log: impl Read, head: usize, tail: usize) -> io::Result<Excerpt> {
    let mut builder = Builder::default();
    let mut last: VecDeque<Vec<u8>> = VecDeque::new();
    let (mut held, mut rest, mut middle) = (0, Vec::new(), Vec::new());
    loop {
        let chunk = lines(&mut log, &mut rest)?;
        if chunk.is_empty() {
            break;
        }
        if builder.text.len() < head {
            builder.keep(&chunk);
            continue;
        }
        held += chunk.len();
        last.push_back(chunk);
        while let Some(first) = last.front().filter(|first| held - first.len() >= tail) {
            held -= first.len();
            middle.extend(last.pop_front());
        }
        if middle.len() >= SEARCHED {
            builder.search(&middle);
            middle.clear();
        }
    }
    builder.search(&middle);
    for chunk in last {
        builder.keep(&chunk);
    }
    let text = String::from_utf8(builder.text);
    Ok(Excerpt {
        text: text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
        gaps: builder.gaps,
        skipped: builder.skipped,
    })
}

/// Returns about a chunk of whole lines; a line that is longer than a chunk is cut. Empty at the end.
fn lines(log: &mut impl Read, rest: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut chunk = std::mem::take(rest);
    let wanted = CHUNK.saturating_sub(chunk.len());
    let read = log.by_ref().take(wanted as u64).read_to_end(&mut chunk)?;
    if read == wanted
        && let Some(newline) = memrchr(b'\n', &chunk)
    {
        *rest = chunk.split_off(newline + 1);
    }
    Ok(chunk)
}

#[derive(Default)]
struct Builder {
    text: Vec<u8>,
    /// Lines of the text, and of the log up to here that are not in it.
    lines: usize,
    missing: usize,
    gaps: Vec<(usize, usize)>,
    skipped: usize,
    places: usize,
}

impl Builder {
    fn keep(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.gaps.last().map_or(0, |(_, missing)| *missing) < self.missing {
            self.gaps.push((self.lines + 1, self.missing));
        }
        self.lines += memchr_iter(b'\n', bytes).count();
        self.text.extend_from_slice(bytes);
    }

    fn skip(&mut self, bytes: &[u8]) {
        self.missing += memchr_iter(b'\n', bytes).count();
        self.skipped += bytes.len();
    }

    /// Keeps what follows the lines of the middle that say something, as long as there are not too many.
    fn search(&mut self, middle: &[Vec<u8>]) {
        let places = match self.places < MAX_PLACES {
            true => work::side_by_side(middle, |chunk| places(chunk)),
            false => Vec::new(),
        };
        let mut places = places.into_iter();
        for chunk in middle {
            let mut done = 0;
            for place in places.next().unwrap_or_default() {
                if self.places >= MAX_PLACES {
                    break;
                }
                self.places += 1;
                self.skip(&chunk[done..place.start]);
                self.keep(&chunk[place.clone()]);
                done = place.end;
            }
            self.skip(&chunk[done..]);
        }
    }
}

/// Returns what to keep of a part of the middle, of whole lines.
fn places(chunk: &[u8]) -> Vec<Range<usize>> {
    let mut places: Vec<Range<usize>> = Vec::new();
    for (at, _) in telling().find(chunk) {
        let done = places.last().map_or(0, |place| place.end);
        if places.len() >= MAX_PLACES {
            break;
        }
        if at < done {
            continue;
        }
        let start = memrchr(b'\n', &chunk[..at]).map_or(0, |newline| newline + 1);
        let start = start.max(done);
        let most = (start + PLACE).min(chunk.len());
        let end = memrchr(b'\n', &chunk[..most]).map_or(most, |newline| newline + 1);
        places.push(start..if end <= start { most } else { end });
    }
    places
}

/// What the failures of programs, launchers and hosts begin with.
fn telling() -> &'static Literals {
    rules().telling(&[
        "Traceback (most recent call last):",
        "Fatal Python error: ",
        "terminate called after",
        RAY_UNHANDLED,
        "failed (exitcode: ",
        "Root Cause (first observed failure)",
        "Watchdog caught collective operation timeout",
        "death signal, shutting down workers",
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, head: usize, tail: usize) -> Excerpt {
        excerpt(text.as_bytes(), head, tail).unwrap()
    }

    #[test]
    fn a_short_log_is_whole() {
        for text in ["", "one line", "a\nb\n", "a\r\n\nb"] {
            let excerpt = read(text, 10, 10);
            assert_eq!((excerpt.text.as_str(), excerpt.skipped), (text, 0));
            assert_eq!(excerpt.line(2), 2);
        }
    }

    #[test]
    fn a_cause_under_later_noise_is_kept_with_its_line() {
        let noise = |mark: &str| format!("{mark} x y z\n").repeat(400_000);
        let traceback = "Traceback (most recent call last):\n  File \"t.py\", line 1, in main\nValueError: bad batch\n";
        let text = format!("first\n{}{traceback}{}last\n", noise("a"), noise("b"));
        let excerpt = read(&text, 100, 1000);
        assert!(excerpt.text.starts_with("first\n") && excerpt.text.ends_with("last\n"));
        assert!(excerpt.text.len() < 4 * CHUNK && excerpt.skipped > 0);
        let all: Vec<&str> = text.lines().collect();
        for (index, line) in excerpt.text.lines().enumerate() {
            assert_eq!(all[excerpt.line(index + 1) - 1], line, "line {}", index + 1);
        }
        let at = excerpt
            .text
            .lines()
            .position(|line| line.starts_with("ValueError"));
        assert_eq!(excerpt.line(at.unwrap() + 1), 1 + 400_000 + 3);
    }

    #[test]
    fn many_places_and_long_lines_are_bounded() {
        let flood = "Traceback (most recent call last):\n".repeat(200_000) + &"x".repeat(8 * CHUNK);
        let excerpt = read(&flood, 10, 10);
        assert!(excerpt.text.len() < 4 * CHUNK, "{}", excerpt.text.len());
        assert_eq!(excerpt.text.len() + excerpt.skipped, flood.len());
    }
}
