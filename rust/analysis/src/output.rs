//! The end of a rank as its own output tells it: only what stands at the end of it, and only what fits its exit status.

use crate::classify::{Finding, Role, rules};
use crate::failure::Frame;
use crate::groups::Fingerprint;
use crate::outcome::{Outcome, is_crash, signal_title};
use crate::words::{LOSS_STOP, Words};
use firstfault_format::signals;
use std::sync::Arc;

impl Outcome<'_> {
    /// Judges the end of the worker's stderr; returns whether it says anything.
    pub(crate) fn by_output(&mut self) -> bool {
        self.by_crash()
            || self.is_relayed() && self.by_words()
            || self.by_traceback()
            || self.by_words()
            || self.by_report()
    }

    /// Whether its last exception is no more than a launcher's word on a program that had said its own.
    fn is_relayed(&self) -> bool {
        const RELAYS: &[&str] = &["launcher-relay", "platform-relay"];
        let words = self.evidence.words.as_ref();
        let finding = words.and_then(|words| words.finding.as_ref());
        finding.is_some_and(|finding| RELAYS.contains(&finding.rule.id.as_str()))
    }

    /// A rank whose launcher says nothing of how it ended, and that said what it met without an exception.
    ///
    /// An interpreter that finds nothing to run ends by an exit code after its only line, and a program whose loss is no
    /// number may do so after its last.
    fn by_words(&mut self) -> bool {
        let last = self.evidence.words.as_ref();
        let Some(last) = last.and_then(|words| words.last.as_ref()) else {
            return false;
        };
        let rule = last.rule;
        let status = self.evidence.status.as_ref().map(|status| status.value);
        let ran_nothing = rule.id.starts_with("interpreter-") && matches!(status, Some(1 | 2));
        let left_by_itself = rule.id == LOSS_STOP && status == Some(1);
        if status.is_some() && !ran_nothing && !left_by_itself {
            return false;
        }
        self.title = last.text.as_str().into();
        self.worded = true;
        let fingerprint = Fingerprint::of(&rule.category, "", "", std::iter::empty());
        let finding = Finding::plain(rule, fingerprint, self.title.clone());
        self.set(Finding {
            pointers: rule.pointers(&self.title),
            ..finding
        });
        true
    }

    /// A rank that tells without a traceback what it met: that it lost a peer, or, where nothing else tells of its end, an
    /// error of its own.
    fn by_report(&mut self) -> bool {
        let words = self.evidence.words.as_ref();
        let Some(reported) = words.and_then(|words| words.reported.as_ref()) else {
            return false;
        };
        // Where several ranks speak, an error of one is what the others lost it by.
        let own = reported.own.as_ref().filter(|_| self.reports_own());
        let Some(told) = own.or(reported.consequence.as_ref()) else {
            return false;
        };
        let rule = told.rule;
        let can_be = match (&self.evidence.status, own) {
            // Who goes on after it has survived it.
            (None, Some(_)) => !self.evidence.output_shared && reported.own_is_end,
            // Of whom nothing tells the number, others' words may tell more.
            (None, None) => !self.evidence.nameless,
            // Python ends with 1 after an exception, as a program does that prints one; else a status says no less.
            (Some(status), Some(own)) => status.value == 1 && own.rule.id != "exit",
            (Some(status), None) => {
                (1..128).contains(&status.value) || status.by_launcher() || self.left_thread()
            }
        };
        if !can_be {
            return false;
        }
        self.title = told.text.as_str().into();
        self.worded = true;
        self.take_status_time();
        let said = rule.pointers(&told.text);
        // Victims are one group, however each says it.
        let text = own.map_or("", |own| &own.text);
        let fingerprint = Fingerprint::of(&rule.category, "", text, std::iter::empty());
        self.set(Finding {
            pointers: said,
            ..Finding::plain(rule, fingerprint, self.title.clone())
        });
        true
    }

    /// Whether it lost a peer, and gave up as Python ended over a thread that waited for one.
    fn left_thread(&self) -> bool {
        let status = self.evidence.status.as_ref().map(|status| status.value);
        let words = self.evidence.words.as_ref();
        matches!(status, Some(-6 | 134))
            && words.is_some_and(|words| {
                let said_more =
                    words.fatal.is_some() || words.terminate.is_some() || words.last.is_some();
                words.left_thread && !said_more && words.consequence().is_some()
            })
    }

    fn by_crash(&mut self) -> bool {
        if self.left_thread() {
            return false;
        }
        let words = self.evidence.words.as_deref();
        let status = self.evidence.status.as_ref().map(|status| status.value);
        let crashed = status.is_some_and(is_crash);
        let fatal = words.and_then(|words| words.fatal.as_ref());
        let what = words.and_then(|words| words.terminate.as_ref());
        let last = words.and_then(|words| words.last.as_ref());
        let named = fatal.and_then(|(title, _)| by_description(title));
        // Last words of a child are no end of a process that ended otherwise; an interpreter that cannot start ends with 1.
        let fits = match status {
            None => words.is_some_and(|words| words.near_end),
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
            // In a log of several ranks another's line may stand before what the exception says.
            .filter(|rule| !rule.generic || last.is_none())
            .or(last.map(|last| last.rule));
        let rule = rule.unwrap_or_else(|| rules.by_status(-number));
        if rule.role != Role::Primary
            && let Some(finding) = words.and_then(Words::uncaught_cause)
        {
            // It gave up on its way out, over what had ended it before.
            self.title = Arc::clone(&finding.headline);
            self.take_status_time();
            self.set(finding.clone());
            return true;
        }
        let frames = fatal.map_or(&[][..], |(_, frames)| frames);
        let name = signal_title(number);
        self.title = match what
            .map(|(_, what)| what)
            .filter(|what| !what.is_empty())
            .or(last.map(|last| &last.text))
        {
            Some(what) => format!("{name}: {what}").into(),
            None => name.into(),
        };
        let fingerprint = Fingerprint::of(
            &rule.category,
            "",
            what.map_or("", |(_, what)| what),
            frames.iter().map(Frame::as_ref),
        );
        self.agreed = signal.is_some() && signal == named;
        self.take_status_time();
        self.set(Finding::plain(rule, fingerprint, self.title.clone()));
        true
    }

    fn by_traceback(&mut self) -> bool {
        let words = self.evidence.words.as_ref();
        let finding = words.and_then(|words| words.finding.clone());
        let Some(finding) = finding.filter(|finding| self.can_end_by(finding)) else {
            return false;
        };
        self.title = Arc::clone(&finding.headline);
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
            -6 | 134 if self.left_thread() => true,
            -2 | 130 => finding.rule.id == "interrupted" || uncaught,
            // It may have hung on its way out until its launcher ended it; an exception that was only logged is no end.
            _ if status.by_launcher() => {
                uncaught
                    || matches!(finding.rule.role, Role::Collateral | Role::Timeout)
                    || finding.relay
            }
            value => value > 0 && (uncaught || self.left_by_exit(value)),
        }
    }

    /// Whether the last exception of its output is `sys.exit` with this status.
    fn left_by_exit(&self, status: i64) -> bool {
        let words = self.evidence.words.as_ref();
        let last = words.and_then(|words| words.chain.last());
        last.is_some_and(|last| *last.headline == *format!("SystemExit: {status}"))
    }

    /// Returns what an output holds that is not the end of the rank: its last exception, and how many lines before the end.
    pub(crate) fn passing(&self) -> Option<(String, usize)> {
        if self.evidence.record.is_some() {
            return None;
        }
        let words = self.evidence.words.as_ref()?;
        let (told, after) = (words.chain.last()?, words.after?);
        let judged = self.finding.as_ref().is_some_and(|finding| {
            let mut chain = words.chain.iter();
            let is_end = words.finding.as_ref();
            is_end.is_some_and(|end| end.headline == finding.headline)
                || chain.any(|told| *told.headline == *finding.headline)
        });
        (!judged && told.is_typed).then(|| (told.headline.to_string(), after))
    }
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
