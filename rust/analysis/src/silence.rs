//! The decision where no rank failed by itself: whom the others waited for, and who left nothing.

mod lost;

use crate::black_box::State;
use crate::classify::{Role, rules};
use crate::decide::{Attempt, Decision, Subject, count};
use crate::outcome::{End, Outcome};
use crate::schema::Confidence;

impl Attempt<'_> {
    pub(crate) fn without_candidate(&self) -> Option<Decision> {
        let timeouts = self.with_end(End::Timeout);
        let collateral = self.with_end(End::Collateral);
        if let Some(decision) = self.by_recorder() {
            return Some(decision);
        }
        if timeouts.is_empty() && collateral.is_empty() && self.with_end(End::Terminated).is_empty()
        {
            return self.preempted();
        }
        self.pointed_at(&timeouts)
            .or_else(|| self.by_unknown_exit())
            .or_else(|| self.by_watchdogs())
            .or_else(|| self.preempted())
            .or_else(|| self.odd_one_out())
            .or_else(|| self.all_asked())
            .or_else(|| self.left_alone(&timeouts))
            .or_else(|| self.silent(&timeouts))
            .or_else(|| self.left_early())
            .or_else(|| self.quiet_launcher(&timeouts))
            .or_else(|| self.nobody(&timeouts))
    }

    /// Ranks that the others' timeouts name and that did not time out themselves.
    fn pointed_at(&self, timeouts: &[u32]) -> Option<Decision> {
        let pointers = self.pointers();
        let mut named: Vec<(&u32, &Vec<u32>)> = pointers
            .iter()
            .filter(|(rank, _)| timeouts.binary_search(rank).is_err())
            .collect();
        named.sort_by_key(|(rank, by)| (std::cmp::Reverse(by.len()), **rank));
        let (&rank, by) = *named.first()?;
        let rule = self.rule(by[0]);
        let mut reasons = vec![format!(
            "{} wait for it by name: ranks {}",
            count(by.len(), "rank"),
            crate::groups::ranges(by.clone())
        )];
        let alone = named.len() == 1;
        let outcome = self.outcomes.get(&rank);
        // A traceback that is cut off before its end is a failure, of which more is not here.
        let is_raising = |outcome: &Outcome<'_>| {
            let words = outcome.evidence.words.as_ref();
            words.is_some_and(|words| !words.chain.is_empty())
        };
        let left_nothing =
            outcome.is_none_or(|outcome| outcome.finding.is_none() && !is_raising(outcome));
        if left_nothing {
            reasons.push("it left no error of its own".to_owned());
        }
        let is_nameless = |rank: &u32| self.outcomes[rank].evidence.nameless;
        // Of a rank whose files are not here nothing tells that it did not fail: then it is the one, and not by waiting.
        let is_here = outcome.is_some();
        let is_sure = is_here && left_nothing && by.len() >= 2 && !by.iter().any(is_nameless);
        let confidence = match (alone, is_sure) {
            (true, true) => Confidence::High,
            (true, false) => Confidence::Medium,
            _ => Confidence::Low,
        };
        // Whom it lost it may have lost as a victim of another's.
        let confidence = match rule.role {
            Role::Collateral => confidence.min(Confidence::Medium),
            _ => confidence,
        };
        let suspects = named
            .iter()
            .skip(1)
            .map(|(rank, by)| (**rank, format!("{} wait for it", count(by.len(), "rank"))))
            .collect();
        Some(Decision {
            subject: Subject::Rank(rank),
            rule,
            confidence,
            also: Vec::new(),
            suspects,
            reasons,
        })
    }

    fn preempted(&self) -> Option<Decision> {
        let (key, (path, signalled)) = self
            .job
            .hosts
            .iter()
            .find_map(|(key, host)| Some((key, host.signalled.as_ref()?)))?;
        let at = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let reasons = vec![format!(
            "its launcher was ended: {} ({at}:{})",
            signalled.text.trim(),
            signalled.line
        )];
        let by = |names: [&str; 3]| {
            names.iter().any(|name| {
                signalled.text.trim_end().ends_with(name)
                    || signalled.text.contains(&format!("{} ", name.trim_end()))
            })
        };
        let rule = rules().by_id(if by(["got signal: 2", "SIGINT", "Received 2 "]) {
            "interrupted"
        } else if by(["got signal: 1", "SIGHUP", "Received 1 "]) {
            "hung-up"
        } else {
            "preempted"
        });
        Some(Decision {
            subject: Subject::Host(key.clone()),
            rule,
            confidence: Confidence::Medium,
            also: Vec::new(),
            suspects: self.stood_apart(),
            reasons,
        })
    }

    /// All ranks, where each ended by a request to end, and not all by their launcher's: somebody ended the job.
    fn all_asked(&self) -> Option<Decision> {
        let asked = self.with_end(End::Terminated);
        let by_others = |rank: &u32| {
            let status = self.outcomes[rank].evidence.status.as_ref();
            status.is_some_and(|status| status.asked != Some(true))
        };
        if asked.len() < 2 || asked.len() < self.total() || !asked.iter().any(by_others) {
            return None;
        }
        let reasons = vec![format!(
            "all {} were asked to end, and none of them failed by itself",
            count(asked.len(), "rank")
        )];
        Some(Decision {
            subject: Subject::Job(None),
            rule: rules().by_id("terminated-by-unknown"),
            confidence: Confidence::Low,
            also: Vec::new(),
            suspects: self.stood_apart(),
            reasons,
        })
    }

    /// Ranks without an error of their own, while the others lost a peer or waited.
    fn silent(&self, timeouts: &[u32]) -> Option<Decision> {
        let quiet: Vec<u32> = self
            .outcomes
            .iter()
            .filter(|(_, outcome)| matches!(outcome.end, End::Silent | End::Terminated))
            .map(|(&rank, _)| rank)
            .chain(self.missing.iter().copied())
            .collect();
        if let Some(decision) = self.lost_host() {
            return Some(decision);
        }
        let others = self.victims();
        let reason = match others {
            0 => "it left no error of its own".to_owned(),
            _ => format!(
                "it left no error of its own, while {} did",
                count(others, "rank")
            ),
        };
        let of = |category: &'static str| move |&rank: &u32| self.rule(rank).category == category;
        // Who waits for a moment only waits for nobody.
        if !timeouts.is_empty() && timeouts.iter().all(of("config_error")) {
            return None;
        }
        let rule = match timeouts {
            [] => rules().by_id("silent"),
            [first, ..] if timeouts.iter().all(of("never_arrived")) => self.rule(*first),
            _ => rules().by_id("hang"),
        };
        let suspects = |ranks: &[u32]| {
            ranks
                .iter()
                .map(|&rank| (rank, reason.clone()))
                .collect::<Vec<_>>()
        };
        if let Some(decision) = self.alone_unasked(&quiet) {
            return Some(decision);
        }
        // Those that srun ended ran until then.
        let passed_over = quiet.iter().copied().filter(|&it| self.is_passed_over(it));
        let passed_over: Vec<u32> = passed_over.take(2).collect();
        let one_left = timeouts.is_empty() && passed_over.len() == 1;
        let quiet = if one_left { passed_over } else { quiet };
        match quiet[..] {
            [] => None,
            // A part of a log shows a few ranks of many.
            [_, _, ..] if !quiet.iter().any(|&rank| self.is_left_out(rank, others)) => None,
            // What its launcher ended because of another was there still as that one lost its peer.
            [rank] if others >= 2 && timeouts.is_empty() && self.was_there(rank) => {
                self.lost_elsewhere(rank)
            }
            // Those that are behind may be the cause as well as one that is not shown.
            [rank] if !self.job.is_counted && self.missing.contains(&rank) && self.is_uneven() => {
                let decision = self.nobody(timeouts)?;
                Some(Decision {
                    confidence: Confidence::Low,
                    suspects: suspects(&[rank]),
                    ..decision
                })
            }
            [rank] if others >= 2 && self.is_left_out(rank, others) => {
                let mut reasons = vec![reason.clone()];
                let left = timeouts.is_empty() && self.is_passed_over(rank);
                if left {
                    reasons.push(
                        "srun told how all other tasks ended, and tells of no task that ends well"
                            .to_owned(),
                    );
                }
                // In what is cut off it may have told of its own failure.
                let is_cut = self.outcomes.values().any(|outcome| outcome.evidence.torn);
                if is_cut {
                    reasons.push("a log ends in the middle of a line".to_owned());
                }
                Some(Decision {
                    subject: Subject::Rank(rank),
                    rule: if left {
                        rules().by_id("left-early")
                    } else {
                        rule
                    },
                    confidence: if is_cut {
                        Confidence::Low
                    } else {
                        Confidence::Medium
                    },
                    also: Vec::new(),
                    suspects: Vec::new(),
                    reasons,
                })
            }
            _ => {
                let reasons = vec![format!(
                    "{} left no error of their own: any of them may be the cause",
                    count(quiet.len(), "rank")
                )];
                Some(Decision {
                    subject: Subject::Job(None),
                    rule,
                    confidence: Confidence::Low,
                    also: Vec::new(),
                    suspects: suspects(&quiet),
                    reasons,
                })
            }
        }
    }

    /// Whether a rank of which nothing is found is more than one between others that happen to be shown.
    ///
    /// Where nothing tells how many ranks there were, two that are shown leave out one by chance, as do lines that Ray
    /// has folded; rank 0 is in every job.
    pub(crate) fn is_left_out(&self, rank: u32, others: usize) -> bool {
        let is_known = self.job.is_counted || self.outcomes.get(&rank).is_some();
        is_known || !self.job.folded && (rank == 0 || others > 2)
    }

    /// Whether srun told of the ends of all ranks but this one, which has a log or spoke.
    fn is_passed_over(&self, rank: u32) -> bool {
        let told = |outcome: &Outcome<'_>| outcome.evidence.status.is_some();
        let others = |(&other, outcome): (&u32, &Outcome<'_>)| (other == rank) != told(outcome);
        // What the scheduler or the kernel says of a host may be the end of its tasks.
        self.job.step_ended
            && self.job.facts.is_empty()
            && self.missing.is_empty()
            && self.outcomes.get(&rank).is_some()
            && self.outcomes.iter().all(others)
    }

    /// The one rank that says nothing where all others tell that they lost a peer, or that they were asked to end.
    ///
    /// Its black box shows that it would have told, had it been asked or failed.
    fn alone_unasked(&self, quiet: &[u32]) -> Option<Decision> {
        let told = |rank: &u32| {
            let outcome = self.outcomes.get(rank);
            outcome.is_some_and(|outcome| outcome.evidence.terminated.is_some())
        };
        let mut unasked = quiet.iter().filter(|rank| !told(rank));
        let (rank, None) = (*unasked.next()?, unasked.next()) else {
            return None;
        };
        let was_running = self.outcomes.get(&rank).is_some_and(|outcome| {
            let boxed = outcome.evidence.black_box.as_ref();
            boxed.is_some_and(|boxed| {
                boxed.content.state == State::Running && boxed.content.request.is_none()
            })
        });
        if !was_running || self.victims() == 0 || self.outcomes.len() < 3 {
            return None;
        }
        let reasons = vec![
            "its black box says that main ran, and nothing tells of its end".to_owned(),
            "every other rank told how it ended, or was asked to end".to_owned(),
        ];
        Some(Decision {
            subject: Subject::Rank(rank),
            rule: rules().by_id("vanished"),
            confidence: Confidence::Medium,
            also: Vec::new(),
            suspects: Vec::new(),
            reasons,
        })
    }

    /// Ranks that were interrupted with their launcher: nobody interrupted one of them.
    pub(crate) fn interrupted_with_launcher(&self, candidates: &[u32]) -> Option<Decision> {
        let shared = |rank: &u32| {
            let host = self.job.hosts.get(&self.outcomes[rank].evidence.host);
            self.rule(*rank).id == "interrupted"
                && host.is_some_and(|host| host.signalled.is_some())
        };
        if candidates.is_empty() || !candidates.iter().all(shared) {
            return None;
        }
        self.preempted()
    }

    /// The one rank that ended well, where peers were lost at once and no rank vanished.
    ///
    /// Those that their launcher ended meanwhile say no less than it.
    fn left_alone(&self, timeouts: &[u32]) -> Option<Decision> {
        let nobody_vanished = self.missing.is_empty() && self.with_end(End::Silent).is_empty();
        let is_it = timeouts.is_empty()
            && nobody_vanished
            && self.victims() >= 2
            && self.with_end(End::Succeeded).len() == 1;
        is_it.then(|| self.left_early()).flatten()
    }

    /// Ranks that ended well while all others lost a peer or waited in vain.
    fn left_early(&self) -> Option<Decision> {
        let left = self.with_end(End::Succeeded);
        let first = *left.first()?;
        let reason = format!(
            "it ended well, while {} lost a peer or waited in vain",
            count(self.victims(), "rank")
        );
        let alone = left.len() == 1;
        let suspects = left.iter().map(|&rank| (rank, reason.clone()));
        Some(Decision {
            subject: if alone {
                Subject::Rank(first)
            } else {
                Subject::Job(None)
            },
            rule: rules().by_id("left-early"),
            confidence: if alone {
                Confidence::Medium
            } else {
                Confidence::Low
            },
            also: Vec::new(),
            suspects: if alone {
                Vec::new()
            } else {
                suspects.collect()
            },
            reasons: vec![if alone {
                reason.clone()
            } else {
                format!(
                    "{} ended well while the others still needed them",
                    count(left.len(), "rank")
                )
            }],
        })
    }

    fn nobody(&self, timeouts: &[u32]) -> Option<Decision> {
        let first = if timeouts.is_empty() {
            self.earliest(&self.with_end(End::Collateral))?
        } else {
            self.earliest(timeouts)?
        };
        let reasons = vec!["every rank found reports only a consequence; the cause left no evidence below these paths".to_owned()];
        let subject = Subject::Job(Some(first));
        Some(Decision {
            subject,
            rule: self.rule(first),
            confidence: Confidence::None,
            also: Vec::new(),
            suspects: Vec::new(),
            reasons,
        })
    }
}
