//! Whose the failure is in words without a label: that of the worker that the launcher asked nothing, where it had asked
//! all the others to end.

use crate::assemble::RankEvidence;
use crate::classify::{self, Role};
use crate::console::Output;
use crate::kept::Shared;
use crate::{ending, reported, traceback, voices};
use std::path::Path;

/// Gives words of several workers to the one that its launcher saw end before it asked others to, where it is the only
/// such; returns whether it is.
pub(super) fn give_to_first(
    workers: &mut [&mut RankEvidence],
    output: &Output,
    path: &Path,
    shared: &Shared,
) -> bool {
    let asked = |worker: &RankEvidence| worker.status.as_ref().and_then(|it| it.asked);
    let all = workers.len();
    let are_told = workers.iter().all(|it| asked(it).is_some());
    let mut first = workers.iter_mut().filter(|it| asked(it) == Some(false));
    let (Some(worker), None, true) = (first.next(), first.next(), are_told) else {
        return false;
    };
    let Some(own) = own_words(output, all) else {
        return false;
    };
    worker.set_words(&own, path, shared);
    (worker.output_shared, worker.words_assumed) = (true, true);
    true
}

/// Returns the part of an output that tells of a failure, where all the rest tells of peers that others of these workers
/// lost; `None` where that is not so. Where each of them lost one, the failure was survived.
fn own_words(output: &Output, workers: usize) -> Option<Output> {
    if !traceback::has_start(&output.text) {
        let reported = reported::of(&output.text);
        let lost = reported.consequences;
        let is_told = reported.own.is_some() && lost > 0 && lost < workers;
        return is_told.then(|| output.clone());
    }
    let (lost, mut own): (Vec<Output>, Vec<Output>) = voices::apart(output.clone())
        .into_iter()
        .partition(|voice| voice.ends_as_victim() == Some(true));
    let is_told = !lost.is_empty() && lost.len() < workers;
    own.pop().filter(|_| own.is_empty() && is_told)
}

impl Output {
    /// Whether it ends in a word of a peer that was lost or waited for, not of another failure; `None` where it ends in
    /// neither.
    pub(crate) fn ends_as_victim(&self) -> Option<bool> {
        let role = match ending::lines_after(&self.text) {
            Some(0) => {
                classify::texts(&traceback::chain(&self.text), &self.text)
                    .rule
                    .role
            }
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
