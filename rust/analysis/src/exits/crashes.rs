//! What handlers that Open MPI and UCX install say of the crash of their own process.

use super::{Ends, Exit, Form, Said, Who};
use regex::Captures;

pub(super) const FORMS: &[Form] = &[
    // Source: open-mpi/ompi, opal/util/stacktrace.c
    Form {
        literal: "] Signal: ",
        pattern: r"^(?:\[\d+,(\d+)\]<std\w+>:)?\[([\w.-]+):(\d+)\] Signal: [A-Z][\w ]+ \((\d+)\)$",
        read: caught,
    },
    // Source: openucx/ucx, src/ucs/debug/debug.c
    Form {
        literal: " Caught signal ",
        pattern: r"^(?:\[\d+,(\d+)\]<std\w+>:)?\[([\w.-]+):(\d+) *:\d+:\d+\] +Caught signal (\d+) \(",
        read: caught,
    },
];

/// Reads the task, the host, the process and the signal.
fn caught(found: &Captures<'_>) -> Option<Ends> {
    let signal: i64 = found[4].parse().ok()?;
    let task = found.get(1).and_then(|task| task.as_str().parse().ok());
    let said = Said {
        status: -signal,
        host: Some(found[2].to_owned()),
        pid: found[3].parse().ok(),
    };
    let crashed = crate::outcome::is_crash(-signal);
    crashed.then(|| vec![(task.map_or(Who::Unknown, Who::Task), said)])
}

/// Leaves out what is said of a process by its ID alone, where a launcher tells the same end with its number, and what is
/// said of one process twice.
pub(super) fn drop_told_better(exits: &mut Vec<Exit>) {
    let end = |status: i64| match status {
        129..160 => 128 - status,
        _ => status,
    };
    let numbered = exits.iter().filter(|exit| exit.who != Who::Unknown);
    let told: Vec<i64> = numbered.map(|exit| end(exit.status)).collect();
    let mut seen: Vec<Option<u32>> = Vec::new();
    exits.retain(|exit| {
        let by_id = exit.who == Who::Unknown && exit.host.is_some();
        let again = seen.contains(&exit.pid) || told.contains(&end(exit.status));
        if by_id {
            seen.push(exit.pid);
        }
        !(by_id && again)
    });
}
