//! Which of several failures came first, as far as clocks can tell.

use super::Attempt;
use crate::failure::Host;
use crate::outcome::Outcome;

/// How far clocks of different hosts are taken to differ, in nanoseconds: five seconds, and one for what rounds off.
const SKEW_NS: i64 = 6_000_000_000;

impl Attempt<'_> {
    pub(crate) fn earliest(&self, ranks: &[u32]) -> Option<u32> {
        ranks
            .iter()
            .copied()
            .min_by_key(|rank| (self.outcomes[rank].time_ns.unwrap_or(i64::MAX), *rank))
    }

    /// The lowest of those ranks that no other one clearly failed before: the same one where clocks run a little apart.
    ///
    /// A rank whose time is not known is none of them, unless that is so for all.
    pub(super) fn first(&self, ranks: &[u32]) -> Option<u32> {
        let end = |rank: &u32| {
            let outcome = &self.outcomes[rank];
            Some((outcome.time_ns?.saturating_add(outcome.coarse_ns), *rank))
        };
        let mut in_time: Vec<(i64, u32)> = ranks.iter().filter_map(end).collect();
        let mut by_rank: Vec<u32> = in_time.iter().map(|&(_, rank)| rank).collect();
        in_time.sort_unstable();
        by_rank.sort_unstable();
        // One whose time is the earliest is before most of those that another is before.
        let is_first = |&rank: &u32| {
            !in_time
                .iter()
                .any(|&(_, other)| self.clearly_before(other, rank))
        };
        by_rank
            .into_iter()
            .find(is_first)
            .or(ranks.iter().min().copied())
    }

    /// Whether one rank failed before another by more than their clocks can be wrong.
    pub(super) fn clearly_before(&self, one: u32, other: u32) -> bool {
        let (one, other) = (&self.outcomes[&one], &self.outcomes[&other]);
        let (Some(early), Some(late)) = (one.time_ns, other.time_ns) else {
            return false;
        };
        let skew = if same_clock(one, other) {
            0
        } else {
            SKEW_NS.max(clock_error(one).saturating_add(clock_error(other)))
        };
        // A time in whole seconds may be too early by one.
        late.saturating_sub(early) > skew + one.coarse_ns
    }
}

/// Whether two times are of one clock: of one boot where both say so, else of one launcher.
pub(super) fn same_clock(one: &Outcome<'_>, other: &Outcome<'_>) -> bool {
    match (named_host(one), named_host(other)) {
        (Some(one), Some(other)) => (&one.name, &one.boot_id) == (&other.name, &other.boot_id),
        _ => one.evidence.host == other.evidence.host,
    }
}

fn named_host<'a>(outcome: &'a Outcome<'_>) -> Option<&'a Host> {
    let host = &outcome.evidence.section()?.host;
    (!host.name.is_empty()).then_some(host)
}

/// How far the kernel says that a rank's clock may be off, in nanoseconds.
fn clock_error(outcome: &Outcome<'_>) -> i64 {
    let clock = outcome
        .evidence
        .section()
        .and_then(|section| section.clock.as_ref());
    clock.map_or(0, |clock| {
        i64::try_from(clock.max_error_us)
            .unwrap_or(i64::MAX)
            .saturating_mul(1000)
    })
}
