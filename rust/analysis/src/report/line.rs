//! The report in one line, as for the comment of a Slurm job: who, what, how sure; at most 250 bytes.

use super::{digest, safe, text};
use crate::schema::Report;

/// At most so many bytes, the end of the line included.
pub const MAX_BYTES: usize = 250;

/// Returns the verdict in one line, the title last, so that it is what a cut costs.
///
/// ```
/// use firstfault_analysis::Report;
/// use firstfault_analysis::report::line::render;
///
/// assert_eq!(render(&Report::default()), "Cannot tell: no failure found, and nothing says how the ranks ended.\n");
/// ```
pub fn render(report: &Report) -> String {
    let line = match &report.root_cause {
        None => text::without_cause(report).to_owned(),
        Some(cause) => {
            let host = digest::short(&safe::one_line(&cause.host), 64);
            let who = match (cause.rank, host.as_str()) {
                (Some(rank), "") => format!("rank {rank}"),
                (Some(rank), host) => format!("rank {rank} on {host}"),
                (None, _) => text::subject(report, cause),
            };
            let sure = text::confidence(cause.confidence);
            let category = &cause.category;
            format!("{who}: {category} (confidence {sure}): {}", cause.title)
        }
    };
    digest::short(&safe::one_line(&line), MAX_BYTES - 1) + "\n"
}
