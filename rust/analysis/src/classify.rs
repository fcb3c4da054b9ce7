//! The failure taxonomy (`rules.toml`) and its engine: from the texts of a failure to role, category and advice.

use crate::failure::{Failure, Kind, Section};
use crate::groups::Fingerprint;
use crate::parse::headline;
use crate::schema::{Class, Owner, Retry};
use crate::traceback::{self, FrameRef, Raised};
use aho_corasick::{AhoCorasick, MatchKind};
use regex::Regex;
use serde::Deserialize;
use std::borrow::Cow;
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
    types: Vec<String>,
    #[serde(default)]
    text: Vec<String>,
    #[serde(default)]
    pattern: Vec<String>,
    #[serde(default)]
    frames: Vec<String>,
    #[serde(default)]
    signals: Vec<i64>,
    #[serde(default)]
    exit_codes: Vec<i64>,
    names: Option<String>,
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
    fn pointers(&self, text: &str) -> Vec<u32> {
        let names = self.compiled_names.get_or_init(|| {
            self.names
                .as_deref()
                .and_then(|names| Regex::new(names).ok())
        });
        let Some(list) = names
            .as_ref()
            .and_then(|names| names.captures(text))
            .and_then(|found| found.get(1))
        else {
            return Vec::new();
        };
        list.as_str()
            .split([',', ' '])
            .filter_map(|rank| rank.parse().ok())
            .collect()
    }
}

/// All rules and the automaton that finds their literals in one pass.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    literals: AhoCorasick,
    /// Which rule each literal belongs to.
    owners: Vec<usize>,
}

#[derive(Deserialize)]
struct RuleFile {
    rule: Vec<Rule>,
}

/// Returns the rules that this build carries.
pub fn rules() -> &'static Rules {
    static RULES: LazyLock<Rules> =
        LazyLock::new(|| Rules::parse(include_str!("rules.toml")).expect("rules.toml is tested"));
    &RULES
}

impl Rules {
    fn parse(text: &str) -> Result<Self, String> {
        let RuleFile { rule: rules } = toml::from_str(text).map_err(|error| error.to_string())?;
        let (mut literals, mut owners) = (Vec::new(), Vec::new());
        for (index, rule) in rules.iter().enumerate() {
            literals.extend(&rule.text);
            owners.resize(literals.len(), index);
        }
        let literals = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(true)
            .build(&literals)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            rules,
            literals,
            owners,
        })
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

    /// Returns the first rule that matches an exception's class, text and stack.
    pub fn by_text(&self, type_name: &str, text: &str, stack: &str) -> Option<&Rule> {
        let mut hits = vec![false; self.rules.len()];
        for found in self.literals.find_overlapping_iter(text) {
            hits[self.owners[found.pattern().as_usize()]] = true;
        }
        self.rules.iter().zip(hits).find_map(|(rule, hit)| {
            let eligible = if rule.text.is_empty() {
                !rule.types.is_empty()
            } else {
                hit
            };
            (eligible && rule.matches(type_name, text, stack)).then_some(rule)
        })
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

/// What the rules make of one failure.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The rule that says most about it.
    pub rule: &'static Rule,
    /// The ranks that its texts point at.
    pub pointers: Vec<u32>,
    /// Whether it only repeats the failure of the ranks that it points at.
    pub relay: bool,
    /// The same for the same failure.
    pub fingerprint: Fingerprint,
    /// The text that the rule judged, in one line where it is one: `Type: message`.
    pub headline: String,
}

/// Exceptions that programs use to find their way; as the context of another they explain nothing.
const CONTROL_FLOW: &[&str] = &[
    "KeyError",
    "AttributeError",
    "IndexError",
    "StopIteration",
    "Empty",
    "ImportError",
    "ModuleNotFoundError",
    "TypeError",
    "LookupError",
];

/// Returns what the rules make of a failure: the deepest exception that says something, and where it points.
pub fn classify(failure: &Failure) -> Finding {
    let section = failure.section.as_deref();
    let stack = traceback::strip_prefixes(&failure.callstack);
    if let Some(section) = section.filter(|section| is_signal(section)) {
        return crash(failure, section);
    }
    let chain = chain(failure, section, &stack);
    let mut finding = texts(&chain, &stack);
    if section.is_some_and(|section| section.kind == Some(Kind::Exit)) && finding.rule.generic {
        finding.rule = rules().by_id("exit");
    }
    finding
}

fn is_signal(section: &Section) -> bool {
    section.signal.is_some() && matches!(section.kind, Some(Kind::Signal | Kind::Terminated) | None)
}

/// Returns the chain of a failure, deepest first: our record's where there is one, else the traceback's.
pub(crate) fn chain<'a>(
    failure: &'a Failure,
    section: Option<&'a Section>,
    stack: &'a str,
) -> Vec<Raised<'a>> {
    let mut chain = traceback::chain(stack);
    if let Some(exception) = section.and_then(|section| section.exception.as_ref()) {
        let frames = |index: usize| {
            chain
                .get(index)
                .map(|raised| raised.frames.clone())
                .unwrap_or_default()
        };
        let raised = |type_name: &'a str, message: &'a str, frames, is_cause| Raised {
            type_name,
            message,
            frames,
            is_cause,
        };
        let own = raised(
            &exception.type_name,
            &exception.message,
            frames(chain.len().wrapping_sub(1)),
            false,
        );
        let links = exception.chain.iter().rev();
        let links = links.map(|link| {
            raised(
                &link.type_name,
                &link.message,
                Vec::new(),
                link.relation != "context",
            )
        });
        let leaves = exception
            .group
            .iter()
            .map(|leaf| raised(&leaf.type_name, &leaf.message, Vec::new(), true));
        let mut told: Vec<Raised<'a>> = leaves.chain(links).chain([own]).collect();
        if told.len() == chain.len() {
            for (told, read) in told.iter_mut().zip(&chain) {
                told.frames.clone_from(&read.frames);
            }
        }
        return told;
    }
    let (type_name, message) = traceback::split(&failure.message);
    match chain.last_mut() {
        // The record's own message is whole; the traceback's ends at its first empty line.
        Some(last) if !failure.message.is_empty() && message.starts_with(last.message) => {
            if chain.len() == 1 {
                (chain[0].type_name, chain[0].message) = (type_name, message);
            }
        }
        _ if failure.message.is_empty() => {}
        _ => chain.push(Raised {
            type_name,
            message,
            ..Raised::default()
        }),
    }
    chain
}

/// Returns what the rules make of a chain of exceptions, deepest first.
pub(crate) fn texts(chain: &[Raised<'_>], stack: &str) -> Finding {
    let rules = rules();
    let (mut pointers, mut relay) = (Vec::new(), false);
    let mut generic: Option<(&'static Rule, &Raised<'_>)> = None;
    let mut specific: Option<(&'static Rule, &Raised<'_>)> = None;
    for (index, raised) in chain.iter().enumerate() {
        let last = index + 1 == chain.len();
        let explains = last || raised.is_cause || !CONTROL_FLOW.contains(&raised.type_name);
        let text = headline(raised.type_name, raised.message);
        let rule = rules.by_text(raised.type_name, &text, stack);
        if let Some(rule) = rule {
            let named = rule.pointers(&text);
            relay |= rule.relay && !named.is_empty();
            pointers.extend(named);
        }
        match rule {
            Some(rule) if !rule.generic => {
                // A lost peer at the end of a chain that began with the program's own error is no news.
                let hidden = rule.role == Role::Collateral && generic.is_some();
                if explains && !hidden {
                    specific.get_or_insert((rule, raised));
                }
            }
            _ if explains => {
                let rule = rule.unwrap_or_else(|| rules.by_id("exception"));
                match &generic {
                    // What wraps an unknown exception may know more than that it is one.
                    Some((known, _))
                        if known.id != "exception" && known.id != "program-error"
                            || rule.id == "exception" => {}
                    Some((_, deepest)) => generic = Some((rule, *deepest)),
                    None => generic = Some((rule, raised)),
                }
            }
            _ => {}
        }
    }
    let none = Raised::default();
    let (rule, raised) = specific
        .or(generic)
        .unwrap_or((rules.by_id("exception"), &none));
    pointers.sort_unstable();
    pointers.dedup();
    let frames = raised.frames.iter().copied();
    Finding {
        rule,
        pointers,
        relay,
        fingerprint: Fingerprint::of(&rule.category, raised.type_name, raised.message, frames),
        headline: headline(raised.type_name, raised.message),
    }
}

/// A crash: by what the C++ runtime or glibc said last, else by the signal.
fn crash(failure: &Failure, section: &Section) -> Finding {
    let number = section.signal.as_ref().map_or(0, |signal| signal.number);
    let what = section
        .cpp_exception
        .as_ref()
        .map(|cpp| Cow::Owned(headline(&cpp.type_name, &cpp.what)));
    let said = section.abort_message.as_deref().map(Cow::Borrowed);
    let by_text = [what, said]
        .into_iter()
        .flatten()
        .find_map(|text| rules().by_text("", &text, ""));
    let rule = match by_text {
        Some(rule) => rule,
        None if section.cpp_exception.is_some() => rules().by_id("cpp-exception"),
        None => rules().by_status(-i64::from(number)),
    };
    let frames = crashed_frames(section);
    let name = section.signal.as_ref().map_or("", |signal| &signal.name);
    let text = if frames.clone().next().is_some() {
        ""
    } else {
        failure.message.as_str()
    };
    let fingerprint = Fingerprint::of(&rule.category, name, text, frames);
    Finding {
        rule,
        pointers: Vec::new(),
        relay: false,
        fingerprint,
        headline: failure.message.clone(),
    }
}

/// Returns the Python frames of the thread that crashed, innermost first; those of the first thread that has any where
/// that one has none.
pub(crate) fn crashed_frames(section: &Section) -> impl Iterator<Item = FrameRef<'_>> + Clone {
    let crashed = section
        .threads
        .iter()
        .find(|thread| thread.crashed && !thread.python.is_empty());
    let thread = crashed.or_else(|| {
        section
            .threads
            .iter()
            .find(|thread| !thread.python.is_empty())
    });
    let frames = thread.map_or(&[][..], |thread| &thread.python);
    frames.iter().map(|frame| FrameRef {
        file: &frame.file,
        line: frame.line,
        function: &frame.function,
    })
}

/// Returns whether an exception's text says that a peer or the store was lost: a consequence, never a cause.
///
/// For the dying worker, which rounds the timestamp of such a record up to the next second.
///
/// ```
/// use firstfault_analysis::classify::is_collateral;
///
/// assert!(is_collateral("RuntimeError: Connection closed by peer [10.0.0.2]:4242. This is typically …"));
/// assert!(!is_collateral("ValueError: loss is nan"));
/// ```
pub fn is_collateral(text: &str) -> bool {
    let (type_name, _) = traceback::split(text);
    rules()
        .by_text(type_name, text, "")
        .is_some_and(|rule| rule.role == Role::Collateral)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A sample may carry a stack before a `|`.
    fn rule_of(sample: &str) -> Option<&'static str> {
        let (stack, text) = sample.split_once('|').unwrap_or(("", sample));
        let (type_name, _) = traceback::split(text);
        rules()
            .by_text(type_name, text, stack)
            .map(|rule| rule.id.as_str())
    }

    #[test]
    fn every_sample_matches_its_rule_first_and_no_near_miss_does() {
        for rule in rules().all() {
            for sample in &rule.samples {
                assert_eq!(rule_of(sample), Some(rule.id.as_str()), "{sample}");
            }
            for miss in &rule.near_misses {
                assert_ne!(rule_of(miss), Some(rule.id.as_str()), "{miss}");
            }
        }
    }

    #[test]
    fn the_rules_are_sound() {
        let mut ids = HashSet::new();
        for rule in rules().all() {
            assert!(ids.insert(&rule.id), "{} twice", rule.id);
            assert_eq!(
                rule.patterns().len(),
                rule.pattern.len(),
                "{}: a pattern does not compile",
                rule.id
            );
            assert!(
                rule.pattern.is_empty() || !rule.text.is_empty(),
                "{}: a pattern needs a literal before it",
                rule.id
            );
            assert!(
                rule.names
                    .as_ref()
                    .is_none_or(|names| Regex::new(names).is_ok()),
                "{}: names",
                rule.id
            );
            let by_text = !(rule.text.is_empty() && rule.types.is_empty());
            assert!(
                !by_text || !rule.samples.is_empty() && !rule.near_misses.is_empty(),
                "{}: no samples",
                rule.id
            );
            let shown = matches!(rule.role, Role::Primary | Role::Ambiguous | Role::Timeout);
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

    fn category(message: &str, callstack: &str) -> &'static str {
        let failure = Failure {
            message: message.into(),
            callstack: callstack.into(),
            ..Failure::default()
        };
        &classify(&failure).rule.category
    }

    fn traceback(first: &str, link: &str, second: &str) -> String {
        format!(
            "Traceback (most recent call last):\n  File \"a\", line 1, in f\n{first}\n\n{link}\n\n\
             Traceback (most recent call last):\n  File \"a\", line 2, in f\n{second}\n"
        )
    }

    #[test]
    fn the_deepest_cause_that_says_something_counts() {
        const CAUSE: &str = "The above exception was the direct cause of the following exception:";
        const CONTEXT: &str = "During handling of the above exception, another exception occurred:";
        let peer = "RuntimeError: Connection closed by peer [1]:2. This";
        for (first, link, second, expected) in [
            (
                "FileNotFoundError: [Errno 2] x",
                CAUSE,
                "RuntimeError: pipeline failed",
                "missing_file",
            ),
            (
                "OSError: [Errno 28] No space left on device",
                CONTEXT,
                "RuntimeError: unexpected pos 704 vs 598",
                "disk_full",
            ),
            // A lookup that failed on the way is no cause of what came after.
            ("KeyError: 'cache'", CONTEXT, peer, "peer_lost"),
            (
                "ModuleNotFoundError: No module named 'x'",
                CONTEXT,
                "RuntimeError: CUDA out of memory. Tried",
                "cuda_out_of_memory",
            ),
            // An error of the program, whose clean-up then met the peers that it left alone.
            ("ValueError: bad sample", CONTEXT, peer, "python_exception"),
            (peer, CAUSE, "RuntimeError: training failed", "peer_lost"),
        ] {
            assert_eq!(
                category(second, &traceback(first, link, second)),
                expected,
                "{first} | {second}"
            );
        }
    }

    #[test]
    fn ranks_are_read_out_of_texts() {
        let failure = Failure {
            message: "RuntimeError: [Rank 0]: Ranks 2, 13 failed to pass monitoredBarrier in 5 ms"
                .into(),
            ..Failure::default()
        };
        assert_eq!(classify(&failure).pointers, [2, 13]);
        let failure = Failure {
            message: "DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/3"
                .into(),
            ..Failure::default()
        };
        assert_eq!(classify(&failure).pointers, [3]);
    }
}
