//! How one rank ended: the strongest of its record, its last output, and what its launcher saw.

use crate::assemble::{RankEvidence, Status};
use crate::black_box::{Fate, State};
use crate::classify::{Finding, Role, rules};
use crate::failure::{Breadcrumb, Frame};
use crate::groups::Fingerprint;
use crate::traceback;
use firstfault_format::signals;
use std::sync::Arc;

/// How one rank ended.
#[derive(Debug)]
pub(crate) struct Outcome<'a> {
    pub(crate) evidence: &'a RankEvidence,
    pub(crate) end: End,
    /// What the rules make of it, where it left anything to judge.
    pub(crate) finding: Option<Finding>,
    /// The failure in one line.
    pub(crate) title: Arc<str>,
    /// When, in nanoseconds since the Unix epoch.
    pub(crate) time_ns: Option<i64>,
    /// How far too early `time_ns` may be, in nanoseconds.
    pub(crate) coarse_ns: i64,
    /// Whether two independent sources agree: the launcher's status and the record's or the output's text.
    pub(crate) agreed: bool,
    /// Whether nothing but a line of its log says that it failed: no exception, no status.
    pub(crate) worded: bool,
}

/// The end of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum End {
    /// It failed, and that may be the cause.
    Primary,
    /// It failed because of another.
    Collateral,
    /// It waited for another in vain.
    Timeout,
    /// Its launcher ended it, and it left nothing of its own.
    Terminated,
    /// It left nothing.
    Silent,
    /// It ended well, as far as its launcher says.
    Succeeded,
}

/// Returns how a rank ended; `reported` when its launcher told how its workers ended, `ended_well` when all did well.
pub(crate) fn outcome(evidence: &RankEvidence, reported: bool, ended_well: bool) -> Outcome<'_> {
    let mut outcome = Outcome {
        evidence,
        end: End::Silent,
        finding: None,
        title: "".into(),
        time_ns: None,
        coarse_ns: 0,
        agreed: false,
        worded: false,
    };
    if evidence.record.is_some() {
        outcome.by_record(reported);
    } else if ended_well {
        outcome.end = End::Succeeded;
    } else if !outcome.by_output() && !outcome.by_snapshot() {
        outcome.by_status(reported);
        if evidence.status.is_none() && outcome.end == End::Silent {
            outcome.by_black_box();
        }
    }
    outcome
}

impl Outcome<'_> {
    fn by_record(&mut self, reported: bool) {
        let Some(record) = &self.evidence.record else {
            return;
        };
        let failure = &record.failure;
        let finding = failure.finding.clone();
        self.title = Arc::clone(match finding.headline.is_empty() {
            true => &failure.message,
            false => &finding.headline,
        });
        if let Some(deferred) = self.evidence.deferred() {
            self.title = format!("{}, {deferred}", crate::verdict::first_line(&self.title)).into();
        }
        self.time_ns = record.time_ns;
        self.coarse_ns = if failure.whole_seconds {
            1_000_000_000
        } else {
            0
        };
        let status = self.evidence.status.as_ref().map(|status| status.value);
        self.agreed = status.is_some_and(|status| status < 0 && failure.error_code == Some(status));
        let provisional = failure
            .section
            .as_ref()
            .is_some_and(|section| !section.is_final);
        let killed = |status: i64| status < 0 && self.evidence.deferred().is_some();
        if provisional && status.is_some_and(|status| is_crash(status) || killed(status)) {
            // What was recorded in passing, or waited for the others, is not what it died of.
            self.by_status(true);
            return;
        }
        if provisional && status.is_none_or(|status| status == 0) {
            // Nor does it tell that the rank failed at all.
            (self.time_ns, self.coarse_ns) = (None, 0);
            self.end = if reported || status == Some(0) {
                End::Succeeded
            } else {
                End::Silent
            };
            return;
        }
        let mut finding = finding;
        if finding.rule.id == "abort"
            && let Some(words) = &self.evidence.words
            && let Some(last) = &words.last
        {
            finding.rule = last.rule;
            self.title = format!("{}: {}", self.title, last.text).into();
        }
        self.set(finding);
    }

    /// A process that was asked to end, and ended by that or by nothing that is known.
    fn by_snapshot(&mut self) -> bool {
        let status = self.evidence.status.as_ref().map(|status| status.value);
        let Some(snapshot) = &self.evidence.terminated else {
            return false;
        };
        if status.is_some_and(is_crash) {
            return false;
        }
        self.title = Arc::clone(&snapshot.failure.message);
        self.time_ns = snapshot.time_ns;
        self.end = End::Terminated;
        true
    }

    fn by_status(&mut self, reported: bool) {
        let Some(status) = &self.evidence.status else {
            if self.evidence.damaged.is_some() {
                self.title = "its error file is damaged".into();
                let rule = rules().by_id("damaged-record");
                let fingerprint = Fingerprint::of(&rule.category, "", "", std::iter::empty());
                self.set(Finding::plain(rule, fingerprint, self.title.clone()));
            } else if reported {
                // A launcher lists every worker that did not end well.
                self.end = End::Succeeded;
            }
            return;
        };
        if status.value == 0 {
            self.end = End::Succeeded;
            return;
        }
        let by_others = [-15, -1, 143].contains(&status.value) && !status.by_launcher();
        let rule = match by_others {
            true => rules().by_id("terminated-by-unknown"),
            false => rules().by_status(status.value),
        };
        let mut title = match (&self.evidence.damaged, self.passing()) {
            (Some(_), _) => format!("{}, its error file is damaged", describe(status)),
            (None, None) => format!("{}, no error file and no traceback", describe(status)),
            (None, Some(_)) => format!("{}, no error file", describe(status)),
        };
        if by_others {
            title.push_str(", sender unknown");
        }
        self.title = title.into();
        let fingerprint = Fingerprint::of(
            &rule.category,
            &status.value.to_string(),
            "",
            std::iter::empty(),
        );
        self.take_status_time();
        self.set(Finding::plain(rule, fingerprint, self.title.clone()));
        if rule.id == "terminated" || status.forced == Some(true) {
            self.end = End::Terminated;
            self.finding = None;
        }
    }

    /// Judges a rank of which neither a record nor its launcher tells.
    fn by_black_box(&mut self) {
        let Some(boxed) = &self.evidence.black_box else {
            return;
        };
        if boxed.fate != Fate::Gone {
            // It lives, or nobody here can tell: only when it was last heard of.
            return;
        }
        match boxed.content.state {
            State::Exiting | State::Finished => self.end = End::Succeeded,
            _ if boxed.content.request.is_some() => self.end = End::Terminated,
            State::Running => {
                let rule = rules().by_id("vanished");
                self.title = "its process vanished while main ran: no error file, no exit".into();
                self.time_ns = boxed.content.last_ns;
                let fingerprint = Fingerprint::of(&rule.category, "", "", std::iter::empty());
                self.set(Finding::plain(rule, fingerprint, self.title.clone()));
            }
            _ => {}
        }
    }

    pub(crate) fn take_status_time(&mut self) {
        self.time_ns = self
            .evidence
            .status
            .as_ref()
            .and_then(|status| status.time_ns);
        self.coarse_ns = 1_000_000_000;
    }

    pub(crate) fn set(&mut self, finding: Finding) {
        self.end = match finding.rule.role {
            Role::Primary | Role::Ambiguous | Role::Host => End::Primary,
            Role::Collateral => End::Collateral,
            Role::Timeout => End::Timeout,
        };
        // A text that only repeats the failure of the ranks it names.
        if finding.relay && !finding.pointers.contains(&self.evidence.rank) {
            self.end = End::Collateral;
        }
        self.finding = Some(finding);
    }

    /// Whether it ended, in another way, before an error that it had deferred was raised.
    pub(crate) fn is_pending(&self) -> bool {
        let deferred = self.evidence.deferred();
        deferred.is_some_and(|deferred| !self.title.ends_with(&deferred.to_string()))
    }

    /// Whether it only stopped with a rank that deferred an error.
    pub(crate) fn is_stopped(&self) -> bool {
        let rule = self
            .finding
            .as_ref()
            .map(|finding| finding.rule.id.as_str());
        rule == Some("stopped-by-agreement")
    }

    /// Whether it aborted, and neither a record nor its last words say over what: a watchdog's victim does that too.
    pub(crate) fn gave_up_unexplained(&self) -> bool {
        self.finding
            .as_ref()
            .is_some_and(|finding| finding.rule.id == "abort")
            && self.evidence.record.is_none()
            && self.fatal().is_none()
    }

    /// Whether it ended as Python ends after an exception, and what is here of its words holds none.
    pub(crate) fn is_mute(&self) -> bool {
        let status = self.evidence.status.as_ref().map(|status| status.value);
        let rule = self
            .finding
            .as_ref()
            .map(|finding| finding.rule.id.as_str());
        status == Some(1) && rule == Some("exit") && self.evidence.record.is_none()
    }

    /// Whether its last words, without a traceback, are of an error of its own.
    pub(crate) fn reports_own(&self) -> bool {
        let words = self.evidence.words.as_ref();
        let reported = words.and_then(|words| words.reported.as_ref());
        reported
            .is_some_and(|it| it.own.is_some() && (it.own_is_last || self.evidence.output_shared))
    }

    /// Returns the rule's category, or that of a rank without a finding.
    pub(crate) fn category(&self) -> &str {
        match (&self.finding, self.end) {
            (Some(finding), _) => &finding.rule.category,
            (None, End::Terminated) => "launcher_terminated",
            (None, _) => "unknown",
        }
    }

    /// Returns the file that tells of it, for people and programs: the record, else the output, else nothing.
    pub(crate) fn file(&self) -> String {
        let record = self.evidence.record.as_ref().map(|record| &record.path);
        let output = self
            .evidence
            .output_path
            .as_ref()
            .filter(|_| self.evidence.words.is_some());
        record
            .or(output)
            .map(|path| path.display().to_string())
            .unwrap_or_default()
    }

    /// Says which exception was handled as the one that it ended by was raised, or the other way round, where the other of
    /// the two may be the cause.
    pub(crate) fn handled(&self) -> Option<String> {
        let finding = self.finding.as_ref()?;
        if let Some(last) = finding.ended_by.as_deref() {
            return Some(format!(
                "the process ended by another later, which may be the cause: {last}"
            ));
        }
        let first = finding.handled.as_deref()?;
        Some(format!(
            "it was raised while another was handled, which may be the cause: {first}"
        ))
    }

    /// Returns the training step that the rank had reached, and its latest breadcrumbs, oldest first.
    pub(crate) fn last_words(&self) -> (Option<i64>, &[Breadcrumb]) {
        let section = self.evidence.section();
        // The rank went on after an error that it deferred.
        let happened = self.evidence.deferred().and_then(|deferred| deferred.step);
        let told = section.map(|section| (happened.or(section.step), &section.breadcrumbs[..]));
        let boxed = self.evidence.black_box.as_ref();
        let boxed = boxed.map(|boxed| (boxed.content.step, &boxed.content.breadcrumbs[..]));
        told.filter(|(step, breadcrumbs)| step.is_some() || !breadcrumbs.is_empty())
            .or(boxed)
            .unwrap_or((None, &[]))
    }

    /// Returns the stack of the failure, innermost frame first.
    pub(crate) fn frames(&self) -> &[Frame] {
        let Some(record) = &self.evidence.record else {
            if let Some(frames) = self.fatal() {
                return frames;
            }
            let words = self.evidence.words.as_ref();
            let words = words.filter(|_| self.passing().is_none());
            return words.map_or(&[], |words| words.frames_of(self.about()));
        };
        &record.failure.frames
    }

    /// Returns where it happened, for people: `in main (train.py:33)`; a native module where no Python frame is known.
    pub(crate) fn location(&self, frames: &[Frame]) -> String {
        let place = traceback::location(frames.iter().map(Frame::as_ref));
        if !place.is_empty() {
            return place;
        }
        let record = self.evidence.record.as_ref();
        record
            .map(|record| record.failure.native_place.clone())
            .unwrap_or_default()
    }

    /// Returns the line of the worker's stderr that says most, and its number, where the worker left no record.
    ///
    /// The number is from 1; 0 where only the end of the file was read.
    pub(crate) fn telling_line(&self) -> Option<(usize, &str)> {
        let words = self.evidence.words.as_ref()?;
        let end = words.end_line.as_ref();
        let end = end.filter(|_| !self.evidence.output_shared);
        let line = words.telling_line(self.about()).or(end)?;
        Some((line.number, &line.text))
    }

    /// What its finding is about.
    fn about(&self) -> &str {
        let finding = self.finding.as_ref();
        finding.map_or("", |finding| &finding.headline)
    }

    /// Returns the frames of the crash that faulthandler dumped into its output.
    fn fatal(&self) -> Option<&[Frame]> {
        let words = self.evidence.words.as_ref()?;
        words.fatal.as_ref().map(|(_, frames)| &**frames)
    }
}

/// Returns whether a status is that of a process that a signal of its own ended.
pub(crate) fn is_crash(status: i64) -> bool {
    i32::try_from(-status)
        .ok()
        .and_then(signals::by_number)
        .is_some_and(|signal| signal.crash)
}

pub(crate) fn signal_title(number: i64) -> String {
    match i32::try_from(number).ok().and_then(signals::by_number) {
        Some(signal) => format!("{} ({})", signal.name, signal.description),
        None => format!("signal {number}"),
    }
}

/// Returns an exit status for people.
pub(crate) fn describe(status: &Status) -> String {
    match status.value {
        value if value < 0 => signal_title(-value),
        value @ 129..=159 => format!(
            "exit code {value} (a shell's name for {})",
            signal_title(value - 128)
        ),
        value => format!("exit code {value}"),
    }
}
