//! The rank that the one process of a log says it is, where no label and no launcher tells.

use super::first::rank_of_line;
use crate::console::Console;
use crate::numbered;
use regex::Regex;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

/// Returns the rank that the process of a log without labels gives itself; `None` where it gives itself none, or several.
///
/// Rank 0 alone may say what all do, so that its number in the log of another tells nothing.
pub(super) fn rank_of(console: &Console, path: &Path) -> Option<u32> {
    let text = &console.unlabelled.text;
    if !console.ranks.is_empty() {
        return None;
    }
    let has = |words: &str| memchr::memmem::find(text.as_bytes(), words.as_bytes()).is_some();
    let of_reader = || {
        let ranks = has("'__rank__'").then(|| only(text.lines().filter_map(rank_of_reader)));
        ranks.flatten()
    };
    let number = || numbered::of_worker(path).filter(|&number| number > 0);
    // One of a host's ranks alone may log what all do.
    let of_store = || {
        let number = number().filter(|_| has("Added key: store_based_barrier_key:"))?;
        only(text.lines().filter_map(rank_of_store)).filter(|&rank| rank == number)
    };
    let of_name = || {
        let number = number()?;
        let mut named = text.lines().filter_map(rank_of_line);
        let said = named.by_ref().take(LEAST).filter(|&named| named == number);
        (said.count() == LEAST && named.all(|named| named == number)).then_some(number)
    };
    of_reader().or_else(of_store).or_else(of_name)
}

/// A number that fewer lines name may be another's.
const LEAST: usize = 2;

fn only(ranks: impl Iterator<Item = u32>) -> Option<u32> {
    let ranks: BTreeSet<u32> = ranks.collect();
    ranks.first().copied().filter(|_| ranks.len() == 1)
}

/// Reads `Added key: store_based_barrier_key:1 to store for rank: 3`.
///
/// Source: torch/distributed/distributed_c10d.py, `_store_based_barrier`
fn rank_of_store(line: &str) -> Option<u32> {
    let (_, rest) = line.split_once("Added key: store_based_barrier_key:")?;
    rest.split_once(" to store for rank: ")?
        .1
        .trim()
        .parse()
        .ok()
}

/// Reads `'__rank__': '(3, 8)'` in an exception of webdataset's readers: the rank and how many there are.
fn rank_of_reader(line: &str) -> Option<u32> {
    static RANK: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"'__rank__': ["']?\((\d{1,7}), \d+\)"#).expect("it is tested")
    });
    RANK.captures(line)?.get(1)?.as_str().parse().ok()
}
