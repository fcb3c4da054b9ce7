//! Logs of one rank each, whose names end in its number: where torch's labels in some of them say the same number, or
//! srun tells of tasks of these numbers, it is so of those without a label, and of those in which nobody speaks.

use crate::console::{Console, Label};
use crate::exits::Exit;
use crate::logs::AgentLog;
use crate::speakers::rank_of_name;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Fewer logs than this whose labels agree with their names may agree by chance.
const LEAST: usize = 2;

/// Logs that differ in the number at the ends of their names alone.
#[derive(Default)]
struct Series<'a> {
    /// The logs that no label tells the rank of.
    untold: BTreeMap<u32, &'a Path>,
    /// The numbers of those whose labels say the same.
    same: BTreeSet<u32>,
    other: bool,
}

/// Returns the ranks of logs that no label tells; `quiet` are those in which nobody speaks.
pub(crate) fn ranks_of(
    consoles: &[Console],
    agents: &[AgentLog],
    exits: &[Exit],
    quiet: &[PathBuf],
) -> BTreeMap<PathBuf, u32> {
    let mut all: BTreeMap<String, Series<'_>> = BTreeMap::new();
    let quiet = quiet.iter().map(|path| (path, None));
    for (path, console) in consoles.iter().map(|it| (&it.path, Some(it))).chain(quiet) {
        let Some((name, number)) = numbered(path) else {
            continue;
        };
        let series = all.entry(name).or_default();
        let labels: Vec<&Label> = console.iter().flat_map(|it| it.ranks.keys()).collect();
        match labels[..] {
            [Label::Rank(rank)] if *rank == number => {
                series.same.insert(number);
            }
            [] if console.is_some() && rank_of_name(path) == Some(number) => {
                series.same.insert(number);
            }
            [] => {
                series.untold.insert(number, path);
            }
            _ => series.other = true,
        }
    }
    for agent in agents {
        // What a launcher says is of several ranks.
        if let Some((name, _)) = numbered(&agent.path) {
            all.entry(name).or_default().other = true;
        }
    }
    let tasks: BTreeSet<u32> = exits.iter().filter_map(Exit::task).collect();
    let told = all
        .into_values()
        .filter(|series| series.is_of_ranks() || series.is_of(&tasks));
    let ranks = told.flat_map(|series| series.untold);
    ranks.map(|(rank, path)| (path.to_owned(), rank)).collect()
}

/// Returns the logs in which nobody speaks, and whose names differ in their number alone from those of several launchers.
pub(crate) fn quiet_launchers(agents: &[AgentLog], quiet: &[PathBuf]) -> Vec<PathBuf> {
    let mut told: BTreeMap<String, BTreeSet<&Path>> = BTreeMap::new();
    for agent in agents {
        if let Some((name, _)) = numbered(&agent.path) {
            told.entry(name).or_default().insert(&agent.path);
        }
    }
    let of_launcher = |path: &&PathBuf| {
        let name = numbered(path).map(|(name, _)| name);
        let others = name.and_then(|name| told.get(&name));
        others.is_some_and(|others| others.len() >= LEAST && !others.contains(path.as_path()))
    };
    quiet.iter().filter(of_launcher).cloned().collect()
}

impl Series<'_> {
    fn is_of_ranks(&self) -> bool {
        let (known, all) = (self.same.len(), self.same.len() + self.untold.len());
        self.is_whole() && known >= LEAST && known * 2 >= all
    }

    /// Whether it has logs of these tasks: one of each, where those that ended well are not told of, or of none besides.
    fn is_of(&self, tasks: &BTreeSet<u32>) -> bool {
        let all = self.same.len() + self.untold.len();
        let known = tasks.iter().filter(|task| self.has(**task)).count();
        let is_known = known == all || known == tasks.len();
        self.is_whole() && is_known && known >= LEAST && known * 2 >= all
    }

    fn has(&self, rank: u32) -> bool {
        self.same.contains(&rank) || self.untold.contains_key(&rank)
    }

    /// Whether it has no gap, as a log of another job would leave, and nothing in it is of several ranks.
    fn is_whole(&self) -> bool {
        let all = self.same.len() + self.untold.len();
        !self.other && (0..).zip(0..all).all(|(rank, _)| self.has(rank))
    }
}

/// Reads `train-worker-3.log`: what stands around the number at the end of its stem, and the number.
fn numbered(path: &Path) -> Option<(String, u32)> {
    let stem = path.file_stem()?.to_str()?;
    let name = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = stem[name.len()..].parse().ok()?;
    let around = path.with_file_name(name);
    let ending = path.extension().unwrap_or_default();
    Some((
        format!("{}*.{}", around.display(), ending.display()),
        number,
    ))
}
