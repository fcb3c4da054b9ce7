//! Whose the failure is in words without a label: that of the worker that they name, else of the one that the launcher
//! asked nothing, where it had asked all the others to end.

use crate::assemble::RankEvidence;
use crate::classify::{self, Role};
use crate::console::Output;
use crate::kept::Shared;
use crate::{ending, reported, traceback, voices};
use regex::Regex;
use std::path::Path;
use std::sync::LazyLock;

/// Gives words of several workers to the one that they name, else to the one that its launcher saw end before it asked the
/// others to; returns whether there is one.
pub(super) fn give_to_one(
    workers: &mut [&mut RankEvidence],
    output: &Output,
    path: &Path,
    shared: &Shared,
) -> bool {
    let Some(own) = own_words(output, workers.len()) else {
        return false;
    };
    let named = reported::of(&own.text).own.and_then(rank_of_margin);
    let worker = match named {
        Some(named) => workers.iter_mut().find(|worker| worker.rank == named),
        None => first_ended(workers).and_then(|first| workers.get_mut(first)),
    };
    let Some(worker) = worker else {
        return false;
    };
    worker.set_words(&own, path, shared);
    (worker.output_shared, worker.words_assumed) = (true, named.is_none());
    true
}

/// Returns the place of the only worker that its launcher saw end before it asked the others to.
fn first_ended(workers: &[&mut RankEvidence]) -> Option<usize> {
    let asked = |worker: &RankEvidence| worker.status.as_ref().and_then(|it| it.asked);
    let are_told = workers.iter().all(|it| asked(it).is_some());
    let mut first = (0..workers.len()).filter(|&at| asked(workers[at]) == Some(false));
    let (first, None, true) = (first.next()?, first.next(), are_told) else {
        return None;
    };
    Some(first)
}

/// Reads `[rank 1] training failed: …`, `rank=1: …`; further on a rank may be a tensor's.
fn rank_of_margin(line: &str) -> Option<u32> {
    const NAME: &str = "rank";
    let text = line.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let begins = text.get(..NAME.len())?.eq_ignore_ascii_case(NAME);
    begins.then(|| rank_of_line(text)).flatten()
}

/// Reads the first rank that a line names: `GLOBAL_RANK: 1`, `rank 1 of 3`; not `node_rank=1`.
pub(crate) fn rank_of_line(line: &str) -> Option<u32> {
    static RANK: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?i)(?:\b|_)rank[ =:#_]{0,2}(\d{1,7})\b").expect("it is tested")
    });
    let found = RANK.captures(line)?;
    // Those of hosts, groups and roles number something else.
    const OTHERS: [&str; 5] = ["node", "group", "local", "role", "machine"];
    let before = line[..found.get(0)?.start()].trim_end_matches(['_', ' ', '-']);
    let is_others = OTHERS.iter().any(|other| {
        let at = before.len().checked_sub(other.len());
        let end = at.and_then(|at| before.get(at..));
        end.is_some_and(|end| end.eq_ignore_ascii_case(other))
    });
    found.get(1)?.as_str().parse().ok().filter(|_| !is_others)
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
