//! Ranks of which no launcher tells, where the others of its host do: a launcher has the ranks from its first to the next
//! launcher's first, all of torchrun's have as many, and each tells of those that did not end well.

use crate::assemble::{HostKey, Job, RankEvidence};
use crate::logs::AgentLog;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;

/// No launcher starts more; a file that tells of a rank further on is mistaken.
const MAX_WORKERS: u32 = 1 << 10;

impl Job {
    /// Gives ranks their hosts, and how they ended, where the launchers' summaries tell of all but them.
    pub(crate) fn fill_blocks(&mut self, all: &[AgentLog]) {
        let (untold, agents): (Vec<&AgentLog>, Vec<&AgentLog>) =
            all.iter().partition(|agent| agent.is_untold());
        self.fill_told(&agents);
        if let [agent] = untold[..] {
            self.fill_untold(agent, &agents);
        }
    }

    /// Adds the workers of a launcher that names none of its ranks: those of the block that the others leave.
    fn fill_untold(&mut self, untold: &AgentLog, others: &[&AgentLog]) {
        let asked: BTreeSet<u32> = untold.closed.iter().copied().collect();
        let bases: Option<BTreeSet<u32>> = others.iter().map(|agent| agent.base()).collect();
        let (Some(size), Some(bases)) = (u32::try_from(asked.len()).ok(), bases) else {
            return;
        };
        let mut attempts = self.attempts.iter();
        let (Some((&attempt, ranks)), None) = (attempts.next(), attempts.next()) else {
            return;
        };
        // It asked as many as the others have, so that none had ended before.
        let firsts: Vec<u32> = bases.iter().copied().collect();
        let is_size = match firsts[..] {
            [first] => first == 0 && ranks.range(..=size).count() == size as usize,
            _ => firsts.windows(2).map(|pair| pair[1] - pair[0]).min() == Some(size),
        };
        let in_directory = |known: &RankEvidence| matches!(known.host, HostKey::Run(_));
        if size == 0
            || size > MAX_WORKERS
            || !is_size
            || bases.iter().any(|base| base % size != 0)
            || ranks.values().any(|known| in_directory(known))
        {
            return;
        }
        let starts = iter::successors(Some(0_u32), |base| base.checked_add(size));
        let Some(base) = starts.into_iter().find(|base| !bases.contains(base)) else {
            return;
        };
        let host = HostKey::Name(untold.node.clone().unwrap_or_default());
        for (local_rank, pid) in (0..).zip(asked) {
            let rank = base.saturating_add(local_rank);
            let evidence = self.rank(attempt, rank, Some(local_rank), host.clone());
            evidence.host_is(host.clone());
            evidence.assumed = true;
            evidence.status.get_or_insert_with(|| untold.asked(pid));
        }
    }

    fn fill_told(&mut self, agents: &[&AgentLog]) {
        if agents.is_empty() {
            return;
        }
        let mut attempts = self.attempts.iter();
        let (Some((&attempt, ranks)), None) = (attempts.next(), attempts.next()) else {
            return;
        };
        let known: BTreeSet<u32> = ranks.keys().copied().collect();
        let Some(blocks) = blocks(agents, &known) else {
            return;
        };
        // Directories of launchers tell more.
        let in_directory = |rank: &u32| {
            let known = ranks.get(rank);
            known.is_some_and(|known| matches!(known.host, HostKey::Run(_)))
        };
        let untold: Vec<(u32, u32, &AgentLog)> = blocks
            .into_iter()
            .filter(|(rank, ..)| ranks.get(rank).is_none_or(|known| known.status.is_none()))
            .collect();
        // Where a launcher's own ranks speak in its log, one that speaks in another is none of them.
        let speaks_in = |rank: &u32| ranks.get(rank)?.output_path.as_deref();
        let own = |agent: &AgentLog| {
            let mut entries = agent.entries.iter();
            entries.any(|entry| speaks_in(&entry.rank) == Some(&agent.path))
        };
        let is_anothers = |(rank, _, agent): &(u32, u32, &AgentLog)| {
            speaks_in(rank).is_some_and(|path| path != agent.path) && own(agent)
        };
        if untold.is_empty()
            || untold.iter().any(|(rank, ..)| in_directory(rank))
            || untold.iter().any(is_anothers)
        {
            return;
        }
        let listed = agents.iter().flat_map(|agent| &agent.entries);
        let listed = listed.filter_map(|entry| entry.pid);
        let told = ranks.values().filter_map(|rank| rank.status.as_ref()?.pid);
        let listed: BTreeSet<u32> = listed.chain(told).collect();
        let closed = agents.iter().flat_map(|agent| &agent.closed);
        let closed: BTreeSet<u32> = closed
            .copied()
            .filter(|pid| !listed.contains(pid))
            .collect();
        let found = asked(&untold, &closed).filter(|found| {
            // Several that ended well may be several of which the log has lost more.
            let is_silent = |rank: &u32| ranks.get(rank).is_none_or(|known| known.words.is_none());
            let well = untold.iter().map(|(rank, ..)| rank);
            well.filter(|rank| is_silent(rank) && !found.contains_key(rank))
                .count()
                <= 1
        });
        for (rank, local_rank, agent) in untold {
            let host = agent.entries.first().map(|entry| entry.host.clone());
            let host = HostKey::Name(host.unwrap_or_default());
            let is_new = !self.attempts[&attempt].contains_key(&rank);
            let pid = found.as_ref().and_then(|found| found.get(&rank));
            if is_new && found.is_none() {
                // It ended well, or its launcher ended it.
                continue;
            }
            let evidence = self.rank(attempt, rank, Some(local_rank), host.clone());
            evidence.host_is(host);
            if let Some(pid) = pid.filter(|_| evidence.words.is_none()) {
                evidence.status = Some(agent.asked(*pid));
            }
        }
    }
}

/// The ranks of all launchers, with their local ranks; `None` where these do not have as many each as one whose last is
/// known.
fn blocks<'a>(
    agents: &[&'a AgentLog],
    known: &BTreeSet<u32>,
) -> Option<Vec<(u32, u32, &'a AgentLog)>> {
    // A summary without the worker that its launcher named first is cut off.
    let is_whole = |agent: &AgentLog| {
        let [first] = &agent.failed[..] else {
            return false;
        };
        let mut entries = agent.entries.iter();
        agent.signalled.is_none() && entries.any(|entry| entry.local_rank == first.local_rank)
    };
    if !agents.iter().all(|agent| is_whole(agent)) {
        return None;
    }
    let mut bases: BTreeMap<u32, &AgentLog> = BTreeMap::new();
    for agent in agents {
        bases.insert(agent.base()?, agent);
    }
    let mut firsts = bases.keys().skip(1);
    let size = match firsts.next() {
        Some(second) => *second,
        None => known.last()?.checked_add(1)?,
    };
    if size > MAX_WORKERS {
        return None;
    }
    let has_last = |base: &u32| known.contains(&base.saturating_add(size.saturating_sub(1)));
    let is_regular = bases.len() == agents.len()
        && (0..)
            .zip(bases.keys())
            .all(|(number, base): (u32, _)| number.checked_mul(size) == Some(*base));
    let ranks = |(base, agent): (u32, &'a AgentLog)| {
        (0..size).map(move |local| (base.saturating_add(local), local, agent))
    };
    let is_told =
        bases.keys().any(has_last) && *known.last()? < bases.keys().last()?.saturating_add(size);
    (is_regular && is_told).then(|| bases.into_iter().flat_map(ranks).collect())
}

/// Which of the ranks were asked to end, and their process IDs: workers of one launcher are numbered one after another.
///
/// `None` where that does not tell.
fn asked(untold: &[(u32, u32, &AgentLog)], closed: &BTreeSet<u32>) -> Option<BTreeMap<u32, u32>> {
    if closed.is_empty() {
        return Some(BTreeMap::new());
    }
    let mut found: BTreeMap<u32, u32> = BTreeMap::new();
    for (rank, local_rank, agent) in untold {
        let entry = agent.entries.first()?;
        let first = entry.pid?.checked_sub(entry.local_rank)?;
        let pid = first.checked_add(*local_rank)?;
        if closed.contains(&pid) {
            found.insert(*rank, pid);
        }
    }
    let told: BTreeSet<u32> = found.values().copied().collect();
    (told == *closed && told.len() == found.len()).then_some(found)
}
