//! What the end of a process's output tells: judged as it is read, so that its text need not be kept. The outputs of ten
//! thousand ranks that left no record would be gigabytes.

use crate::classify::{self, Finding, Role, Rule, rules};
use crate::failure::Frame;
use crate::groups::Fingerprint;
use crate::kept::Shared;
use crate::parse::{begin, headline};
use crate::traceback;
use crate::watchdog::{Place, places};
use crate::{ending, kept, reported};
use memchr::{memchr_iter, memmem, memrchr};
use std::collections::BTreeMap;
use std::sync::Arc;

/// So much of a text is kept, in bytes: what a report shows of one at most.
const MAX_TEXT: usize = 4096;

/// What an output tells of the end of its process.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// What faulthandler dumped last: its title, and the frames that tell where, innermost first.
    pub(crate) fatal: Option<(String, Arc<[Frame]>)>,
    /// The C++ exception that `std::terminate` reported last: its type and `what()`.
    pub(crate) terminate: Option<(String, String)>,
    /// Whether little follows the last words of a crash.
    pub(crate) near_end: bool,
    /// What glibc, gloo or NCCL's watchdog printed before the process aborted, and the first line that says it.
    pub(crate) last: Option<LastWords>,
    /// What the program tells of without a traceback.
    pub(crate) reported: Option<Box<Reported>>,
    /// Whether C++ gave up over a thread that still ran, as it does where Python ends while others wait.
    pub(crate) left_thread: bool,
    /// The last chain of exceptions, deepest first.
    pub(crate) chain: Vec<Told>,
    /// How many lines of other output follow the last traceback; `None` where there is no traceback.
    pub(crate) after: Option<usize>,
    /// What the rules make of the chain, where nothing follows it.
    pub(crate) finding: Option<Finding>,
    /// Where its watchdog says that the rank stood, by groups.
    pub(crate) places: BTreeMap<String, Place>,
    /// The first line of a crash, the first that says what `finding` is about, and the last that is not empty.
    pub(crate) crash_line: Option<Line>,
    pub(crate) finding_line: Option<Line>,
    pub(crate) end_line: Option<Line>,
}

/// A line that a rule knows.
#[derive(Debug)]
pub(crate) struct LastWords {
    pub(crate) rule: &'static Rule,
    pub(crate) text: String,
    pub(crate) line: Option<Line>,
}

/// Errors that a program tells of in its own words, where no traceback does.
#[derive(Debug)]
pub(crate) struct Reported {
    /// That it lost a peer, or waited for one in vain.
    pub(crate) consequence: Option<LastWords>,
    /// Another.
    pub(crate) own: Option<LastWords>,
    /// Whether that is the last.
    pub(crate) own_is_last: bool,
    /// Whether nothing follows it.
    pub(crate) own_is_end: bool,
}

/// One exception of a chain.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) headline: Box<str>,
    pub(crate) is_typed: bool,
    /// The frames that tell where, innermost first.
    pub(crate) frames: Arc<[Frame]>,
}

/// A line of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Where it begins in the text.
    pub(crate) at: usize,
    /// Its number in its file, from 1; 0 where only the end of the file was read.
    pub(crate) number: usize,
    /// Itself, without blanks around it.
    pub(crate) text: String,
}

impl Words {
    /// Returns what a text tells; nothing of an empty one. `number` is that in its file of a line of the text, which is
    /// counted from 0.
    pub(crate) fn of(
        text: &str,
        number: impl Fn(usize) -> usize,
        shared: &Shared,
    ) -> Option<Box<Self>> {
        if text.is_empty() {
            return None;
        }
        let line = |at: usize| Line::at(text, at, &number);
        let terminate = traceback::terminate(text);
        let fatal = traceback::fatal(text);
        let chain = traceback::chain(text);
        let after = ending::lines_after(text);
        let is_typed = chain.iter().any(|raised| !raised.type_name.is_empty());
        let finding = (is_typed && after == Some(0)).then(|| classify::texts(&chain, text));
        let finding = finding.map(|finding| Finding {
            handled: finding
                .handled
                .or_else(|| traceback::is_of_handler(text).then(|| "its text is not here".into())),
            ..finding
        });
        let warned = finding.as_ref().and_then(|it| warned_cause(it, text));
        let (warned_at, finding) = match warned {
            Some((at, cause)) => (Some(at), Some(cause)),
            None => (None, finding),
        };
        let finding = finding.map(|finding| Finding {
            headline: begin(&finding.headline, MAX_TEXT).into(),
            pointers: match &finding.pointers[..] {
                [] if finding.rule.role == Role::Collateral => barriers_pointers(text),
                _ => finding.pointers,
            },
            ..finding
        });
        let says = |headline: &str| first_saying(text, headline).map(line);
        let silent = chain.is_empty() && fatal.is_none() && terminate.is_none();
        let reported = silent.then(|| Reported::of(text, line)).flatten();
        Some(Box::new(Self {
            near_end: (fatal.is_some() || terminate.is_some()) && ending::is_near_end(text),
            fatal: fatal.map(|fatal| {
                let frames = shared.stack(&kept::telling(fatal.frames));
                (fatal.title.to_owned(), frames)
            }),
            terminate: terminate.map(|(type_name, what)| (type_name.to_owned(), what.to_owned())),
            last: last_words(text)
                .or_else(|| waits(text))
                .map(|(rule, said)| LastWords {
                    rule,
                    text: begin(said, MAX_TEXT).to_owned(),
                    line: says(said),
                }),
            reported: reported.map(Box::new),
            left_thread: leaves_thread(text),
            chain: chain
                .into_iter()
                .map(|raised| Told {
                    headline: begin(&headline(raised.type_name, raised.message), MAX_TEXT).into(),
                    is_typed: !raised.type_name.is_empty(),
                    frames: shared.stack(&kept::telling(raised.frames)),
                })
                .collect(),
            after,
            places: places(text),
            crash_line: traceback::first_crash_line(text).map(line),
            finding_line: warned_at.map(line).or_else(|| {
                let headline = &finding.as_ref()?.headline;
                says(headline.lines().next()?)
            }),
            finding,
            end_line: Some(text.trim_end().len())
                .filter(|end| *end > 0)
                .map(|end| line(end - 1)),
        }))
    }

    /// Returns what the rules make of the exception at the end, where that is a cause by its text.
    pub(crate) fn uncaught_cause(&self) -> Option<&Finding> {
        let finding = self.finding.as_ref();
        finding.filter(|it| it.rule.role == Role::Primary && !it.rule.generic)
    }

    /// Takes the last exception of the text that these are of for the end, though something follows it.
    pub(crate) fn take_passing(&mut self, text: &str) {
        let chain = traceback::chain(text);
        if chain.iter().any(|raised| !raised.type_name.is_empty()) {
            self.finding = Some(classify::texts(&chain, text));
        }
    }

    /// Whether they are those of a program that goes on, with nothing that may be an end.
    pub(crate) fn say_nothing(&self) -> bool {
        let dies = self.fatal.is_some() || self.terminate.is_some() || self.left_thread;
        let tells = self.last.is_some() || self.reported.is_some() || !self.places.is_empty();
        !dies && !tells && self.chain.is_empty()
    }

    /// Returns the frames of the exception that a finding is about; of the outermost where that one has none.
    pub(crate) fn frames_of(&self, about: &str) -> &[Frame] {
        let is_it = |told: &&Told| !told.frames.is_empty() && *told.headline == *about;
        let told = self.chain.iter().find(is_it).or(self.chain.last());
        told.map_or(&[], |told| &told.frames)
    }

    /// Returns what the rules make of its end, where that is that it lost a peer or waited for one in vain.
    pub(crate) fn consequence(&self) -> Option<&'static Rule> {
        let reported = self.reported.as_ref();
        let reported = reported.and_then(|it| it.consequence.as_ref());
        let rule = self.finding.as_ref().map(|finding| finding.rule);
        let rule = rule.or(reported.map(|told| told.rule));
        rule.filter(|rule| matches!(rule.role, Role::Collateral | Role::Timeout))
    }

    /// Returns the first line that tells of a crash, or says what a finding is about.
    pub(crate) fn telling_line(&self, about: &str) -> Option<&Line> {
        let of_finding = self.finding.as_ref().filter(|it| *it.headline == *about);
        let of_finding = of_finding.and(self.finding_line.as_ref());
        let last = self.last.as_ref().filter(|last| last.text == about);
        let last = last.and_then(|last| last.line.as_ref());
        let own = self.reported.as_ref();
        let own = own.and_then(|it| it.own.as_ref()?.line.as_ref());
        let told = [self.crash_line.as_ref(), of_finding, last, own];
        told.into_iter().flatten().min_by_key(|line| line.at)
    }
}

/// Whether a text ends with that word of C++; Python writes little after it.
fn leaves_thread(text: &str) -> bool {
    const TAIL: usize = 2048;
    let tail = &text.as_bytes()[text.len().saturating_sub(TAIL)..];
    memmem::find(tail, LEFT_THREAD.as_bytes()).is_some()
}

impl Reported {
    fn of(text: &str, line: impl Fn(usize) -> Line) -> Option<Self> {
        let found = reported::of(text);
        let told = |rule, said: &str| {
            let at = said.as_ptr().addr() - text.as_ptr().addr();
            LastWords {
                rule,
                text: begin(said, MAX_TEXT).to_owned(),
                line: Some(line(at)),
            }
        };
        let speaks = found.consequence.is_some() || found.own.is_some();
        speaks.then(|| Self {
            consequence: found.consequence.map(|(rule, said)| told(rule, said)),
            own: found.own.map(|said| told(rule_of_own(said), said)),
            own_is_last: found.own_is_last,
            own_is_end: found.own_is_end,
        })
    }
}

/// Returns the rule of an error that a program tells of in a line: by what it says, else by the exception that it shows.
fn rule_of_own(said: &str) -> &'static Rule {
    let known = rules().by_text("", said, "");
    let known = known.filter(|rule| !rule.generic && rule.role == Role::Primary);
    known.unwrap_or_else(|| {
        let shown = reported::shows_class(said);
        rules().by_id(if shown { "printed-exception" } else { "exit" })
    })
}

/// Returns what was said before an exception that is made of an error code, where that is a cause by its text, and where
/// it stands: what NCCL warned of, that a device stopped over NaN, or that the name of the store's host is not known.
///
/// The exception made of NCCL's code repeats one warning at most, which may be that of a connection to its own proxy, and
/// none where NCCL or torch is old. Source: nccl/src/include/checks.h, torch/csrc/distributed/c10d/NCCLUtils.cpp
fn warned_cause(finding: &Finding, text: &str) -> Option<(usize, Finding)> {
    let said_before = match finding.rule.id.as_str() {
        "nccl-cuda" if text.contains(NCCLS_LAST) && !text.contains("NCCL WARN ") => NCCLS_LAST,
        "nccl-cuda" | "nccl-allocation" | "nccl-system" | "nccl-internal" => "NCCL WARN ",
        "device-assert" => "checkForNaN: ",
        "init-timeout" | "rendezvous-unreachable" => "network addresses of (",
        _ => return None,
    };
    // A name that was not known at first may be known later, and one without an address of IPv6 may have one of IPv4, at
    // which then nobody answers. Source: torch/csrc/distributed/c10d/socket.cpp, `SocketConnectOp`
    let answers = || memmem::find(text.as_bytes(), b" has failed to connect to [").is_some();
    let of_store = finding.rule.role == Role::Timeout;
    if of_store && (answers() || !warned_at_the_end(text, said_before)) {
        return None;
    }
    let warnings = memmem::rfind_iter(text.as_bytes(), said_before);
    let mut causes = warnings.filter_map(|at| {
        let said = text[at..].trim_start_matches("Last error:\n");
        let said = said.lines().next()?.trim();
        let rule = rules().by_text("", said, "")?;
        let is_cause = rule.role == Role::Primary || said_before == NCCLS_LAST;
        let is_cause = is_cause && !rule.generic && !rule.job;
        is_cause.then_some((at, rule, said))
    });
    let (at, rule, said) = causes.next()?;
    let fingerprint = Fingerprint::of(&rule.category, "", said, std::iter::empty());
    // The name of a host that is gone is forgotten, and who waits for it may be a victim.
    let ended_by = of_store.then(|| Arc::clone(&finding.headline));
    let warned = Finding::plain(rule, fingerprint, said.to_owned());
    Some((at, Finding { ended_by, ..warned }))
}

/// Whether the last such warning of the store's client came as it gave up, by the time that torch's logger puts first.
fn warned_at_the_end(text: &str, warning: &str) -> bool {
    const TOGETHER: u32 = 2;
    let clock = |line: &str| -> Option<u32> {
        let time = line.split(' ').nth(1)?;
        let mut parts = time
            .splitn(3, ':')
            .map(|part| part.split('.').next()?.parse().ok());
        let (hours, minutes, seconds): (u32, u32, u32) =
            (parts.next()??, parts.next()??, parts.next()??);
        hours
            .checked_mul(3600)?
            .checked_add(minutes.checked_mul(60)?)?
            .checked_add(seconds)
    };
    let mut lines = text.lines().rev();
    let gave_up =
        lines.find(|line| line.starts_with("[E") && line.contains("client socket has timed out"));
    let warned = lines.find(|line| line.contains(warning));
    match (warned.and_then(clock), gave_up.and_then(clock)) {
        (Some(warned), Some(gave_up)) => gave_up.wrapping_sub(warned) <= TOGETHER,
        _ => false,
    }
}

impl Line {
    /// Returns the line in which an offset of a text lies.
    fn at(text: &str, at: usize, number: &impl Fn(usize) -> usize) -> Self {
        let bytes = text.as_bytes();
        let start = memrchr(b'\n', &bytes[..at]).map_or(0, |newline| newline + 1);
        let line = text[start..].lines().next().unwrap_or("");
        Self {
            at: start,
            number: number(memchr_iter(b'\n', &bytes[..start]).count()),
            text: begin(line.trim(), MAX_TEXT).to_owned(),
        }
    }
}

/// Returns where the first line is that says no more and no less than a headline.
fn first_saying(text: &str, about: &str) -> Option<usize> {
    let says = |line: &str| {
        let (type_name, message) = traceback::split(line);
        headline(type_name, message) == about
    };
    // Whatever class a line names with its module, the headline is a part of it.
    let mut found = memmem::find_iter(text.as_bytes(), about).filter(|_| !about.is_empty());
    found.find(|&at| {
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        text[start..]
            .lines()
            .next()
            .is_some_and(|line| says(line.trim_end()))
    })
}

/// Rules of what libraries print before the process ends, by an abort mostly: those that say most first.
const LAST_WORDS: &[&str] = &[
    "interpreter-module",
    "interpreter-file",
    "heap-corruption",
    "collective-mismatch",
    "nan-in-collective",
    LOSS_STOP,
    "device-assert",
    "gpu-hang",
    "rocm-access-fault",
    "rocm-queue",
    "accelerator-resources",
    "rocblas-library",
    "mixed-libraries",
    "sanitizer",
    "allocation-failed",
    "native-assertion",
    "fatal-log",
    "native-abort",
    WATCHDOGS,
    NCCL_OF_CUDA,
    "nccl-ranks",
    "infiniband-memlock",
    "infiniband-completion",
    "fabric-completion",
    "fabric-call",
    "network-plugin",
    "infiniband-call",
    "fabric-connection",
    "hccl-port",
    "hccl-timeout",
    "hccl-peer-missing",
    "hccl-network",
    "hccl",
    "nccl-interface",
    "nccl-segment",
    "nccl-short-limit",
    "nccl-timeout",
    "nccl-heartbeat",
    "nccl-no-route",
    "nccl-connect",
    "nccl-take-down",
    "peer-lost-nccl",
    "nccl-peer-reset",
    "monitored-barrier",
    "monitored-barrier-waits",
    BARRIERS_VICTIM,
    "fabric-peer-lost",
    "neuron-collectives",
    "neuron-runtime",
    "nccl-network-missing",
    "nccl-arguments",
    "segfault",
    "bus-error",
    "illegal-instruction",
    "floating-point",
    "abort",
    "usage",
    "hydra-usage",
];

/// The rule of what a program says before it leaves by an exit code, over what its loss is.
pub(crate) const LOSS_STOP: &str = "loss-stop";

/// The rule of what rank 0 let down in a monitored barrier; the lines after it say how.
const BARRIERS_VICTIM: &str = "monitored-barrier-victim";

/// How many lines such a message has at most. Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, `monitoredBarrier`
const BARRIERS_LINES: usize = 3;

/// The rule of a process that waits for others to start.
const WAITS: &str = "store-barrier-waits";

/// The rule of processes that have all met, and say nothing after that.
const ALL_MET: &str = "all-registered";

/// Whether a rule tells something only where it is the last that is said.
pub(crate) fn is_wait(rule: &Rule) -> bool {
    [WAITS, ALL_MET].contains(&rule.id.as_str())
}

/// In their order, the rule of whatever ended NCCL's watchdog.
const WATCHDOGS: &str = "";

/// What C++ says as it gives up over a thread that is neither joined nor detached. Source: gcc/libstdc++-v3, vterminate.cc
const LEFT_THREAD: &str = "terminate called without an active exception";

/// The rule of whatever error of CUDA made a call of NCCL fail.
const NCCL_OF_CUDA: &str = "nccl-cuda";

/// Before that error. Source: nccl/src/include/checks.h, `CUDACHECK`
const CUDA_FAILED: &[&str] = &["NCCL WARN Cuda failure ", "NCCL WARN HIP failure "];

/// Before the last of its errors, which an exception of torch ends in. Source: torch/csrc/distributed/c10d/NCCLUtils.cpp
const NCCLS_LAST: &str = "Last error:\nFailed to CUDA ";

/// Before what ended it. Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, `ncclCommWatchdog`
const WATCHDOG_ENDED: &str = "watchdog thread terminated with exception: ";

/// Returns that a process waits for others, where that is the last that it said.
fn waits(text: &str) -> Option<(&'static Rule, &str)> {
    let said = text.trim_end().lines().next_back()?.trim();
    let rule = rules().by_text("", said, "")?;
    is_wait(rule).then_some((rule, said))
}

/// Returns the rule of a victim's message that begins with a text and goes on with what it met.
fn barriers_victim(text: &str) -> Option<&'static Rule> {
    let message: Vec<&str> = text.lines().take(BARRIERS_LINES).collect();
    rules().by_text("", &message.join("\n"), "")
}

/// Returns whom rank 0's monitored barrier let down, where that is told above the exception that a program made of it.
fn barriers_pointers(text: &str) -> Vec<u32> {
    const WORDS: &str = "successfully reached monitoredBarrier, but received errors";
    let rule = rules().by_id(BARRIERS_VICTIM);
    // Outputs are long, and few have such a line.
    let all = memmem::find_iter(text.as_bytes(), WORDS);
    let lines = all.filter_map(|at| {
        let start = memrchr(b'\n', &text.as_bytes()[..at]).map_or(0, |newline| newline + 1);
        text[start..].lines().next()
    });
    lines.flat_map(|line| rule.pointers(line)).collect()
}

/// What libraries printed before the process ended.
pub(crate) fn last_words(text: &str) -> Option<(&'static Rule, &str)> {
    let place = |wanted: &str| LAST_WORDS.iter().position(|id| *id == wanted);
    let mut told: Option<(usize, &'static Rule, &str)> = None;
    let mut done = 0;
    for at in rules().literals_of(LAST_WORDS, WATCHDOG_ENDED, text) {
        if at < done {
            continue;
        }
        let start = memrchr(b'\n', &text.as_bytes()[..at]).map_or(0, |newline| newline + 1);
        let line = text[start..].lines().next().unwrap_or("");
        done = start + line.len();
        let line = line.trim();
        let ended = line.split_once(WATCHDOG_ENDED).map(|(_, what)| what);
        let Some(rule) = rules().by_text("", ended.unwrap_or(line), "") else {
            continue;
        };
        let rule = match rule.id.as_str() {
            BARRIERS_VICTIM => barriers_victim(&text[start..]).unwrap_or(rule),
            _ => rule,
        };
        let by_cuda = || CUDA_FAILED.iter().any(|words| line.contains(words));
        let order = place(&rule.id)
            .or_else(|| ended.and_then(|_| place(WATCHDOGS)))
            .or_else(|| by_cuda().then(|| place(NCCL_OF_CUDA)).flatten());
        // Of several the last that says most.
        if let Some(order) = order.filter(|order| told.is_none_or(|(least, ..)| *order <= least)) {
            told = Some((order, rule, line));
        }
    }
    told.map(|(_, rule, line)| (rule, line))
}
