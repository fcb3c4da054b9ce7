//! What a file's or a directory's name says about it.

use super::SlotKey;
use firstfault_format::files;
use rustix::fs::FileType;
use std::ffi::OsStr;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// A run directory of torchrun, absolute: cheap to clone, compared by its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunPath(Arc<OsStr>);

impl RunPath {
    pub(crate) fn of(path: &Path) -> Self {
        Self(path.as_os_str().into())
    }
}

impl Deref for RunPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        Path::new(&self.0)
    }
}

/// What a file is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileRole {
    /// The record of a rank.
    Main,
    /// A fuller copy of it.
    Copy,
    /// A later failure of the same rank, or the loser of a race.
    Later,
    /// The record of a child of a rank.
    Child,
    /// JSON of another name, which may be an error file or a flight recorder's dump.
    Json,
    /// Perhaps a flight recorder's dump, as a pickle.
    Recorder,
    /// What a worker kept mapped until it died.
    BlackBox,
    /// Older content that a process replaced.
    Replaced,
    /// What a process left that was asked to end.
    Terminated,
    /// Perhaps a launcher's log.
    Log,
    /// Nothing of ours.
    Other,
}

impl FileRole {
    /// Whether the name promises an error file.
    pub(crate) fn is_error_file(self) -> bool {
        matches!(
            self,
            Self::Main | Self::Copy | Self::Later | Self::Child | Self::Terminated
        )
    }
}

/// Returns what a file is, by its name.
pub(crate) fn role(name: &OsStr) -> FileRole {
    // A name that is not UTF-8 is none of ours, but may be a log's: the ending decides.
    let name = name.to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    if name.contains(files::TEMPORARY) {
        return FileRole::Other;
    }
    let archived = name.starts_with("rank_") || name.starts_with("no_rank.");
    let ours = name.starts_with("error.") || archived;
    if let Some(stem) = name.strip_suffix(files::BLACK_BOX) {
        // <stem>.<pid>.box; others have boxes too, and large ones.
        let number = stem.rsplit_once('.').map_or("", |(_, number)| number);
        return if is_number(number) {
            FileRole::BlackBox
        } else {
            FileRole::Other
        };
    }
    if ours && is_terminated(name) {
        return FileRole::Terminated;
    }
    let Some(stem) = name.strip_suffix(files::ERROR) else {
        let log = is_log(name);
        // torch's own name for them is `nccl_trace_rank_<n>`.
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let dump = stem.len() < name.len() && stem.ends_with("rank_");
        return match (log, dump) {
            (true, _) => FileRole::Log,
            (_, true) => FileRole::Recorder,
            _ => FileRole::Other,
        };
    };
    if name.ends_with(files::REPLACED) {
        FileRole::Replaced
    } else if name.ends_with(files::COPY) {
        FileRole::Copy
    } else if stem.contains(files::CHILD) {
        FileRole::Child
    } else if stem == "error" {
        FileRole::Main
    } else if let Some(rest) = stem.strip_prefix("error.") {
        if is_number(rest) {
            FileRole::Later
        } else {
            FileRole::Json
        }
    } else if archived {
        // no_rank.<host>.<pid>, or rank_<rank>.<host>.<pid>, and a second pid for a later failure.
        let mut parts = stem.rsplit('.');
        let numbers = parts.by_ref().take_while(|part| is_number(part)).count();
        if numbers >= 2 && parts.next().is_some() {
            FileRole::Later
        } else {
            FileRole::Main
        }
    } else {
        FileRole::Json
    }
}

/// `train.log`, and `train.log.1` of those who number them, before a second ending too: `log.run.1`.
fn is_log(name: &str) -> bool {
    const ENDINGS: [&str; 8] = [
        "log", "err", "out", "txt", "stderr", "stdout", "error", "output",
    ];
    let mut parts = name.rsplit('.');
    let mut last = parts.next().unwrap_or("");
    if is_number(last) {
        last = parts.next().unwrap_or("");
        if parts.next() == Some("log") {
            return true;
        }
    }
    // PBS, SGE and LSF name a job's output `train.o4711`.
    let of_job = last.strip_prefix(['o', 'e']).is_some_and(is_number);
    // Slurm's `%j.o` and `%j.e`; `4711_3.e` and `4711-0.o` of arrays and tasks.
    let by_number = ["o", "e"].contains(&last)
        && name[..name.len() - 2].starts_with(|c: char| c.is_ascii_digit())
        && name[..name.len() - 2]
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b"_-.".contains(&byte));
    (ENDINGS.contains(&last) || of_job || by_number) && last.len() < name.len()
}

/// `<stem>.<pid>.term.json`, and `<stem>.<pid>.term.<pid>.json` and so on for failures after it.
fn is_terminated(name: &str) -> bool {
    let Some((stem, rest)) = name.rsplit_once(files::TERMINATED) else {
        return false;
    };
    rest.strip_suffix(files::ERROR).is_some_and(|rest| {
        rest.is_empty() || rest.starts_with('.') && rest[1..].split('.').all(is_number)
    }) && stem.rsplit('.').next().is_some_and(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns which attempt of which run a directory is, if it is one.
pub(super) fn attempt(directory: &Path) -> Option<(RunPath, u32)> {
    let number = attempt_of(directory)?;
    let absolute = std::path::absolute(directory).ok()?;
    Some((RunPath::of(absolute.parent()?), number))
}

/// Returns which worker directory a directory of an attempt is, if it is one.
pub(super) fn slot(name: &OsStr, run: &RunPath, attempt: u32) -> Option<SlotKey> {
    Some(SlotKey {
        run: run.clone(),
        attempt,
        local_rank: name.to_str()?.parse().ok()?,
    })
}

/// Returns the number of an `attempt_<n>` directory.
pub(crate) fn attempt_of(directory: &Path) -> Option<u32> {
    directory
        .file_name()?
        .to_str()?
        .strip_prefix("attempt_")?
        .parse()
        .ok()
}

/// Returns the run that a run directory of torchrun belongs to: its name without the random part.
///
/// Source: torch/distributed/elastic/multiprocessing/api.py, `tempfile.mkdtemp(prefix=f"{run_id}_")`
pub(crate) fn run_id(run: &Path) -> String {
    let name = run
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let cut = name
        .len()
        .checked_sub(9)
        .filter(|&at| name.is_char_boundary(at) && name[at..].starts_with('_'));
    match cut {
        Some(at) if at > 0 => name[..at].to_owned(),
        _ => name,
    }
}

/// Returns what a thing is that is no regular file.
pub(super) fn kind_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_roles() {
        for (name, expected) in [
            ("error.json", FileRole::Main),
            ("error.firstfault.json", FileRole::Copy),
            ("error.4242.json", FileRole::Later),
            ("error.4242.child_4243.json", FileRole::Child),
            ("error.4242.replaced.json", FileRole::Replaced),
            ("error.4242.box", FileRole::BlackBox),
            ("rank_3.node0.4242.4242.2.box", FileRole::BlackBox),
            ("debian12.box", FileRole::Other),
            ("error.4242.term.json", FileRole::Terminated),
            ("error.4242.term.4242.json", FileRole::Terminated),
            ("error.4242.term.4242.2.json", FileRole::Terminated),
            ("rank_3.node0.4242.4242.term.json", FileRole::Terminated),
            ("rank_3.a.term.b.4242.json", FileRole::Main),
            ("error.json.tmp", FileRole::Other),
            ("error.4242.tmp", FileRole::Other),
            ("rank_3.node0.cluster.local.4242.json", FileRole::Main),
            ("rank_3.node0.4242.4242.json", FileRole::Later),
            ("rank_3.node0.4242.firstfault.json", FileRole::Copy),
            ("rank_3.node0.4242.4242.child_9.json", FileRole::Child),
            ("no_rank.node0.4242.json", FileRole::Main),
            ("no_rank.node0.4242.4243.json", FileRole::Later),
            ("no_rank.node0.4242.firstfault.json", FileRole::Copy),
            ("no_rank.node0.4242.4242.child_9.json", FileRole::Child),
            ("no_rank.node0.4242.box", FileRole::BlackBox),
            ("config.json", FileRole::Json),
            ("error.yaml.json", FileRole::Json),
            ("agent0.err", FileRole::Log),
            ("agent0.err.gz", FileRole::Log),
            ("error.json.gz", FileRole::Main),
            ("output.log.0", FileRole::Log),
            ("log.run.1", FileRole::Log),
            ("worker-1.stderr", FileRole::Log),
            ("host_0.output", FileRole::Log),
            ("output", FileRole::Other),
            ("train.o4711", FileRole::Log),
            ("4711.e", FileRole::Log),
            ("4711_3.o", FileRole::Log),
            ("train.o", FileRole::Other),
            ("log", FileRole::Other),
            ("libfoo.so.1", FileRole::Other),
            ("model.tar.gz", FileRole::Other),
            ("core.4242", FileRole::Other),
            ("nccl_trace_rank_3", FileRole::Recorder),
            ("frank_", FileRole::Other),
        ] {
            assert_eq!(role(OsStr::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn directories_tell_slots_and_runs() {
        let (run, number) = attempt(Path::new("/j/node0/job__kxbrcws/attempt_2")).unwrap();
        assert_eq!((number, run_id(&run).as_str()), (2, "job"));
        let key = slot(OsStr::new("5"), &run, number).unwrap();
        assert_eq!((&key.run, key.attempt, key.local_rank), (&run, 2, 5));
        assert_eq!(slot(OsStr::new("rank_5"), &run, number), None);
        assert_eq!(attempt(Path::new("/j/runs")), None);
        assert_eq!(run_id(Path::new("/j/short")), "short");
    }
}
