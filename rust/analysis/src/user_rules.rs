//! Rules of a user's own, tried before those of this crate: read from a file, and checked as ours are.

use crate::error::Error;
use crate::rules::{Role, Rule, Rules};
use crate::traceback;
use regex::Regex;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;

/// At most this much of a file of rules is read, in bytes; a larger one is refused.
pub const MAX_RULES_BYTES: usize = 1 << 20;

/// Returns the rules of a file followed by those of this crate.
///
/// They are kept for the life of the process, once for each content.
///
/// # Errors
///
/// [`ErrorKind::Io`](crate::ErrorKind::Io) for a file that cannot be read, [`ErrorKind::Rules`](crate::ErrorKind::Rules) for
/// one that holds no rules, or a rule that is wrong: the text says which rule, which field and why.
pub fn user_rules(path: &Path) -> Result<&'static Rules, Error> {
    static KNOWN: Mutex<Option<HashMap<String, &'static Rules>>> = Mutex::new(None);
    let mut text = String::new();
    let limit = MAX_RULES_BYTES as u64 + 1;
    File::open(path)
        .and_then(|file| file.take(limit).read_to_string(&mut text))
        .map_err(|error| Error::io(path, error))?;
    if text.len() > MAX_RULES_BYTES {
        let reason = format!("larger than {} MiB", MAX_RULES_BYTES >> 20);
        return Err(Error::rules(path, reason));
    }
    let mut known = KNOWN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let known = known.get_or_insert_default();
    if let Some(rules) = known.get(&text) {
        return Ok(rules);
    }
    let rules = rules_in(&text).map_err(|reason| Error::rules(path, reason))?;
    let rules: &'static Rules = Box::leak(Box::new(rules));
    known.insert(text, rules);
    Ok(rules)
}

/// Returns the rules of a text followed by those of this crate.
///
/// # Errors
///
/// Which rule is wrong, which field of it, and why.
pub fn rules_in(text: &str) -> Result<Rules, String> {
    let file: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error
            .span()
            .map(|span| text[..span.start].lines().count().max(1));
        let line = line
            .map(|line| format!("line {line}: "))
            .unwrap_or_default();
        format!("{line}{}", error.message())
    })?;
    if let Some(other) = file.keys().find(|key| *key != "rule") {
        return Err(format!(
            "`{other}`: a file of rules holds [[rule]] tables alone"
        ));
    }
    let tables = file.get("rule").and_then(toml::Value::as_array);
    let mut own = Vec::new();
    for (number, table) in tables.into_iter().flatten().enumerate() {
        own.push(rule(number + 1, table)?);
    }
    if own.is_empty() {
        return Err("no [[rule]] in it".to_owned());
    }
    let count = own.len();
    let ours = crate::rules::ours();
    let rules = Rules::new(own.into_iter().chain(ours));
    check(&rules, count)?;
    Ok(rules)
}

fn rule(number: usize, table: &toml::Value) -> Result<Rule, String> {
    let id = table.get("id").and_then(toml::Value::as_str);
    let name = id.map_or_else(|| format!("rule {number}"), |id| format!("rule `{id}`"));
    table.clone().try_into().map_err(|error: toml::de::Error| {
        // Serde names a field that is missing or unknown; of one that is of the wrong kind only toml knows the name.
        let text = error.to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let reason = lines.next().unwrap_or_default().to_owned();
        let place = lines
            .next()
            .map(|place| format!(", {place}"))
            .unwrap_or_default();
        format!("{name}: {reason}{place}")
    })
}

/// Checks the first `count` rules, which are the user's.
fn check(rules: &Rules, count: usize) -> Result<(), String> {
    let (own, ours) = rules.all().split_at(count);
    let mut ids: HashSet<&str> = ours.iter().map(|rule| rule.id.as_str()).collect();
    let categories: HashSet<&str> = rules
        .all()
        .iter()
        .map(|rule| rule.category.as_str())
        .collect();
    for rule in own {
        let wrong =
            |field: &str, reason: String| Err(format!("rule `{}`: {field}: {reason}", rule.id));
        if rule.id.is_empty() || !ids.insert(&rule.id) {
            return wrong("id", "empty, or taken by another rule".to_owned());
        }
        if let Err((field, reason)) = sound(rule) {
            return wrong(field, reason);
        }
        if let Some(unknown) = rule
            .explains
            .iter()
            .find(|category| !categories.contains(category.as_str()))
        {
            return wrong("explains", format!("no rule has the category `{unknown}`"));
        }
        for sample in &rule.samples {
            match rule_of(rules, rule.role, sample) {
                Some(found) if found.id == rule.id => {}
                Some(found) => {
                    return wrong(
                        "samples",
                        format!("`{sample}` is of rule `{}`, which comes before", found.id),
                    );
                }
                None => return wrong("samples", format!("`{sample}` does not match")),
            }
        }
        let of_it = |miss: &&String| {
            rule_of(rules, rule.role, miss).is_some_and(|found| found.id == rule.id)
        };
        if let Some(miss) = rule.near_misses.iter().find(of_it) {
            return wrong("near_misses", format!("`{miss}` matches"));
        }
    }
    Ok(())
}

/// Returns the first field of a rule that is wrong by itself, and why.
pub(crate) fn sound(rule: &Rule) -> Result<(), (&'static str, String)> {
    let slug = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_')
    };
    if !slug(&rule.category) {
        return Err((
            "category",
            format!(
                "`{}` is not of lower-case words joined by `_`",
                rule.category
            ),
        ));
    }
    if rule
        .uniform_category
        .as_deref()
        .is_some_and(|category| !slug(category))
    {
        return Err((
            "uniform_category",
            "not of lower-case words joined by `_`".to_owned(),
        ));
    }
    if rule.text.iter().chain(&rule.types).any(String::is_empty) {
        return Err(("text", "an empty text is in everything".to_owned()));
    }
    for pattern in &rule.pattern {
        Regex::new(pattern).map_err(|error| ("pattern", in_one_line(&error)))?;
    }
    if !rule.pattern.is_empty() && rule.text.is_empty() {
        return Err(("pattern", "needs a `text` that is found first".to_owned()));
    }
    let by_text = !(rule.text.is_empty() && rule.types.is_empty());
    if !rule.frames.is_empty() && !by_text {
        return Err((
            "frames",
            "needs a `text` or `types` that is found first".to_owned(),
        ));
    }
    if by_text && rule.samples.is_empty() {
        return Err((
            "samples",
            "missing: one text at least that the rule must match".to_owned(),
        ));
    }
    let extracts = [
        ("names", &rule.names),
        ("host", &rule.host),
        ("pid", &rule.pid),
    ];
    for (field, pattern) in extracts {
        let Some(pattern) = pattern else { continue };
        let compiled = Regex::new(pattern).map_err(|error| (field, in_one_line(&error)))?;
        if compiled.captures_len() != 2 {
            return Err((field, "needs exactly one group".to_owned()));
        }
        if !rule.samples.iter().any(|sample| compiled.is_match(sample)) {
            return Err((field, "found in no sample".to_owned()));
        }
    }
    if rule.role == Role::Host && (rule.text.is_empty() || !rule.job && rule.explains.is_empty()) {
        return Err((
            "role",
            "a rule about hosts has `text`, and `explains` or `job`".to_owned(),
        ));
    }
    if rule.role != Role::Host && !rule.explains.is_empty() {
        return Err(("explains", "is for rules about hosts".to_owned()));
    }
    Ok(())
}

fn in_one_line(error: &regex::Error) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().trim().to_owned()
}

/// Returns the rule of a sample, which may carry a stack before a `|`.
pub(crate) fn rule_of<'r>(rules: &'r Rules, role: Role, sample: &str) -> Option<&'r Rule> {
    let (stack, text) = sample.split_once('|').unwrap_or(("", sample));
    let (type_name, _) = traceback::split(text);
    match role {
        Role::Host => rules.of_host(text),
        _ => rules.by_text(type_name, text, stack),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = "[[rule]]\nid = \"site-quota\"\nrole = \"primary\"\ncategory = \"disk_full\"\n\
                        text = [\"quota of project exceeded\"]\nsamples = [\"OSError: quota of project exceeded\"]\n";

    #[test]
    fn a_users_rule_comes_before_ours() {
        let taken = RULE.replace("quota of project exceeded", "CUDA out of memory");
        let rules = rules_in(&taken).expect("sound");
        let found = rules.by_text("torch.OutOfMemoryError", "CUDA out of memory. Tried", "");
        assert_eq!(found.map(|rule| rule.id.as_str()), Some("site-quota"));
        assert!(rules.all().len() > 100);
    }

    #[test]
    fn what_is_wrong_is_named_by_rule_and_field() {
        let with = |line: &str| format!("{RULE}{line}\n");
        for (text, expected) in [
            (String::new(), "no [[rule]] in it"),
            ("[[rule]\n".to_owned(), "line 1: "),
            ("a = 1\n".to_owned(), "`a`: a file of rules holds"),
            (
                with("rolle = 1"),
                "rule `site-quota`: unknown field `rolle`",
            ),
            (
                with("advice = 1"),
                "rule `site-quota`: invalid type: integer `1`, expected a string, in `advice`",
            ),
            (
                RULE.replace("primary", "first"),
                "rule `site-quota`: unknown variant `first`",
            ),
            (
                RULE.replace("id = \"site-quota\"\n", ""),
                "rule 1: missing field `id`",
            ),
            (
                RULE.replace("role = \"primary\"\n", ""),
                "rule `site-quota`: missing field `role`",
            ),
            (
                RULE.replace("site-quota", "monitored-barrier"),
                "rule `monitored-barrier`: id: ",
            ),
            (format!("{RULE}{RULE}"), "rule `site-quota`: id: "),
            (
                RULE.replace("disk_full", "Disk full"),
                "rule `site-quota`: category: ",
            ),
            (with("pattern = [\"(\"]"), "rule `site-quota`: pattern: "),
            (
                with("names = 'rank \\d+'"),
                "rule `site-quota`: names: needs exactly one group",
            ),
            (
                with("names = 'rank (\\d+)'"),
                "rule `site-quota`: names: found in no sample",
            ),
            (
                with("explains = [\"vanished\"]"),
                "rule `site-quota`: explains: ",
            ),
            (
                RULE.replace("\"OSError: quota of project", "\"OSError: quota"),
                "rule `site-quota`: samples: `OSError: quota exceeded` does not match",
            ),
            (
                RULE.replace("samples = [\"OSError: quota of project exceeded\"]\n", ""),
                "rule `site-quota`: samples: missing",
            ),
            (
                with("near_misses = [\"a quota of project exceeded\"]"),
                "rule `site-quota`: near_misses: ",
            ),
            (
                RULE.replace("quota of project exceeded\"]\ns", "\"]\ns"),
                "rule `site-quota`: text: ",
            ),
        ] {
            let error = rules_in(&text).expect_err(&text);
            assert!(error.starts_with(expected), "{text}\n{error}");
        }
    }
}
