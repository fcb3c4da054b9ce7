//! Which ranks failed alike.

use crate::decide::Attempt;
use crate::groups::Fingerprint;
use std::collections::BTreeMap;

/// Ranks by what they failed of.
pub(crate) type Groups = BTreeMap<Option<Fingerprint>, Vec<u32>>;

impl Attempt<'_> {
    /// Ranks by their failures; one of whose traceback a log shows the last line alone is with those that end in the same.
    pub(crate) fn by_stack(&self, candidates: &[u32]) -> Groups {
        let finding = |rank: u32| self.outcomes[&rank].finding.as_ref();
        let has_stack = |rank: &u32| {
            let evidence = self.outcomes[rank].evidence;
            let words = evidence.words.as_ref().zip(finding(*rank));
            evidence.record.is_some()
                || words.is_none_or(|(words, told)| !words.frames_of(&told.headline).is_empty())
        };
        let (whole, cut): (Vec<u32>, Vec<u32>) =
            candidates.iter().partition(|rank| has_stack(rank));
        let headline = |rank: u32| finding(rank).map(|told| (&told.rule.id, &told.headline));
        let mut groups = Groups::new();
        for &rank in &whole {
            groups.entry(self.fingerprint(rank)).or_default().push(rank);
        }
        for rank in cut {
            let same = whole
                .iter()
                .find(|&&other| headline(other) == headline(rank));
            let same = self.fingerprint(*same.unwrap_or(&rank));
            groups.entry(same).or_default().push(rank);
        }
        for group in groups.values_mut() {
            group.sort_unstable();
        }
        groups
    }

    /// Ranks by the words of their failures, where logs are all that is known of them and they point at nobody: of a
    /// traceback whose beginning is cut off the stack is another.
    pub(crate) fn by_words(&self, candidates: &[u32]) -> Groups {
        let is_recorded = |rank: &u32| self.outcomes[rank].evidence.record.is_some();
        let mut groups = Groups::new();
        if candidates.iter().any(is_recorded) || !self.pointers().is_empty() {
            return groups;
        }
        for &rank in candidates {
            let told = self.outcomes[&rank].finding.as_ref();
            let words = told
                .map(|told| Fingerprint::of(&told.rule.id, "", &told.headline, std::iter::empty()));
            groups.entry(words).or_default().push(rank);
        }
        groups
    }
}
