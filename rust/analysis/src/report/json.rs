//! The report as JSON: its published form.

use crate::schema::{Report, RootCause};

/// Returns the report as JSON, indented, with a newline at the end.
pub fn render(report: &Report) -> String {
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}

/// Returns one verdict as JSON, on one line.
pub fn of(cause: &RootCause) -> String {
    serde_json::to_string(cause).unwrap_or_default()
}
