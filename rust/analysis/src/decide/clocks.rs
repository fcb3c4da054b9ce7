//! Which of several failures came first, as far as clocks can tell.

use super::Attempt;
use crate::outcome::Outcome;

/// How far clocks of different hosts are taken to differ, in nanoseconds.
const SKEW_NS: i64 = 2_000_000_000;

impl Attempt<'_> {
    pub(crate) fn earliest(&self, ranks: &[u32]) -> Option<u32> {
        ranks
            .iter()
            .copied()
            .min_by_key(|rank| (self.outcomes[rank].time_ns.unwrap_or(i64::MAX), *rank))
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
    let host = |outcome: &Outcome<'_>| {
        let host = &outcome.evidence.section()?.host;
        (!host.name.is_empty()).then(|| (host.name.clone(), host.boot_id.clone()))
    };
    match (host(one), host(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one.evidence.host == other.evidence.host,
    }
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
