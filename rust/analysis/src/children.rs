//! Failures as a parent holds them, after `ChildFailedError`: exit statuses and error files, judged as a job is.

use crate::failure::Failure;
use crate::kept::{Record, Shared};
use crate::logs::{AgentLog, Entry};
use crate::scan::{Evidence, FileRole, RunPath, Slot, SlotKey};
use crate::schema::RootCause;
use crate::{Options, parse, verdict, work};
use std::path::{Path, PathBuf};

/// How one child of a launcher failed.
#[derive(Debug, Clone, Default)]
#[allow(clippy::exhaustive_structs)]
pub struct Child {
    /// Its global rank.
    pub rank: u32,
    /// Its process ID.
    pub pid: Option<u32>,
    /// How it ended: an exit code, or minus a signal's number.
    pub status: i64,
    /// The path and the content of its error file.
    pub error_file: Option<(PathBuf, Vec<u8>)>,
}

/// Returns the root cause among these failures by evidence; `None` where they do not tell.
///
/// ```
/// use firstfault_analysis::children::{Child, root_cause};
///
/// let child = |rank, status| Child { rank, status, ..Child::default() };
/// let cause = root_cause(vec![child(0, -15), child(1, -11)]).unwrap();
/// assert_eq!((cause.rank, cause.category.as_str()), (Some(1), "segfault"));
/// ```
pub fn root_cause(children: Vec<Child>) -> Option<RootCause> {
    let run = RunPath::of(Path::new("children"));
    let (mut evidence, shared) = (Evidence::default(), Shared::default());
    let mut agent = AgentLog {
        path: PathBuf::from("exit status"),
        ..AgentLog::default()
    };
    for child in children {
        // A worker directory each, numbered by rank, so that a file that does not say whose it is has its place.
        let key = SlotKey {
            run: run.clone(),
            attempt: 0,
            local_rank: child.rank,
        };
        agent.entries.push(Entry {
            rank: child.rank,
            local_rank: child.rank,
            status: Some(child.status),
            pid: child.pid,
            error_file: Some(format!("children/attempt_0/{}/error.json", child.rank).into()),
            ..Entry::default()
        });
        if let Some((path, content)) = child.error_file
            && let Some(failure) = read(&path, &content)
        {
            let slot = Some(key.clone());
            let record = Record::new(path, slot, FileRole::Main, failure, &shared);
            evidence.records.push(record);
        }
        evidence.slots.push(Slot::of(key));
    }
    evidence.slots.sort_by(|a, b| a.key.cmp(&b.key));
    evidence.agents.push(agent);
    let judge = || Ok(verdict::judge(evidence, &Options::default()).root_cause);
    work::within(None, None, judge).ok().flatten()
}

/// Of an attempt that a record tells the number is no matter here: all are of the one that failed.
fn read(path: &Path, content: &[u8]) -> Option<Failure> {
    let mut failure = parse::error_file(path, content).ok()?;
    if let Some(section) = &mut failure.section {
        section.rank.attempt = None;
    }
    Some(failure)
}
