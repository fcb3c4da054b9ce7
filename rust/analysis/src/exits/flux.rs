//! How Flux tells which task ended a job, and how the job's tasks ended.
//!
//! Source: flux-core, src/shell/doom.c, src/cmd/job/attach.c

use super::{Form, Said, Who, described};

/// Flux does not tell with which status a task failed.
const FAILED: i64 = 1;

pub(super) const FORMS: &[Form] = &[
    Form {
        literal: " and exit-",
        pattern: r"flux-shell\[\d+\]: FATAL: .*\brank (\d+) on host ([\w.-]+) (?:failed|exited) and exit-(?:on-error|timeout)\b",
        read: |found| {
            let said = Said {
                status: FAILED,
                host: Some(found[2].to_owned()),
                pid: None,
            };
            Some(vec![(Who::Task(found[1].parse().ok()?), said)])
        },
    },
    // The highest status of all tasks: of those that were ended as well. Who asked for an end is told elsewhere.
    Form {
        literal: "flux-job: task(s) ",
        pattern: r"^flux-job: task\(s\) (?:exited with exit code (\d+)|([A-Z][A-Za-z /]+))$",
        read: |found| {
            let status = match (found.get(1), found.get(2)) {
                (Some(code), _) => code.as_str().parse().ok()?,
                (_, words) => described(words?.as_str())?,
            };
            let asked = [-15, -9, 143, 137].contains(&status);
            (!asked).then(|| vec![(Who::Unknown, Said::code(status))])
        },
    },
];
