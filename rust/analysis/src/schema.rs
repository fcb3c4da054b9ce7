//! The forms of the error file and of the report, and their JSON Schemas.

use crate::failure::{Breadcrumb, Section};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of the report that this build writes.
pub const REPORT_VERSION: u32 = 1;

/// An error file: what torch's readers know, and our section beside it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorFile {
    /// Torch's part.
    pub message: Message,
    /// Ours; absent in files that torch wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firstfault: Option<Section>,
}

/// Torch's part of an error file.
///
/// Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// The failure in one line.
    pub message: String,
    /// An exit code, or minus a signal's number.
    #[serde(rename = "errorCode", skip_serializing_if = "Option::is_none")]
    pub error_code: Option<i64>,
    /// The stack and the time.
    #[serde(rename = "extraInfo")]
    pub extra_info: ExtraInfo,
}

/// The stack and the time, as torch writes them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExtraInfo {
    /// A traceback, for people.
    pub py_callstack: String,
    /// Whole seconds since the Unix epoch, as a string.
    pub timestamp: String,
}

/// What `firstfault report` has to say about one job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The version of this form.
    pub schema_version: u32,
    /// The job, as far as its files tell.
    pub job: Job,
    /// The first failure; `null` where none was found.
    pub root_cause: Option<RootCause>,
    /// Further failures that are not consequences of the first.
    pub also_primary: Vec<RootCause>,
    /// Ranks that may have caused the failure though they left no evidence of their own.
    pub suspects: Vec<Suspect>,
    /// Every rank of the judged attempt, by how it ended.
    pub ranks: Ranks,
    /// Failures that are alike, largest group first.
    pub groups: Vec<Group>,
    /// Every attempt, in order.
    pub attempts: Vec<Attempt>,
    /// Files that are named like error files and could not be used.
    pub damaged_files: Vec<DamagedFile>,
    /// What is missing, assumed or unread, in sentences.
    pub incomplete: Vec<String>,
    /// Every name of a host that the evidence tells, so that it can be redacted; no part of the form.
    #[serde(skip)]
    pub host_names: Vec<String>,
    /// Whether it is known how every rank of the last attempt ended, as far as the files say how many there are; no part of
    /// the form.
    #[serde(skip)]
    pub is_complete: bool,
}

impl Report {
    /// Returns whether nothing says that any rank failed, and nothing that all of them ended well.
    pub fn is_undetermined(&self) -> bool {
        self.root_cause.is_none()
            && (self.ranks.succeeded.is_empty()
                || !self.ranks.silent.is_empty()
                || !self.damaged_files.is_empty())
    }
}

impl Report {
    /// Returns the report with each text changed: all but those that come from a list of this crate's own, such as
    /// categories and ranges of ranks.
    pub(crate) fn map_strings(self, mut change: impl FnMut(&str) -> String) -> Self {
        let mut value = serde_json::to_value(&self).unwrap_or_default();
        map_strings(&mut value, &mut change);
        serde_json::from_value(value).unwrap_or(self)
    }
}

/// Fields whose texts are this crate's own.
const OWN: &[&str] = &[
    "category",
    "class",
    "confidence",
    "fingerprint",
    "owner",
    "ranks",
    "retry",
    "role",
];

fn map_strings(value: &mut serde_json::Value, change: &mut impl FnMut(&str) -> String) {
    use serde_json::Value;
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| map_strings(item, change)),
        Value::Object(fields) => fields
            .iter_mut()
            .filter(|(name, _)| !OWN.contains(&name.as_str()))
            .for_each(|(_, field)| map_strings(field, change)),
        _ => {}
    }
}

/// The job, as far as its files tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    /// The launcher's name of the run; empty where unknown.
    pub run_id: String,
    /// The number of ranks, stated or counted; 0 where unknown.
    pub world_size: u32,
    /// The number of attempts that left files.
    pub attempts: u32,
    /// The number of hosts (more exactly: of launchers) that left files.
    pub hosts: u32,
}

/// A first failure and the verdict on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RootCause {
    /// The rank; `null` where the cause is the whole job, a host, or cannot be told.
    pub rank: Option<u32>,
    /// Its rank on its host.
    pub local_rank: Option<u32>,
    /// The host; empty where the cause is the whole job.
    pub host: String,
    /// The attempt in which it failed, 0 for the first.
    pub attempt: u32,
    /// The kind of failure, from the taxonomy.
    pub category: String,
    /// The failure in one line.
    pub title: String,
    /// Which part of the system is to blame.
    pub class: Class,
    /// How sure the verdict is.
    pub confidence: Confidence,
    /// Whether running the job again is worth it.
    pub retry: Retry,
    /// Who can repair it.
    pub owner: Owner,
    /// When, in nanoseconds since the Unix epoch; `null` where unknown.
    pub time_ns: Option<i64>,
    /// What to do next.
    pub advice: String,
    /// The training step that the rank had reached, where its program told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// What its program noted last, oldest first; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breadcrumbs: Vec<Breadcrumb>,
    /// Why the verdict is what it is, strongest first.
    pub evidence: Vec<String>,
    /// The file that tells it; empty where no file does.
    pub error_file: String,
}

/// Which part of the system is to blame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The training program.
    #[default]
    Worker,
    /// Launcher, scheduler, container.
    Platform,
    /// Hardware, network, storage.
    Infrastructure,
    /// Data, configuration.
    Input,
}

/// How sure a verdict is.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Nothing speaks for it.
    #[default]
    None,
    /// A tie, or silence alone.
    Low,
    /// One candidate without corroboration, or an order decided by one host's clock.
    Medium,
    /// One candidate and at least one independent agreement.
    High,
}

/// Whether running the job again is worth it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// As it is.
    Yes,
    /// Without this host.
    ExcludeHost,
    /// Once; not again if the same failure recurs.
    Once,
    /// Not before something is changed.
    No,
    /// Nothing is known about it.
    #[default]
    Unknown,
}

/// Who can repair a failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// Whoever wrote or configured the training program.
    User,
    /// The libraries.
    Framework,
    /// Machines and devices.
    Hardware,
    /// The network between hosts.
    Network,
    /// File systems.
    Storage,
    /// The scheduler or the launcher.
    Scheduler,
    /// Nobody knows.
    #[default]
    Unknown,
}

/// A rank that may have caused the failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Suspect {
    /// The rank.
    pub rank: u32,
    /// Its host; empty where unknown.
    pub host: String,
    /// Why it is suspected.
    pub reason: String,
}

/// Ranks by how they ended, each as ranges like `0-511,513-1023`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ranks {
    /// Failed by themselves.
    pub primary: String,
    /// Failed because of another rank.
    pub collateral: String,
    /// Ended by the launcher.
    pub terminated: String,
    /// Left nothing.
    pub silent: String,
    /// Ended well, as far as the launcher says.
    pub succeeded: String,
}

/// Failures that are alike.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// The same for the same failure, in every job: 16 hexadecimal digits.
    pub fingerprint: String,
    /// The kind of failure.
    pub category: String,
    /// What these ranks are in the verdict: `primary`, `collateral` or `timeout`.
    pub role: String,
    /// Which ranks, as ranges.
    pub ranks: String,
    /// How many.
    pub count: u32,
    /// The failure in one line.
    pub title: String,
    /// One of them.
    pub example: Example,
}

/// One failure out of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Example {
    /// Whose.
    pub rank: Option<u32>,
    /// The whole message, at most 4,096 bytes.
    pub message: String,
    /// The innermost function and the innermost one of the program itself, for people; empty where unknown.
    pub location: String,
    /// At most 16 frames, innermost first, as `function (file:line)`.
    pub frames: Vec<String>,
    /// The file that tells it; empty where no file does.
    pub file: String,
}

/// One attempt of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// Its number, 0 for the first.
    pub attempt: u32,
    /// The number of ranks that failed in it.
    pub failed: u32,
    /// Its own first failure, in one line; empty where none was found.
    pub root_cause: String,
}

/// A file that could not be used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DamagedFile {
    /// The file.
    pub path: String,
    /// Why.
    pub reason: String,
    /// Its first bytes, at most 80, control characters escaped.
    pub first_bytes: String,
}

/// Returns the JSON Schema of an error file, as text that ends in a newline.
pub fn error_file_schema() -> String {
    text(schemars::schema_for!(ErrorFile))
}

/// Returns the JSON Schema of a report, as text that ends in a newline.
pub fn report_schema() -> String {
    text(schemars::schema_for!(Report))
}

fn text(schema: schemars::Schema) -> String {
    format!("{:#}\n", schema.to_value())
}
