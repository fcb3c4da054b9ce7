//! What a log says of a failure of which nothing tells whose it was: the last resort, where no rank is known to have failed.

use crate::classify::{self, Role, Rule, rules};
use crate::decide::{Attempt, Decision, Subject};
use crate::ending::{is_ignored, is_teardown, shape};
use crate::outcome::Outcome;
use crate::reported::{is_error, shows_class};
use crate::schema::Confidence;
use crate::traceback::{chain, has_start, is_headline, is_start, split};
use crate::words::is_wait;
use std::path::{Path, PathBuf};

/// A line that says what failed, and not whose it is.
#[derive(Debug)]
pub(crate) struct Hearsay {
    pub(crate) rule: &'static Rule,
    pub(crate) line: String,
    path: PathBuf,
    /// Its number in the log, from 1.
    number: usize,
    /// The rank that a launcher names in the same log.
    pub(crate) rank: Option<u32>,
    /// The rank on a host that its label tells, where nothing tells which host.
    pub(crate) local_rank: Option<u32>,
}

/// A program that went on says more than this after what it survived.
const LAST_LINES: usize = 40;

/// At most so many lines are looked at, those of teardowns with them.
const MOST_LINES: usize = 1000;

/// How little a line says that no rule knows: see `judged`.
const REPORTED: usize = 5;

/// Rules of launchers that tell by its number of a worker that is gone, and the words of each.
const GONE: &[(&str, &str)] = &[
    ("ray-train-worker", " has failed."),
    ("vllm-worker-died", " died unexpectedly"),
];

/// Decisions that say no more than that somebody failed, by rule.
const VAGUE: &[&str] = &["silent", "exit"];

/// Returns the index of the line among the last of a text that says most of a failure, and the rule of it.
pub(crate) fn last(text: &str) -> Option<(usize, &'static Rule)> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut own, mut waiting) = (0, 0);
    let mut best: Option<((usize, usize), &'static Rule)> = None;
    for (back, line) in lines.iter().rev().take(MOST_LINES).enumerate() {
        let index = lines.len() - 1 - back;
        if is_of_ignored(&lines[..index]) {
            continue;
        }
        let judged = judged(line);
        let waits = judged.is_some_and(|(_, rule)| is_wait(rule));
        let judged = judged.filter(|_| own == waiting || !waits);
        // What is told as an error, and no rule knows, ends a program where nothing follows it.
        let reported =
            || (own == 0 && !line.starts_with(' ') && is_error(line)).then(|| (REPORTED, exit()));
        if let Some((order, rule)) = judged.or_else(reported)
            && best.is_none_or(|((known, _), _)| order < known)
        {
            best = Some(((order, index), rule));
        }
        own += usize::from(is_own(line));
        // That it waits is said of a process that says nothing else after it.
        waiting += usize::from(is_own(line) && waits);
        if own > LAST_LINES {
            break;
        }
    }
    let ((_, index), rule) = best?;
    // Those who waited for a worker that is gone may go on to say so.
    let is_gone = GONE.iter().any(|(id, _)| *id == rule.id);
    (is_gone || !went_on(&lines, index)).then_some((index, rule))
}

/// Whether a line that follows these is the last of an exception that Python ignores.
fn is_of_ignored(before: &[&str]) -> bool {
    const MOST_FRAMES: usize = 100;
    let stack = before.iter().rev().take(MOST_FRAMES);
    let mut above = stack.skip_while(|line| line.starts_with(' '));
    match above.next() {
        Some(line) if is_start(line.trim()) => above.next().is_some_and(|line| is_ignored(line)),
        Some(line) => is_ignored(line),
        None => false,
    }
}

/// Whether a loop that had begun before a line goes on after it to the end of the log: then what it tells of was survived.
fn went_on(lines: &[&str], at: usize) -> bool {
    const LEAST: usize = 3;
    let own = |lines: &[&str]| -> Vec<String> {
        let own = lines.iter().rev().filter(|line| is_own(line));
        own.take(LAST_LINES).map(|line| shape(line)).collect()
    };
    let after = own(&lines[at + 1..]);
    let Some(last) = after.first().filter(|last| last.contains('#')) else {
        return false;
    };
    let same = after.iter().filter(|shape| *shape == last).count();
    same >= LEAST && own(&lines[..at]).contains(last)
}

/// Returns the one rank of which a launcher says, in no more than that, that it failed.
pub(crate) fn named_rank(text: &str) -> Option<u32> {
    let of_rule = |(id, words): &'static (&str, &str)| {
        let rule = rules().by_id(id);
        let lines = text.lines().filter(move |line| line.contains(words));
        lines.flat_map(|line| rule.pointers(line))
    };
    let mut named = GONE.iter().flat_map(of_rule);
    let first = named.next()?;
    named.all(|rank| rank == first).then_some(first)
}

/// Whether a line is a program's own, of the kind that follows what it survived.
fn is_own(line: &str) -> bool {
    !line.starts_with(' ') && line.contains(char::is_alphanumeric) && !is_teardown(line)
}

/// Whether what stands in the lines before these may be the end of their log.
pub(crate) fn is_near_end(after: &[&str]) -> bool {
    after
        .iter()
        .filter(|line| is_own(line))
        .nth(LAST_LINES)
        .is_none()
}

/// The rule of a program that leaves by itself.
fn exit() -> &'static Rule {
    rules().by_id("exit")
}

/// Returns the rule of a line that tells of an error, and how little it says: 0 is most.
fn judged(line: &str) -> Option<(usize, &'static Rule)> {
    const LOOKS: &[&str] = &[
        "Error",
        "ERROR",
        "error:",
        "FATAL",
        "CRITICAL",
        "Exception",
        "Interrupt",
        "NCCL WARN",
        "with error",
        "retrying (",
        "[E",
        "[F",
        "undefined symbol",
        "Fatal",
        "NVRM: Xid ",
        "EI00",
        "EJ00",
        "EL00",
        "(errno: 110 - ",
        "(errno: 113 - ",
        " has failed.",
        "Waiting in store based barrier",
        "GLOBAL_RANK: ",
        "processes registered. Starting ",
        "stopping training",
        "Failed to modify QP",
        "MPI process",
        "MPI communication",
        "mca_btl_",
        "reason=[",
        "libfabric:",
        "*** SIG",
        "Abort was called at ",
        "Message truncated : received ",
        "nvshmem setup connections failed",
        "connect EPS failed",
    ];
    let line = line.trim();
    if !LOOKS.iter().any(|look| line.contains(look)) {
        return None;
    }
    let rule = match call_stack(line) {
        Some(stack) => classify::texts(&chain(&stack), &stack).rule,
        None => {
            let exception = is_headline(line);
            let class = if exception { split(line).0 } else { "" };
            let rule = rules().by_text(class, line, "");
            let shown = || exception || shows_class(line);
            let id = if exception {
                "exception"
            } else {
                "printed-exception"
            };
            rule.or_else(|| shown().then(|| rules().by_id(id)))?
        }
    };
    let order = match rule.role {
        // That a peer was lost is said of whatever ended that.
        Role::Collateral => 6,
        _ if rule.generic => 4,
        Role::Primary => 0,
        Role::Ambiguous => 1,
        Role::Timeout => 2,
        Role::Host => 3,
    };
    Some((order, rule))
}

/// Reads the traceback in an error file's JSON that torchrun prints into its log, line by line.
///
/// Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py
fn call_stack(line: &str) -> Option<String> {
    let value = line.strip_prefix("\"py_callstack\": ")?;
    let stack: String = serde_json::from_str(value.trim_end_matches(',')).ok()?;
    has_start(&stack).then_some(stack)
}

impl Hearsay {
    /// Whether it tells of a cause that no other failure explains.
    pub(crate) fn is_cause(&self) -> bool {
        self.rule.role == Role::Primary && !self.rule.generic
    }

    /// Returns what is said in some lines of a log, whose numbers these are.
    pub(crate) fn of(path: &Path, text: &str, numbers: &[usize]) -> Option<Self> {
        let (index, rule) = last(text)?;
        Some(Self {
            rule,
            line: text.lines().nth(index)?.trim().to_owned(),
            path: path.to_owned(),
            number: numbers.get(index).copied().unwrap_or(0),
            rank: None,
            local_rank: None,
        })
    }
}

impl Attempt<'_> {
    /// Returns the decision, with what is said of nobody where it says nothing.
    pub(crate) fn by_nobodys_words(&self, decision: Option<Decision>) -> Option<Decision> {
        if self.job.succeeded || self.job.attempts.len() > 1 {
            return decision;
        }
        let vague = |decision: &Decision| {
            let is_vague = VAGUE.contains(&decision.rule.id.as_str());
            let sure = decision.confidence;
            sure == Confidence::None || is_vague && sure <= Confidence::Low
        };
        if !decision.as_ref().is_none_or(vague) {
            return decision;
        }
        let said = self.job.hearsay.iter();
        let Some(words) =
            said.min_by_key(|words| judged(&words.line).map_or(REPORTED, |(order, _)| order))
        else {
            return decision;
        };
        // Where the ranks that are known tell of nothing but consequences, or of nothing, an error of one that spoke as well
        // may be the cause.
        let nobody = |decision: &Decision| decision.confidence == Confidence::None;
        let names_none = |decision: &Decision| {
            nobody(decision) || matches!(decision.subject, Subject::Uniform(_) | Subject::Job(_))
        };
        let is_others = words.local_rank.is_some() && words.rule.role == Role::Primary;
        let decision = decision.filter(|it| !(names_none(it) && is_others));
        let name = words.path.file_name().unwrap_or_default().to_string_lossy();
        let whose = match (words.rank, words.local_rank) {
            (Some(_), _) => "its launcher names it, and says no more than this".to_owned(),
            (None, Some(local)) => format!("local rank {local} says, nothing tells on which host"),
            (None, None) => "nothing tells whose words these are".to_owned(),
        };
        let line = crate::verdict::first_line(&words.line);
        let reason = format!("{whose}: {line} ({name}:{})", words.number);
        // A generic rule says no more than that there was an exception, which a status tells as well.
        if let Some(known) = decision
            .as_ref()
            .filter(|it| nobody(it) || words.rule.generic)
        {
            let is_own = !nobody(known) && words.rule.role == Role::Primary;
            return decision.map(|mut decision| {
                decision.reasons.splice(0..0, is_own.then_some(reason));
                decision
            });
        }
        let can_be = |outcome: &&Outcome<'_>| {
            words.local_rank.is_some() && outcome.evidence.local_rank == words.local_rank
        };
        let suspects = self.outcomes.values().filter(can_be);
        let why = "it is one of those that can have said so";
        let before = decision.unwrap_or_else(|| Decision {
            subject: Subject::Job(None),
            rule: words.rule,
            confidence: Confidence::Low,
            also: Vec::new(),
            suspects: suspects
                .map(|it| (it.evidence.rank, why.to_owned()))
                .collect(),
            reasons: Vec::new(),
        });
        let reasons = [reason].into_iter().chain(before.reasons).collect();
        Some(Decision {
            subject: words.rank.map_or(before.subject, Subject::Rank),
            rule: words.rule,
            confidence: Confidence::Low,
            reasons,
            ..before
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(usize, &'static str)> {
        last(text).map(|(index, rule)| (index, rule.id.as_str()))
    }

    #[test]
    fn the_line_that_says_most_is_taken() {
        let text = "step 1\n[ERROR] rank lost: NCCL error: unhandled system error\nERROR: insufficient shared memory (shm).\nKeyError: 'a'\n";
        assert_eq!(read(text), Some((2, "shared-memory")));
        assert_eq!(read("ValueError: x\n"), Some((0, "program-error")));
        assert_eq!(read("Whatever.SomeError: x\n"), Some((0, "exception")));
    }

    #[test]
    fn an_error_files_call_stack_is_read_in_a_log() {
        let stack = "Traceback (most recent call last):\\n  File \\\"/t/elastic/rendezvous/c10d_rendezvous_backend.py\\\", line 146, in _create_tcp_store\\n    host\\nRuntimeError: connect() timed out. Original timeout was 60000 ms.\\n\\nThe above exception was the direct cause of the following exception:\\n\\nTraceback (most recent call last):\\n  File \\\"/t/run.py\\\", line 1, in main\\n    f()\\nRendezvousConnectionError: The connection to the C10d store has failed.\\n";
        let text = format!(
            "[ERROR] error_handler: {{\n    \"message\": \"RendezvousConnectionError: The connection to the C10d store has failed.\",\n      \"py_callstack\": \"{stack}\",\n"
        );
        assert_eq!(read(&text), Some((2, "rendezvous-unreachable")));
    }

    #[test]
    fn an_unreachable_store_may_be_all_that_is_told() {
        let warning = "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node0]:43461 (errno: 113 - No route to host).\n";
        assert_eq!(read(warning), Some((0, "store-unreachable")));
        assert_eq!(read(&warning.replace("113", "99")), None);
    }

    #[test]
    fn what_python_ignores_is_told_by_nobody() {
        let error = "FileNotFoundError: [Errno 2] No such file or directory: 'a'\n";
        let stack = "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n";
        for ignored in [
            "Exception ignored in atexit callback: <built-in function unlink>\n".to_owned(),
            format!("Exception ignored in: <function f at 0x1>\n{stack}"),
        ] {
            assert_eq!(read(&format!("step 1\n{ignored}{error}")), None);
            let text = format!("{error}{ignored}{error}");
            assert_eq!(read(&text), Some((0, "missing-file")));
        }
        assert!(read(&format!("{stack}{error}")).is_some());
    }

    #[test]
    fn a_wait_is_told_where_nothing_follows_it() {
        let waits = "Waiting in store based barrier to initialize process group for rank: 0, key: x (world_size=2)\n".repeat(2);
        assert_eq!(read(&waits), Some((1, "store-barrier-waits")));
        assert_eq!(read(&format!("{waits}step 1\n")), None);
        let met = format!(
            "{waits}All distributed processes registered. Starting with 2 processes\n---\n"
        );
        assert_eq!(read(&met), Some((2, "all-registered")));
        assert_eq!(read(&format!("{met}step 1\n")), None);
    }

    #[test]
    fn what_was_survived_is_no_end() {
        let text = format!(
            "[ERROR] CUDA out of memory. retrying\n{}",
            "step\n".repeat(60)
        );
        assert_eq!(read(&text), None);
        assert_eq!(read("INFO CUDA out of memory. is caught below\n"), None);
    }

    #[test]
    fn that_a_peer_was_lost_says_less_than_what_ended_it() {
        let lost = "training failed: RuntimeError: [/g/pair.cc:561] Connection closed by peer [10.1.0.12]:58534\n";
        for (own, rule) in [
            (
                "training failed: IndexError: list index out of range\n",
                "printed-exception",
            ),
            (
                "training failed: OSError: [Errno 28] No space left on device\n",
                "disk-full",
            ),
        ] {
            assert_eq!(read(&format!("{own}{lost}")), Some((0, rule)));
            assert_eq!(read(&format!("{lost}{own}")), Some((1, rule)));
        }
        assert_eq!(read(lost), Some((0, "peer-lost-gloo")));
    }

    #[test]
    fn a_loop_that_goes_on_has_survived() {
        let error = "ERROR:root:skipping a line\nValueError: x\n";
        let steps = |from: u32, to: u32| -> String {
            (from..to)
                .map(|step| format!("step {step} loss 0.{step}\n"))
                .collect()
        };
        let text = |after: &str| format!("{}{error}{after}", steps(0, 2));
        assert_eq!(read(&text(&steps(2, 6))), None);
        // Another's last steps; a loop that had not begun; and one that failed in the end.
        assert!(read(&text(&steps(2, 4))).is_some());
        assert!(read(&format!("{error}{}", steps(2, 6))).is_some());
        assert!(read(&text(&(steps(2, 6) + "lost\n"))).is_some());
    }

    #[test]
    fn what_a_logger_calls_an_error_at_the_end_may_be_all_that_is_told() {
        let error = "2026-11-30 14:34:53,652 ERROR trainer.data: no samples\n";
        assert_eq!(read(error), Some((0, "exit")));
        assert_eq!(read(&format!("{error}step 2\n")), None);
    }
}
