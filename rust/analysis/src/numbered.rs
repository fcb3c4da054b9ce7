//! Logs of one rank each, whose names end in its number: where torch's labels in some of them say the same number, or
//! srun tells of tasks of these numbers, it is so of those without a label, and of those in which nobody speaks. Where
//! nothing at all tells a rank, it is taken to be so of workers' logs in each of which one process speaks.

use crate::console::{Console, Label, Output};
use crate::exits::Exit;
use crate::logs::AgentLog;
use crate::speakers::{rank_of_line, rank_of_name};
use crate::voices;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Fewer logs than this whose labels agree with their names may agree by chance.
const LEAST: usize = 2;

/// What the pod of rank 0 is called, and those of the ranks after it, which are numbered from 0 again: of a PyTorchJob, of
/// a TFJob, and of Vertex AI.
///
/// Source: github.com/kubeflow/common, pkg/core, `GenGeneralName`; cloud.google.com/vertex-ai, `CLUSTER_SPEC`
const FIRST_AND_REST: &[(&str, &str)] = &[
    ("master", "worker"),
    ("chief", "worker"),
    ("workerpool0", "workerpool1"),
];

/// What one process of a job is called. Of a node or a job there may be several.
const WORKERS: &[&str] = &["worker", "replica", "trainer", "task", "proc", "process"];

/// Logs that differ in the number at the ends of their names alone.
#[derive(Default)]
struct Series<'a> {
    /// By their places: the log of the one before the first, where there is such, and the others by their numbers.
    logs: BTreeMap<Place, Log<'a>>,
    other: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    First,
    Number(u32),
}

enum Log<'a> {
    /// It tells its rank.
    Told(u32),
    Untold(&'a Path, Option<&'a Output>),
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
        let Some((name, place)) = numbered(path) else {
            continue;
        };
        let series = all.entry(name).or_default();
        let labels: Vec<&Label> = console.iter().flat_map(|it| it.ranks.keys()).collect();
        let by_name = console.and_then(|_| rank_of_name(path));
        let log = match (&labels[..], by_name) {
            ([Label::Rank(rank)], _) => Log::Told(*rank),
            ([], Some(rank)) => Log::Told(rank),
            ([], None) => Log::Untold(path, console.map(|it| &it.unlabelled)),
            _ => {
                series.other = true;
                continue;
            }
        };
        series.logs.insert(place, log);
    }
    for agent in agents {
        // What a launcher says is of several ranks.
        if let Some((name, _)) = numbered(&agent.path) {
            all.entry(name).or_default().other = true;
        }
    }
    let tasks: BTreeSet<u32> = exits.iter().filter_map(Exit::task).collect();
    // Beside whatever tells of ranks, or of another series, it may be of anything.
    let of_series: usize = all.values().map(|series| series.logs.len()).sum();
    let is_alone = all.len() == 1 && of_series >= consoles.len();
    let nothing_tells = is_alone && agents.is_empty() && exits.is_empty();
    let told = all.into_iter().filter(|(name, series)| {
        series.is_of_ranks() || series.is_of(&tasks) || nothing_tells && series.is_of_workers(name)
    });
    told.flat_map(|(_, series)| series.untold()).collect()
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

/// Whether the one process that speaks in an output ends as a victim; `None` where it does not fail, or there are several.
fn ends_as_victim(output: &Output) -> Option<bool> {
    let is_one = |_: &bool| voices::apart(output.clone()).len() == 1;
    output.ends_as_victim().filter(is_one)
}

impl Series<'_> {
    fn is_of_ranks(&self) -> bool {
        let told = self.logs.values().filter(|log| log.rank().is_some());
        let known = told.count();
        self.is_whole() && known >= LEAST && known * 2 >= self.logs.len()
    }

    /// Whether it has logs of these tasks: one of each, where those that ended well are not told of, or of none besides.
    fn is_of(&self, tasks: &BTreeSet<u32>) -> bool {
        let all = self.logs.len();
        let known = tasks.iter().filter(|task| (**task as usize) < all).count();
        let is_known = known == all || known == tasks.len();
        self.is_whole() && is_known && known >= LEAST && known * 2 >= all
    }

    /// Whether its logs are those of workers in none of which a rank is told, and that all failed for one that failed.
    fn is_of_workers(&self, name: &str) -> bool {
        if !is_workers(name) || !self.is_whole() || self.logs.len() < LEAST {
            return false;
        }
        let mut lost = false;
        let fails = |(place, log): (&Place, &Log<'_>)| match (place, log) {
            (Place::Number(number), Log::Untold(_, Some(output))) => {
                let mut named = output.text.lines().filter_map(rank_of_line);
                let is_it = named.all(|named| named == *number);
                is_it && ends_as_victim(output).inspect(|it| lost |= it).is_some()
            }
            _ => false,
        };
        self.logs.iter().all(fails) && lost
    }

    /// Whether its places have no gap, as a log of another job would leave, all that tell their ranks tell their places,
    /// and nothing in it is of several ranks.
    fn is_whole(&self) -> bool {
        let says = |(rank, log): (u32, &Log<'_>)| log.rank().is_none_or(|told| told == rank);
        let numbers = self.logs.keys().filter_map(|place| match place {
            Place::First => None,
            Place::Number(number) => Some(*number),
        });
        let is_gapless = (0..)
            .zip(numbers)
            .all(|(index, number): (u32, u32)| index == number);
        !self.other && is_gapless && (0..).zip(self.logs.values()).all(says)
    }

    fn untold(self) -> impl Iterator<Item = (PathBuf, u32)> {
        let ranks = (0..).zip(self.logs.into_values());
        ranks.filter_map(|(rank, log)| match log {
            Log::Untold(path, _) => Some((path.to_owned(), rank)),
            Log::Told(_) => None,
        })
    }
}

impl Log<'_> {
    fn rank(&self) -> Option<u32> {
        match self {
            Self::Told(rank) => Some(*rank),
            Self::Untold(..) => None,
        }
    }
}

/// Whether a name, up to its number, is that of a process of a job.
fn is_workers(name: &str) -> bool {
    let name = Path::new(name).file_stem().unwrap_or_default();
    let name = name.to_string_lossy();
    let words = name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    WORKERS.iter().any(|worker| words.ends_with(worker))
}

/// Returns the number of the worker whose log this is, by its name.
pub(crate) fn of_worker(path: &Path) -> Option<u32> {
    match numbered(path)? {
        (name, Place::Number(number)) if is_workers(&name) => Some(number),
        _ => None,
    }
}

/// Reads `train-worker-3.log`: what stands around the number at the end of its stem, and its place among such.
fn numbered(path: &Path) -> Option<(String, Place)> {
    let stem = path.file_stem()?.to_str()?;
    let name = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = stem[name.len()..].parse().ok()?;
    let bare = name.trim_end_matches(['-', '_', '.']);
    let first = |(first, rest): &(&str, &str)| {
        let before = bare.strip_suffix(first).filter(|_| number == 0)?;
        Some(format!("{before}{rest}{}", &name[bare.len()..]))
    };
    let (name, place) = match FIRST_AND_REST.iter().find_map(first) {
        Some(name) => (name, Place::First),
        None => (name.to_owned(), Place::Number(number)),
    };
    let around = path.with_file_name(name);
    let ending = path.extension().unwrap_or_default();
    Some((format!("{}*.{}", around.display(), ending.display()), place))
}
