//! Which parts of what one label stands before are one rank's, of one attempt.

use crate::console::Output;
use crate::logs::AgentLog;
use crate::traceback;
use std::collections::BTreeMap;
use std::ops::Range;

/// Returns the parts of an output by the attempt in which they were said.
pub(super) fn attempts(output: Output, ends: &[usize]) -> Vec<(u32, Output)> {
    if ends.is_empty() {
        return vec![(0, output)];
    }
    let mut parts: BTreeMap<u32, Output> = BTreeMap::new();
    for (&number, line) in output.lines.iter().zip(output.text.lines()) {
        let attempt = u32::try_from(ends.partition_point(|&end| end < number)).unwrap_or(u32::MAX);
        let part = parts.entry(attempt).or_default();
        part.text.push_str(line);
        part.text.push('\n');
        part.lines.push(number);
        (part.uncaught, part.by_logger) = (output.uncaught, output.by_logger);
        (part.torn, part.headless) = (output.torn, output.headless);
    }
    parts.into_iter().collect()
}

impl Output {
    /// Leaves of tracebacks that ranks print at once, and that are the same, one; returns whether there are any.
    pub(super) fn become_common(&mut self, ranks: usize) -> bool {
        let Some(common) = traceback::common(&self.text, ranks) else {
            return false;
        };
        let number = |&index: &usize| self.lines.get(index).copied().unwrap_or(0);
        self.lines = common.lines.iter().map(number).collect();
        self.text = common.text;
        true
    }

    /// Takes out the lines of these numbers.
    pub(super) fn take_lines(&mut self, numbers: Range<usize>) -> Self {
        let mut taken = Self {
            uncaught: self.uncaught,
            by_logger: self.by_logger,
            headless: self.headless,
            ..Self::default()
        };
        let (mut text, mut lines) = (String::new(), Vec::new());
        for (line, &number) in self.text.lines().zip(&self.lines) {
            let (text, lines) = match numbers.contains(&number) {
                true => (&mut taken.text, &mut taken.lines),
                false => (&mut text, &mut lines),
            };
            text.push_str(line);
            text.push('\n');
            lines.push(number);
        }
        taken.torn = self.torn && taken.lines.last() == self.lines.last();
        self.torn &= !taken.torn;
        (self.text, self.lines) = (text, lines);
        taken
    }

    /// Leaves out a traceback that begins after a launcher's summary, and all that follows; returns whether there is one.
    ///
    /// The launcher's workers have all ended by then: it is that of another host's, whose label is the same.
    pub(super) fn cut_after_summary(&mut self, agent: Option<&AgentLog>) -> bool {
        let last = agent.and_then(|agent| agent.entries.iter().map(|entry| entry.line).max());
        let lines = self.text.lines().zip(&self.lines);
        let begins = |(line, &number): (&str, &usize)| {
            last.is_some_and(|last| number > last) && traceback::is_start(line.trim())
        };
        let Some(at) = lines.map(begins).position(|begins| begins) else {
            return false;
        };
        self.text = self
            .text
            .lines()
            .take(at)
            .flat_map(|line| [line, "\n"])
            .collect();
        self.lines.truncate(at);
        true
    }
}
