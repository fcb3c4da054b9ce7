//! The decision: from the ends of all ranks of one attempt to its first failure.
//!
//! Uniform failures name no rank; then one candidate, or the one that others point at, or the earliest beyond the
//! clocks' bound; without a candidate, whom the others waited for, or who left nothing.

mod clocks;
mod one;

use crate::alike::Groups;
use crate::assemble::{HostKey, Job, RankEvidence};
use crate::by_rank::ByRank;
use crate::classify::{Role, Rule, rules};
use crate::groups::Fingerprint;
use crate::hearsay::Hearsay;
use crate::outcome::{End, Outcome};
use crate::schema::Confidence;
use clocks::same_clock;
use std::collections::{BTreeMap, BTreeSet};

/// What the first failure of an attempt was.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) subject: Subject,
    pub(crate) rule: &'static Rule,
    pub(crate) confidence: Confidence,
    /// Further ranks that failed by themselves.
    pub(crate) also: Vec<u32>,
    /// Ranks that may be the cause, and why.
    pub(crate) suspects: Vec<(u32, String)>,
    /// Reasons, strongest first.
    pub(crate) reasons: Vec<String>,
}

/// Whose failure it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// One rank's.
    Rank(u32),
    /// These ranks failed alike.
    Uniform(Vec<u32>),
    /// The whole job's; one rank that reports it.
    Job(Option<u32>),
    /// A host's.
    Host(HostKey),
}

/// The ranks of one attempt and how each ended.
pub(crate) struct Attempt<'a> {
    pub(crate) job: &'a Job,
    pub(crate) outcomes: ByRank<Outcome<'a>>,
    /// Ranks of which nothing at all was found.
    pub(crate) missing: BTreeSet<u32>,
}

impl Attempt<'_> {
    pub(crate) fn with_end(&self, end: End) -> Vec<u32> {
        self.outcomes
            .iter()
            .filter(|(_, outcome)| outcome.end == end)
            .map(|(&rank, _)| rank)
            .collect()
    }

    pub(crate) fn total(&self) -> usize {
        self.outcomes.len() + self.missing.len()
    }

    /// How many ranks there are, or, where a part of a log shows a few of an unknown number, these.
    fn shown(&self) -> usize {
        let found = self.outcomes.len();
        let is_part = !self.job.is_counted && self.missing.len() > found;
        if is_part { found } else { self.total() }
    }

    pub(crate) fn victims(&self) -> usize {
        self.outcomes
            .values()
            .filter(|outcome| matches!(outcome.end, End::Collateral | End::Timeout))
            .count()
    }

    /// Who is pointed at, and by whom.
    pub(crate) fn pointers(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut pointers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (&rank, outcome) in self.outcomes.iter() {
            for &target in outcome.finding.iter().flat_map(|finding| &finding.pointers) {
                if target != rank {
                    pointers.entry(target).or_default().push(rank);
                }
            }
        }
        pointers
    }

    /// Returns the first failure; `None` where no rank failed and none is silent that should not be.
    pub(crate) fn decide(&self) -> Option<Decision> {
        let mut candidates = self.with_end(End::Primary);
        let role = |rank: &u32| {
            self.outcomes[rank]
                .finding
                .as_ref()
                .map(|finding| finding.rule.role)
        };
        if candidates
            .iter()
            .any(|rank| role(rank) == Some(Role::Primary))
        {
            candidates.retain(|rank| role(rank) == Some(Role::Primary));
        }
        // What its own logger shows of a rank it may have survived; what ended it a launcher saw.
        let seen = |rank: &u32| self.outcomes[rank].evidence.status.is_some();
        if candidates.iter().any(seen) {
            let evidence = |rank: &u32| self.outcomes[rank].evidence;
            candidates.retain(|rank| seen(rank) || !evidence(rank).by_logger);
        }
        // Victims mostly leave with 1, and a word, a signal or another code says more than that.
        let says_more =
            |rank: &u32| !self.left_with_one(*rank) && !self.outcomes[rank].gave_up_unexplained();
        if candidates.iter().any(says_more) {
            candidates.retain(says_more);
        }
        if self.others_waited(&candidates) {
            candidates.clear();
        }
        if let Some(decision) = self.whole_job(&candidates) {
            return Some(decision);
        }
        if let Some(decision) = self.interrupted_with_launcher(&candidates) {
            return Some(decision);
        }
        match candidates[..] {
            [] => self.without_candidate(),
            [rank] => Some(
                self.one_of_several(rank)
                    .or_else(|| self.one_of_chorus(rank))
                    .or_else(|| self.one_that_looked_up(rank))
                    .unwrap_or_else(|| self.one(rank, Vec::new())),
            ),
            // Where others lost a peer, one of those that vanished was first, and was not alike.
            _ if self.victims() > 0 && candidates.iter().all(|&rank| self.vanished(rank)) => {
                Some(self.several(&candidates))
            }
            _ => Some(
                self.uniform(&candidates)
                    .unwrap_or_else(|| self.several(&candidates)),
            ),
        }
    }

    /// A failure of which a rank's own text says that others had it too, as a sharded checkpoint's does.
    fn one_of_several(&self, rank: u32) -> Option<Decision> {
        let finding = self.outcomes[&rank].finding.as_ref()?;
        let named = &finding.pointers;
        if !finding.relay || !named.contains(&rank) || named.len() < 2 {
            return None;
        }
        Some(Decision {
            subject: Subject::Job(Some(rank)),
            rule: finding.rule,
            confidence: Confidence::Medium,
            also: Vec::new(),
            suspects: Vec::new(),
            reasons: vec![format!(
                "rank {rank} says that it was so on ranks {}",
                crate::groups::ranges(named.iter().copied())
            )],
        })
    }

    /// A failure that several processes print alike, of which a launcher tells only the first that it saw end.
    fn one_of_chorus(&self, rank: u32) -> Option<Decision> {
        let processes = self.outcomes[&rank].evidence.chorus;
        let is_one = self.job.is_counted && self.total() == 1;
        if processes < 2 || is_one || self.outcomes[&rank].evidence.record.is_some() {
            return None;
        }
        let alone = self.one(rank, Vec::new());
        let reason = format!(
            "{processes} processes end by the same exception in its log, and a launcher tells of this one only"
        );
        Some(Decision {
            subject: Subject::Job(Some(rank)),
            confidence: alone.confidence.min(Confidence::Medium),
            reasons: [reason].into_iter().chain(alone.reasons).collect(),
            ..alone
        })
    }

    /// The first that gave up over the name of the store's host, which all of them look up, where the others were ended for
    /// that.
    fn one_that_looked_up(&self, rank: u32) -> Option<Decision> {
        let finding = self.outcomes[&rank].finding.as_ref()?;
        let of_store = finding.rule.id == "dns" && finding.ended_by.is_some();
        let ended = self.with_end(End::Terminated).len();
        if !of_store || ended == 0 || ended + 1 < self.outcomes.len() {
            return None;
        }
        let alone = self.one(rank, Vec::new());
        let reason = "all ranks look up this name, and the others were ended before they gave up";
        Some(Decision {
            subject: Subject::Job(Some(rank)),
            reasons: [reason.to_owned()]
                .into_iter()
                .chain(alone.reasons)
                .collect(),
            ..alone
        })
    }

    /// Whether all that is known of a rank's end is the exit code 1, without a word of its own.
    pub(crate) fn left_with_one(&self, rank: u32) -> bool {
        let evidence = self.outcomes[&rank].evidence;
        let status = evidence.status.as_ref().map(|status| status.value);
        let is_bare = !self.outcomes[&rank].reports_own();
        self.rule(rank).id == "exit" && status == Some(1) && evidence.record.is_none() && is_bare
    }

    /// Whether ranks are victims of others, or were ended by their launchers before they could fail themselves.
    pub(crate) fn others_ended(&self) -> bool {
        self.victims() > 0 || !self.with_end(End::Terminated).is_empty()
    }

    /// Whether ranks left with 1 and without a word while others waited in vain and none lost a peer: had one of them been
    /// first, others would have lost it. Their words are not here, and one that still ran kept all waiting.
    fn others_waited(&self, candidates: &[u32]) -> bool {
        let ran = |outcome: &Outcome<'_>| match outcome.end {
            End::Terminated => true,
            End::Silent => outcome.evidence.status.is_none(),
            _ => false,
        };
        !candidates.is_empty()
            && candidates.iter().all(|&rank| self.left_with_one(rank))
            && !self.with_end(End::Timeout).is_empty()
            && self.with_end(End::Collateral).is_empty()
            && self.outcomes.values().any(ran)
    }

    fn vanished(&self, rank: u32) -> bool {
        self.rule(rank).id == "vanished"
    }

    /// A failure that is the whole job's by its nature, such as a mismatch of collectives.
    fn whole_job(&self, candidates: &[u32]) -> Option<Decision> {
        let is_job = |rank: &&u32| {
            self.outcomes[rank]
                .finding
                .as_ref()
                .is_some_and(|finding| finding.rule.job)
        };
        let reporter = *candidates.iter().find(is_job)?;
        let rule = self.outcomes[&reporter].finding.as_ref()?.rule;
        // Who entered what is in the flight recorders' dumps, where there are any.
        let recorded = self.by_recorder().filter(|recorded| recorded.rule.job);
        if let Some(recorded) = recorded {
            return Some(Decision {
                subject: Subject::Job(Some(reporter)),
                ..recorded
            });
        }
        let suspects = vec![(
            reporter,
            "it met the mismatch, and may be its victim".to_owned(),
        )];
        let reasons = vec![format!(
            "rank {reporter} reports it, which does not tell whose mistake it is"
        )];
        Some(Decision {
            subject: Subject::Job(Some(reporter)),
            rule,
            confidence: Confidence::Low,
            also: Vec::new(),
            suspects,
            reasons,
        })
    }

    pub(crate) fn fingerprint(&self, rank: u32) -> Option<Fingerprint> {
        self.outcomes[&rank]
            .finding
            .as_ref()
            .map(|finding| finding.fingerprint)
    }

    pub(crate) fn rule(&self, rank: u32) -> &'static Rule {
        self.outcomes[&rank]
            .finding
            .as_ref()
            .map_or_else(|| rules().by_id("silent"), |finding| finding.rule)
    }

    /// The same failure on at least half of the ranks.
    fn uniform(&self, candidates: &[u32]) -> Option<Decision> {
        let shown = self.shown();
        let enough = |alike: &Vec<u32>| alike.len() >= 2 && alike.len() * 2 >= shown;
        let most = |groups: Groups| groups.into_values().max_by_key(Vec::len).filter(enough);
        let same = most(self.by_stack(candidates));
        let (alike, in_what) = match same {
            Some(alike) => (alike, "with the same text and stack"),
            None => (most(self.by_words(candidates))?, "with the same text"),
        };
        let mut others = candidates.to_vec();
        let same: BTreeSet<u32> = alike.iter().copied().collect();
        others.retain(|rank| !same.contains(rank));
        // A different failure that came clearly first is the cause of the many.
        let first = self.earliest(&alike)?;
        if others
            .iter()
            .any(|&other| self.clearly_before(other, first))
        {
            return None;
        }
        let rule = self.rule(alike[0]);
        let wordless = |rank: &u32| {
            let evidence = self.outcomes[rank].evidence;
            self.left_with_one(*rank) && evidence.words.is_none()
        };
        let wordless = alike.iter().all(wordless);
        let in_what = if wordless {
            "with the same exit code and no word"
        } else {
            in_what
        };
        let mut reasons = vec![format!(
            "{} of {} ranks failed alike, {in_what}",
            alike.len(),
            self.total()
        )];
        // Ranks that say nothing may be the cause of what the others say alike, and others' words are no proof.
        let quiet = self.with_end(End::Silent).len() + self.missing.len();
        let shared = |rank: &u32| self.outcomes[rank].evidence.output_shared;
        let nameless = alike
            .iter()
            .any(|rank| self.outcomes[rank].evidence.nameless);
        // That all left with one status says little, the less where a log holds failures of nobody.
        let vague = rule.id == "exit" && self.job.nobodys_words;
        // An exit code of 1 and an abort are also how victims end of what is not here.
        let mute = alike.iter().map(|rank| &self.outcomes[rank]);
        let mute =
            mute.clone().all(Outcome::is_mute) || mute.clone().all(Outcome::gave_up_unexplained);
        let handled = alike.iter().find_map(|rank| self.outcomes[rank].handled());
        let worded = alike.iter().any(|rank| self.outcomes[rank].worded);
        // Victims are alike as well, where what they said is not here; and the first of each host are no proof for the rest.
        let unsaid = mute && self.others_ended();
        let confidence = if vague
            || unsaid
            || wordless
            || rule.role == Role::Ambiguous
            || alike.iter().any(shared) && quiet > 0
        {
            Confidence::Low
        } else if others.is_empty() && quiet == 0 && !nameless && !mute && !worded {
            Confidence::High
        } else {
            Confidence::Medium
        };
        let unheard = |rank: &u32| self.left_with_one(*rank) && !same.contains(rank);
        let unheard = rule.generic && self.with_end(End::Primary).iter().any(unheard);
        let unheard = unheard.then_some("of others that failed the text is not here");
        let doubt = self.doubt(&alike).or(unheard);
        let doubt = doubt.map(str::to_owned).or(handled);
        let confidence = match &doubt {
            Some(_) => confidence.min(Confidence::Medium),
            None => confidence,
        };
        reasons.extend(doubt);
        Some(Decision {
            subject: Subject::Uniform(alike),
            rule,
            confidence,
            also: others,
            suspects: Vec::new(),
            reasons,
        })
    }

    /// Why the exception of some ranks may follow from what is not here; `None` where its text says what failed.
    ///
    /// A program may make an exception of its own of the peer that it lost.
    fn doubt(&self, ranks: &[u32]) -> Option<&'static str> {
        let evidence = || ranks.iter().map(|rank| self.outcomes[rank].evidence);
        if evidence().any(|it| it.record.is_none() && it.headless) {
            return Some("the beginning of its traceback is not here, nor what it may follow from");
        }
        if !self.rule(ranks[0]).generic {
            return None;
        }
        if evidence().any(|it| it.record.is_none() && it.torn) {
            return Some("its log ends in the middle of a line");
        }
        if self.job.nobodys_words || self.job.hearsay.iter().any(Hearsay::is_cause) {
            return Some("another failure is told of nobody, and may have come first");
        }
        let own = |it: &RankEvidence| it.record.is_some() || it.status.is_some();
        (!self.job.is_counted && !evidence().any(own)).then_some(
            "how many ranks there were is not told, and one may have failed that is not here",
        )
    }

    fn several(&self, candidates: &[u32]) -> Decision {
        let others = |chosen: u32| {
            candidates
                .iter()
                .copied()
                .filter(|&rank| rank != chosen)
                .collect::<Vec<_>>()
        };
        let pointers = self.pointers();
        let count = |rank: &u32| pointers.get(rank).map_or(0, Vec::len);
        let most = candidates.iter().map(count).max().unwrap_or(0);
        let pointed: Vec<u32> = candidates
            .iter()
            .copied()
            .filter(|rank| most > 0 && count(rank) == most)
            .collect();
        if let [rank] = pointed[..] {
            let mut decision = self.one(rank, others(rank));
            decision.confidence = decision.confidence.min(Confidence::Medium);
            return decision;
        }
        let first = self.first(candidates).unwrap_or(candidates[0]);
        let rest = others(first);
        let mut decision = self.one(first, rest.clone());
        // When a rank that vanished was last heard of is not when it died.
        let is_told = !candidates.iter().any(|&rank| self.vanished(rank));
        if is_told && rest.iter().all(|&other| self.clearly_before(first, other)) {
            decision.confidence = decision.confidence.min(Confidence::Medium);
            let one_clock = rest
                .iter()
                .all(|other| same_clock(&self.outcomes[&first], &self.outcomes[other]));
            let order = if one_clock {
                "it failed first"
            } else {
                "by the clocks of different hosts, which may disagree, it failed first"
            };
            let later = crate::decide::count(rest.len(), "other rank");
            decision
                .reasons
                .push(format!("{order}: {later} failed by themselves later"));
        } else {
            decision.confidence = Confidence::Low;
            let count = rest.len();
            decision.reasons.push(format!("{count} other ranks failed by themselves, and the clocks do not tell which was first"));
        }
        decision
    }
}

/// Returns `1 rank`, `3 ranks`.
pub(crate) fn count(number: usize, what: &str) -> String {
    let ending = match number {
        1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {what}{ending}")
}
