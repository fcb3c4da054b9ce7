//! The values that everything else speaks of: a failure, and the process, rank and host that had it.
//!
//! Each is also the form of its part in an error file, so that there is one definition for both.

mod stacks;

pub use stacks::{Frame, Module, NativeFrame, Thread};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One failure of one process, as its error file tells it.
///
/// Times are in nanoseconds since the Unix epoch. A fact that the file does not state is `None` or empty, never a guess.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Failure {
    /// What the writer called it, as `ValueError: loss is nan`; the first line of every report about it.
    pub message: String,
    /// `message.errorCode`: an exit code, or minus a signal's number.
    pub error_code: Option<i64>,
    /// `message.extraInfo.py_callstack`: a traceback or a dump of stacks, for people.
    pub callstack: String,
    /// When it happened; `None` where the file does not say.
    pub time_ns: Option<i64>,
    /// Whether `time_ns` was made from whole seconds, as torch writes them: it may be up to a second too early.
    pub whole_seconds: bool,
    /// The `firstfault` section, where there is one.
    pub section: Option<Box<Section>>,
    /// What the reader should know about how this was read: a newer version, a text that was repaired.
    pub notes: Vec<String>,
}

/// The `firstfault` section of an error file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Section {
    /// The version of this section's form.
    pub schema_version: u32,
    /// What kind of end this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// Whether the process is leaving because of this failure; a provisional record gives way to a final one.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// CLOCK_REALTIME, in nanoseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<i64>,
    /// CLOCK_MONOTONIC, in nanoseconds since the boot named by `host.boot_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monotonic_ns: Option<i64>,
    /// The kernel's own bound on the error of `time_ns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// Where it happened.
    pub host: Host,
    /// Which process it was.
    pub process: Process,
    /// Which rank of which job it was.
    pub rank: Rank,
    /// The exception, for the kinds `exception`, `exit` and `deferred`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception: Option<Exception>,
    /// The signal, for the kinds `signal` and `terminated`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<Signal>,
    /// What glibc said before it called abort(3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_message: Option<String>,
    /// The C++ exception that reached `std::terminate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpp_exception: Option<CppException>,
    /// Stacks; the crashed thread comes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<Thread>,
    /// How many threads the process had, of which `threads` may show fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads_total: Option<u64>,
    /// The loaded objects that native frames refer to by index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<Module>,
    /// Further threads that crashed while the first was being recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_crashes: Vec<serde_json::Value>,
    /// Registers of the crashed thread, by name, as hexadecimal text.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub registers: BTreeMap<String, String>,
    /// Memory in bytes, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memory: BTreeMap<String, u64>,
    /// Which signal handlers stood above and below ours, for each crash signal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub handlers: Vec<Handlers>,
    /// The training step, where the program told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// The last collective operation that this rank entered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_collective: Option<serde_json::Value>,
    /// What the program noted on its way, oldest first; the latest 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breadcrumbs: Vec<Breadcrumb>,
    /// Where a deferred error was raised and where the job stopped for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred: Option<Deferred>,
    /// What the process had survived before, the first first: provisional records that this one replaced, exceptions
    /// that ended a thread only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preceded_by: Vec<Survived>,
    /// How each stage of the recording ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<serde_json::Value>,
    /// What was cut for its size, by name, as a count.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub truncated: BTreeMap<String, u64>,
}

/// A deferred error: an error of one rank that waits until all ranks have stopped at the same step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Deferred {
    /// What the rank was doing, as its program calls it; absent where it deferred nothing itself and only stopped with
    /// the others.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The step at which it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// How many more errors the rank deferred after it.
    pub suppressed: u64,
    /// The step at which the rank stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<i64>,
}

impl std::fmt::Display for Deferred {
    /// Writes `deferred at step 17 in "metadata"`, as far as it is known.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("deferred")?;
        if let Some(step) = self.step {
            write!(f, " at step {step}")?;
        }
        match self.place.as_deref() {
            None | Some("") => Ok(()),
            Some(place) => write!(f, " in \"{place}\""),
        }
    }
}

/// A failure that did not end the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Survived {
    /// What kind of record it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// What it said.
    pub message: String,
    /// When, in nanoseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<i64>,
    /// Where an exception that nobody recorded was seen.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// More about a deferred error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred: Option<Deferred>,
}

/// The signal handlers around ours for one signal, each as `<path>+<offset>` or, outside any file, an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Handlers {
    /// The signal's name.
    pub signal: String,
    /// What was in force in place of ours: a handler that came after it, `SIG_DFL` or `SIG_IGN`; absent where ours was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<String>,
    /// The handler that ours calls next, or `SIG_IGN`; absent where it is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
    /// The function of the one above, looked up in its module's file; absent where unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above_symbol: Option<String>,
    /// The function of the one below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below_symbol: Option<String>,
}

/// What kind of end a record tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An exception left `main`.
    Exception,
    /// `sys.exit` with a status other than 0.
    Exit,
    /// A crash signal.
    Signal,
    /// A signal from outside asked the process to end.
    Terminated,
    /// An error that waited for all ranks.
    Deferred,
}

/// Something that the program noted on its way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Breadcrumb {
    /// When, in nanoseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<i64>,
    /// What, at most 48 bytes.
    pub name: String,
    /// More about it; with the name at most 96 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// How far `time_ns` may be off. Source: adjtimex(2).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Clock {
    /// The largest possible error, in microseconds.
    pub max_error_us: u64,
    /// Whether the clock is disciplined by another.
    pub synchronized: bool,
}

/// A machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Host {
    /// Its name, as gethostname(2) tells it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The boot to which `monotonic_ns` belongs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// machine-id(5).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine_id: String,
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Process {
    /// Its ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its parent's ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ppid: Option<u32>,
    /// When it started, in nanoseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time_ns: Option<i64>,
    /// Its arguments, secrets left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// The file that it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// The name of the recorded function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
}

/// The place of a process in its job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Rank {
    /// The global rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The rank on its host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_rank: Option<u32>,
    /// The number of ranks in the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// The rank of its launcher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_rank: Option<u32>,
    /// The role that the launcher gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The job's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// How many restarts came before, 0 for the first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// A Python exception.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Exception {
    /// The name of its class.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The module of its class.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// Its class and the bases, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mro: Vec<String>,
    /// Its text.
    pub message: String,
    /// Its notes (PEP 678).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What it was raised from, nearest first, deepest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<Link>,
    /// The leaves of an exception group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<Leaf>,
    /// Whether the program itself said that a retry is worth it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

/// An exception that another was raised from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Link {
    /// The name of its class.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its text.
    pub message: String,
    /// `cause` for `raise … from`, `context` for an exception raised while this one was handled.
    pub relation: String,
}

/// One exception in an exception group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Leaf {
    /// The name of its class.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its text.
    pub message: String,
}

/// A signal and where it came from. Source: sigaction(2).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Its name, as `SIGSEGV`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The name of its `si_code`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The fault address, as hexadecimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The thread that took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Who sent it, for a signal from a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<Sender>,
}

/// The process that sent a signal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sender {
    /// Its ID.
    pub pid: u32,
    /// The user it ran as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its command's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
}

/// A C++ exception that nothing caught.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CppException {
    /// Its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// What `what()` returned.
    pub what: String,
}
