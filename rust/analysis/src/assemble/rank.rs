//! All that is known of one rank, and how its launcher saw it end.

use super::HostKey;
use crate::failure::Deferred;
use crate::kept::{KeptSection, Record};
use crate::scan::Boxed;
use crate::words::Words;
use std::path::PathBuf;

/// All that is known of one rank in one attempt; boxed is what few ranks have.
#[derive(Debug)]
pub(crate) struct RankEvidence {
    pub(crate) rank: u32,
    pub(crate) local_rank: Option<u32>,
    pub(crate) host: HostKey,
    /// The record that tells how it ended.
    pub(crate) record: Option<Record>,
    /// How it failed itself, where `record` is that of the child that it failed for.
    pub(crate) by_child: Option<String>,
    /// Records of the same rank besides: later failures, children, losers of a race.
    pub(crate) others: Vec<Record>,
    /// The snapshot that it left when it was asked to end.
    pub(crate) terminated: Option<Box<Record>>,
    pub(crate) status: Option<Status>,
    /// Its black box; of several the latest.
    pub(crate) black_box: Option<Box<Boxed>>,
    /// What the end of its stderr tells, where it left no record.
    pub(crate) words: Option<Box<Words>>,
    pub(crate) output_path: Option<PathBuf>,
    /// Whether others' lines are among those of its output.
    pub(crate) output_shared: bool,
    /// Whether its words are taken for its own because of the order in which workers ended.
    pub(crate) words_assumed: bool,
    /// How many processes end by its exception in the log that tells of no other's end; 0 where that is not so.
    pub(crate) chorus: usize,
    /// Whether the last line of its output has no end, as where a log was cut.
    pub(crate) torn: bool,
    /// Whether a traceback of its output has no beginning.
    pub(crate) headless: bool,
    /// Whether its stderr shows a traceback that torch's hook for uncaught exceptions printed.
    pub(crate) uncaught: bool,
    /// Whether its words are what its launcher's summary shows of it.
    pub(crate) by_summary: bool,
    /// Whether the program's own logger labelled its output, which may show what was caught.
    pub(crate) by_logger: bool,
    pub(crate) damaged: Option<String>,
    /// Whether its number follows from nothing but the order of the directories.
    pub(crate) assumed: bool,
    /// Whether its number means nothing at all.
    pub(crate) nameless: bool,
}

/// How a launcher saw a worker end.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    /// An exit code, or minus a signal's number.
    pub(crate) value: i64,
    /// In nanoseconds since the Unix epoch, made from whole seconds.
    pub(crate) time_ns: Option<i64>,
    /// Where it says so, as `agent0.err:16`.
    pub(crate) source: String,
    /// The same as a path.
    pub(crate) log: PathBuf,
    /// The worker's process ID.
    pub(crate) pid: Option<u32>,
    /// Whether the launcher killed it, after it had not ended when asked to; `None` where it says of none whom it ended.
    pub(crate) forced: Option<bool>,
    /// Whether the launcher asked it to end; `None` where it says of none whom it asked.
    pub(crate) asked: Option<bool>,
}

impl Status {
    /// Returns whether it is the launcher that ended the process, as far as is known.
    pub(crate) fn by_launcher(&self) -> bool {
        match self.value {
            -15 | -1 | 143 => self.asked != Some(false),
            -9 | 137 => self.forced == Some(true),
            _ => false,
        }
    }
}

impl RankEvidence {
    pub(super) fn new(rank: u32, local_rank: Option<u32>, host: HostKey) -> Self {
        Self {
            rank,
            local_rank,
            host,
            record: None,
            by_child: None,
            others: Vec::new(),
            terminated: None,
            status: None,
            black_box: None,
            words: None,
            output_path: None,
            output_shared: false,
            words_assumed: false,
            chorus: 0,
            torn: false,
            headless: false,
            uncaught: false,
            by_summary: false,
            by_logger: false,
            damaged: None,
            assumed: false,
            nameless: false,
        }
    }

    /// Returns the process IDs that its own files and its launcher state.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        let own = self.record.as_ref().and_then(|record| record.identity.pid);
        let boxed = self.black_box.as_ref();
        let boxed = boxed.and_then(|boxed| boxed.content.process.pid);
        let told = self.status.as_ref().and_then(|status| status.pid);
        [own, boxed, told].into_iter().flatten()
    }

    pub(crate) fn section(&self) -> Option<&KeptSection> {
        self.record.as_ref()?.failure.section.as_deref()
    }

    /// Returns what its record says of an error that this rank deferred itself.
    pub(crate) fn deferred(&self) -> Option<&Deferred> {
        let deferred = self.section()?.deferred.as_deref()?;
        deferred.place.is_some().then_some(deferred)
    }
}
