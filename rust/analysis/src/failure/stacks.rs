//! Threads and what they were in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A thread and its stacks, innermost frame first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Thread {
    /// Its ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Its name, at most 15 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its state before it was stopped to be recorded, as proc(5) spells it: `S (sleeping)`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// False for a thread that did not stop, and so has no stacks here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<bool>,
    /// Whether this is the thread that took the signal.
    pub crashed: bool,
    /// Whether it held the GIL (of its interpreter), where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds_gil: Option<bool>,
    /// The Python stack.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub python: Vec<Frame>,
    /// The native stack.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub native: Vec<NativeFrame>,
}

/// One Python frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Frame {
    /// The source file.
    pub file: String,
    /// The line, from 1; 0 where unknown.
    pub line: u32,
    /// The function.
    pub function: String,
}

/// One native frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NativeFrame {
    /// The instruction, or the address that a call returns to, as hexadecimal text.
    pub address: String,
    /// The index into `modules`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<usize>,
    /// The offset of the instruction from the module's start, as hexadecimal text. For a call it lies inside the call
    /// and not behind it: one byte before the return address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<String>,
    /// The function that covers the instruction, where its module exports it: by the name that it is exported as. A reader
    /// that has the module's file puts the function's name in the source in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// Its source file, where a reader found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Whether a reader found this function inlined into the one of the next frame.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inlined: bool,
}

/// A loaded object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Module {
    /// Its file.
    pub path: String,
    /// Its build ID, as hexadecimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    /// Its load bias, as hexadecimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
}
