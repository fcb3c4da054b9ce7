//! Values by rank, in order: a list, in which a rank mostly stands at its own number.

use std::ops::Index;

#[derive(Debug)]
pub(crate) struct ByRank<T>(Vec<(u32, T)>);

impl<T> ByRank<T> {
    /// Returns these values, which are in order of their ranks.
    pub(crate) fn in_order(values: Vec<(u32, T)>) -> Self {
        debug_assert!(values.is_sorted_by(|(a, _), (b, _)| a < b));
        Self(values)
    }

    pub(crate) fn get(&self, rank: &u32) -> Option<&T> {
        self.0.get(self.place(*rank)?).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, rank: &u32) -> Option<&mut T> {
        let place = self.place(*rank)?;
        self.0.get_mut(place).map(|(_, value)| value)
    }

    fn place(&self, rank: u32) -> Option<usize> {
        let is_it = |&at: &usize| self.0.get(at).is_some_and(|(known, _)| *known == rank);
        let at_home = usize::try_from(rank).ok().filter(is_it);
        at_home.or_else(|| {
            let at = self.0.partition_point(|(known, _)| *known < rank);
            Some(at).filter(is_it)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&u32, &T)> {
        self.0.iter().map(|(rank, value)| (rank, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &u32> {
        self.0.iter().map(|(rank, _)| rank)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> + Clone {
        self.0.iter().map(|(_, value)| value)
    }
}

impl<T> Index<&u32> for ByRank<T> {
    type Output = T;

    fn index(&self, rank: &u32) -> &T {
        self.get(rank).expect("a rank that is there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_with_gaps_and_without() {
        for ranks in [vec![0, 1, 2], vec![1, 2, 5, 4_000_000_000], vec![]] {
            let all = ByRank::in_order(ranks.iter().map(|&rank| (rank, rank)).collect());
            for rank in [0, 1, 2, 3, 5, 4_000_000_000, u32::MAX] {
                let expected = ranks.contains(&rank).then_some(&rank);
                assert_eq!(all.get(&rank), expected, "{rank} of {ranks:?}");
            }
        }
    }
}
