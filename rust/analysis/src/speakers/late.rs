//! What ranks had said before their launcher wrote it: its own output goes into a file block by block, and the last block
//! at its end, below the summary that it writes to stderr at once.

use crate::console::{Label, Output};
use crate::logs::AgentLog;
use crate::reported;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// So many lines of a summary follow the rank of its last entry, besides a traceback.
const BELOW_RANK: usize = 8;

/// What a rank said, in which attempt, and whether nothing but who says more than others tells that it was this rank.
pub(super) struct Late {
    pub(super) rank: u32,
    pub(super) attempt: u32,
    pub(super) output: Output,
    pub(super) assumed: bool,
}

/// Lines of ranks on their hosts, by their numbers.
type Lines<'a> = BTreeMap<usize, (u32, &'a str)>;

/// Takes out the lines that stand below the summaries of several launchers.
pub(super) fn take_late(ranks: &mut BTreeMap<Label, Output>, launchers: &[&AgentLog]) -> Vec<Late> {
    if launchers.len() < 2 {
        return Vec::new();
    }
    let mut summaries: Vec<(usize, &AgentLog)> = Vec::new();
    for launcher in launchers {
        let Some(last) = launcher.entries.iter().max_by_key(|entry| entry.line) else {
            return Vec::new();
        };
        summaries.push((last.line, launcher));
    }
    summaries.sort_by_key(|(line, _)| *line);
    let mut lines = Lines::new();
    for (label, output) in ranks.iter() {
        if let Label::Local(local) = label {
            let said = output.text.lines().map(|line| (*local, line));
            lines.extend(output.lines.iter().copied().zip(said));
        }
    }
    let below: Vec<Range<usize>> = summaries
        .iter()
        .map(|(line, launcher)| below(&lines, *line, launcher))
        .collect();
    // Below two summaries in turns nothing tells whose lines these are.
    if below.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Vec::new();
    }
    let (blocks, assumed) = match below.split_last() {
        // Where one launcher's workers had said nothing, the lines below its summary are another's.
        Some((_, others)) if others.iter().all(|block| !block.is_empty()) => (below, false),
        // What stands above is a part of what they said, and the rest tells no more which is which.
        Some((last, others))
            if others.iter().all(Range::is_empty) && lines.range(..last.start).next().is_none() =>
        {
            let mut blocks = parts(&lines, last.clone());
            in_order_of_launchers(&mut blocks, &lines, &summaries);
            (blocks, true)
        }
        _ => return Vec::new(),
    };
    // Nothing tells more where none stand below the last, when no worker is left that could write.
    if blocks.len() != summaries.len() || blocks.iter().any(Range::is_empty) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for ((_, launcher), block) in summaries.into_iter().zip(blocks) {
        let Some(base) = launcher.base() else {
            continue;
        };
        let attempt = u32::try_from(launcher.ends().len()).unwrap_or(u32::MAX);
        for (label, output) in ranks.iter_mut() {
            if let Label::Local(local) = label {
                found.push(Late {
                    rank: base.saturating_add(*local),
                    attempt,
                    output: output.take_lines(block.clone()),
                    assumed,
                });
            }
        }
    }
    ranks.retain(|_, output| !output.text.is_empty());
    found.retain(|late| !late.output.text.is_empty());
    found
}

/// The lines of ranks right below a launcher's summary whose last entry stands at this line.
fn below(lines: &Lines<'_>, line: usize, launcher: &AgentLog) -> Range<usize> {
    let last = launcher.entries.iter().find(|entry| entry.line == line);
    let shown = last.map_or(0, |last| last.traceback.lines().count());
    let Some((&from, _)) = lines.range(line..=line + BELOW_RANK + shown).next() else {
        return line..line;
    };
    let block = (from..).take_while(|line| lines.contains_key(line));
    from..from + block.count()
}

/// Parts some lines into those of one launcher each, which begin when all of its ranks have said their last words.
fn parts(lines: &Lines<'_>, block: Range<usize>) -> Vec<Range<usize>> {
    let said = || lines.range(block.clone());
    let locals: BTreeSet<u32> = said().map(|(_, (local, _))| *local).collect();
    let mut parts = Vec::new();
    let mut from = block.start;
    let mut ended: BTreeSet<u32> = BTreeSet::new();
    for (&number, (local, line)) in said() {
        if is_last_word(line) {
            ended.insert(*local);
        }
        if ended == locals {
            parts.push(from..number + 1);
            from = number + 1;
            ended.clear();
        }
    }
    if from == block.end { parts } else { Vec::new() }
}

fn is_last_word(line: &str) -> bool {
    let reported = reported::of(line);
    reported.own.is_some() || reported.consequence.is_some()
}

/// Puts the lines of two launchers in the order of these, as far as one of their ranks alone says more than its last
/// words: in most programs that is rank 0. Where it is not so, none are left.
///
/// In which order two end that sum up at once, their summaries do not tell.
fn in_order_of_launchers(
    parts: &mut Vec<Range<usize>>,
    lines: &Lines<'_>,
    summaries: &[(usize, &AgentLog)],
) {
    let more = |part: &Range<usize>| -> BTreeSet<u32> {
        let said = lines.range(part.clone()).map(|(_, said)| said);
        let more = said.filter(|(_, line)| !is_last_word(line));
        more.map(|(local, _)| *local).collect()
    };
    let first = summaries.iter().position(|(_, it)| it.base() == Some(0));
    let speaks: Vec<BTreeSet<u32>> = parts.iter().map(more).collect();
    let at = match &speaks[..] {
        [one, other] if other.is_empty() && *one == BTreeSet::from([0]) => 0,
        [one, other] if one.is_empty() && *other == BTreeSet::from([0]) => 1,
        _ => return parts.clear(),
    };
    match first {
        Some(first) if first != at => parts.reverse(),
        Some(_) => {}
        None => parts.clear(),
    }
}
