//! Whose the failure is in words without a label: that of the worker that the launcher asked nothing, where it had asked
//! all the others to end.

use crate::assemble::RankEvidence;
use crate::classify::{self, Role};
use crate::console::Output;
use crate::{reported, traceback, voices};

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
        .partition(tells_of_lost_peer);
    own.pop().filter(|_| own.is_empty() && !lost.is_empty())
}

fn tells_of_lost_peer(voice: &Output) -> bool {
    let rule = classify::texts(&traceback::chain(&voice.text), &voice.text).rule;
    matches!(rule.role, Role::Collateral | Role::Timeout)
}
