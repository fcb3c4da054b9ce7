//! What ranks had said before their launcher wrote it: its own output goes into a file block by block, and the last block
//! at its end, below the summary that it writes to stderr at once.

use crate::console::{Label, Output};
use crate::logs::AgentLog;
use std::collections::{BTreeMap, BTreeSet};

/// So many lines of a summary follow the rank of its last entry, besides a traceback.
const BELOW_RANK: usize = 8;

/// Takes out the lines that stand below the summaries of several launchers: rank, attempt, and what it said.
///
/// Only where they stand below each of them, and so below the last too, when no worker is left that could write: where a
/// launcher's workers had said nothing, the lines below its summary are another's.
pub(super) fn take_late(
    ranks: &mut BTreeMap<Label, Output>,
    launchers: &[&AgentLog],
) -> Vec<(u32, u32, Output)> {
    let mut lines: BTreeSet<usize> = BTreeSet::new();
    for (label, output) in ranks.iter() {
        if let Label::Local(_) = label {
            lines.extend(&output.lines);
        }
    }
    let mut blocks: Vec<(&AgentLog, usize, usize)> = Vec::new();
    for launcher in launchers {
        let Some(last) = launcher.entries.iter().max_by_key(|entry| entry.line) else {
            return Vec::new();
        };
        let most = last.line + BELOW_RANK + last.traceback.lines().count();
        let Some(&from) = lines.range(last.line..=most).next() else {
            return Vec::new();
        };
        let block = (from..).take_while(|line| lines.contains(line));
        blocks.push((launcher, from, from + block.count()));
    }
    blocks.sort_by_key(|(_, from, _)| *from);
    // Below two summaries in turns nothing tells whose lines these are.
    let are_apart = blocks.windows(2).all(|pair| pair[0].2 <= pair[1].1);
    if blocks.len() < 2 || !are_apart {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (launcher, from, to) in blocks {
        let Some(base) = launcher.base() else {
            continue;
        };
        let attempt = u32::try_from(launcher.ends().len()).unwrap_or(u32::MAX);
        for (label, output) in ranks.iter_mut() {
            if let Label::Local(local) = label {
                let late = output.take_lines(from..to);
                found.push((base.saturating_add(*local), attempt, late));
            }
        }
    }
    ranks.retain(|_, output| !output.text.is_empty());
    found.retain(|(_, _, output)| !output.text.is_empty());
    found
}
