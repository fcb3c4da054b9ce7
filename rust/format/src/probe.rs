//! What `firstfault doctor` says of one thing that it looked at, on either side.

/// How a thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// As it should be.
    Ok,
    /// Something is missing that a record can do without.
    Note,
    /// A failure may leave no record, or a poor one.
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe<Text> {
    /// What it is.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// What was found.
    pub found: Text,
    /// What to do about it, empty where nothing is to be done.
    pub advice: &'static str,
}

impl<Text> Probe<Text> {
    /// Returns a probe that found all well.
    pub fn ok(name: &'static str, found: impl Into<Text>) -> Self {
        Self::new(name, Status::Ok, found, "")
    }

    /// Returns a probe that found something missing, with advice.
    pub fn note(name: &'static str, found: impl Into<Text>, advice: &'static str) -> Self {
        Self::new(name, Status::Note, found, advice)
    }

    /// Returns a probe that found a problem, with advice.
    pub fn problem(name: &'static str, found: impl Into<Text>, advice: &'static str) -> Self {
        Self::new(name, Status::Problem, found, advice)
    }

    fn new(
        name: &'static str,
        status: Status,
        found: impl Into<Text>,
        advice: &'static str,
    ) -> Self {
        Self {
            name,
            status,
            found: found.into(),
            advice,
        }
    }
}
