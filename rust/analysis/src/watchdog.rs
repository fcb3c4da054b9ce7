//! Where each rank stood by the words of NCCL's watchdog: who is behind, and who entered another collective.
//!
//! Numbers of collectives compare within one group only. A rank that waits at a lower number than the others may be the
//! victim of another disagreement, so that it is a suspect and no more; one that never entered what the others wait in
//! is more than that.
//!
//! Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp

use crate::classify::rules;
use crate::decide::{Attempt, Decision, Subject, count};
use crate::groups::ranges;
use crate::outcome::End;
use crate::schema::Confidence;
use memchr::{memmem, memrchr};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Where a rank stood in one group.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The collective that it waited in until it timed out: its number, operation and size, which torch tells since 2.1.
    waits: Option<(u64, String, Option<u64>)>,
    /// The last that it entered.
    enqueued: Option<u64>,
}

impl Place {
    fn reached(&self) -> Option<u64> {
        let waits = self.waits.as_ref().map(|(number, ..)| *number);
        waits.max(self.enqueued)
    }
}

/// Operations whose sizes are the same on all ranks.
const EQUAL: &[&str] = &["ALLREDUCE", "BROADCAST", "REDUCE", "ALLREDUCE_COALESCED"];

/// Returns where a rank stood in each group, by the group's name.
pub(crate) fn places(text: &str) -> BTreeMap<String, Place> {
    static GROUP: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\[PG (?:ID )?(\d+)(?: PG GUID ([^ (\]]+))?[^\]]* Rank \d+\]")
            .expect("a constant")
    });
    static WAITS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+), (?:(?:NumelIn|TensorShape)=\[?(\d*)|Timeout)")
            .expect("a constant")
    });
    static ENQUEUED: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"last enqueued (?:NCCL )?work: (\d+)").expect("a constant"));
    let mut found: BTreeMap<String, Place> = BTreeMap::new();
    let bytes = text.as_bytes();
    let mut told: Vec<usize> = ["Watchdog caught", "last enqueued"]
        .iter()
        .flat_map(|words| memmem::find_iter(bytes, words))
        .map(|at| memrchr(b'\n', &bytes[..at]).map_or(0, |newline| newline + 1))
        .collect();
    told.sort_unstable();
    told.dedup();
    for line in told.into_iter().filter_map(|at| text[at..].lines().next()) {
        let (waits, enqueued) = (WAITS.captures(line), ENQUEUED.captures(line));
        if waits.is_none() && enqueued.is_none() {
            continue;
        }
        let group = GROUP.captures(line);
        let group = group.and_then(|group| group.get(2).or(group.get(1)));
        let place = found
            .entry(group.map_or("", |group| group.as_str()).to_owned())
            .or_default();
        if let Some(waits) = waits
            && let Ok(number) = waits[1].parse()
        {
            let size = waits.get(3).and_then(|size| size.as_str().parse().ok());
            // The first is what it waited for; what it had entered after that waits for the same.
            place
                .waits
                .get_or_insert((number, waits[2].to_owned(), size));
        }
        if let Some(number) = enqueued.and_then(|enqueued| enqueued[1].parse().ok()) {
            place.enqueued = place.enqueued.max(Some(number));
        }
    }
    found
}

impl Attempt<'_> {
    /// Returns what the watchdogs' words tell where no rank failed by itself.
    pub(crate) fn by_watchdogs(&self) -> Option<Decision> {
        let mut groups: BTreeMap<String, BTreeMap<u32, Place>> = BTreeMap::new();
        for (&rank, outcome) in self.outcomes.iter() {
            let words = outcome.evidence.words.iter();
            for (group, place) in words.flat_map(|words| &words.places) {
                let places = groups.entry(group.clone()).or_default();
                places.insert(rank, place.clone());
            }
        }
        // The group that most ranks waited in is the one in which the job stopped.
        let waiting = |places: &BTreeMap<u32, Place>| {
            places
                .values()
                .filter(|place| place.waits.is_some())
                .count()
        };
        let (group, places) = groups
            .into_iter()
            .max_by_key(|(_, places)| waiting(places))?;
        if waiting(&places) < 2 {
            return None;
        }
        let name = match group.as_str() {
            "" => String::new(),
            group => format!(" of group {group}"),
        };
        self.apart(&places, &name)
            .or_else(|| self.behind(&places, &name))
            .or_else(|| self.together(&places, &name))
    }

    /// Whether ranks of one group waited in collectives of different numbers.
    pub(crate) fn is_uneven(&self) -> bool {
        let mut numbers: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        let words = self
            .outcomes
            .values()
            .filter_map(|it| it.evidence.words.as_ref());
        for (group, place) in words.flat_map(|words| &words.places) {
            let number = place.waits.as_ref().map(|(number, ..)| *number);
            numbers.entry(group).or_default().extend(number);
        }
        numbers.values().any(|numbers| numbers.len() > 1)
    }

    /// Ranks that waited in different collectives under one number.
    fn apart(&self, places: &BTreeMap<u32, Place>, group: &str) -> Option<Decision> {
        let mut by_number: BTreeMap<u64, BTreeMap<String, Vec<u32>>> = BTreeMap::new();
        for (&rank, place) in places {
            let Some((number, operation, size)) = &place.waits else {
                continue;
            };
            // Two of a pair differ by design.
            if ["SEND", "RECV"].contains(&operation.as_str()) {
                continue;
            }
            let what = match size.filter(|_| EQUAL.contains(&operation.as_str())) {
                Some(size) => format!("{operation} of {size}"),
                None => operation.clone(),
            };
            let entered = by_number.entry(*number).or_default();
            entered.entry(what).or_default().push(rank);
        }
        let (number, entered) = by_number
            .into_iter()
            .find(|(_, entered)| entered.len() > 1)?;
        let most = entered.values().map(Vec::len).max()?;
        let few = entered.iter().filter(|(_, ranks)| ranks.len() < most);
        let suspects = few.flat_map(|(what, ranks)| {
            let reason = format!("it waited in {what} as collective {number}, others did not");
            ranks.iter().map(move |rank| (*rank, reason.clone()))
        });
        Some(Decision {
            subject: Subject::Job(None),
            rule: rules().by_id("collective-mismatch"),
            confidence: Confidence::Medium,
            also: Vec::new(),
            suspects: suspects.collect(),
            reasons: entered
                .iter()
                .map(|(what, ranks)| {
                    let ranks = ranges(ranks.iter().copied());
                    format!("as collective {number}{group} ranks {ranks} waited in {what}")
                })
                .collect(),
        })
    }

    /// Ranks that had not come as far as the others; one that says nothing at all is suspected before them.
    fn behind(&self, places: &BTreeMap<u32, Place>, group: &str) -> Option<Decision> {
        let waits = places.values().filter_map(|place| place.waits.as_ref());
        let front = waits.map(|(number, ..)| *number).max()?;
        let at_front = places
            .values()
            .filter(|place| place.reached() >= Some(front))
            .count();
        let late: Vec<(u32, u64, bool)> = places
            .iter()
            .filter_map(|(&rank, place)| {
                let reached = place.reached().filter(|reached| *reached < front)?;
                Some((rank, reached, place.waits.is_none()))
            })
            .collect();
        let quiet = self.with_end(End::Silent).len() + self.missing.len();
        if late.is_empty() || at_front < 2 || quiet > 0 {
            return None;
        }
        let absent: Vec<u32> = late
            .iter()
            .filter(|(.., absent)| *absent)
            .map(|(rank, ..)| *rank)
            .collect();
        let mut reasons = vec![format!(
            "{} waited in collective {front}{group}",
            count(at_front, "rank")
        )];
        let mut suspects: Vec<(u32, String)> = late
            .iter()
            .map(|(rank, reached, absent)| {
                let did = if *absent {
                    "it entered none after"
                } else {
                    "it waited in"
                };
                (
                    *rank,
                    format!("{did} collective {reached}, others in {front}"),
                )
            })
            .collect();
        let (subject, confidence) = match absent[..] {
            [rank] => (Subject::Rank(rank), Confidence::Medium),
            _ => (Subject::Job(None), Confidence::Low),
        };
        if let Subject::Rank(rank) = subject {
            let own = suspects.extract_if(.., |(suspect, _)| *suspect == rank);
            reasons.extend(own.map(|(_, reason)| reason));
        }
        Some(Decision {
            subject,
            rule: rules().by_id("hang"),
            confidence,
            also: Vec::new(),
            suspects,
            reasons,
        })
    }

    /// All ranks waited in the same collective: nobody is behind, and what carries it failed.
    fn together(&self, places: &BTreeMap<u32, Place>, group: &str) -> Option<Decision> {
        let all = self.outcomes.len() + self.missing.len();
        let mut waits = places.values().filter_map(|place| place.waits.as_ref());
        let (number, operation, _) = waits.next()?;
        let same = 1 + waits.filter(|(other, ..)| other == number).count();
        if same < all || !self.job.is_counted {
            return None;
        }
        Some(Decision {
            subject: Subject::Job(None),
            rule: rules().by_id("nccl-timeout"),
            confidence: Confidence::Low,
            also: Vec::new(),
            suspects: Vec::new(),
            reasons: vec![format!(
                "all {} waited in the same collective {number}{group}, {operation}: nobody is behind, so look at the GPUs and the network",
                count(all, "rank")
            )],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_every_version_are_read() {
        let old = "[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=7, NumelOut=7, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.";
        let place = &places(old)[""];
        assert_eq!(place.waits, Some((42, "ALLREDUCE".to_owned(), Some(7))));
        let oldest = "[E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.";
        let place = &places(oldest)[""];
        assert_eq!(place.waits, Some((42, "ALLREDUCE".to_owned(), None)));
        let new = "[rank1]:[E1129 16:33:27.4 ProcessGroupNCCL.cpp:685] [Rank 1] [PG ID 2 PG GUID 4(tp) Rank 0] Exception (either an error or timeout) detected by watchdog at work: 41, last enqueued NCCL work: 43, last completed NCCL work: 40.\n\
                   [rank1]:[E1129 16:33:27.4 ProcessGroupNCCL.cpp:685] [PG ID 0 PG GUID 0(default_pg) Rank 1]  failure detected by watchdog at work sequence id: 9 PG status: last enqueued work: 9, last completed work: 8";
        let found = places(new);
        assert_eq!(found["4"].enqueued, Some(43));
        assert_eq!(found["0"].enqueued, Some(9));
    }
}
