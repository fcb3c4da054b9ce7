//! Whose the failure is in words without a label: that of the worker that the launcher asked nothing, where it had asked
//! all the others to end.

use crate::assemble::RankEvidence;
use crate::classify::{self, Role};
use crate::console::Output;
use crate::{ending, reported, traceback, voices};

/// Returns the place of the worker that its launcher saw end before it asked all the others to.
pub(super) fn first_ended(workers: &[&mut RankEvidence]) -> Option<usize> {
    let asked = |worker: &&mut RankEvidence| worker.status.as_ref().and_then(|it| it.asked);
    let first = workers.iter().position(|it| asked(it) == Some(false))?;
    let mut others = workers.iter().enumerate().filter(|(at, _)| *at != first);
    others
        .all(|(_, other)| asked(other) == Some(true))
        .then_some(first)
}

/// Returns the part of an output that tells of a failure, where all the rest tells of lost peers; `None` where that is not
/// so.
pub(super) fn own_words(output: &Output) -> Option<Output> {
    if !traceback::has_start(&output.text) {
        let reported = reported::of(&output.text);
        let is_told = reported.own.is_some() && reported.consequences > 0;
        return is_told.then(|| output.clone());
    }
    let (lost, mut own): (Vec<Output>, Vec<Output>) = voices::apart(output.clone())
        .into_iter()
        .partition(|voice| voice.ends_as_victim() == Some(true));
    own.pop().filter(|_| own.is_empty() && !lost.is_empty())
}

impl Output {
    /// Whether it ends in a word of a peer that was lost or waited for, not of another failure; `None` where it ends in
    /// neither.
    pub(crate) fn ends_as_victim(&self) -> Option<bool> {
        let role = match ending::lines_after(&self.text) {
            Some(0) => classify::texts(&traceback::chain(&self.text), &self.text)
                .rule
                .role,
            Some(_) => return None,
            None => {
                let reported = reported::of(&self.text);
                let own = reported.own.map(|_| Role::Primary);
                own.or(reported.consequence.map(|(rule, _)| rule.role))?
            }
        };
        Some(matches!(role, Role::Collateral | Role::Timeout))
    }
}
