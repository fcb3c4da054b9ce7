//! What kernels, schedulers and container runtimes say of a host or of the job: facts found in any log, line by line.

use crate::classify::{Rule, rules};
use crate::parse::begin;
use std::path::{Path, PathBuf};

/// At most so many facts of one rule in one log are kept: a broken link fills a kernel log.
const MAX_FACTS: usize = 32;

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
}

impl HostFact {
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
    let (mut counted, mut number) = (0, 0);
    for (at, _) in rules().host_literals(text) {
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
            host: rule.host(line).map(str::to_owned).or_else(|| logger(line)),
            pid: rule.process(line),
        });
    }
    found
}

/// Reads the host before `kernel: ` in a line of syslog: `Nov 29 16:33:26 node-7 kernel: …`.
fn logger(line: &str) -> Option<String> {
    let (before, _) = line.split_once(" kernel: ")?;
    let host = before.rsplit(' ').next()?;
    (!host.is_empty() && !host.starts_with('[')).then(|| host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_flood_is_bounded() {
        let text = "NVRM: Xid (PCI:0000:3b:00): 74, NVLink\n".repeat(10_000);
        assert_eq!(facts(Path::new("a"), &text).len(), MAX_FACTS);
    }
}
