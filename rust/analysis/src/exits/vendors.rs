//! How the launchers of HPE and Cray (PALS, ALPS) and of IBM (JSM) tell the ends of ranks.

use super::{Form, Said, Who, described};

pub(super) const FORMS: &[Form] = &[
    // Source: PALS, mpiexec
    Form {
        literal: ": rank ",
        pattern: r"^([\w.-]+): rank (\d+) (?:died from signal (\d+)|exited with code (\d+))(?: and dumped core)?$",
        read: |found| {
            let status = match (found.get(3), found.get(4)) {
                (Some(signal), _) => -signal.as_str().parse::<i64>().ok().filter(|it| *it < 65)?,
                (_, code) => code?.as_str().parse().ok()?,
            };
            let said = Said {
                status,
                host: Some(found[1].to_owned()),
                pid: None,
            };
            Some(vec![(Who::Task(found[2].parse().ok()?), said)])
        },
    },
    // Source: ALPS, aprun; its hosts are called by their numbers
    Form {
        literal: " PE RANK ",
        pattern: r"_pmiu_daemon\(SIGCHLD\): \[NID (\d+)\] .*\bPE RANK (\d+) exit signal ([A-Z][A-Za-z /]+)$",
        read: |found| {
            let said = Said {
                status: described(&found[3])?,
                host: Some(format!("nid{}", &found[1])),
                pid: None,
            };
            Some(vec![(Who::Task(found[2].parse().ok()?), said)])
        },
    },
    // Source: IBM Job Step Manager, jsrun
    Form {
        literal: "(first noticed rank ",
        pattern: r"^ERROR: +One or more process(?:es)? \(first noticed rank (\d+)\) terminated with (?:signal (\d+)|(?:status|exit code) (\d+))",
        read: |found| {
            let status = match (found.get(2), found.get(3)) {
                (Some(signal), _) => -signal.as_str().parse::<i64>().ok().filter(|it| *it < 65)?,
                (_, code) => code?.as_str().parse().ok()?,
            };
            Some(vec![(
                Who::Task(found[1].parse().ok()?),
                Said::code(status),
            )])
        },
    },
];
