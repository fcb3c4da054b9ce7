//! How Composer's launcher tells the ends of its processes: by their ranks in the whole job.
//!
//! Source: composer/cli/launcher.py

use super::{Form, Said, Who};

pub(super) const FORMS: &[Form] = &[
    Form {
        literal: " crashed with exit code ",
        pattern: r"\bcomposer\.cli\.launcher\b.*\bRank (\d+) crashed with exit code (-?\d+)\.?$",
        read: |found| {
            let said = Said::code(found[2].parse().ok()?);
            Some(vec![(Who::Rank(found[1].parse().ok()?), said)])
        },
    },
    Form {
        literal: "lobal rank ",
        pattern: r"(?:^|\bcomposer\.cli\.launcher\b.*)Global rank (\d+) \(PID (\d+)\) exited with code (-?\d+)$",
        read: |found| {
            let said = Said {
                status: found[3].parse().ok()?,
                pid: found[2].parse().ok(),
                host: None,
            };
            Some(vec![(Who::Rank(found[1].parse().ok()?), said)])
        },
    },
];
