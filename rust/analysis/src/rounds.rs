//! Attempts of different launchers matched by the round that they were in: a folder's number counts one launcher's own
//! restarts, and a launcher that others made restart without a failure of its own overwrites its last attempt.

use crate::assemble::{HostKey, Job};
use std::collections::{BTreeMap, BTreeSet};

/// Clocks of two hosts may differ by so much; a match must be better by more than that, in nanoseconds.
const DOUBT_NS: i64 = 10_000_000_000;

/// What no match costs.
const NEVER: i64 = i64::MAX / 4;

/// More attempts than these are matched by their numbers.
const MAX_ATTEMPTS: usize = 500;

/// One attempt of one launcher.
#[derive(Debug, Clone)]
struct Moment {
    attempt: u32,
    /// When its first rank failed.
    time_ns: Option<i64>,
    /// Where its round met.
    master: Option<String>,
}

impl Moment {
    /// How far two attempts are from being of one round; `None` where nothing tells.
    fn from(&self, other: &Self) -> Option<i64> {
        if let (Some(one), Some(other)) = (&self.master, &other.master) {
            return Some(if one == other { 0 } else { NEVER });
        }
        let apart = self.time_ns?.saturating_sub(other.time_ns?);
        Some(apart.saturating_abs().min(NEVER))
    }
}

impl Job {
    /// Numbers the attempts of launchers that have fewer than another by the rounds of that one.
    pub(crate) fn match_rounds(&mut self) {
        if self.attempts.len() < 2 {
            return;
        }
        let launchers = self.moments();
        let Some(most) = launchers.values().max_by_key(|moments| moments.len()) else {
            return;
        };
        let mut moves: BTreeMap<(HostKey, u32), u32> = BTreeMap::new();
        for (host, moments) in &launchers {
            let fewer = moments.len() < most.len() && most.len() <= MAX_ATTEMPTS;
            let Some(matched) = fewer.then(|| matched(moments, most)).flatten() else {
                continue;
            };
            let numbers = moments.iter().map(|moment| moment.attempt).zip(matched);
            moves.extend(numbers.map(|(from, to)| ((host.clone(), from), to)));
        }
        moves.retain(|(_, from), to| from != to);
        if moves.is_empty() {
            return;
        }
        let to = |host: &HostKey, attempt: u32| {
            let found = moves.get(&(host.clone(), attempt));
            found.copied().unwrap_or(attempt)
        };
        let mut taken = BTreeSet::new();
        let mut all = self.attempts.iter().flat_map(|(attempt, ranks)| {
            ranks
                .values()
                .map(move |rank| (to(&rank.host, *attempt), rank.rank))
        });
        // A rank twice in one round is none: then the numbers are as good as anything.
        if !all.all(|place| taken.insert(place)) {
            return;
        }
        for (attempt, ranks) in std::mem::take(&mut self.attempts) {
            for (number, rank) in ranks {
                let attempt = to(&rank.host, attempt);
                let host = self.hosts.entry(rank.host.clone()).or_default();
                host.last_attempt = host.last_attempt.max(Some(attempt));
                self.attempts
                    .entry(attempt)
                    .or_default()
                    .insert(number, rank);
            }
        }
        let names: BTreeSet<String> = moves
            .iter()
            .filter_map(|((host, from), to)| {
                let HostKey::Run(run) = host else { return None };
                Some(format!("{} attempt_{from} in round {to}", run.display()))
            })
            .take(3)
            .collect();
        let names: Vec<String> = names.into_iter().collect();
        self.notes.push(format!(
            "attempts are matched by rendezvous, not by folder: {}",
            names.join(", ")
        ));
    }

    /// The attempts of each launcher that has run directories, in order.
    fn moments(&self) -> BTreeMap<HostKey, Vec<Moment>> {
        let mut found: BTreeMap<HostKey, BTreeMap<u32, Moment>> = BTreeMap::new();
        for (&attempt, ranks) in &self.attempts {
            for rank in ranks.values() {
                let HostKey::Run(run) = &rank.host else {
                    continue;
                };
                let moment = || Moment {
                    attempt,
                    time_ns: None,
                    master: self.masters.get(&(run.clone(), attempt)).cloned(),
                };
                let of_host = found.entry(rank.host.clone()).or_default();
                let known = of_host.entry(attempt).or_insert_with(moment);
                let record = rank.record.as_ref().and_then(|record| record.time_ns);
                let status = rank.status.as_ref().and_then(|status| status.time_ns);
                let times = [known.time_ns, record.or(status)].into_iter().flatten();
                known.time_ns = times.min();
            }
        }
        let in_order = |moments: BTreeMap<u32, Moment>| moments.into_values().collect();
        found
            .into_iter()
            .map(|(host, moments)| (host, in_order(moments)))
            .collect()
    }
}

/// Returns the attempt of `most` that each of `few` was in, in order; `None` where their numbers fit as well as any.
fn matched(few: &[Moment], most: &[Moment]) -> Option<Vec<u32>> {
    let apart: Vec<Vec<i64>> = few
        .iter()
        .map(|one| most.iter().map(|other| one.from(other)).collect())
        .collect::<Option<_>>()?;
    // The least sum for the first so many of both: each goes with a later one than that before it.
    let mut least = vec![vec![0; most.len() + 1]; few.len() + 1];
    for row in 1..=few.len() {
        least[row][row - 1] = NEVER;
        for column in row..=most.len() {
            let with = least[row - 1][column - 1].saturating_add(apart[row - 1][column - 1]);
            least[row][column] = with.min(least[row][column - 1]);
        }
    }
    let best = least[few.len()][most.len()];
    let by_number = few.iter().zip(&apart).map(|(moment, apart)| {
        let same = most
            .iter()
            .position(|other| other.attempt == moment.attempt);
        same.map_or(NEVER, |same| apart[same])
    });
    let by_number = by_number.fold(0_i64, i64::saturating_add);
    let doubt = DOUBT_NS.saturating_mul(i64::try_from(few.len()).ok()?);
    if best >= NEVER || by_number.saturating_sub(best) <= doubt {
        return None;
    }
    let mut found = Vec::new();
    let mut column = most.len();
    for row in (1..=few.len()).rev() {
        while column > row && least[row][column] == least[row][column - 1] {
            column -= 1;
        }
        found.push(most[column - 1].attempt);
        column -= 1;
    }
    found.reverse();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(times: &[i64]) -> Vec<Moment> {
        (0..)
            .zip(times)
            .map(|(attempt, time)| Moment {
                attempt,
                time_ns: Some(time * 1_000_000_000),
                master: None,
            })
            .collect()
    }

    #[test]
    fn fewer_attempts_go_with_those_of_their_time() {
        for (few, expected) in [
            (&[100, 200][..], Some(vec![1, 2])),
            (&[0, 200], Some(vec![0, 2])),
            (&[1, 102], None),
            (&[205], Some(vec![2])),
            // The clocks may be wrong by as much.
            (&[45], None),
        ] {
            assert_eq!(
                matched(&moments(few), &moments(&[0, 100, 200])),
                expected,
                "{few:?}"
            );
        }
    }

    #[test]
    fn where_a_round_met_tells_more_than_time() {
        let mut few = moments(&[0]);
        let mut most = moments(&[0, 1]);
        few[0].master = Some("node0:2".to_owned());
        (most[0].master, most[1].master) = (Some("node0:1".to_owned()), Some("node0:2".to_owned()));
        assert_eq!(matched(&few, &most), Some(vec![1]));
    }
}
