//! The end of a rank as its own output tells it: only what stands at the end of it, and only what fits its exit status.

use crate::classify::{self, Finding, Role, rules};
use crate::ending;
use crate::groups::Fingerprint;
use crate::outcome::{Outcome, is_crash, signal_title};
use crate::traceback::{self, FrameRef};
use firstfault_format::signals;

impl Outcome<'_> {
    /// Judges the end of the worker's stderr; returns whether it says anything.
    pub(crate) fn by_output(&mut self) -> bool {
        self.by_crash() || self.by_traceback() || self.by_words()
    }

    /// A rank whose launcher says nothing of how it ended, and that said what it met without an exception.
    fn by_words(&mut self) -> bool {
        if self.evidence.status.is_some() {
            return false;
        }
        let Some((rule, line)) = last_words(&self.evidence.output) else {
            return false;
        };
        self.title = line.to_owned();
        self.worded = true;
        let fingerprint = Fingerprint::of(&rule.category, "", "", std::iter::empty());
        self.set(Finding::plain(rule, fingerprint, self.title.clone()));
        true
    }

    fn by_crash(&mut self) -> bool {
        let text = &self.evidence.output;
        let status = self.evidence.status.as_ref().map(|status| status.value);
        let crashed = status.is_some_and(is_crash);
        let fatal = traceback::fatal(text);
        let what = traceback::terminate(text);
        let named = fatal.as_ref().and_then(|fatal| by_description(fatal.title));
        // Last words of a child are no end of a process that ended otherwise; an interpreter that cannot start ends with 1.
        let fits = match status {
            None => ending::is_near_end(text),
            Some(1) => fatal.is_some() && named.is_none(),
            Some(status) => crashed || (129..160).contains(&status) && is_crash(128 - status),
        };
        if !crashed && !(fits && (fatal.is_some() || what.is_some())) {
            return false;
        }
        let signal = status
            .filter(|status| *status < 0 || *status > 128)
            .map(|status| if status < 0 { -status } else { status - 128 });
        let number = signal.or(named).unwrap_or(6);
        let rules = rules();
        let said = what.map(|(type_name, what)| {
            format!("terminate called after throwing an instance of '{type_name}': {what}")
        });
        let rule = said
            .as_deref()
            .and_then(|said| rules.by_text("", said, ""))
            .or_else(|| Some(last_words(text)?.0));
        let rule = rule.unwrap_or_else(|| rules.by_status(-number));
        if rule.role != Role::Primary
            && let Some(finding) = uncaught_cause(text)
        {
            // It gave up on its way out, over what had ended it before.
            self.title = finding.headline.to_string();
            self.take_status_time();
            self.set(finding);
            return true;
        }
        let frames: Vec<FrameRef<'_>> = fatal.map(|fatal| fatal.frames).unwrap_or_default();
        let name = signal_title(number);
        self.title = match what
            .map(|(_, what)| what)
            .filter(|what| !what.is_empty())
            .or_else(|| Some(last_words(text)?.1))
        {
            Some(what) => format!("{name}: {what}"),
            None => name,
        };
        let fingerprint = Fingerprint::of(
            &rule.category,
            "",
            what.map_or("", |(_, what)| what),
            frames.into_iter(),
        );
        self.agreed = signal.is_some() && signal == named;
        self.take_status_time();
        self.set(Finding::plain(rule, fingerprint, self.title.clone()));
        true
    }

    fn by_traceback(&mut self) -> bool {
        let text = &self.evidence.output;
        let chain = traceback::chain(text);
        if chain.iter().all(|raised| raised.type_name.is_empty()) {
            return false;
        }
        if ending::lines_after(text).is_none_or(|lines| lines > 0) {
            return false;
        }
        let finding = classify::texts(&chain, text);
        if !self.can_end_by(&finding) {
            return false;
        }
        self.title = finding.headline.to_string();
        let status = self.evidence.status.as_ref().map(|status| status.value);
        self.agreed = status
            .is_some_and(|status| finding.rule.category == rules().by_status(status).category);
        self.take_status_time();
        self.set(finding);
        true
    }

    /// Whether a process whose output ends in this exception can have ended with its exit status because of it.
    fn can_end_by(&self, finding: &Finding) -> bool {
        let Some(status) = &self.evidence.status else {
            return true;
        };
        let uncaught = self.evidence.uncaught;
        match status.value {
            1 => true,
            -2 | 130 => finding.rule.id == "interrupted" || uncaught,
            // It may have hung on its way out until its launcher ended it; an exception that was only logged is no end.
            _ if status.by_launcher() => {
                uncaught
                    || matches!(finding.rule.role, Role::Collateral | Role::Timeout)
                    || finding.relay
            }
            value => value > 0 && uncaught,
        }
    }

    /// Returns what an output holds that is not the end of the rank: its last exception, and how many lines before the end.
    pub(crate) fn passing(&self) -> Option<(String, usize)> {
        if self.evidence.record.is_some() {
            return None;
        }
        let text = &self.evidence.output;
        let after = ending::lines_after(text)?;
        let chain = traceback::chain(text);
        let raised = chain.last()?;
        let title = crate::parse::headline(raised.type_name, raised.message);
        let judged = self.finding.as_ref().is_some_and(|finding| {
            chain.iter().any(|raised| {
                crate::parse::headline(raised.type_name, raised.message) == *finding.headline
            })
        });
        (!judged && !raised.type_name.is_empty()).then_some((title, after))
    }
}

/// The exception at the end of an output, where that is a cause by its text.
fn uncaught_cause(text: &str) -> Option<Finding> {
    if ending::lines_after(text)? > 0 {
        return None;
    }
    let finding = classify::texts(&traceback::chain(text), text);
    (finding.rule.role == Role::Primary && !finding.rule.generic).then_some(finding)
}

fn by_description(title: &str) -> Option<i64> {
    // CPython's own names. Source: Modules/faulthandler.c
    let title = if title == "Floating-point exception" {
        "Floating point exception"
    } else {
        title
    };
    signals::SIGNALS
        .iter()
        .find(|signal| signal.description == title)
        .map(|signal| signal.number.into())
}

/// Rules of what libraries print before the process ends, by an abort mostly: those that say most first.
const LAST_WORDS: &[&str] = &[
    "heap-corruption",
    "collective-mismatch",
    "device-assert",
    "gpu-hang",
    "native-assertion",
    WATCHDOGS,
    "infiniband-completion",
    "infiniband-call",
    "nccl-interface",
    "nccl-timeout",
    "nccl-heartbeat",
    "nccl-connect",
    "nccl-take-down",
    "peer-lost-nccl",
];

/// In their order, the rule of whatever ended NCCL's watchdog.
const WATCHDOGS: &str = "";

/// What libraries printed before the process ended.
pub(crate) fn last_words(text: &str) -> Option<(&'static crate::classify::Rule, &str)> {
    let lines = text.lines().rev().map(str::trim);
    let told = lines.filter_map(|line| {
        let rules = rules();
        // Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, `ncclCommWatchdog`
        let ended = line.split_once("watchdog thread terminated with exception: ");
        let rule = rules.by_text("", ended.map_or(line, |(_, what)| what), "")?;
        let place = |wanted: &str| LAST_WORDS.iter().position(|id| *id == wanted);
        let watchdogs = ended.and_then(|_| place(WATCHDOGS));
        Some((place(&rule.id).or(watchdogs)?, rule, line))
    });
    let (_, rule, line) = told.min_by_key(|(order, ..)| *order)?;
    Some((rule, line))
}
