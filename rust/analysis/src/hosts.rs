//! What kernels, schedulers and container runtimes say of a host or of the job: facts found in any log, line by line.

use crate::classify::{Rule, rules};
use crate::parse::begin;
use std::path::{Path, PathBuf};

/// At most so many facts of one rule in one log are kept: a broken link fills a kernel log.
const MAX_FACTS: usize = 32;

/// At most so many lines of one log are looked at closely.
const MAX_LINES: usize = 20_000;

/// One line that says something of a host, of a process or of the job.
#[derive(Debug, Clone)]
pub(crate) struct HostFact {
    pub(crate) rule: &'static Rule,
    pub(crate) path: PathBuf,
    /// Its number in the log, from 1.
    pub(crate) line: usize,
    /// The line, cut to 300 bytes.
    pub(crate) text: String,
    /// The host that the line names.
    pub(crate) host: Option<String>,
    /// The process that the line names.
    pub(crate) pid: Option<u32>,
    /// The month and the day that the line begins with.
    pub(crate) day: Option<(u32, u32)>,
    /// How many lines of the log follow it.
    pub(crate) rest: usize,
}

impl HostFact {
    /// Whether it tells that the whole job was ended, whatever its ranks did.
    pub(crate) fn ends_job(&self) -> bool {
        self.rule.job && self.rule.explains.is_empty()
    }

    /// Returns where it stands, as `dmesg.txt:7`.
    pub(crate) fn source(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        format!("{}:{}", name.to_string_lossy(), self.line)
    }
}

/// Returns the facts that a log tells, in its order.
pub(crate) fn facts(path: &Path, text: &str) -> Vec<HostFact> {
    let mut found: Vec<HostFact> = Vec::new();
    // Where the line counted last ends, and its number.
    let (mut counted, mut number, mut looked_at) = (0, 0, 0);
    for at in rules().host_literals(text) {
        if at < counted {
            continue;
        }
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[at..]
            .find('\n')
            .map_or(text.len(), |newline| at + newline);
        number += text[counted.min(start)..start]
            .bytes()
            .filter(|&byte| byte == b'\n')
            .count()
            + 1;
        counted = end + 1;
        looked_at += 1;
        if looked_at > MAX_LINES {
            break;
        }
        let line = text[start..end].trim_end();
        let Some(rule) = rules().of_host(line) else {
            continue;
        };
        if found.iter().filter(|fact| fact.rule.id == rule.id).count() >= MAX_FACTS {
            continue;
        }
        found.push(HostFact {
            rule,
            path: path.to_owned(),
            line: number,
            text: begin(line, 300).to_owned(),
            host: rule
                .host(line)
                .map(str::to_owned)
                .or_else(|| logger(line))
                .or_else(|| pod(line, &text[..start])),
            pid: rule.process(line),
            day: day(line),
            rest: 0,
        });
    }
    if !found.is_empty() {
        let lines = text.lines().count();
        for fact in &mut found {
            fact.rest = lines.saturating_sub(fact.line);
        }
    }
    found
}

/// Returns the host that NCCL names before what it logs of one process: `node7:812:864 [0] NCCL INFO …`.
///
/// Source: nccl/src/debug.cc, `ncclDebugLog`; a line of it may begin with a time, or with the file that logs
pub(crate) fn of_nccl(text: &str) -> Option<&str> {
    processes_of_nccl(text).next().map(|(host, _)| host)
}

/// Returns the host of all lines of NCCL in a text, where several processes print them; `None` where they are of several.
///
/// At that level of detail each process of a job prints some, so that one of another host would be among them.
pub(crate) fn only_of_nccl(text: &str) -> Option<&str> {
    memchr::memmem::find(text.as_bytes(), b" NCCL INFO ")?;
    let (first, process) = processes_of_nccl(text).next()?;
    let is_one = processes_of_nccl(text).all(|(host, _)| host == first);
    let others = processes_of_nccl(text).any(|(_, other)| other != process);
    (is_one && others).then_some(first)
}

/// Yields the host and the process that each line of NCCL names.
fn processes_of_nccl(text: &str) -> impl Iterator<Item = (&str, &str)> {
    memchr::memmem::find_iter(text.as_bytes(), " NCCL ").filter_map(|at| {
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let before = &text[start..at];
        let words: Vec<&str> = before.split_ascii_whitespace().collect();
        let is_device = |word: &str| {
            let number = word
                .strip_prefix('[')
                .and_then(|word| word.strip_suffix(']'));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let device = words.iter().position(|word| is_device(word))?;
        let (rest, thread) = words.get(device.checked_sub(1)?)?.rsplit_once(':')?;
        let (host, process) = rest.rsplit_once(':')?;
        let is_number = |part: &str| part.parse::<u32>().is_ok();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let known = is_number(process) && is_number(thread) && !host.is_empty();
        (known && host.chars().all(is_name)).then_some((host, process))
    })
}

/// Reads `Nov 29 16:33:26` of syslog, or `2026-11-29T16:33:26`, at the start of a line.
fn day(line: &str) -> Option<(u32, u32)> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let line = line.trim_start_matches('[');
    let mut words = line.split_ascii_whitespace();
    let first = words.next()?;
    // `dmesg -T` begins with the day of the week.
    let month = |word: &str| MONTHS.iter().position(|month| *month == word);
    if let Some(month) = month(first).or_else(|| month(words.clone().next()?)) {
        if MONTHS.get(month) != Some(&first) {
            words.next();
        }
        return Some((u32::try_from(month).ok()? + 1, words.next()?.parse().ok()?));
    }
    let mut parts = first.get(..10)?.split('-');
    let year: u32 = parts.next()?.parse().ok()?;
    let found = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    (1970..3000).contains(&year).then_some(found)
}

/// Reads the host before `kernel: ` in a line of syslog: `Nov 29 16:33:26 node-7 kernel: …`.
fn logger(line: &str) -> Option<String> {
    let (before, _) = line.split_once(" kernel: ")?;
    let host = before.rsplit(' ').next()?;
    (!host.is_empty() && !host.starts_with('[')).then(|| host.to_owned())
}

/// Reads the pod that a line of `kubectl describe pod` is about: the last that was named before it.
fn pod(line: &str, before: &str) -> Option<String> {
    const FAR: usize = 64 << 10;
    if !line.trim_start().starts_with("Reason:") {
        return None;
    }
    let near = before
        .char_indices()
        .rev()
        .take(FAR)
        .last()
        .map_or(0, |(at, _)| at);
    let mut names = before[near..].lines().rev();
    let name = names.find_map(|line| line.strip_prefix("Name:"))?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_names_its_host() {
        for line in [
            "node-7:812:864 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>",
            "node-7:812:864 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
            "[2026-11-29 21:34:20] node-7:812:864 [0] NCCL INFO init.cc:867 -> 5",
        ] {
            assert_eq!(
                of_nccl(&format!("step 1\n{line}\n")),
                Some("node-7"),
                "{line}"
            );
        }
        for line in [
            "[0] NCCL INFO Connected all trees",
            "init.cc:867 [0] NCCL INFO x",
            "the NCCL INFO of node-7:812:864",
        ] {
            assert_eq!(of_nccl(line), None, "{line}");
        }
    }

    #[test]
    fn several_processes_of_nccl_tell_their_host() {
        let line = |host: &str, process: u32| format!("{host}:{process}:9 [0] NCCL INFO x\n");
        let one = line("node-7", 1) + &line("node-7", 2);
        assert_eq!(only_of_nccl(&one), Some("node-7"));
        assert_eq!(only_of_nccl(&(one.clone() + &line("node-8", 3))), None);
        assert_eq!(only_of_nccl(&line("node-7", 1).repeat(2)), None);
        assert_eq!(only_of_nccl(&one.replace("INFO", "WARN")), None);
    }

    #[test]
    fn a_kernels_lines_are_counted_and_read() {
        let text = "x\ny\nNov 29 16:33:26 node-7 kernel: [12.3] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB\n\
                    z\n[99.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n";
        let found = facts(Path::new("/j/dmesg.txt"), text);
        let told: Vec<_> = found
            .iter()
            .map(|fact| {
                (
                    fact.rule.category.as_str(),
                    fact.source(),
                    fact.pid,
                    fact.host.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                (
                    "host_oom_killed",
                    "dmesg.txt:3".to_owned(),
                    Some(4711),
                    Some("node-7")
                ),
                ("gpu_lost", "dmesg.txt:5".to_owned(), None, None),
            ]
        );
    }

    #[test]
    fn days_of_lines() {
        for (line, expected) in [
            ("Oct  2 01:02:03 node0 kernel: x", Some((10, 2))),
            ("[Sun Nov 29 16:33:26 2026] x", Some((11, 29))),
            ("2026-11-29T16:33:26 node0 x", Some((11, 29))),
            ("[12.3] x", None),
            ("x", None),
        ] {
            assert_eq!(day(line), expected, "{line}");
        }
    }

    #[test]
    fn a_flood_is_bounded() {
        let text = "NVRM: Xid (PCI:0000:3b:00): 74, NVLink\n".repeat(10_000);
        assert_eq!(facts(Path::new("a"), &text).len(), MAX_FACTS);
    }
}
