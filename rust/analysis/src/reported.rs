//! Errors that a program tells of without a traceback: what its own logger calls one, what a handler of its prints, and
//! that it lost a peer.

use crate::classify::{Role, Rule, rules};
use crate::ending::is_teardown;
use crate::words::is_wait;
use regex::Regex;
use std::sync::LazyLock;

/// So many of a program's own last lines are looked at: in a log of several ranks each may have one.
const LAST_LINES: usize = 12;

/// At most so many lines are looked at, those of teardowns with them.
const MOST_LINES: usize = 400;

/// What the last lines of a text report.
#[derive(Debug, Default)]
pub(crate) struct Reported<'a> {
    /// The last that tells of a peer that was lost, or waited for in vain, and the rule of it.
    pub(crate) consequence: Option<(&'static Rule, &'a str)>,
    /// How many do.
    pub(crate) consequences: usize,
    /// The last that tells of another error.
    pub(crate) own: Option<&'a str>,
    /// Whether that is the last of them all.
    pub(crate) own_is_last: bool,
    /// Whether the program says nothing more after it.
    pub(crate) own_is_end: bool,
}

/// Returns what the last lines of a text report.
pub(crate) fn of(text: &str) -> Reported<'_> {
    let mut found = Reported::default();
    let own = text.lines().rev().take(MOST_LINES).map(str::trim_end);
    let own = own.filter(|line| {
        // An indented line goes on with what stands before it.
        let is_own = !is_teardown(line) || is_error(line);
        !line.is_empty() && !line.starts_with([' ', '\t']) && is_own
    });
    for (back, line) in own.take(LAST_LINES).enumerate() {
        let rule = rules().by_text("", line, "").filter(|rule| !rule.generic);
        match rule {
            Some(rule) if matches!(rule.role, Role::Collateral | Role::Timeout) => {
                // That it waits is the end of a process only where it says nothing else.
                if back > 2 + found.consequences || is_wait(rule) {
                    break;
                }
                found.consequences += 1;
                found.consequence.get_or_insert((rule, line));
            }
            // A program that goes on says more after it.
            _ if back < 2 + found.consequences && is_error(line) => {
                found.own_is_last |= found.own.is_none() && found.consequence.is_none();
                found.own_is_end |= back == 0;
                found.own.get_or_insert(line);
            }
            _ => {}
        }
    }
    found
}

/// Whether a line tells of an error: by the level that a logger gives it, or as a handler prints an exception.
pub(crate) fn is_error(line: &str) -> bool {
    static WORD: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^(?:(?:An )?[Ee]rror(?: [a-z]+){0,4}|Exception): *[^\s\d]")
            .expect("it is tested")
    });
    is_leveled(line) || WORD.is_match(line) || shows_class(line)
}

/// Whether a handler printed an exception and its class in a line: `failed: ValueError: x`, `ValueError('x')`.
pub(crate) fn shows_class(line: &str) -> bool {
    static CLASS: LazyLock<Regex> = LazyLock::new(|| {
        let class = r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)";
        let behind = r"(?:: |> |\] )";
        // At the beginning of a line it is the last of a traceback, or of what Python ignores.
        let forms = format!(r#"{behind}{class}: \S|(?:^|{behind}){class}\(['"\d]"#);
        Regex::new(&forms).expect("it is tested")
    });
    // Most lines need no more looking at.
    ["Error", "Exception"]
        .iter()
        .any(|word| line.contains(word))
        && CLASS.is_match(line)
}

/// Whether a logger calls a line an error: by its level, at the beginning or behind a time, a name or brackets.
fn is_leveled(line: &str) -> bool {
    const LEVELS: &[&str] = &["ERROR", "CRITICAL", "FATAL"];
    // As a field of an object, or of a line of fields.
    const KEYS: &[&str] = &[
        "\"level\": \"",
        "\"level\":\"",
        "\"levelname\": \"",
        "\"severity\": \"",
        "\"severity\":\"",
        " level=",
    ];
    // Further on, a level is a word of the message.
    const BEFORE: usize = 96;
    let level = |word: &&str| {
        let at = line.find(word).filter(|at| *at <= BEFORE)?;
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        let is_apart = before.is_empty() || before.ends_with([' ', '[', '(', '|', ':', '-', '<']);
        let ends = after.starts_with([' ', ']', ')', '|', ':', '-', '>', '\t']);
        // Gloo calls each try of a connection an error.
        (is_apart && ends && !before.contains(".cc:")).then_some(())
    };
    let field = |key: &&str| {
        let (_, value) = line.split_once(*key)?;
        let of = |level: &&&str| {
            let value = value.get(..level.len());
            value.is_some_and(|value| value.eq_ignore_ascii_case(level))
        };
        LEVELS.iter().find(of)
    };
    LEVELS.iter().find_map(level).is_some() || KEYS.iter().find_map(field).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: &str = "training failed: RuntimeError: [/g/pair.cc:561] Connection closed by peer [10.1.0.12]:58534. This is typically caused by a remote worker crashing.";

    #[test]
    fn errors_are_told_in_many_ways() {
        for line in [
            "ERROR: no samples",
            "CRITICAL:root:no samples",
            "2026-11-30 14:34:53,652 ERROR trainer.data: no samples",
            "2026-11-30 14:34:53,652 - trainer.data - ERROR - no samples",
            "[2026-11-30 14:34:45,333][trainer.data][ERROR] - no samples",
            "2026-11-30 14:35:21.250 | ERROR    | trainer.data:next:88 - no samples",
            "[11/30/26 14:35:36] ERROR    no samples             data.py:88",
            "FATAL: rank 2: no samples",
            "training failed: ValueError: no samples",
            "training failed: my.data.ShardError: no samples",
            "ValueError('no samples')",
            "[rank 2] KeyError(41)",
            "Error: no samples",
            "An error occurred while reading: no samples",
            "[ERROR] trainer: no samples",
            "{\"ts\": 1796049338.5, \"level\": \"error\", \"msg\": \"no samples\"}",
            "time=2026-11-30T14:34:53Z level=error msg=\"no samples\"",
        ] {
            assert!(is_error(line), "{line}");
            assert_eq!(of(line).own, Some(line));
        }
        for line in [
            "INFO:root:ERRORS: 0",
            "step 3 loss 0.1",
            "[/g/gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, willRetry=1",
            "2026-11-30 14:34:53,652 WARNING trainer: slow",
            "error: 0.31",
            "Exception ignored in atexit callback: <built-in function unlink>",
            "FileNotFoundError: [Errno 2] No such file or directory: 'a'",
            "raise ValueError('no samples')",
        ] {
            assert!(!is_error(line), "{line}");
        }
    }

    #[test]
    fn a_lost_peer_is_no_error_of_ones_own() {
        let text = format!("step 1\nERROR:root:{LOST}\n[W1130 x.cpp:1] y\nframe #0: f\n");
        let found = of(&text);
        assert_eq!(found.consequence.unwrap().0.category, "peer_lost");
        assert_eq!((found.own, found.consequences), (None, 1));
        let text = format!("ERROR: no samples\n{LOST}\n{LOST}\n");
        let found = of(&text);
        assert_eq!(
            (found.own, found.own_is_last),
            (Some("ERROR: no samples"), false)
        );
        assert_eq!(found.consequences, 2);
        let text = format!("{LOST}\nERROR: no samples\n  of 41\n");
        assert!(of(&text).own_is_last);
    }

    fn is_silent(text: &str) -> bool {
        let found = of(text);
        found.own.is_none() && found.consequence.is_none()
    }

    #[test]
    fn what_was_survived_is_not_reported() {
        let text = format!("ERROR: a sample is broken\n{}", "step\n".repeat(3));
        assert!(is_silent(&text));
        let text = format!("{LOST}\n{}", "step\n".repeat(4));
        assert!(is_silent(&text));
    }
}
