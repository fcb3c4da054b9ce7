//! One rank as the cause, and how sure that is.

use super::{Attempt, Decision, Subject, count};
use crate::classify::Role;
use crate::outcome::End;
use crate::schema::Confidence;

impl Attempt<'_> {
    pub(super) fn one(&self, rank: u32, also: Vec<u32>) -> Decision {
        let outcome = &self.outcomes[&rank];
        let rule = self.rule(rank);
        let pointed = self.pointers().remove(&rank).unwrap_or_default();
        let mut reasons = Vec::new();
        let mut confidence = Confidence::Medium;
        if self.victims() >= 2 {
            confidence = Confidence::High;
        }
        if !pointed.is_empty() {
            confidence = Confidence::High;
            reasons.push(format!(
                "{} point at it: ranks {}",
                count(pointed.len(), "other rank"),
                crate::groups::ranges(pointed)
            ));
        }
        if outcome.agreed {
            confidence = Confidence::High;
            reasons.push("its launcher's exit status and its own text agree".to_owned());
        }
        if rule.id == "damaged-record" {
            let certain = self.victims() > 0 && also.is_empty();
            confidence = if certain {
                Confidence::Medium
            } else {
                Confidence::Low
            };
        } else if self.vanished(rank) && self.victims() >= 2 {
            confidence = confidence.min(Confidence::Medium);
        } else if rule.role == Role::Ambiguous {
            confidence = Confidence::Low;
            reasons.push("such a failure can have a cause outside the process, and nothing from its host tells".to_owned());
        }
        if outcome
            .evidence
            .section()
            .is_some_and(|section| !section.is_final)
            || outcome.evidence.assumed
        {
            confidence = confidence.min(Confidence::Medium);
        }
        let own = outcome.evidence.record.is_some() || outcome.evidence.status.is_some();
        if outcome.evidence.by_logger && !own {
            confidence = confidence.min(Confidence::Medium);
            reasons
                .push("its own logger shows the exception, which it may have survived".to_owned());
        }
        if outcome.evidence.words_assumed {
            confidence = confidence.min(Confidence::Medium);
            reasons.push(
                "no label tells whose these words are: its launcher saw it end before the others"
                    .to_owned(),
            );
        }
        if let Some(reason) = outcome.handled() {
            confidence = confidence.min(Confidence::Medium);
            reasons.push(reason);
        }
        if outcome.worded {
            confidence = confidence.min(Confidence::Medium);
            reasons.push("a line of its log says so, and no exception".to_owned());
        }
        let quiet = self.with_end(End::Silent).len() + self.missing.len();
        if quiet > 0 && (!own || rule.generic) {
            confidence = confidence.min(Confidence::Medium);
            reasons.push(format!(
                "{} said nothing, and one of them may have failed first",
                count(quiet, "rank")
            ));
        } else if let Some(doubt) = self.doubt(&[rank]) {
            confidence = confidence.min(Confidence::Medium);
            reasons.push(doubt.to_owned());
        }
        // A lost peer's name may stand in the rest of it.
        let is_cut = outcome.evidence.torn && outcome.evidence.record.is_none();
        if is_cut && rule.generic && self.victims() > 0 {
            confidence = Confidence::Low;
        }
        let status = outcome.evidence.status.as_ref();
        // Who is killed is lost at once; whom all waited for may have been killed at last.
        let waited_for =
            !self.with_end(End::Timeout).is_empty() && self.with_end(End::Collateral).is_empty();
        let is_untold = status.is_some_and(|it| it.forced.is_none());
        if rule.id == "killed" && is_untold && (!also.is_empty() || waited_for) {
            confidence = confidence.min(Confidence::Medium);
            reasons.push("whether its launcher killed it is not told".to_owned());
        }
        if let Some(parent) = &outcome.evidence.by_child {
            reasons.push(format!(
                "a child process of it failed so, and it for that: {parent}"
            ));
            // Of a process that left no word itself the child's end may have been a small thing.
            if outcome.evidence.status.is_none() && self.victims() == 0 {
                confidence = confidence.min(Confidence::Medium);
            }
        }
        if rule.relay {
            confidence = confidence.min(Confidence::Medium);
            reasons.push("what it raised itself is not told".to_owned());
        }
        if outcome.is_mute() {
            confidence = confidence.min(Confidence::Medium);
            reasons.push("exit code 1 is an exception's too, whose text is not here".to_owned());
        }
        let launcher = self.job.hosts.get(&outcome.evidence.host);
        if rule.id == "interrupted" && !launcher.is_some_and(|host| host.spoke) {
            confidence = confidence.min(Confidence::Medium);
            reasons.push("whether its launcher was interrupted too is not told".to_owned());
        }
        if outcome.gave_up_unexplained() {
            confidence = confidence.min(Confidence::Medium);
            reasons.push(
                "nothing tells why it gave itself up, and ranks do that too when another is lost"
                    .to_owned(),
            );
        }
        if outcome.evidence.assumed {
            reasons.push("its rank number is assumed: nothing tells it".to_owned());
        }
        Decision {
            subject: Subject::Rank(rank),
            rule,
            confidence,
            also,
            suspects: Vec::new(),
            reasons,
        }
    }
}
