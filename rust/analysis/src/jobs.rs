//! Logs of several Slurm jobs in one place, told apart by the number in their names.

use crate::scan::Evidence;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Keeps of the logs named by a Slurm job those of the latest job that failed; returns what is to be said of the others.
pub(crate) fn latest(evidence: &mut Evidence) -> Option<String> {
    let consoles = evidence.consoles.iter().map(|console| &console.path);
    let agents = evidence.agents.iter().map(|agent| &agent.path);
    let exits = evidence.exits.iter().map(|exit| &exit.path);
    let failed = consoles.chain(agents).chain(exits);
    let mut failed: BTreeMap<u64, PathBuf> = failed
        .filter_map(|path| Some((number(path)?, path.clone())))
        .collect();
    let (chosen, _) = failed.pop_last()?;
    let is_other = |path: &Path| number(path).is_some_and(|number| number != chosen);
    evidence.consoles.retain(|console| !is_other(&console.path));
    evidence.agents.retain(|agent| !is_other(&agent.path));
    evidence.exits.retain(|exit| !is_other(&exit.path));
    evidence.facts.retain(|fact| !is_other(&fact.path));
    let names = |paths: &mut dyn Iterator<Item = &PathBuf>| {
        let paths: Vec<String> = paths
            .take(3)
            .map(|path| path.display().to_string())
            .collect();
        paths.join(", ")
    };
    let later = evidence
        .quiet_logs
        .iter()
        .filter(|path| number(path) > Some(chosen));
    let later: Vec<&PathBuf> = later.collect();
    let mut said = Vec::new();
    if !failed.is_empty() {
        said.push(format!(
            "earlier ones failed too, and were left out: {}",
            names(&mut failed.values())
        ));
    }
    if !later.is_empty() {
        said.push(format!(
            "later ones tell of no failure: {}",
            names(&mut later.into_iter())
        ));
    }
    (!said.is_empty()).then(|| {
        format!(
            "this is Slurm job {chosen} of several here; {}",
            said.join("; ")
        )
    })
}

/// Reads the job of `slurm-4711.out`, `slurm-4711_3.err`. Source: sbatch(1), `--output`
pub(crate) fn number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_prefix("slurm-")?;
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    let follows = name[digits..].starts_with(['.', '_', '-']);
    name[..digits].parse().ok().filter(|_| follows)
}
