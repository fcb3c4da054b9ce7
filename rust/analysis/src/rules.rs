//! The failure taxonomy, `rules.toml`, and the engine that finds the rule of a text or of an exit status.

use crate::literals::Literals;
use crate::schema::{Class, Owner, Retry};
use regex::Regex;
use serde::Deserialize;
use std::sync::{LazyLock, OnceLock};

/// One kind of failure. See the head of `rules.toml` for what each field means.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Rule {
    /// Its name, unique.
    pub id: String,
    /// What a failure of this kind is in a verdict.
    pub role: Role,
    /// The slug of the taxonomy.
    pub category: String,
    /// The category when at least half of the ranks fail alike.
    pub uniform_category: Option<String>,
    /// Whether running again is worth it.
    #[serde(default)]
    pub retry: Retry,
    /// Who can repair it.
    #[serde(default)]
    pub owner: Owner,
    /// Which part of the system is to blame.
    #[serde(default)]
    pub class: Class,
    /// What to do next, in one line.
    #[serde(default)]
    pub advice: String,
    /// Whether any other rule that matches the same chain says more.
    #[serde(default)]
    pub generic: bool,
    /// Whether the text repeats another rank's failure.
    #[serde(default)]
    pub relay: bool,
    /// Whether the failure is the whole job's, whichever rank reports it.
    #[serde(default)]
    pub job: bool,
    #[serde(default)]
    pub(crate) types: Vec<String>,
    #[serde(default)]
    pub(crate) text: Vec<String>,
    #[serde(default)]
    pub(crate) pattern: Vec<String>,
    #[serde(default)]
    pub(crate) frames: Vec<String>,
    #[serde(default)]
    signals: Vec<i64>,
    #[serde(default)]
    exit_codes: Vec<i64>,
    pub(crate) names: Option<String>,
    /// The categories of ranks' ends that a word about a host explains.
    #[serde(default)]
    pub(crate) explains: Vec<String>,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<String>,
    /// Texts that this rule must match.
    #[serde(default)]
    pub samples: Vec<String>,
    /// Texts that this rule must not match.
    #[serde(default)]
    pub near_misses: Vec<String>,
    #[serde(skip)]
    compiled: OnceLock<Vec<Regex>>,
    #[serde(skip)]
    compiled_names: OnceLock<Option<Regex>>,
    #[serde(skip)]
    compiled_host: OnceLock<Option<Regex>>,
    #[serde(skip)]
    compiled_pid: OnceLock<Option<Regex>>,
}

/// What a failure is in a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A cause.
    Primary,
    /// A consequence: never a cause while there is a primary.
    Collateral,
    /// It waited for a rank that did not come.
    Timeout,
    /// A cause unless something explains it.
    Ambiguous,
    /// A kernel's, a scheduler's or a runtime's word about a host: it explains how a rank ended.
    Host,
}

impl Rule {
    fn matches(&self, type_name: &str, text: &str, stack: &str) -> bool {
        (self.types.is_empty() || self.types.iter().any(|name| name == type_name))
            && (self.frames.is_empty()
                || self.frames.iter().any(|part| stack.contains(part.as_str())))
            && (self.pattern.is_empty()
                || self.patterns().iter().any(|pattern| pattern.is_match(text)))
    }

    fn patterns(&self) -> &[Regex] {
        self.compiled.get_or_init(|| {
            self.pattern
                .iter()
                .filter_map(|pattern| Regex::new(pattern).ok())
                .collect()
        })
    }

    /// Returns the ranks that a text of this rule points at.
    pub(crate) fn pointers(&self, text: &str) -> Vec<u32> {
        let list = capture(&self.names, &self.compiled_names, text).unwrap_or("");
        list.split([',', ' '])
            .filter_map(|rank| rank.parse().ok())
            .collect()
    }

    /// Returns the host that a line of this rule names.
    pub(crate) fn host<'t>(&self, line: &'t str) -> Option<&'t str> {
        capture(&self.host, &self.compiled_host, line)
    }

    /// Returns the process that a line of this rule names.
    pub(crate) fn process(&self, line: &str) -> Option<u32> {
        capture(&self.pid, &self.compiled_pid, line)?.parse().ok()
    }
}

/// Returns the first group of a pattern in a text; the pattern is compiled when it is first used.
fn capture<'t>(
    pattern: &Option<String>,
    compiled: &OnceLock<Option<Regex>>,
    text: &'t str,
) -> Option<&'t str> {
    let compiled = compiled.get_or_init(|| Regex::new(pattern.as_deref()?).ok());
    Some(compiled.as_ref()?.captures(text)?.get(1)?.as_str())
}

/// All rules, and what finds their literals in one pass.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    literals: Literals,
    /// The rules that have types alone.
    typed: Vec<usize>,
    /// The literals of the rules about hosts, which whole logs are searched for.
    host_literals: OnceLock<Literals>,
    /// The literals of the rules about what a process prints before it aborts.
    last_words: OnceLock<Literals>,
    /// The same and what else tells of a failure, once a log is too long to be read whole.
    telling: OnceLock<Literals>,
}

#[derive(Deserialize)]
struct RuleFile {
    rule: Vec<Rule>,
}

/// Returns the rules of the analysis that this thread works on: the user's before those that this build carries.
pub fn rules() -> &'static Rules {
    static RULES: LazyLock<Rules> = LazyLock::new(|| Rules::new(ours()));
    crate::work::rules().unwrap_or(&RULES)
}

/// Returns the rules that this build carries, each time anew.
pub(crate) fn ours() -> Vec<Rule> {
    let RuleFile { rule: rules } =
        toml::from_str(include_str!("rules.toml")).expect("rules.toml is tested");
    rules
}

impl PartialEq for Rules {
    /// Rules are kept once for each content.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Rules {}

fn host_texts(rules: &[Rule]) -> impl Iterator<Item = &str> {
    let of_hosts = rules.iter().filter(|rule| rule.role == Role::Host);
    of_hosts.flat_map(|rule| rule.text.iter().map(String::as_str))
}

fn in_logs<'t>(literals: impl Iterator<Item = &'t str>) -> Literals {
    Literals::new(literals.map(|literal| (literal, 0)))
}

impl Rules {
    pub(crate) fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let rules: Vec<Rule> = rules.into_iter().collect();
        let literals = rules.iter().enumerate().flat_map(|(index, rule)| {
            let texts = rule.text.iter().map(String::as_str);
            texts.map(move |text| (text, index))
        });
        Self {
            literals: Literals::new(literals),
            host_literals: OnceLock::new(),
            last_words: OnceLock::new(),
            telling: OnceLock::new(),
            typed: (0..rules.len())
                .filter(|&index| rules[index].text.is_empty() && !rules[index].types.is_empty())
                .collect(),
            rules,
        }
    }

    /// Returns every rule, in order.
    pub fn all(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the rule of this id.
    ///
    /// # Panics
    ///
    /// When there is none: ids are written in this crate, and tested.
    pub(crate) fn by_id(&self, id: &str) -> &Rule {
        self.rules
            .iter()
            .find(|rule| rule.id == id)
            .expect("the id is in rules.toml")
    }

    /// Returns what finds these texts, the same at each call, and the literals of rules about hosts.
    pub(crate) fn telling(&self, texts: &[&str]) -> &Literals {
        self.telling
            .get_or_init(|| in_logs(texts.iter().copied().chain(host_texts(&self.rules))))
    }

    /// Returns where in a text literals of these rules begin, the same rules at each call.
    pub(crate) fn literals_of<'t>(
        &'t self,
        ids: &[&str],
        besides: &str,
        text: &'t str,
    ) -> impl Iterator<Item = usize> + 't {
        let literals = self.last_words.get_or_init(|| {
            let of_these = self.rules.iter().filter(|rule| ids.contains(&&*rule.id));
            let texts = of_these.flat_map(|rule| rule.text.iter().map(String::as_str));
            in_logs(texts.chain([besides]))
        });
        literals.find(text.as_bytes()).map(|(at, _)| at)
    }

    /// Returns where in a log literals of rules about hosts begin.
    pub(crate) fn host_literals<'t>(&'t self, text: &'t str) -> impl Iterator<Item = usize> + 't {
        let literals = self
            .host_literals
            .get_or_init(|| in_logs(host_texts(&self.rules)));
        literals.find(text.as_bytes()).map(|(at, _)| at)
    }

    /// Returns the first rule about hosts that matches a line.
    pub(crate) fn of_host(&self, line: &str) -> Option<&Rule> {
        self.first(line, |rule| {
            rule.role == Role::Host && rule.matches("", line, "")
        })
    }

    /// Returns the first rule that matches an exception's class, text and stack.
    pub fn by_text(&self, type_name: &str, text: &str, stack: &str) -> Option<&Rule> {
        self.first(text, |rule| {
            rule.role != Role::Host && rule.matches(type_name, text, stack)
        })
    }

    /// Returns the first rule one of whose literals is in a text, or that has types alone, and that matches.
    fn first(&self, text: &str, matches: impl Fn(&Rule) -> bool) -> Option<&Rule> {
        let mut eligible = Vec::with_capacity(16);
        eligible.extend_from_slice(&self.typed);
        eligible.extend(self.literals.find(text.as_bytes()).map(|(_, rule)| rule));
        eligible.sort_unstable();
        eligible.dedup();
        let mut eligible = eligible.into_iter().map(|index| &self.rules[index]);
        eligible.find(|rule| matches(rule))
    }

    /// Returns the rule of an exit status: minus a signal's number, or an exit code.
    pub fn by_status(&self, status: i64) -> &Rule {
        let matches = |rule: &&Rule| {
            if status < 0 {
                rule.signals.contains(&-status)
            } else {
                rule.exit_codes.contains(&status)
            }
        };
        self.rules
            .iter()
            .find(matches)
            .unwrap_or_else(|| self.by_id(if status < 0 { "silent" } else { "exit" }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traceback;
    use crate::user_rules::{rule_of, sound};
    use std::collections::HashSet;

    #[test]
    fn every_sample_matches_its_rule_first_and_no_near_miss_does() {
        for rule in rules().all() {
            for sample in &rule.samples {
                let found = rule_of(rules(), rule.role, sample);
                assert_eq!(found.map(|rule| &rule.id), Some(&rule.id), "{sample}");
            }
            for miss in &rule.near_misses {
                let found = rule_of(rules(), rule.role, miss);
                assert_ne!(found.map(|rule| &rule.id), Some(&rule.id), "{miss}");
            }
        }
        assert!(rules().all().len() >= 100);
    }

    #[test]
    fn every_member_of_the_catalogues_is_judged_as_it_says() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/catalogue");
        let mut members = 0;
        for file in std::fs::read_dir(folder).expect("the catalogues") {
            let path = file.expect("a file").path();
            let text = std::fs::read_to_string(path).expect("a catalogue");
            for line in text.lines().filter(|line| line.contains('\t')) {
                let fields: Vec<&str> = line.splitn(3, '\t').collect();
                let [kind, expected, text] = fields[..] else {
                    panic!("{line}");
                };
                let judged = judged(kind, text).map_or_else(|| "none".to_owned(), summary);
                assert_eq!(judged, expected, "{text}");
                members += 1;
            }
        }
        assert!(members > 1000);
    }

    fn judged(kind: &str, text: &str) -> Option<&'static Rule> {
        match kind {
            "host" => rules().of_host(text),
            "output" => crate::words::last_words(text).map(|(rule, _)| rule),
            _ => {
                let stack = text.split_once('|').map_or("", |(stack, _)| stack);
                let stack = if stack.ends_with(".py") { stack } else { "" };
                let text = text[stack.len()..].trim_start_matches('|');
                let text = text.replace("\\n", "\n");
                // As a report has it: the class without its module.
                let (type_name, message) = traceback::split(&text);
                let headline = crate::parse::headline(type_name, message);
                let rule = rules().by_text(type_name, &headline, stack);
                Some(rule.unwrap_or(rules().by_id("exception")))
            }
        }
    }

    fn summary(rule: &Rule) -> String {
        let role = format!("{:?}", rule.role).to_lowercase();
        let retry = serde_json::to_value(rule.retry).expect("a name");
        let retry = retry.as_str().expect("a name");
        format!("{} {role} {retry}", rule.category)
    }

    #[test]
    fn the_rules_are_sound() {
        let mut ids = HashSet::new();
        for rule in rules().all() {
            assert!(ids.insert(&rule.id), "{} twice", rule.id);
            assert_eq!(sound(rule), Ok(()), "{}", rule.id);
            for category in &rule.explains {
                assert!(CATEGORIES.contains(&category.as_str()), "{category}");
            }
            let by_text = !(rule.text.is_empty() && rule.types.is_empty());
            assert!(
                !by_text || !rule.near_misses.is_empty(),
                "{}: no near misses",
                rule.id
            );
            let shown = !matches!(rule.role, Role::Collateral);
            assert_eq!(
                shown,
                !rule.advice.is_empty(),
                "{}: advice is for what can be a cause",
                rule.id
            );
            assert!(
                rule.advice.chars().count() <= 110,
                "{}: advice too long",
                rule.id
            );
        }
    }

    #[test]
    fn every_category_is_of_the_taxonomy() {
        for rule in rules().all() {
            for category in [Some(&rule.category), rule.uniform_category.as_ref()]
                .into_iter()
                .flatten()
            {
                assert!(CATEGORIES.contains(&category.as_str()), "{category}");
            }
        }
    }

    const CATEGORIES: &[&str] = &[
        "python_exception",
        "import_error",
        "abi_error",
        "config_error",
        "missing_file",
        "permission_denied",
        "disk_full",
        "stale_file_handle",
        "io_error",
        "too_many_files",
        "dataloader_worker_died",
        "dataloader_error",
        "dataloader_stall",
        "shared_memory_exhausted",
        "checkpoint_corrupt",
        "checkpoint_mismatch",
        "nan_loss",
        "ddp_contract",
        "collective_mismatch",
        "process_group_misuse",
        "port_in_use",
        "dns_failure",
        "interrupted",
        "exit_without_traceback",
        "cuda_out_of_memory",
        "device_assert",
        "illegal_memory_access",
        "launch_failure",
        "ecc_error",
        "nvlink_error",
        "gpu_lost",
        "driver_mismatch",
        "cublas_cudnn_error",
        "nccl_system_error",
        "nccl_internal_error",
        "network_error",
        "host_memory_exhausted",
        "host_oom_killed",
        "killed_unknown",
        "vanished",
        "segfault",
        "abort",
        "bus_error",
        "floating_point_exception",
        "illegal_instruction",
        "heap_corruption",
        "cpp_exception",
        "assertion",
        "hang",
        "never_arrived",
        "collective_timeout",
        "peer_lost",
        "store_lost",
        "rendezvous_failed",
        "launcher_terminated",
        "preempted",
        "time_limit",
        "host_lost",
        "resource_limit",
        "syscall_denied",
        "trap",
        "left_early",
        "host_stall",
        "stopped_by_agreement",
        "unknown",
    ];
}
