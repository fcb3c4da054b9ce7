//! PyTorch's flight recorder: which collectives each rank had entered, by group and sequence number.
//!
//! Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, `dump` and `dump_json`

use crate::failure::Frame;
use crate::pickle;
use crate::traceback::{FrameRef, location};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The dump of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dump {
    pub(crate) rank: u32,
    pub(crate) path: PathBuf,
    /// The collectives that it entered, by the name of their group and their number in it.
    pub(crate) groups: BTreeMap<String, BTreeMap<u64, Collective>>,
    /// The ranks of each group, where the dump tells them.
    pub(crate) members: BTreeMap<String, Vec<u32>>,
}

/// One collective that a rank entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collective {
    /// The operation and, where they are to be the same, the sizes of its input, as `gloo:all_reduce [[4]]`.
    pub(crate) what: String,
    /// Where the program called it; empty where the dump tells no stacks.
    pub(crate) place: String,
    /// When it was called, in nanoseconds since the Unix epoch; 0 where the dump does not tell.
    pub(crate) time_ns: i64,
}

impl Dump {
    /// Returns when the rank last called a collective.
    pub(crate) fn last_ns(&self) -> i64 {
        let collectives = self.groups.values().flat_map(BTreeMap::values);
        collectives
            .map(|collective| collective.time_ns)
            .max()
            .unwrap_or(0)
    }
}

/// Operations to which every rank brings as much as the others; to others ranks bring what they have.
const EVEN: &[&str] = &["all_reduce", "allreduce", "broadcast"];

#[derive(Deserialize)]
struct File {
    entries: Vec<Entry>,
    #[serde(default)]
    pg_config: BTreeMap<String, Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    name: String,
    /// `[0, 1, 2]`, as text.
    #[serde(default)]
    ranks: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    process_group: Value,
    #[serde(default)]
    collective_seq_id: u64,
    #[serde(default)]
    is_p2p: bool,
    #[serde(default)]
    profiling_name: String,
    #[serde(default)]
    time_created_ns: i64,
    #[serde(default)]
    input_sizes: Value,
    #[serde(default)]
    frames: Vec<RecordedFrame>,
}

#[derive(Deserialize)]
struct RecordedFrame {
    #[serde(default)]
    name: String,
    #[serde(default)]
    filename: String,
    #[serde(default)]
    line: u32,
}

/// Returns whether bytes are a dump, as JSON or as a pickle.
pub(crate) fn looks_like_dump(bytes: &[u8]) -> bool {
    let has = |needle: &str| memchr::memmem::find(bytes, needle.as_bytes()).is_some();
    matches!(bytes.first(), Some(b'{' | 0x80)) && has("entries") && has("pg_config")
}

/// Reads a dump; the file's name ends in the rank, before `.json`.
///
/// A pickle is read as plain data: nothing in it can name a class or call a function.
pub(crate) fn dump(path: &Path, bytes: &[u8]) -> Result<Dump, String> {
    let rank = rank_of(path).ok_or("a flight recorder's dump whose name does not end in a rank")?;
    let file: File = if bytes.first() == Some(&b'{') {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?
    } else {
        File::deserialize(pickle::parse(bytes)?).map_err(|error| error.to_string())?
    };
    let mut groups: BTreeMap<String, BTreeMap<u64, Collective>> = BTreeMap::new();
    for entry in file.entries.into_iter().filter(|entry| !entry.is_p2p) {
        let frames: Vec<Frame> = entry
            .frames
            .into_iter()
            .map(|frame| Frame {
                file: frame.filename,
                line: frame.line,
                function: frame.name,
            })
            .collect();
        let frames = frames.iter().map(|frame| FrameRef {
            file: &frame.file,
            line: frame.line,
            function: &frame.function,
        });
        let name = entry.profiling_name;
        let is_even = EVEN.iter().any(|operation| name.ends_with(operation));
        let collective = Collective {
            what: match is_even {
                true => format!("{name} {}", entry.input_sizes),
                false => name,
            },
            place: location(frames),
            time_ns: entry.time_created_ns,
        };
        let group = groups.entry(group_name(&entry.process_group)).or_default();
        group.insert(entry.collective_seq_id, collective);
    }
    let members = file.pg_config.into_values().map(|group| {
        let ranks = group.ranks.trim_matches(['[', ']']).split(',');
        let ranks = ranks.filter_map(|rank| rank.trim().parse().ok()).collect();
        // The default group has no name here, and is called 0 in the entries.
        let name = if group.name.is_empty() {
            "0".to_owned()
        } else {
            group.name
        };
        (name, ranks)
    });
    Ok(Dump {
        rank,
        path: path.to_owned(),
        groups,
        members: members.collect(),
    })
}

/// The first of the pair `(name, description)`.
fn group_name(value: &Value) -> String {
    let name = value.get(0).unwrap_or(value);
    name.as_str()
        .map_or_else(|| name.to_string(), str::to_owned)
}

/// Reads `nccl_trace_rank_3`, `fr_rank_3.json`, `dump_3`.
fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".gz").unwrap_or(name);
    let stem = name.split('.').next()?;
    let digits = stem.bytes().rev().take_while(u8::is_ascii_digit).count();
    stem[stem.len() - digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pickle_that_calls_is_refused() {
        // cos\nsystem\n(S'true'\ntR.  Nothing of it may run, and it is no dump.
        let call = b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00truetR.";
        assert!(dump(Path::new("trace_rank_0"), call).is_err());
    }

    #[test]
    fn names_tell_ranks() {
        for (name, rank) in [
            ("nccl_trace_rank_3", Some(3)),
            ("fr_rank_12.json.gz", Some(12)),
            ("trace", None),
        ] {
            assert_eq!(rank_of(Path::new(name)), rank, "{name}");
        }
    }
}
