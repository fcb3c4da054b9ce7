//! Names of environment variables: those of others that we read, and our own.

/// Where torchelastic wants this process's error file.
///
/// Source: torch/distributed/elastic/multiprocessing/api.py
pub const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// A directory that outlives torchrun's log directory; every record is written there too.
pub const DIRECTORY: &str = "FIRSTFAULT_DIR";

/// `1` switches all of firstfault off.
pub const DISABLE: &str = "FIRSTFAULT_DISABLE";

/// Set by the first activated process of a rank: `<pid> <start time in clock ticks> <rank> <error file>`.
pub const CLAIM: &str = "FIRSTFAULT_CLAIM";

/// `0` switches snapshots at a request to end off; `all` stops the other threads for them though the process lives on.
pub const SNAPSHOT: &str = "FIRSTFAULT_SNAPSHOT";
