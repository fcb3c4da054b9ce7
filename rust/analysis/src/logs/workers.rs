//! What a launcher's log tells of its workers besides their own entries.

use super::AgentLog;
use std::collections::BTreeSet;

impl AgentLog {
    /// Returns the rank of its first worker, as its summary tells.
    pub(crate) fn base(&self) -> Option<u32> {
        let first = self.entries.first()?;
        first.rank.checked_sub(first.local_rank)
    }

    /// Whether it tells no rank of its workers: it left as the rendezvous was gone, and had asked them to end.
    pub(crate) fn is_untold(&self) -> bool {
        self.node.is_some() && self.entries.is_empty() && self.failed.is_empty()
    }

    /// Returns the lines at which one attempt ended and the next began.
    pub(crate) fn ends(&self) -> Vec<usize> {
        let ends: Vec<usize> = self.failed.iter().map(|failed| failed.line).collect();
        ends.split_last().map_or(&[][..], |(_, ends)| ends).to_vec()
    }

    /// Returns the workers that torchrun asked to end and left out of its summary: local rank, process ID.
    ///
    /// That of torch 2.6 lists those alone that did not end by its own signal. Which is which of several is a guess, and the
    /// same is told of each.
    pub(crate) fn unlisted(&self) -> Vec<(u32, u32)> {
        let is_listed = |pid: &u32| self.entries.iter().any(|entry| entry.pid == Some(*pid));
        let asked: BTreeSet<u32> = self.closed.iter().copied().collect();
        let asked: Vec<u32> = asked.into_iter().filter(|pid| !is_listed(pid)).collect();
        let is_taken = |local: &u32| self.entries.iter().any(|entry| entry.local_rank == *local);
        let workers = u32::try_from(self.entries.len() + asked.len()).unwrap_or(0);
        let free: Vec<u32> = (0..workers).filter(|local| !is_taken(local)).collect();
        // Of earlier attempts, of a launcher that was ended itself, or with workers that ended well, numbers tell nothing.
        let is_told = self.is_alone
            && self.signalled.is_none()
            && self.failed.len() <= 1
            && !self.entries.is_empty()
            && free.len() == asked.len();
        if is_told {
            free.into_iter().zip(asked).collect()
        } else {
            Vec::new()
        }
    }

    /// Whether the launcher asked a process to end, and whether it killed it; `None` where nothing tells.
    ///
    /// Of the process that it names first it asked nothing. Of the others its log tells only where it holds whom it did
    /// ask, which stands before the rest and is lost with the log's beginning. A launcher that was ended itself shares the
    /// signal with all workers of its group.
    pub(crate) fn ended(&self, pid: Option<u32>) -> (Option<bool>, Option<bool>) {
        let Some(pid) = pid else { return (None, None) };
        let is_first = self.failed.iter().any(|failed| failed.pid == Some(pid));
        // Of several launchers in one log each may have one number, and whom the other asked is no word of this one.
        let is_own = |pid: &u32| {
            let mut entries = self.entries.iter();
            self.entries.is_empty() || entries.any(|entry| entry.pid == Some(*pid))
        };
        let told = (is_first || self.closed.iter().any(is_own)) && self.signalled.is_none();
        let asked = self.closed.contains(&pid) || self.forced.contains(&pid);
        let forced = self.forced.contains(&pid);
        (
            (told || asked).then_some(asked),
            (told || forced).then_some(forced),
        )
    }
}
