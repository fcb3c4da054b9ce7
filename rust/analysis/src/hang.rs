//! Where a job hung: all ranks were ended while they ran, and one of them stood elsewhere than the rest.

use crate::classify::rules;
use crate::decide::{Attempt, Decision, Subject, count};
use crate::failure::Frame;
use crate::groups::{Fingerprint, ranges};
use crate::schema::Confidence;
use crate::traceback;
use std::collections::BTreeMap;

/// Fewer ranks than this that stand together are no rule to be an exception from.
const LEAST: usize = 2;

impl Attempt<'_> {
    /// The rank whose stack, when it was asked to end, was not that of nearly all others.
    pub(crate) fn odd_one_out(&self) -> Option<Decision> {
        let stacks = self.stacks();
        let (together, apart) = split(&stacks)?;
        let place = stacks[&together[0]].place();
        let waits = stacks[&together[0]].waits();
        let stands = |rank: u32| stacks[&rank].place();
        let reasons = |rank: u32| {
            vec![
                format!("when it was asked to end it stood {}", stands(rank)),
                format!(
                    "{} {} {place}: {}",
                    count(together.len(), "rank"),
                    if waits { "waited" } else { "stood" },
                    ranges(together.iter().copied())
                ),
            ]
        };
        // Between collectives ranks stand anywhere: that they wait for each other must be seen.
        let hung = waits || self.victims() > 0;
        let suspects = |ranks: &[u32]| {
            let told = ranks
                .iter()
                .map(|&rank| (rank, format!("it stood {}", stands(rank))));
            told.collect::<Vec<_>>()
        };
        match apart[..] {
            [rank] if hung && !stacks[&rank].waits() => Some(Decision {
                subject: Subject::Rank(rank),
                rule: rules().by_id("hang"),
                confidence: Confidence::Medium,
                also: Vec::new(),
                suspects: Vec::new(),
                reasons: reasons(rank),
            }),
            _ if hung => Some(Decision {
                subject: Subject::Job(None),
                rule: rules().by_id("hang"),
                confidence: Confidence::Low,
                also: Vec::new(),
                suspects: suspects(&apart),
                reasons: reasons(apart[0]),
            }),
            _ => None,
        }
    }

    /// What the ranks that stood apart were doing when the job was ended from outside: it may have hung before.
    pub(crate) fn stood_apart(&self) -> Vec<(u32, String)> {
        let stacks = self.stacks();
        let Some((together, apart)) = split(&stacks) else {
            return Vec::new();
        };
        if !stacks[&together[0]].waits() {
            return Vec::new();
        }
        let place = stacks[&together[0]].place();
        let told = apart.into_iter().map(|rank| {
            let reason = format!(
                "it stood {} while {} waited {place}",
                stacks[&rank].place(),
                count(together.len(), "rank")
            );
            (rank, reason)
        });
        told.collect()
    }

    fn stacks(&self) -> BTreeMap<u32, Stack<'_>> {
        let stacks = self.outcomes.iter().filter_map(|(&rank, outcome)| {
            let snapshot = outcome.evidence.terminated.as_ref()?;
            let stack = Stack(&snapshot.failure.frames);
            (!stack.0.is_empty()).then_some((rank, stack))
        });
        stacks.collect()
    }
}

/// The Python stack of a rank's main thread, innermost frame first.
struct Stack<'a>(&'a [Frame]);

impl Stack<'_> {
    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of("", "", "", self.0.iter().map(Frame::as_ref))
    }

    /// Whether the rank waits for others: it is in a call of a process group, or for a device that is.
    fn waits(&self) -> bool {
        self.0.iter().take(8).any(|frame| {
            frame
                .file
                .ends_with("torch/distributed/distributed_c10d.py")
                || frame.file.ends_with("torch/cuda/__init__.py") && frame.function == "synchronize"
        })
    }

    fn place(&self) -> String {
        traceback::location(self.0.iter().map(Frame::as_ref))
    }
}

/// Returns the ranks that stand together and those apart; `None` where there is no such rule and exception.
fn split(stacks: &BTreeMap<u32, Stack<'_>>) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut groups: BTreeMap<Fingerprint, Vec<u32>> = BTreeMap::new();
    for (&rank, stack) in stacks {
        groups.entry(stack.fingerprint()).or_default().push(rank);
    }
    let together = groups.into_values().max_by_key(Vec::len)?;
    let apart: Vec<u32> = stacks
        .keys()
        .copied()
        .filter(|rank| together.binary_search(rank).is_err())
        .collect();
    let is_rule = together.len() >= LEAST && together.len() >= 2 * apart.len();
    (is_rule && !apart.is_empty()).then_some((together, apart))
}
