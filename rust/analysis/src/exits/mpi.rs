//! How the launchers of Open MPI, MPICH, Intel MPI and Horovod tell the end of a process, in more than one line.

use super::{Said, Who};
use regex::Regex;
use std::sync::LazyLock;

/// Open MPI names the process and its exit code in two lines, Horovod by its rank, MPICH its number and its host, Intel MPI
/// its rank as well.
pub(super) fn in_two_lines(line: &str, named: &mut Option<(Who, Said)>) -> Option<(Who, Said)> {
    static NAME: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"Process name: (?:\[\[\d+,\d+\],(\d+)\]|(\d+)$)").expect("a constant")
    });
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^= +(?:RANK (\d+) )?PID (\d+) RUNNING AT (\S+)").expect("a constant")
    });
    static CODE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^[= ]*(?i:exit (?:code|status)|killed by (signal)): +(\d+)")
            .expect("a constant")
    });
    if let Some(found) = NAME.captures(line) {
        let who = match found.get(2) {
            Some(rank) => Who::Rank(rank.as_str().parse().ok()?),
            None => Who::Task(found[1].parse().ok()?),
        };
        *named = Some((who, Said::default()));
    } else if let Some(found) = NUMBER.captures(line) {
        let said = Said {
            pid: found[2].parse().ok(),
            host: Some(found[3].to_owned()),
            status: 0,
        };
        let rank = found.get(1).and_then(|rank| rank.as_str().parse().ok());
        *named = Some((rank.map_or(Who::Unknown, Who::Task), said));
    } else if let Some(found) = CODE.captures(line) {
        let number: i64 = found[2].parse().ok()?;
        let status = if found.get(1).is_some() {
            -number
        } else {
            number
        };
        return named
            .take()
            .map(|(who, said)| (who, Said { status, ..said }));
    }
    None
}

/// Returns the signal that MPICH tells after the codes of processes, which are what `wait` gives: 9 is then no exit code.
///
/// Source: mpich/src/pm/hydra/ui/mpich/mpiexec.c
pub(super) fn signal_of_hydra(line: &str) -> Option<i64> {
    let (before, rest) = line.split_once("TERMINATED WITH THE EXIT STRING: ")?;
    let number = rest.trim_end().strip_suffix(')')?.rsplit_once("(signal ")?;
    (before == "YOUR APPLICATION ").then(|| number.1.parse().ok())?
}
