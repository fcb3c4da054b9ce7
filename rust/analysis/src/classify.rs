//! From the texts of a failure to the rule that says most about it.

mod crashed;

pub(crate) use crashed::{crashed_frames, native_place, waiting_frames};

use crate::descendants::told_status;
use crate::failure::{Failure, Kind, Section};
use crate::groups::Fingerprint;
use crate::parse::headline;
pub use crate::rules::{Role, Rule, Rules, rules};
use crate::traceback::{self, FrameRef, Raised};
use crashed::{crash, is_signal};
use std::sync::Arc;

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
    pub headline: Arc<str>,
    /// The exception that was being handled as this one was raised, where that may be the cause as well.
    pub handled: Option<Arc<str>>,
    /// What the process ended by while this exception was handled, where that is held for a consequence.
    pub ended_by: Option<Arc<str>>,
}

impl Finding {
    /// Returns what a rule says of a failure that points at nobody.
    pub(crate) fn plain(
        rule: &'static Rule,
        fingerprint: Fingerprint,
        headline: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            rule,
            pointers: Vec::new(),
            relay: false,
            fingerprint,
            headline: headline.into(),
            handled: None,
            ended_by: None,
        }
    }
}

/// Rules that say no more of an exception than its class does.
const VAGUE: &[&str] = &["exception", "program-error", "code-error"];

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

/// Parts of the names of functions that end something. What such a one raises while an exception is handled is no cause.
const CLEAN_UPS: &[&str] = &[
    "cleanup",
    "clean_up",
    "shutdown",
    "shut_down",
    "teardown",
    "tear_down",
    "__exit__",
    "__aexit__",
    "rmtree",
    "unlink",
];

/// Whether an exception was raised by what ends something: its innermost frames tell.
fn cleans_up(raised: &Raised<'_>) -> bool {
    let ends = |frame: &FrameRef<'_>| CLEAN_UPS.iter().any(|part| frame.function.contains(part));
    raised.frames.iter().take(INNERMOST).any(ends)
}

/// A clean-up that is further out is one that something else was done in.
const INNERMOST: usize = 4;

/// What ends a program by a status: Python's own, and what click and typer turn into that.
const EXITS: &[&str] = &["SystemExit", "Exit"];

fn is_exit(raised: &Raised<'_>) -> bool {
    EXITS.contains(&raised.type_name)
}

/// An exit that says nothing but its status.
fn is_bare_exit(raised: &Raised<'_>) -> bool {
    is_exit(raised) && (raised.message.is_empty() || raised.message.parse::<i64>().is_ok())
}

/// Returns what the rules make of a failure: the deepest exception that says something, and where it points.
pub fn classify(failure: &Failure) -> Finding {
    judge(failure, &traceback::strip_prefixes(&failure.callstack)).0
}

/// Returns the same and the stack that it is about, innermost frame first; `stack` is the call stack without prefixes.
pub(crate) fn judge<'a>(failure: &'a Failure, stack: &'a str) -> (Finding, Vec<FrameRef<'a>>) {
    let section = failure.section.as_deref();
    let crashed = section.filter(|section| section.signal.is_some());
    let crashed = crashed.map(|section| crashed_frames(section).collect::<Vec<_>>());
    let dumped = || traceback::fatal(stack).map(|fatal| fatal.frames);
    let told = crashed.filter(|frames| !frames.is_empty());
    let told = told.or_else(|| dumped().filter(|frames| !frames.is_empty()));
    if let Some(section) = section.filter(|section| is_signal(section)) {
        let finding = crash(failure, section);
        let chain = || chain(failure, Some(section), stack);
        let frames = told.unwrap_or_else(|| judged(&finding.headline, chain()));
        return (finding, frames);
    }
    let chain = chain(failure, section, stack);
    let mut finding = match stopped(failure, section).or_else(|| consequence(failure, section)) {
        Some(finding) => finding,
        None => texts(&chain, stack),
    };
    let exited = section.is_some_and(|section| section.kind == Some(Kind::Exit));
    let is_last = |last: &Raised<'_>| headline(last.type_name, last.message) == *finding.headline;
    if exited && finding.rule.generic && chain.last().is_none_or(is_last) {
        finding.rule = rules().by_id("exit");
    }
    let frames = told.unwrap_or_else(|| judged(&finding.headline, chain));
    (finding, frames)
}

/// Returns the frames of the exception that a finding is about; of the outermost where that one has none.
pub(crate) fn judged<'a>(about: &str, mut chain: Vec<Raised<'a>>) -> Vec<FrameRef<'a>> {
    let is_it = |raised: &Raised<'_>| {
        !raised.frames.is_empty() && headline(raised.type_name, raised.message) == about
    };
    // Most have one exception, which needs no comparing.
    if chain.len() > 1
        && let Some(found) = chain.iter().position(is_it)
    {
        return chain.swap_remove(found).frames;
    }
    chain.pop().map(|raised| raised.frames).unwrap_or_default()
}

/// A rank that stopped because another deferred an error: whatever its record repeats of that, the cause is the other's.
fn stopped(failure: &Failure, section: Option<&Section>) -> Option<Finding> {
    let deferred = section.and_then(|section| section.deferred.as_ref());
    if deferred.is_none_or(|deferred| deferred.place.is_some()) {
        return None;
    }
    let rule = rules().by_id("stopped-by-agreement");
    let fingerprint = Fingerprint::of(&rule.category, "", "", std::iter::empty());
    Some(Finding {
        pointers: rule.pointers(&failure.message),
        ..Finding::plain(rule, fingerprint, failure.message.as_str())
    })
}

/// A consequence that was raised from nothing: most failures of a large job, and none of them needs its stack read.
fn consequence(failure: &Failure, section: Option<&Section>) -> Option<Finding> {
    let exception = section.and_then(|section| section.exception.as_ref());
    if section.is_some_and(|section| section.deferred.is_some()) {
        // Its message is what left main, and that is made of the errors of all ranks.
        return None;
    }
    let alone =
        exception.is_none_or(|exception| exception.chain.is_empty() && exception.group.is_empty());
    if !alone || failure.message.is_empty() {
        return None;
    }
    let (type_name, message) = traceback::split(&failure.message);
    let rule = rules().by_text(type_name, &failure.message, &failure.callstack)?;
    let is_one = !rule.relay && matches!(rule.role, Role::Collateral | Role::Timeout);
    if !is_one || traceback::has_several(&failure.callstack) {
        return None;
    }
    let mut pointers = rule.pointers(&failure.message);
    pointers.sort_unstable();
    pointers.dedup();
    let fingerprint = fingerprint(rule, type_name, message, &[]);
    Some(Finding {
        rule,
        pointers,
        relay: false,
        fingerprint,
        headline: failure.message.as_str().into(),
        handled: None,
        ended_by: None,
    })
}

/// Where a rank stood when another failed says nothing about the failure: the stack of a consequence does not count.
fn fingerprint(
    rule: &Rule,
    type_name: &str,
    message: &str,
    frames: &[FrameRef<'_>],
) -> Fingerprint {
    let counts = !matches!(rule.role, Role::Collateral | Role::Timeout);
    let frames = if counts { frames } else { &[] };
    Fingerprint::of(&rule.category, type_name, message, frames.iter().copied())
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
    let (mut handled, mut ended_by) = (None, None);
    for (index, raised) in chain.iter().enumerate() {
        let explains = match chain.get(index + 1) {
            None => true,
            Some(_) if is_bare_exit(raised) => false,
            // A program that leaves in a handler leaves because of what it handles, whatever that is.
            Some(next) => {
                raised.is_cause || is_exit(next) || !CONTROL_FLOW.contains(&raised.type_name)
            }
        };
        let text = headline(raised.type_name, raised.message);
        let signalled = || told_status(&text).filter(|status| *status < 0);
        let rule = rules.by_text(raised.type_name, &text, stack);
        let rule = rule.or_else(|| signalled().map(|status| rules.by_status(status)));
        if let Some(rule) = rule {
            let named = rule.pointers(&text);
            relay |= rule.relay && !named.is_empty();
            pointers.extend(named);
        }
        match rule {
            Some(rule) if !rule.generic => {
                let before = index.checked_sub(1).map(|before| &chain[before]);
                let before = before.filter(|before| !before.is_cause && !is_exit(raised));
                // A lost peer at the end of a chain that began with the program's own error is no news. Nor is one that it
                // waited for in vain as it handled that, or what it could not put away then.
                let is_late = rule.role == Role::Timeout || cleans_up(raised);
                let is_late = before.is_some() && is_late;
                let hidden = generic.is_some() && (is_late || rule.role == Role::Collateral);
                if explains && !hidden && specific.is_none() {
                    specific = Some((rule, raised));
                    // A clean-up may have failed, or what was to do without the first.
                    handled = before.and(generic).map(|(_, first)| first);
                } else if hidden && is_late {
                    ended_by = Some(raised);
                }
            }
            _ if explains => {
                let rule = rule.unwrap_or_else(|| rules.by_id("exception"));
                match &generic {
                    // What wraps an unknown exception may know more than that it is one.
                    Some((known, _))
                        if !VAGUE.contains(&known.id.as_str()) || rule.id == "exception" => {}
                    Some((_, deepest)) => generic = Some((rule, *deepest)),
                    None => generic = Some((rule, raised)),
                }
            }
            _ => {}
        }
    }
    for rank in traceback::repeated(stack) {
        relay = true;
        pointers.push(rank);
    }
    let none = Raised::default();
    let (rule, raised) = specific
        .or(generic)
        .unwrap_or((rules.by_id("exception"), &none));
    pointers.sort_unstable();
    pointers.dedup();
    Finding {
        rule,
        pointers,
        relay,
        fingerprint: fingerprint(rule, raised.type_name, raised.message, &raised.frames),
        headline: headline(raised.type_name, raised.message).into(),
        handled: handled.map(|first| headline(first.type_name, first.message).into()),
        ended_by: ended_by
            .filter(|_| specific.is_none())
            .map(|last| headline(last.type_name, last.message).into()),
    }
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

/// Categories of what has broken in the device or in the communicator, whoever says so first.
const OF_DEVICE_OR_COMMUNICATOR: &[&str] = &[
    "device_assert",
    "gpu_lost",
    "host_stall",
    "illegal_memory_access",
    "nccl_internal_error",
];

/// Returns whether an exception's text is one of a rank's own work: not of the communicator, the device or a peer.
///
/// For the training process, which may go on after such an exception with the collectives that its peers expect.
///
/// ```
/// use firstfault_analysis::classify::is_rank_local;
///
/// assert!(is_rank_local("OSError: [Errno 28] No space left on device"));
/// assert!(!is_rank_local("RuntimeError: Timed out waiting 8000ms for recv operation to complete"));
/// ```
pub fn is_rank_local(text: &str) -> bool {
    let (type_name, _) = traceback::split(text);
    rules().by_text(type_name, text, "").is_none_or(|rule| {
        !rule.job
            && !matches!(rule.role, Role::Collateral | Role::Timeout)
            && !OF_DEVICE_OR_COMMUNICATOR.contains(&rule.category.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Exception, Link, Module, NativeFrame, Signal, Thread};

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
    fn a_crash_is_in_its_function_where_the_record_names_one() {
        let crash = |symbol: Option<&str>| {
            let frame = NativeFrame {
                module: Some(0),
                offset: Some("0x1f".to_owned()),
                symbol: symbol.map(str::to_owned),
                ..NativeFrame::default()
            };
            let section = Section {
                kind: Some(Kind::Signal),
                signal: Some(Signal {
                    number: 11,
                    ..Signal::default()
                }),
                threads: vec![Thread {
                    crashed: true,
                    native: vec![frame],
                    ..Thread::default()
                }],
                modules: vec![Module {
                    path: "/opt/libtorch_cpu.so".to_owned(),
                    ..Module::default()
                }],
                ..Section::default()
            };
            let place = native_place(&section).unwrap();
            let message = "SIGSEGV: null pointer at 0x0, in libtorch_cpu.so+0x1f, thread 'python'";
            let failure = Failure {
                message: message.to_owned(),
                section: Some(Box::new(section)),
                ..Failure::default()
            };
            (place, classify(&failure).headline.to_string())
        };
        let headline =
            |place: &str| format!("SIGSEGV: null pointer at 0x0, {place}, thread 'python'");
        for (symbol, place) in [
            (None, "in libtorch_cpu.so+0x1f"),
            (Some("malloc"), "in malloc (libtorch_cpu.so)"),
            (
                Some("_ZN2at3sumIfEET_RKS1_"),
                "in at::sum<float> (libtorch_cpu.so)",
            ),
        ] {
            assert_eq!(crash(symbol), (place.to_owned(), headline(place)));
        }
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
    fn an_object_that_arrives_as_garbage_is_no_damaged_file() {
        const CONTEXT: &str = "During handling of the above exception, another exception occurred:";
        let garbage = "_pickle.UnpicklingError: invalid load key, '\\xff'.";
        let out_of_step =
            "Exception: Unable to unpickle data from other workers. all_gather_list requires";
        let stack =
            |function: &str| traceback(garbage, CONTEXT, out_of_step).replacen("in f", function, 1);
        for (function, expected) in [
            ("in all_gather_list", "collective_mismatch"),
            ("in _tensor_to_object", "collective_mismatch"),
            ("in load", "checkpoint_corrupt"),
        ] {
            assert_eq!(category("", &stack(function)), expected, "{function}");
        }
    }

    /// What the rules make of a record of ours: texts deepest first, each the context of the next, the last left main.
    fn exit(texts: &[&str]) -> Finding {
        let split = |text: &&str| {
            let (type_name, message) = traceback::split(text);
            (type_name.to_owned(), message.to_owned())
        };
        let mut links = texts.iter().rev().map(split);
        let (type_name, message) = links.next().unwrap();
        let chain = links.map(|(type_name, message)| Link {
            type_name,
            message,
            relation: "context".to_owned(),
        });
        let exception = Exception {
            type_name,
            message,
            chain: chain.collect(),
            ..Exception::default()
        };
        let section = Section {
            kind: Some(Kind::Exit),
            exception: Some(exception),
            ..Section::default()
        };
        classify(&Failure {
            message: texts.last().unwrap().to_string(),
            section: Some(Box::new(section)),
            ..Failure::default()
        })
    }

    #[test]
    fn an_exit_is_judged_by_what_was_handled() {
        let missing = "FileNotFoundError: [Errno 2] No such file or directory: 'x'";
        let peer = "RuntimeError: Connection closed by peer [1]:2. This";
        for (texts, expected, about) in [
            (
                &["ValueError: bad", "SystemExit: 1"][..],
                "python_exception",
                0,
            ),
            // Whatever class it has: the program left because of it.
            (
                &["KeyError: 'model'", "SystemExit: 1"],
                "python_exception",
                0,
            ),
            (&[missing, "SystemExit: 3"], "missing_file", 0),
            (
                &["ImportError: no x", "SystemExit: install x"],
                "import_error",
                0,
            ),
            // A text that says nothing to the rules, and one that does.
            (
                &["ValueError: bad", "SystemExit: cannot go on"],
                "python_exception",
                0,
            ),
            (
                &["ValueError: bad", "SystemExit: CUDA out of memory. Tried"],
                "cuda_out_of_memory",
                1,
            ),
            (
                &["KeyError: 'x'", "ValueError: bad", "SystemExit: 1"],
                "python_exception",
                1,
            ),
            (
                &["ValueError: bad", "SystemExit: 2", "SystemExit: 1"],
                "python_exception",
                0,
            ),
            (
                &["ValueError: bad", "Exit: 1", "SystemExit: 1"],
                "python_exception",
                0,
            ),
            (&["KeyboardInterrupt", "SystemExit: 130"], "interrupted", 0),
            (
                &["KeyboardInterrupt", "ValueError: bad", "SystemExit: 1"],
                "interrupted",
                0,
            ),
            (&[peer, "SystemExit: 1"], "peer_lost", 0),
            (&[peer, "SystemExit: training failed"], "peer_lost", 0),
            (
                &[
                    "SystemExit: 1",
                    "RuntimeError: the tool failed",
                    "SystemExit: 1",
                ],
                "python_exception",
                1,
            ),
            // Nothing was handled but another exit.
            (&["SystemExit: 2"], "exit_without_traceback", 0),
            (&["SystemExit: no data"], "exit_without_traceback", 0),
            (&["Exit: 3", "SystemExit: 3"], "exit_without_traceback", 1),
        ] {
            let finding = exit(texts);
            assert_eq!(finding.rule.category, expected, "{texts:?}");
            assert_eq!(*finding.headline, *texts[about], "{texts:?}");
        }
        assert_eq!(exit(&[peer, "SystemExit: 1"]).rule.role, Role::Collateral);
        let alone = exit(&["SystemExit: 2"]).rule;
        assert_eq!(alone.uniform_category.as_deref(), Some("config_error"));
    }

    #[test]
    fn what_was_raised_while_another_was_handled_is_no_more_than_likely() {
        let full = "OSError: [Errno 28] No space left on device";
        let chain = |first, link, second| texts_of(&traceback(first, link, second));
        let context = "During handling of the above exception, another exception occurred:";
        let cause = "The above exception was the direct cause of the following exception:";
        let finding = chain("ValueError: bad batch", context, full);
        assert_eq!(finding.rule.category, "disk_full");
        assert_eq!(finding.handled.as_deref(), Some("ValueError: bad batch"));
        // What a rule knows to be the cause, what was raised from it, and what programs find their way by.
        for (first, link, second) in [
            (full, context, "ValueError: cannot go on"),
            ("ValueError: bad batch", cause, full),
            ("KeyError: 'cache'", context, full),
        ] {
            let finding = chain(first, link, second);
            assert_eq!(finding.handled, None, "{first} {second}");
            assert_eq!(finding.rule.category, "disk_full", "{first} {second}");
        }
    }

    #[test]
    fn what_a_handler_waited_for_or_could_not_put_away_is_no_cause() {
        const CONTEXT: &str = "During handling of the above exception, another exception occurred:";
        let cause = "The above exception was the direct cause of the following exception:";
        let waited = "RuntimeError: Timed out waiting 8000ms for recv operation to complete";
        let gone = "FileNotFoundError: [Errno 2] No such file or directory: 'part.tmp'";
        let finding = |first: &str, link: &str, second: &str, function: &str| {
            let text = traceback(first, link, second);
            texts_of(&text.replace("line 2, in f", &format!("line 2, in {function}")))
        };
        for (second, function) in [(waited, "step"), (gone, "cleanup"), (gone, "__exit__")] {
            let found = finding("ValueError: bad batch", CONTEXT, second, function);
            assert_eq!(&*found.headline, "ValueError: bad batch", "{second}");
            assert_eq!(found.ended_by.as_deref(), Some(second));
        }
        // What was to do without the first; what was raised from it; what programs find their way by.
        for (first, link, second, function) in [
            ("ValueError: bad batch", CONTEXT, gone, "fall_back"),
            ("ValueError: bad batch", cause, gone, "cleanup"),
            ("KeyError: 'cache'", CONTEXT, waited, "step"),
            ("StopIteration", CONTEXT, waited, "step"),
        ] {
            let found = finding(first, link, second, function);
            assert_eq!(&*found.headline, second, "{first} {function}");
            assert_eq!(found.ended_by, None, "{first} {function}");
        }
    }

    fn texts_of(stack: &str) -> Finding {
        texts(&traceback::chain(stack), stack)
    }

    #[test]
    fn an_exit_in_a_traceback_is_judged_by_what_was_handled() {
        const CONTEXT: &str = "During handling of the above exception, another exception occurred:";
        for (first, second, expected) in [
            (
                "OSError: [Errno 28] No space left on device",
                "SystemExit: 1",
                "disk_full",
            ),
            ("KeyboardInterrupt", "SystemExit: 130", "interrupted"),
            (
                "SystemExit: 1",
                "OSError: [Errno 28] No space left on device",
                "disk_full",
            ),
        ] {
            let text = traceback(first, CONTEXT, second);
            assert_eq!(category(second, &text), expected, "{first} | {second}");
        }
        let text = traceback("KeyError: 'model'", CONTEXT, "SystemExit: 1");
        let failure = Failure {
            callstack: text,
            ..Failure::default()
        };
        assert_eq!(&*classify(&failure).headline, "KeyError: 'model'");
    }

    #[test]
    fn consequences_are_alike_wherever_the_rank_stood() {
        let at = |line: u32, port: u32| {
            let message = format!(
                "RuntimeError: Connection closed by peer [127.0.0.1]:{port}. This is typically"
            );
            let callstack = format!(
                "Traceback (most recent call last):\n  File \"/j/t.py\", line {line}, in main\n{message}\n"
            );
            classify(&Failure {
                message,
                callstack,
                ..Failure::default()
            })
            .fingerprint
        };
        assert_eq!(at(1, 4242), at(2, 17));
        let wrapped = |line: u32| {
            let first = "RuntimeError: Connection closed by peer [1]:2. This";
            let text = traceback(
                first,
                "The above exception was the direct cause of the following exception:",
                "RuntimeError: x",
            );
            let callstack = text.replace("line 1", &format!("line {line}"));
            classify(&Failure {
                message: "RuntimeError: x".into(),
                callstack,
                ..Failure::default()
            })
            .fingerprint
        };
        assert_eq!(wrapped(5), wrapped(6));
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
