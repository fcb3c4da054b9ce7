//! How clouds and pools of machines tell the end of a job's process: Vertex AI, AI Platform, HTCondor.

use super::{Form, Said, Who};

pub(super) const FORMS: &[Form] = &[
    // A replica is a container of one host; where several ended, they are listed by their names.
    Form {
        literal: "exited with a non-zero status of ",
        pattern: r"^.*?\bThe replica ([\w-]+)(?: (\d+))? exited with a non-zero status of (\d+)\.(.*)$",
        read: |found| {
            let name = &found[1];
            let name = found.get(2).map_or_else(
                || name.to_owned(),
                |number| format!("{name} {}", number.as_str()),
            );
            let several = found[4].contains("The replica ");
            let said = Said {
                status: found[3].parse().ok()?,
                host: Some(name).filter(|_| !several),
                pid: None,
            };
            Some(vec![(Who::Unknown, said)])
        },
    },
    // Source: Google Cloud's runner of training programs, runcloudml.py, under Python 2 and 3
    Form {
        literal: " returned non-zero exit status -",
        pattern: r#"\bmessage"?: +"Command .* returned non-zero exit status -(\d+)\.?""#,
        read: |found| {
            let signal = found[1].parse::<i64>().ok().filter(|it| *it < 65)?;
            Some(vec![(Who::Unknown, Said::code(-signal))])
        },
    },
    // Source: htcondor/src/condor_utils/condor_event.cpp, of an event "Job terminated."
    Form {
        literal: "termination (",
        pattern: r"^\s*\((?:0\) Abnormal termination \(signal (\d+)\)|1\) Normal termination \(return value (\d+)\))",
        read: |found| {
            let status = match (found.get(1), found.get(2)) {
                (Some(signal), _) => -signal.as_str().parse::<i64>().ok().filter(|it| *it < 65)?,
                (_, code) => code?.as_str().parse().ok()?,
            };
            Some(vec![(Who::Unknown, Said::code(status))])
        },
    },
];
