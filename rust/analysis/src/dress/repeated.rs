//! Margins that nobody lists: whatever stands before each line of a traceback, of a native stack, or of a watchdog, as pdsh,
//! tee and log collectors put it.

use regex::Regex;
use std::net::Ipv4Addr;

/// How lines begin that have no margin of their own, and how the line after such a one does.
const PAIRS: &[(&str, &str)] = &[
    ("Traceback (most recent call last)", "  File \""),
    ("  File \"", "    "),
    ("frame #0: ", "frame #1: "),
    ("terminate called after throwing", "  what():"),
    ("[rank", "[rank"),
    ("[E ProcessGroupNCCL.cpp:", "[E ProcessGroupNCCL.cpp:"),
];

/// At most so many kinds of such margins does one log have.
const MAX_KINDS: usize = 16;

/// At most so many lines of each kind are looked at.
const MAX_LOOKED_AT: usize = 1 << 14;

/// What stands before a line is no longer than this.
const MAX_MARGIN: usize = 200;

/// One such margin: the same text before every line, but for its numbers.
#[derive(Debug, Clone)]
pub(super) struct Repeated {
    pattern: Regex,
}

impl Repeated {
    /// Returns the margins before such lines of a text, each of which stands before the next line too.
    ///
    /// `known` takes off what is known to stand before a line.
    pub(super) fn of(
        text: &str,
        known: impl Fn(&str) -> &str,
        is_label: impl Fn(&str) -> bool,
    ) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let pairs = PAIRS.iter().flat_map(|(first, second)| {
            let all = memchr::memmem::find_iter(text.as_bytes(), *first);
            all.take(MAX_LOOKED_AT).map(move |at| (at, *first, *second))
        });
        for (at, first, second) in pairs {
            let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
            if at - start > MAX_MARGIN || at == start || found.len() >= MAX_KINDS {
                continue;
            }
            let mut lines = text[start..].lines().map(&known);
            let line = lines.next().unwrap_or("");
            let margin = line.find(first).map_or("", |end| &line[..end]);
            // A summary indents the tracebacks that it shows, and JSON has its own reader: neither is a margin of all lines.
            let is_one =
                !margin.trim().is_empty() && !margin.ends_with("  ") && !margin.contains("{\"");
            if !is_one || is_label(margin) || found.iter().any(|other| other.read(margin).is_some())
            {
                continue;
            }
            let Some(pattern) = pattern(margin) else {
                continue;
            };
            let margin = Self { pattern };
            let next = lines.next().and_then(|line| margin.read(line));
            if next.is_some_and(|(_, rest)| rest.starts_with(second)) {
                found.push(margin);
            }
        }
        found
    }

    /// Returns the margin of a line, and the rest of it.
    pub(super) fn read<'t>(&self, line: &'t str) -> Option<(&'t str, &'t str)> {
        let margin = self.pattern.find(line)?;
        Some((margin.as_str(), &line[margin.end()..]))
    }
}

/// The pattern of a margin, whose numbers may be others before the next line.
fn pattern(margin: &str) -> Option<Regex> {
    let mut pattern = String::from("^");
    for (number, part) in margin
        .split(|c: char| c.is_ascii_digit())
        .enumerate()
        .filter(|(number, part)| *number == 0 || !part.is_empty())
    {
        if number > 0 {
            pattern.push_str(r"\d+");
        }
        pattern.push_str(&regex::escape(part));
    }
    if margin.ends_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    Regex::new(&pattern).ok()
}

/// Reads the host in a margin that is nothing but a name, as `node7: ` of pdsh and clush; the names of streams and of
/// levels are no hosts.
pub(super) fn host(margin: &str) -> Option<&str> {
    const OTHERS: &[&str] = &["stderr", "stdout", "error", "warning", "info", "debug"];
    let name = margin.strip_suffix(": ")?;
    let is_name = name.chars().any(|c| c.is_ascii_alphabetic())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let is_address = name.parse::<Ipv4Addr>().is_ok();
    let others = OTHERS.iter().any(|other| name.eq_ignore_ascii_case(other));
    (is_name && !others || is_address).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = PAIRS[0].0;

    fn of(text: &str) -> Vec<Repeated> {
        fn whole(line: &str) -> &str {
            line
        }
        Repeated::of(text, whole, |_| false)
    }

    fn read(margin: &str) -> Option<(Option<String>, String)> {
        let text = format!("{margin}{START}:\n{margin}  File \"a\", line 1, in f\n");
        let found = of(&text);
        let (margin, rest) = found.first()?.read(text.lines().nth(1)?)?;
        Some((host(margin).map(str::to_owned), rest.to_owned()))
    }

    #[test]
    fn what_stands_before_each_line_is_a_margin() {
        let frame = "  File \"a\", line 1, in f".to_owned();
        for (margin, host) in [
            ("[stderr]", None),
            ("stderr: ", None),
            ("675d-5: ", Some("675d-5")),
            ("gpu-12.cluster: ", Some("gpu-12.cluster")),
            (
                "2023-04-29 06:01:12.977 [177/train/578 (pid 28936)] [09c5-4a] ",
                None,
            ),
        ] {
            let found = read(margin);
            assert_eq!(
                found,
                Some((host.map(str::to_owned), frame.clone())),
                "{margin}"
            );
        }
    }

    #[test]
    fn its_numbers_may_change() {
        let text = format!("[a 9:59] {START}:\n[a 10:00]   File \"a\", line 1, in f\n");
        assert_eq!(of(&text).len(), 1);
    }

    #[test]
    fn what_stands_before_other_pairs_of_lines_is_one_too() {
        for (first, second) in [
            (
                "frame #0: f() + 0x96 (0x1 in a.so)",
                "frame #1: g() + 0x1 (0x2 in a.so)",
            ),
            (
                "terminate called after throwing an instance of 'std::runtime_error'",
                "  what():  x",
            ),
            ("[rank3]:[E1129 x.cpp:1] a", "[rank12]:[E1129 x.cpp:1] a"),
            (
                "[E ProcessGroupNCCL.cpp:828] a",
                "[E ProcessGroupNCCL.cpp:455] b",
            ),
        ] {
            let text = format!("9:59 | main.0 | {first}\n10:00 | main.0 | {second}\n");
            let found = of(&text);
            assert_eq!(found.len(), 1, "{first}");
            let alone = format!("9:59 | main.0 | {first}\n{second}\n");
            assert!(of(&alone).is_empty(), "{first}");
        }
    }

    #[test]
    fn what_stands_before_the_first_line_alone_is_none() {
        let text = format!("ERROR failed: {START}:\n  File \"a\", line 1, in f\n");
        assert!(of(&text).is_empty());
        assert_eq!(read(""), None);
    }
}
