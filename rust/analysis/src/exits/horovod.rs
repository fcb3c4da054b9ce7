//! How Horovod's launchers tell the end of a process: by its rank in the whole job.
//!
//! Source: horovod/runner/gloo_run.py, horovod/runner/launch.py

use super::{Form, Said, Who};

pub(super) const FORMS: &[Form] = &[Form {
    literal: " exit with status code ",
    pattern: r"^Process (\d+) exit with status code (\d+)\.$",
    read: |found| {
        let said = Said::code(found[2].parse().ok()?);
        Some(vec![(Who::Rank(found[1].parse().ok()?), said)])
    },
}];
