//! The suffixes that tell files of one rank apart; see "Where" in the documentation of the error file.
//!
//! All names share a stem: `error` beside torchelastic's `error.json`, `rank_<r>.<host>.<pid>` in an archive directory.

/// The error file itself.
pub const ERROR: &str = ".json";

/// A copy of a Python exception's record, because an outer recorder may overwrite the first.
pub const COPY: &str = ".firstfault.json";

/// Before a child's own process ID: `error.<pid>.child_<child's pid>.json`.
pub const CHILD: &str = ".child_";

/// What a process leaves that was asked to end, with its ID before it: a snapshot, and failures after it.
pub const TERMINATED: &str = ".term";

/// What an error file was called before this process replaced it, with this process's ID before it.
pub const REPLACED: &str = ".replaced.json";

/// The black box, with the process's ID before it: `error.<pid>.box`.
pub const BLACK_BOX: &str = ".box";

/// A file being written; a reader never looks at it.
pub const TEMPORARY: &str = ".tmp";
