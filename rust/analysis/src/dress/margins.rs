//! What container runtimes, orchestrators and loggers put before each line: names of processes, streams and times.

use super::repeated::{self, Repeated};
use regex::Regex;
use std::cell::LazyCell;
use std::sync::LazyLock;

/// Which margins a log has.
#[derive(Debug, Default, Clone)]
pub(super) struct Margins {
    pods: bool,
    collected: bool,
    cloud: bool,
    trial: bool,
    actors: bool,
    services: bool,
    cri: bool,
    times: bool,
    /// What else stands before each line of its tracebacks.
    others: Vec<Repeated>,
}

/// One margin.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Margin {
    /// The name of the process that wrote the line.
    pub(super) name: Option<String>,
    pub(super) rank: Option<u32>,
    /// Whether the next line continues this one.
    pub(super) goes_on: bool,
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant")
}

/// `kubectl logs --prefix`.
static POD: LazyLock<Regex> = LazyLock::new(|| regex(r"^\[pod/([\w.-]+/[\w.-]+)\] ?"));
/// A collector of the logs of a job's pods: a time, then the pod and its address, as Azure Machine Learning writes it.
static COLLECTED: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d \[([a-z0-9][\w.-]*), (?:[\w.:]+)\] ?")
});
/// Google Cloud's logs, copied as text: severity, time, and a field of the resource: `[resource.labels.taskName: x]`.
static CLOUD: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"^(?:DEFAULT|DEBUG|INFO|NOTICE|WARNING|ERROR|CRITICAL|ALERT|EMERGENCY)\s+\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)\s+\[(?:resource\.)?labels\.[\w./-]+: ([\w.-]+)\] ?",
    )
});
/// Determined's, of a trial's tasks: a container's ID, and the rank where a launcher of it runs.
static TRIAL: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"^(?:<\w*> +)?\[\d{4}-\d\d-\d\d[T ,]+\d\d:\d\d:\d\d(?:\.\d+)?Z?\] ([0-9a-f]{8}|) *(?:\[rank=(\d+)\] )?\|\| ?",
    )
});
/// Ray's driver, of what its actors and tasks print; SkyPilot, of its nodes, whose ranks are no processes'.
static ACTOR: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"^\(([\w.:<>-]+(?:, rank=\d+)?,? pid=\d+(?:, ip=[\w.:]+)?)(?:, rank=(\d+))?\) ?")
});
/// `docker compose logs`.
static SERVICE: LazyLock<Regex> = LazyLock::new(|| regex(r"^([A-Za-z][\w.-]*) +\| ?"));
/// Files of the container runtime interface. Source: kubernetes/cri-api, `P` for a part of a line
static CRI: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) ([FP]) ?")
});
static TIME: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"^\[?(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?(?: [|-])? ",
    )
});
/// A number that is a task's where such numbers label the whole log.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"^ *\[\d+\]:? ?$"));

/// So many lines tell which margins a log has.
const LOOKED_AT: usize = 400;

impl Margins {
    pub(super) fn of(text: &str) -> Self {
        let some =
            |lines: &[&str], pattern: &Regex| lines.iter().any(|line| pattern.is_match(line));
        let most = |lines: &[&str], pattern: &Regex| {
            let count = lines.iter().filter(|line| pattern.is_match(line)).count();
            count > 0 && count * 10 >= lines.len() * 9
        };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let lines: Vec<&str> = lines.take(LOOKED_AT).collect();
        let found = Self {
            pods: some(&lines, &POD),
            collected: most(&lines, &COLLECTED),
            // The lines of one entry follow it without a margin.
            cloud: some(&lines, &CLOUD),
            trial: most(&lines, &TRIAL),
            // Only what others print has a margin, and the driver prints first.
            actors: memchr::memmem::find(text.as_bytes(), b" pid=").is_some()
                && text.lines().any(|line| ACTOR.is_match(line)),
            services: most(&lines, &SERVICE),
            cri: most(&lines, &CRI),
            ..Self::default()
        };
        let times = has_times(text, &found);
        let found = Self { times, ..found };
        let tasks = LazyCell::new(|| crate::console::are_tasks(text));
        let is_label = |margin: &str| is_label(margin) || NUMBER.is_match(margin) && *tasks;
        let others = Repeated::of(text, |line| found.take_off(line), is_label);
        Self { others, ..found }
    }

    /// Returns what stands behind all margins of a line.
    fn take_off<'t>(&self, mut line: &'t str) -> &'t str {
        while let Some((_, rest)) = self.read(line) {
            line = rest;
        }
        line
    }

    pub(super) fn is_none(&self) -> bool {
        let named = self.pods || self.collected || self.cloud || self.trial;
        let known = named || self.actors || self.services || self.cri || self.times;
        !known && self.others.is_empty()
    }

    /// Reads the outermost margin of a line; returns it and what follows.
    pub(super) fn read<'t>(&self, line: &'t str) -> Option<(Margin, &'t str)> {
        let named = |pattern: &Regex| {
            let found = pattern.captures(line)?;
            let rank = found.get(2).and_then(|rank| rank.as_str().parse().ok());
            let margin = Margin {
                name: Some(found[1].to_owned()).filter(|name| !name.is_empty()),
                rank,
                goes_on: false,
            };
            Some((margin, &line[found[0].len()..]))
        };
        let pod = self.pods.then(|| named(&POD)).flatten();
        let pod = pod.or_else(|| self.collected.then(|| named(&COLLECTED)).flatten());
        let pod = pod.or_else(|| self.cloud.then(|| named(&CLOUD)).flatten());
        let pod = pod.or_else(|| self.trial.then(|| named(&TRIAL)).flatten());
        let pod = pod.or_else(|| self.actors.then(|| named(&ACTOR)).flatten());
        let found = pod.or_else(|| self.services.then(|| named(&SERVICE)).flatten());
        if found.is_some() {
            return found;
        }
        if let Some(found) = self.cri.then(|| CRI.captures(line)).flatten() {
            let goes_on = &found[1] == "P";
            let margin = Margin {
                goes_on,
                ..Margin::default()
            };
            return Some((margin, &line[found[0].len()..]));
        }
        if let Some(found) = self.times.then(|| TIME.find(line)).flatten() {
            return Some((Margin::default(), &line[found.end()..]));
        }
        let mut others = self.others.iter();
        let (said, rest) = others.find_map(|other| other.read(line))?;
        let rank = rank(said);
        let host = repeated::host(said).filter(|_| rank.is_none());
        let margin = Margin {
            name: host.map(str::to_owned),
            rank,
            goes_on: false,
        };
        Some((margin, rest))
    }
}

/// Reads the rank in a margin that no launcher's form is: `[rank 3] `, `rank=3 | `, `12:00:01 Rank 3: `.
fn rank(margin: &str) -> Option<u32> {
    static RANK: LazyLock<Regex> =
        LazyLock::new(|| regex(r"(?i)(?:^|[^a-z_])(local |node |group )?rank[ :=_-]{0,2}(\d+)\b"));
    let found = RANK.captures(margin)?;
    let is_global = found.get(1).is_none();
    found[2].parse().ok().filter(|_| is_global)
}

/// Whether a margin says whose the line is, which the readers of whole logs tell; or is part of a traceback's own form.
fn is_label(margin: &str) -> bool {
    static LABEL: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r"\[[a-z_]+\d+\]:|\]<std(?:out|err|diag)>:$|^ *\d+: ?$|%\||^[ |+]*$|Original |Exception Group ",
        )
    });
    LABEL.is_match(margin)
}

/// Whether a time stands before each line of a traceback, and not only before the lines of a logger.
fn has_times(text: &str, outer: &Margins) -> bool {
    const START: &str = "Traceback (most recent call last)";
    const NEAR: usize = 200;
    memchr::memmem::find_iter(text.as_bytes(), START).any(|at| {
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        if at - start > NEAR {
            return false;
        }
        let mut lines = text[start..].lines().map(|line| {
            let rest = outer.read(line).map_or(line, |(_, rest)| rest);
            TIME.find(rest).map(|time| &rest[time.end()..])
        });
        let (first, second) = (lines.next().flatten(), lines.next().flatten());
        // JSON whose text is the whole traceback has its frames on the same line.
        first.is_some_and(|first| {
            let follows = second.is_some_and(|second| second.contains("  File \""));
            follows || first.starts_with("{\"")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loggers_times_stay() {
        let log = "2026-11-29 16:33:26,123 ERROR failed\nTraceback (most recent call last):\n  File \"a\", line 1, in f\nKeyError: 1\n";
        assert!(Margins::of(log).is_none());
        let first = "2026-11-29 16:33:26,123 Traceback (most recent call last):\n  File \"a\", line 1, in f\nKeyError: 1\n";
        assert!(Margins::of(first).is_none());
    }

    #[test]
    fn a_table_is_no_service() {
        let table = "name | loss\nstep 1\nstep 2\nstep 3\n";
        assert!(Margins::of(table).is_none());
    }
}
