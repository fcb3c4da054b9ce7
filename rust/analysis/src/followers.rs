//! Workers that their launcher asked to end because another of its own had ended, and that left by themselves meanwhile:
//! where ranks elsewhere lost a peer, the one that it names is the earlier of two that are alike in all else.

use crate::assemble::HostKey;
use crate::decide::Attempt;
use crate::outcome::End;
use std::collections::BTreeSet;

impl Attempt<'_> {
    /// Takes those for ended by their launchers.
    ///
    /// Where no rank lost a peer all may have failed by themselves, and which of them was seen first says nothing; where
    /// failures are told of nobody, one may be theirs.
    pub(crate) fn note_followers(&mut self) {
        if self.victims() == 0 || self.job.nobodys_words {
            return;
        }
        let asked = |rank: u32| {
            let status = self.outcomes[&rank].evidence.status.as_ref();
            status.and_then(|status| status.asked)
        };
        let host = |rank: u32| &self.outcomes[&rank].evidence.host;
        let failed = self.with_end(End::Primary);
        let first = failed.iter().filter(|&&rank| asked(rank) == Some(false));
        let hosts: BTreeSet<&HostKey> = first.map(|&rank| host(rank)).collect();
        let followed = |&rank: &u32| {
            self.left_with_one(rank) && asked(rank) == Some(true) && hosts.contains(host(rank))
        };
        let followers: Vec<u32> = failed.iter().copied().filter(followed).collect();
        for rank in followers {
            if let Some(outcome) = self.outcomes.get_mut(&rank) {
                (outcome.end, outcome.finding) = (End::Terminated, None);
            }
        }
    }
}
