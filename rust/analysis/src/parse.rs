//! Bytes of an error file to a [`Failure`]: torch's three shapes, ours, and whatever a dying writer left of them.

mod gist;

pub(crate) use gist::gist;

use crate::error::Error;
use crate::failure::{Failure, Section};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;

/// Returns the failure that an error file tells of.
///
/// Torch's three shapes are read (`{"message": {"message", "errorCode", "extraInfo"}}`, and `{"message": "text"}` with
/// and without `"timestamp"`), and ours. Accepted and repaired: a byte order mark, trailing NULs, lone surrogates and
/// bytes that are not UTF-8 (each becomes U+FFFD), times as int, float or string, a call stack as a list. Keys that
/// are unknown or hold a value of the wrong type are left out. `path` serves only to name the file in an error.
///
/// # Errors
///
/// [`ErrorKind::Malformed`](crate::ErrorKind::Malformed) when the bytes are no JSON object, or one without `message`
/// and without `firstfault`.
///
/// # Example
///
/// ```
/// use firstfault_analysis::parse;
/// use std::path::Path;
///
/// let failure = parse::error_file(Path::new("error.json"), br#"{"message": "lost", "timestamp": 1790000000}"#)?;
/// assert_eq!(failure.message, "lost");
/// assert_eq!(failure.time_ns, Some(1_790_000_000_000_000_000));
/// # Ok::<(), firstfault_analysis::Error>(())
/// ```
pub fn error_file(path: &Path, bytes: &[u8]) -> Result<Failure, Error> {
    if let Ok(file) = serde_json::from_slice::<Typed<Section>>(bytes) {
        return Ok(file.into_failure());
    }
    let mut notes = Vec::new();
    let value = json(bytes, &mut notes).map_err(|reason| Error::malformed(path, reason))?;
    let Value::Object(mut object) = value else {
        return Err(Error::malformed(
            path,
            format!(
                "not an error file: {} where an object should be",
                name(&value)
            ),
        ));
    };
    let section = object.remove(firstfault_format::SECTION);
    let message = object.remove("message");
    if message.is_none() && section.is_none() {
        return Err(Error::malformed(
            path,
            "not an error file: no \"message\" in it".to_owned(),
        ));
    }
    let mut failure = match message {
        Some(Value::Object(inner)) => nested(inner),
        other => flat(other, object),
    };
    failure.notes = notes;
    if let Some(Value::Object(section)) = section {
        attach(&mut failure, Box::new(lenient(section)));
    }
    Ok(failure)
}

/// An error file as nearly all are: torch's nested form, every value of the type that it should have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Typed<S> {
    message: TypedMessage,
    firstfault: Option<S>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedMessage {
    message: String,
    #[serde(default, rename = "errorCode")]
    error_code: Option<i64>,
    #[serde(rename = "extraInfo")]
    extra_info: TypedExtra,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedExtra {
    py_callstack: String,
    timestamp: String,
}

impl<S: Into<Section>> Typed<S> {
    fn into_failure(self) -> Failure {
        let time = Value::String(self.message.extra_info.timestamp);
        let mut failure = Failure {
            message: self.message.message,
            error_code: self.message.error_code,
            callstack: self.message.extra_info.py_callstack,
            ..timed(Some(time))
        };
        if let Some(section) = self.firstfault {
            attach(&mut failure, Box::new(section.into()));
        }
        failure
    }
}

/// Returns whether a JSON object is one of the forms of an error file, for files whose name does not tell.
pub(crate) fn looks_like_error_file(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    let Some(rest) = text.strip_prefix(b"{") else {
        return false;
    };
    let rest = rest.trim_ascii_start();
    let known = rest.starts_with(b"\"message\"") || rest.starts_with(b"\"firstfault\"");
    known
        && (contains(bytes, b"\"extraInfo\"")
            || contains(bytes, b"\"timestamp\"")
            || contains(bytes, b"\"firstfault\""))
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(bytes, needle).is_some()
}

/// `{"message": {"message": …, "errorCode": …, "extraInfo": {"py_callstack": …, "timestamp": …}}}`
fn nested(mut inner: Map<String, Value>) -> Failure {
    let mut extra = match inner.remove("extraInfo") {
        Some(Value::Object(extra)) => extra,
        _ => Map::new(),
    };
    let time = extra
        .remove("timestamp")
        .or_else(|| inner.remove("timestamp"));
    Failure {
        message: inner.remove("message").map(text).unwrap_or_default(),
        error_code: inner.remove("errorCode").as_ref().and_then(integer),
        callstack: extra.remove("py_callstack").map(text).unwrap_or_default(),
        ..timed(time)
    }
}

/// `{"message": "text"}`, with `"timestamp"` or without.
fn flat(message: Option<Value>, mut object: Map<String, Value>) -> Failure {
    Failure {
        message: message.map(text).unwrap_or_default(),
        ..timed(object.remove("timestamp"))
    }
}

fn timed(value: Option<Value>) -> Failure {
    let time = value.as_ref().and_then(seconds);
    Failure {
        time_ns: time.map(|(ns, _)| ns),
        whole_seconds: time.is_some_and(|(_, whole)| whole),
        ..Failure::default()
    }
}

fn attach(failure: &mut Failure, section: Box<Section>) {
    if section.schema_version > firstfault_format::SCHEMA_VERSION {
        failure.notes.push(format!(
            "written by a newer firstfault (error file version {}, this one reads {}): what is new in it is left out",
            section.schema_version,
            firstfault_format::SCHEMA_VERSION
        ));
    }
    if section.time_ns.is_some() {
        failure.time_ns = section.time_ns;
        failure.whole_seconds = false;
    }
    if failure.message.is_empty() {
        failure.message = section
            .exception
            .as_ref()
            .map(|e| headline(&e.type_name, &e.message))
            .unwrap_or_default();
    }
    failure.section = Some(section);
}

/// Returns at most so many bytes of a text, cut between characters.
pub(crate) fn begin(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns `Type: message`, or the one of them that there is.
pub(crate) fn headline(type_name: &str, message: &str) -> String {
    match (type_name, message) {
        (name, "") => name.to_owned(),
        ("", message) => message.to_owned(),
        (name, message) => format!("{name}: {message}"),
    }
}

/// A key of the wrong type costs only itself.
fn lenient(section: Map<String, Value>) -> Section {
    let whole = Value::Object(section);
    Section::deserialize(&whole).unwrap_or_else(|_| salvage(whole))
}

fn salvage(whole: Value) -> Section {
    let Value::Object(object) = whole else {
        return Section::default();
    };
    let good = object.into_iter().filter(|(key, value)| {
        let alone = Value::Object(Map::from_iter([(key.clone(), value.clone())]));
        Section::deserialize(&alone).is_ok()
    });
    Section::deserialize(&Value::Object(good.collect())).unwrap_or_default()
}

/// Returns the JSON value, after repairs where it needs some.
fn json(bytes: &[u8], notes: &mut Vec<String>) -> Result<Value, String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.trim_ascii().is_empty() {
        return Err("empty".to_owned());
    }
    if bytes.iter().all(|&byte| byte == 0) {
        return Err("nothing but NUL bytes: the file's data never reached the disk".to_owned());
    }
    let end = bytes
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1);
    let bytes = &bytes[..end];
    let first = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let repaired = repair(bytes);
    match serde_json::from_str(&repaired) {
        Ok(value) => {
            notes.push("holds text that is not Unicode, shown as U+FFFD".to_owned());
            Ok(value)
        }
        Err(_) if first.is_eof() => Err(format!("cut off after {} bytes", bytes.len())),
        Err(error) => Err(format!("not JSON: {error}")),
    }
}

/// Replaces bytes that are not UTF-8, and escapes of lone surrogates, which Python writes and serde_json refuses.
fn repair(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let taken = match unit(escape) {
            Some(0xd800..=0xdbff)
                if matches!(escape.get(6..).and_then(unit), Some(0xdc00..=0xdfff)) =>
            {
                out.push_str(&escape[..12]);
                12
            }
            Some(0xd800..=0xdfff) => {
                out.push('\u{fffd}');
                6
            }
            _ => {
                let length = 1 + escape[1..].chars().next().map_or(0, char::len_utf8);
                out.push_str(&escape[..length]);
                length
            }
        };
        rest = &escape[taken..];
    }
    out.push_str(rest);
    out
}

/// Returns the code unit of a `\uXXXX` at the start of `text`.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    if digits.starts_with('+') {
        None
    } else {
        u32::from_str_radix(digits, 16).ok()
    }
}

/// Returns a value as text: a string as it is, a list of strings joined, anything else as JSON.
fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Null => String::new(),
        Value::Array(lines) if lines.iter().all(Value::is_string) => {
            let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
            lines.join(if lines.iter().all(|line| line.ends_with('\n')) {
                ""
            } else {
                "\n"
            })
        }
        other => other.to_string(),
    }
}

fn integer(value: &Value) -> Option<i64> {
    value
        .as_i64()
        .or_else(|| value.as_str()?.trim().parse().ok())
}

/// Returns nanoseconds and whether the value was whole seconds; nothing for a value that is no time since the epoch.
fn seconds(value: &Value) -> Option<(i64, bool)> {
    if let Some(whole) = integer(value) {
        return Some((whole.checked_mul(1_000_000_000)?, true)).filter(|&(ns, _)| ns > 0);
    }
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    decimal(&text)
        .or_else(|| {
            let ns = text.parse::<f64>().ok()? * 1e9;
            (ns.is_finite() && ns < i64::MAX as f64).then_some((ns as i64, false))
        })
        .filter(|&(ns, _)| ns > 0)
}

/// Exact where a float is not: `1795969972.6` is not a double.
fn decimal(text: &str) -> Option<(i64, bool)> {
    let (whole, fraction) = text.split_once('.')?;
    if whole.is_empty()
        || fraction.is_empty()
        || !fraction.bytes().all(|byte| byte.is_ascii_digit())
    {
        return None;
    }
    let whole: i64 = whole.parse().ok().filter(|&whole| whole >= 0)?;
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let ns = whole
        .checked_mul(1_000_000_000)?
        .checked_add(digits.parse().ok()?)?;
    Some((ns, false))
}

fn name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Failure, String> {
        error_file(Path::new("x"), bytes).map_err(|error| error.reason())
    }

    #[test]
    fn lone_surrogates_are_replaced_and_pairs_kept() {
        let failure =
            parse(br#"{"message": "a\udcffb \ud83c\udfd6 \\udcff \ud800\u0041 \ud800"}"#).unwrap();
        assert_eq!(
            failure.message,
            "a\u{fffd}b \u{1f3d6} \\udcff \u{fffd}A \u{fffd}"
        );
        assert_eq!(failure.notes.len(), 1);
    }

    #[test]
    fn times_are_exact_and_never_zero() {
        for (value, expected) in [
            (
                r#""1795969972.6""#,
                Some((1_795_969_972_600_000_000, false)),
            ),
            ("1795969972.6", Some((1_795_969_972_600_000_000, false))),
            (r#""1795969972""#, Some((1_795_969_972_000_000_000, true))),
            ("1795969972", Some((1_795_969_972_000_000_000, true))),
            ("1.7e9", Some((1_700_000_000_000_000_000, false))),
            ("0", None),
            (r#""0""#, None),
            ("-5", None),
            (r#""yesterday""#, None),
            (r#""nan""#, None),
            (r#""inf""#, None),
            ("null", None),
            ("99999999999999999999", None),
        ] {
            let failure =
                parse(format!(r#"{{"message": "x", "timestamp": {value}}}"#).as_bytes()).unwrap();
            assert_eq!(
                failure.time_ns.map(|ns| (ns, failure.whole_seconds)),
                expected,
                "{value}"
            );
        }
    }

    #[test]
    fn a_wrong_type_in_our_section_costs_only_itself() {
        let failure = parse(br#"{"message": "x", "firstfault": {"time_ns": 5, "threads": "none", "rank": {"rank": 3}}}"#);
        let section = failure.unwrap().section.unwrap();
        assert_eq!((section.time_ns, section.rank.rank), (Some(5), Some(3)));
        assert!(section.threads.is_empty());
    }

    #[test]
    fn a_newer_version_is_read_and_noted() {
        let failure =
            parse(br#"{"message": "x", "firstfault": {"schema_version": 9, "time_ns": 5}}"#)
                .unwrap();
        assert_eq!(failure.time_ns, Some(5));
        assert!(
            failure.notes[0].contains("version 9"),
            "{:?}",
            failure.notes
        );
    }

    #[test]
    fn what_is_no_error_file_says_why() {
        let deep = "[".repeat(10_000);
        for (bytes, reason) in [
            (&b""[..], "empty"),
            (b" \n", "empty"),
            (b"\0\0\0", "NUL"),
            (b"{\"message\": {\"mess", "cut off after 18 bytes"),
            (b"[1]", "a list where an object"),
            (b"{}", "no \"message\""),
            (b"{\"a\": 1}", "no \"message\""),
            (b"\x7fELF", "not JSON"),
            (deep.as_bytes(), "not JSON: recursion limit"),
        ] {
            let error = parse(bytes).unwrap_err();
            assert!(error.contains(reason), "{error} for {reason}");
        }
    }

    #[test]
    fn a_name_that_does_not_tell_needs_the_form() {
        assert!(looks_like_error_file(
            br#" {"message": {"message": "x", "extraInfo": {}}}"#
        ));
        assert!(!looks_like_error_file(br#"{"message": "hello"}"#));
        assert!(!looks_like_error_file(br#"{"model": {"timestamp": 1}}"#));
    }
}
