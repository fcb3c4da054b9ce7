//! Records of a rank's child processes: where a child's end is why the rank ended, the child's is what is judged.

use crate::assemble::{Job, RankEvidence};
use crate::kept::Record;
use crate::scan::FileRole;
use firstfault_format::signals;
use std::collections::BTreeMap;

impl Job {
    /// Has each rank judged by the record of the child that it failed for, where its own says that or it has none.
    pub(crate) fn judge_children(&mut self) {
        let ranks = self.attempts.values_mut().flat_map(BTreeMap::values_mut);
        for evidence in ranks.filter(|evidence| !evidence.others.is_empty()) {
            evidence.judge_child();
        }
    }
}

impl RankEvidence {
    fn judge_child(&mut self) {
        let own = self.record.as_ref().map(|record| &record.failure.message);
        let fits = |child: &Record| match own {
            Some(message) => is_named(child, message) || is_relayed(child, message),
            None => self.is_relay_of(child),
        };
        let children = self.others.iter().enumerate();
        let children = children.filter(|(_, record)| is_final(record) && fits(record));
        // What it failed for is the last that happened before: of what came earlier it lived on.
        let last = children.max_by_key(|(_, child)| child.time_ns);
        let Some((index, child)) = last else { return };
        let ended = self.record.as_ref().and_then(|record| record.time_ns);
        if child
            .time_ns
            .zip(ended)
            .is_some_and(|(child, ended)| child > ended)
        {
            return;
        }
        let child = self.others.remove(index);
        let parent = self.record.replace(child);
        self.by_child = Some(match (parent, &self.status) {
            (Some(parent), _) => crate::verdict::first_line(&parent.failure.message),
            (None, Some(status)) => crate::outcome::describe(status),
            (None, None) => "it left nothing itself".to_owned(),
        });
    }

    /// Whether a process that left no record of its own ended as one that passes on how its child ended.
    fn is_relay_of(&self, child: &Record) -> bool {
        let words = self.words.as_ref();
        if words.is_some_and(|words| words.after.is_some()) || self.terminated.is_some() {
            return false;
        }
        let Some(status) = &self.status else {
            return words.is_none() && self.black_box.is_none();
        };
        let code = child.failure.error_code.unwrap_or(1);
        let passed_on = match code {
            // As shells name a signal, and as `os._exit` cuts its number.
            code if code < 0 => [128 - code, 256 + code, 1].contains(&status.value),
            code => [code, 1].contains(&status.value),
        };
        passed_on && !status.by_launcher()
    }
}

fn is_final(record: &Record) -> bool {
    let section = record.failure.section.as_ref();
    record.role == FileRole::Child && section.is_some_and(|section| section.is_final)
}

/// Whether a text names the child: `DataLoader worker (pid 4242) is killed by signal`, or as our own records do.
fn is_named(child: &Record, message: &str) -> bool {
    let pid = child.identity.pid;
    pid.is_some_and(|pid| names_worker(pid, message) || hands_on(pid, message))
}

/// Whether a record says that its process left by the status of this one: `SystemExit: 1, after child process 4242 failed`.
fn hands_on(pid: u32, message: &str) -> bool {
    let told = message.split_once(", after child process ");
    let named = told.and_then(|(_, rest)| rest.split_once(" failed: "));
    named.is_some_and(|(number, _)| number.parse() == Ok(pid))
}

/// Whether a process is one that a text names: `DataLoader worker (pid(s) 4242, 4243) exited unexpectedly`.
pub(crate) fn names_worker(pid: u32, text: &str) -> bool {
    let named = text.split_once("DataLoader worker (pid");
    let list = named.and_then(|(_, rest)| rest.split_once(' ')?.1.split_once(')'));
    list.is_some_and(|(list, _)| list.split(", ").any(|number| number.parse() == Ok(pid)))
}

/// Whether a text says that a child ended as this one did.
fn is_relayed(child: &Record, message: &str) -> bool {
    told_status(message) == Some(child.failure.error_code.unwrap_or(1))
}

/// Returns how an exception says that a child process ended: minus a signal's number, or an exit code.
///
/// Source: CPython, Lib/subprocess.py, `CalledProcessError`; torch/multiprocessing/spawn.py, `ProcessExitedException`
pub(crate) fn told_status(text: &str) -> Option<i64> {
    let after = |words: &str| Some(text.rsplit_once(words)?.1.trim_end_matches(['.', '\n']));
    if text.contains("CalledProcessError: Command ") {
        let died = after(" died with <Signals.");
        return match died.and_then(|rest| rest.split_once(": ")?.1.split_once('>')) {
            Some((number, _)) => number.parse().ok().map(|number: i64| -number),
            None => after(" returned non-zero exit status ")?.parse().ok(),
        };
    }
    if text.contains("ProcessExitedException: process ") {
        return match after(" terminated with signal ").and_then(signals::by_name) {
            Some(signal) => Some(-i64::from(signal.number)),
            None => after(" terminated with exit code ")?.parse().ok(),
        };
    }
    None
}
