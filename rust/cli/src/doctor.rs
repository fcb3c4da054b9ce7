//! `firstfault doctor`: what was found, for people and for programs.

use std::fmt::Write;

use firstfault_analysis::report::safe;
use firstfault_format::probe;
use schemars::JsonSchema;
use serde::Serialize;

mod host;

/// The probes that only a process that can capture crashes has.
pub type CaptureProbes<'a> = &'a dyn Fn() -> Vec<probe::Probe<String>>;

/// The version of the JSON that this build writes.
const VERSION: u32 = 1;

/// At most so many columns.
const MAX_COLUMNS: usize = 80;
/// Where the text behind status and name begins.
const INDENT: usize = 26;

/// What `firstfault doctor --json` prints.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Checkup {
    /// The version of this form.
    pub schema_version: u32,
    /// The worst of the probes.
    pub status: Status,
    /// What was looked at, in the order of the text.
    pub probes: Vec<Probe>,
}

/// How a thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Something is missing that a record can do without.
    Note,
    /// A failure may leave no record, or a poor one.
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Probe {
    /// What it is: a signal's name, or words.
    pub name: String,
    /// How it stands.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do about it; absent where nothing is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl From<probe::Probe<String>> for Probe {
    fn from(probe: probe::Probe<String>) -> Self {
        Self {
            name: probe.name.to_owned(),
            status: match probe.status {
                probe::Status::Ok => Status::Ok,
                probe::Status::Note => Status::Note,
                probe::Status::Problem => Status::Problem,
            },
            found: safe::one_line(&probe.found),
            advice: (!probe.advice.is_empty()).then(|| probe.advice.to_owned()),
        }
    }
}

/// Looks at this process and this machine.
pub fn examine(capture: Option<CaptureProbes<'_>>) -> Checkup {
    let capture = capture.map_or_else(
        || {
            vec![probe::Probe::note(
                "capture",
                "not looked at: this is the program without Python",
                "run python -m firstfault doctor",
            )]
        },
        |probes| probes(),
    );
    let probes: Vec<Probe> = capture
        .into_iter()
        .chain(host::probes())
        .map(Probe::from)
        .collect();
    Checkup {
        schema_version: VERSION,
        status: probes
            .iter()
            .map(|probe| probe.status)
            .max()
            .unwrap_or(Status::Ok),
        probes,
    }
}

/// Returns a checkup as JSON that ends in a newline.
pub fn json(checkup: &Checkup) -> String {
    let mut text = serde_json::to_string_pretty(checkup).unwrap_or_default();
    text.push('\n');
    text
}

/// Returns the JSON Schema of a checkup, as text that ends in a newline.
pub fn schema() -> String {
    format!("{:#}\n", schemars::schema_for!(Checkup).to_value())
}

/// Returns a checkup as text; with `colour`, what is not well carries terminal colours.
pub fn text(checkup: &Checkup, colour: bool) -> String {
    let mut text = String::new();
    for probe in &checkup.probes {
        let (name, code) = match probe.status {
            Status::Ok => ("ok", "32"),
            Status::Note => ("note", "33"),
            Status::Problem => ("problem", "1;31"),
        };
        let padding = " ".repeat(9 - name.len());
        let name = if colour {
            format!("\x1b[{code}m{name}\x1b[0m")
        } else {
            name.to_owned()
        };
        let _ = write!(text, "{name}{padding}{:<17}", probe.name);
        lines(&mut text, &probe.found);
        if let Some(advice) = &probe.advice {
            text.push_str(&" ".repeat(INDENT));
            lines(&mut text, &format!("-> {advice}"));
        }
    }
    let count = |status| {
        checkup
            .probes
            .iter()
            .filter(|probe| probe.status == status)
            .count()
    };
    let _ = writeln!(
        text,
        "\n{}, {}",
        counted(count(Status::Problem), "problem"),
        counted(count(Status::Note), "note")
    );
    text
}

/// One text over as many lines as it needs.
fn lines(text: &mut String, words: &str) {
    let columns = MAX_COLUMNS - INDENT;
    let indent = " ".repeat(INDENT);
    let lines = safe::wrapped(words, columns, columns, usize::MAX).join(&format!("\n{indent}"));
    text.push_str(&lines);
    text.push('\n');
}

fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
