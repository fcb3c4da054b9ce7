//! Lines that a terminal broke at its width, put together again.

use std::collections::BTreeSet;

/// No terminal is narrower, and none wider.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=400;

/// So many lines tell how wide a terminal was.
const LOOKED_AT: usize = 2000;

/// How a text's lines are broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terminal {
    width: usize,
}

impl Terminal {
    /// Returns the terminal that a text was copied from; `None` where its lines are its own.
    ///
    /// Some terminals pad every line with blanks to their width. Of one that does not, a traceback tells: a frame's line
    /// that ends before its function, at a width that no line is beyond. So do labels of ranks, which the second half of
    /// a line has not.
    pub(super) fn of(text: &str) -> Option<Self> {
        // Only a line that is broken, or padded, is followed by something else than an end of its own.
        let is_one = memchr::memmem::find(text.as_bytes(), b"  \n").is_some()
            || text.lines().take(LOOKED_AT).any(is_broken_frame)
            || memchr::memmem::find(text.as_bytes(), LABEL.as_bytes()).is_some();
        if !is_one {
            return None;
        }
        let lines = || text.lines().take(LOOKED_AT).filter(|line| !line.is_empty());
        let width = lines().map(|line| line.chars().count()).max()?;
        if !WIDTHS.contains(&width) {
            return None;
        }
        let full = |line: &&str| line.chars().count() == width;
        let (all, padded) = (lines().count(), lines().filter(full).count());
        let is_padded = all >= 2 && padded == all && lines().any(|line| line.ends_with("  "));
        let is_broken = || lines().filter(full).any(is_broken_frame);
        let is_half = |(line, next): &(&str, &str)| {
            full(line) && begins(line) && !begins(next) && !line.ends_with("  ")
        };
        // The same warning of several ranks is as long each time.
        let text = |line: &str| line.replace(|c: char| c.is_ascii_digit(), "");
        let halves = || lines().zip(lines().skip(1)).filter(is_half);
        let halves = || {
            halves()
                .map(|(line, _)| text(line))
                .collect::<BTreeSet<_>>()
        };
        let is_one = is_padded || is_broken() || halves().len() >= LEAST_HALVES;
        is_one.then_some(Self { width })
    }

    /// Whether a line goes on in the next one.
    pub(super) fn goes_on(self, line: &str, next: Option<&str>) -> bool {
        let is_full = !line.ends_with("  ") && line.chars().count() == self.width;
        is_full && !next.is_some_and(begins)
    }
}

/// How torch labels what a rank says.
const LABEL: &str = "[rank";

/// So many labelled lines that end at one width, each another and before a line without a label, do so by no chance.
const LEAST_HALVES: usize = 2;

/// Whether a line begins as no line does that goes on with another: by a rank's label, or a traceback.
fn begins(line: &str) -> bool {
    line.starts_with(LABEL) || crate::traceback::is_start(line)
}

/// Whether a line of a traceback ends before its frame does.
fn is_broken_frame(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("  File \"") else {
        return false;
    };
    // Source: Python/traceback.c: `File "…", line 1, in f`, and faulthandler's without the comma.
    rest.split_once("\", line ").is_none_or(|(_, rest)| {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        !(rest.starts_with(", in ") || rest.starts_with(" in "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str, width: usize) -> String {
        let mut out = String::new();
        for line in text.lines() {
            let chars: Vec<char> = line.chars().collect();
            for part in chars.chunks(width) {
                out.extend(part);
                out.push('\n');
            }
        }
        out
    }

    const FRAME: &str = "  File \"/data/envs/train/lib/python3.9/site-packages/ultralytics/engine/trainer.py\", line 199, in train";

    #[test]
    fn a_broken_frame_tells_the_width() {
        let text = format!("Traceback (most recent call last):\n{FRAME}\n    x()\nKeyError: 1\n");
        let terminal = Terminal::of(&broken(&text, 92)).expect("it is broken");
        assert_eq!(terminal.width, 92);
        let lines: Vec<bool> = broken(&text, 92)
            .lines()
            .map(|line| terminal.goes_on(line, None))
            .collect();
        assert_eq!(lines, [false, true, false, false, false]);
        assert_eq!(Terminal::of(&text), None);
        let longer = format!("{}{}\n", broken(&text, 92), "x".repeat(93));
        assert_eq!(Terminal::of(&longer), None);
    }

    #[test]
    fn halves_without_a_label_tell_the_width() {
        let text = "[rank3]: torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0]\n";
        let texts = format!("{text}{}", text.replace("setting", "Setting"));
        let terminal = Terminal::of(&broken(&texts, 80)).expect("it is broken");
        assert_eq!(terminal.width, 80);
        let whole = format!("{:-<80}\n", "[rank3]: step ");
        let first = whole.trim_end();
        assert!(!terminal.goes_on(first, Some("[rank2]: step 1")));
        assert!(terminal.goes_on(first, Some("step 1")));
        assert_eq!(Terminal::of(&broken(text, 80)), None);
        // Of one text that several ranks print.
        let alike = format!("{text}{}", text.replace("rank3", "rank2"));
        assert_eq!(Terminal::of(&broken(&alike, 80)), None);
        assert_eq!(Terminal::of(&whole.repeat(3)), None);
    }

    #[test]
    fn padding_tells_the_width() {
        let text = format!("{:<120}\n{:<120}\n", "step 1", "step 2");
        assert_eq!(Terminal::of(&text), Some(Terminal { width: 120 }));
        assert_eq!(Terminal::of("step 1  \nstep 2\n"), None);
    }

    #[test]
    fn faulthandlers_frames_are_whole() {
        let text = format!("{}\n", FRAME.replace(", in", " in"));
        assert_eq!(Terminal::of(&text), None);
    }
}
