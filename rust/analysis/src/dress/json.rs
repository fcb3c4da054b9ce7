//! Lines of JSON as loggers and container runtimes write them: the message, the exception, the rank.

use serde_json::{Map, Value};
use std::fmt::Write;

/// What one line of JSON says.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) text: String,
    /// The traceback that belongs to it.
    pub(super) after: Option<String>,
    pub(super) rank: Option<u32>,
    /// Whether the next one continues its line.
    pub(super) goes_on: bool,
}

/// Keys of the message: Docker, logging, structlog, loguru, Cloud Logging, journald.
const TEXTS: &[&str] = &[
    "log",
    "text",
    "message",
    "msg",
    "event",
    "textPayload",
    "MESSAGE",
];

/// Keys of the global rank. A local rank alone tells nothing where hosts write into one log.
const RANKS: &[&str] = &["rank", "global_rank", "RANK", "process_rank"];

/// Objects in which loggers put a program's own fields.
const INNER: &[&str] = &[
    "extra",
    "record",
    "labels",
    "fields",
    "context",
    "jsonPayload",
];

const START: &str = "Traceback (most recent call last)";

/// Ranks from here on are a mistake.
const MAX_RANK: u64 = 1 << 20;

/// Returns whether a text may hold lines of JSON at all.
pub(super) fn may_be(text: &str) -> bool {
    let line = |at: usize| at == 0 || text.as_bytes()[at - 1] == b'\n';
    memchr::memmem::find_iter(text.as_bytes(), "{\"").any(line)
}

/// Reads one line; `None` where it is no logger's.
pub(super) fn message(line: &str) -> Option<Message> {
    let line = line.trim();
    if !line.starts_with("{\"") || !line.ends_with('}') {
        return None;
    }
    let Value::Object(all) = serde_json::from_str(line).ok()? else {
        return None;
    };
    let text = text(&all).or_else(|| text(all.get("jsonPayload")?.as_object()?))?;
    let docker = all.contains_key("log") && all.contains_key("stream");
    if docker {
        return Some(Message {
            goes_on: !text.ends_with('\n'),
            text: text.to_owned(),
            ..Message::default()
        });
    }
    let after = if text.contains(START) {
        None
    } else {
        traceback(&all)
    };
    // The level tells that it is a logger's line, and so that the process went on after what stands before it.
    let level = ["level", "levelname", "severity"]
        .iter()
        .find_map(|key| all.get(*key)?.as_str());
    let level = level.filter(|_| !text.trim_start().starts_with(START) && !text.starts_with('['));
    let text = text.trim_end_matches('\n');
    Some(Message {
        text: match level {
            Some(level) if is_level(level) => format!("{} {text}", level.to_uppercase()),
            _ => text.to_owned(),
        },
        after,
        rank: rank(&all, 3),
        goes_on: false,
    })
}

fn text(all: &Map<String, Value>) -> Option<&str> {
    TEXTS.iter().find_map(|key| all.get(*key)?.as_str())
}

fn is_level(level: &str) -> bool {
    let names = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
    names.iter().any(|name| level.eq_ignore_ascii_case(name))
}

fn rank(all: &Map<String, Value>, depth: usize) -> Option<u32> {
    let number = |value: &Value| {
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
        u32::try_from(number).ok().filter(|_| number < MAX_RANK)
    };
    let own = RANKS.iter().find_map(|key| number(all.get(*key)?));
    own.or_else(|| {
        let mut inner = INNER.iter().filter(|_| depth > 0);
        inner.find_map(|key| rank(all.get(*key)?.as_object()?, depth - 1))
    })
}

/// The traceback among the fields, whatever its key: a text, or structlog's list of exceptions.
fn traceback(all: &Map<String, Value>) -> Option<String> {
    let texts = all.values().find_map(|value| match value {
        Value::String(text) if text.contains(START) => Some(text.clone()),
        Value::Object(inner) => inner.values().find_map(|value| match value {
            Value::String(text) if text.contains(START) => Some(text.clone()),
            _ => None,
        }),
        _ => None,
    });
    texts.or_else(|| structured(all.get("exception")?.as_array()?))
}

/// Reads structlog's `dict_tracebacks`: the last exception first, then those that it came from.
fn structured(exceptions: &[Value]) -> Option<String> {
    let mut out = String::new();
    for (index, exception) in exceptions.iter().enumerate().rev() {
        let _ = writeln!(out, "{START}:");
        for frame in exception.get("frames")?.as_array()? {
            let file = frame.get("filename")?.as_str()?;
            let (line, name) = (frame.get("lineno")?.as_u64()?, frame.get("name")?.as_str()?);
            let _ = writeln!(out, "  File \"{file}\", line {line}, in {name}");
        }
        let type_name = exception.get("exc_type")?.as_str()?;
        let _ = writeln!(
            out,
            "{type_name}: {}",
            exception.get("exc_value")?.as_str()?
        );
        let next = index.checked_sub(1).and_then(|next| exceptions.get(next));
        if next.is_some() {
            let cause = exception.get("is_cause").and_then(Value::as_bool) == Some(true);
            out.push_str(match cause {
                true => {
                    "\nThe above exception was the direct cause of the following exception:\n\n"
                }
                false => {
                    "\nDuring handling of the above exception, another exception occurred:\n\n"
                }
            });
        }
    }
    (!out.is_empty()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structlogs_exceptions_are_a_traceback() {
        let line = r#"{"event":"x","level":"error","exception":[{"exc_type":"RuntimeError","exc_value":"outer","is_cause":false,"frames":[{"filename":"/j/t.py","lineno":3,"name":"main"}]},{"exc_type":"KeyError","exc_value":"'a'","is_cause":true,"frames":[{"filename":"/j/t.py","lineno":9,"name":"load"}]}]}"#;
        let found = message(line).unwrap();
        assert_eq!(found.text, "ERROR x");
        let after = found.after.unwrap();
        let chain = crate::traceback::chain(&after);
        let told: Vec<_> = chain
            .iter()
            .map(|raised| (raised.type_name, raised.is_cause))
            .collect();
        assert_eq!(told, [("KeyError", true), ("RuntimeError", false)]);
        assert_eq!(chain[0].frames[0].function, "load");
    }

    #[test]
    fn what_is_no_loggers_is_none() {
        for line in [
            "{\"loss\": 1}",
            "{\"message\": 1}",
            "{\"a\": {\"message\": \"x\"}}",
            "{\"message\": \"x\"",
            "{'message': 'x'}",
            "",
        ] {
            assert!(message(line).is_none(), "{line}");
        }
    }

    #[test]
    fn a_local_rank_is_no_rank() {
        assert_eq!(
            message(r#"{"message":"x","local_rank":3}"#).unwrap().rank,
            None
        );
        assert_eq!(
            message(r#"{"message":"x","rank":9999999999}"#)
                .unwrap()
                .rank,
            None
        );
    }
}
