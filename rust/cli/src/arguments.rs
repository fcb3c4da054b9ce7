//! What can be asked for, and the help that says so.

use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Says which rank of a dead PyTorch job failed first, why, and with what evidence.
#[derive(Debug, Parser)]
#[command(
    name = "firstfault",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read the error files and logs of one job and name its root cause
    ///
    /// Finds, below each PATH, torchrun's worker directories (<run>/attempt_<n>/<local rank>/error.json), firstfault's own
    /// records (FIRSTFAULT_DIR), logs of launchers or of many ranks in turns (*.log, *.err, *.out, *.txt; lines of ranks
    /// begin with [rank3]:, [default3]: or 3:), and PyTorch's flight recorder dumps (nccl_trace_rank_<n>). Logs may hold
    /// lines of the kernel, Slurm and Kubernetes; files may end in .gz. Give it everything of one job, from all its
    /// hosts; it needs neither Python nor torch.
    #[command(after_long_help = STATUS)]
    Report(Report),
    /// Show one error file or black box: what happened, and the stacks of all threads
    ///
    /// Of a black box, which what SIGKILL ended leaves: who the process was, whether it is there still, how far it got, and
    /// its latest breadcrumbs.
    ///
    /// Native frames get their functions, files and lines from the modules' files on this machine, checked by build ID;
    /// Python frames get their source lines where the source is here and not newer than the failure.
    Show(Show),
    /// Say what capture can and cannot do here, with one line of advice each
    ///
    /// Makes this process one like a worker: with firstfault's handlers in force, and records going where
    /// TORCHELASTIC_ERROR_FILE and FIRSTFAULT_DIR say. Every probe tries the real thing; run it where the job runs, in its
    /// container and with its limits. A running job can look at itself by the Python function firstfault.doctor().
    #[command(after_long_help = DOCTOR_STATUS)]
    Doctor(Doctor),
    /// Print the JSON Schema of a file format
    Schema {
        /// Which format
        format: SchemaOf,
    },
    /// Run a small job with a planted fault, and report on it (needs the Python package)
    Demo {
        /// The fault to plant
        fault: Option<String>,
        /// Further arguments of the demo
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        rest: Vec<String>,
    },
}

const STATUS: &str = "Exit status: 0 when a report was written (with --check: and every rank ended well); \
                      1 with --check, when something had failed; \
                      2 for wrong usage, or when nothing could be read or written \
                      (with --check also: when nothing says how the ranks ended).";

#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// Files and directories of the job
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// The form of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Write the report to a file, not to standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Exit with status 1 when anything has failed, with 2 when nothing says how the ranks ended
    #[arg(long)]
    pub(crate) check: bool,
    /// The number of ranks of the job, so that ranks which left nothing are missed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) world_size: Option<u32>,
    /// Try the rules of a file before firstfault's own
    ///
    /// Each [[rule]] has an id, a role (primary, collateral, timeout, ambiguous or host), a category, text that is looked
    /// for, samples that it must match, and advice. docs/rules.md says more. Nothing is reported when a rule is wrong.
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// Replace hosts, users, addresses and command lines, each by the same word everywhere
    #[arg(long)]
    pub(crate) redact: bool,
    /// Report again whenever the verdict has changed, until the job is complete
    ///
    /// The files are read anew after each interval. A job is complete when every rank is accounted for and five readings
    /// in a row were the same; Ctrl-C ends it sooner. Paths that are not there yet are waited for.
    #[arg(long)]
    pub(crate) follow: bool,
    /// Seconds between two readings of --follow
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, requires = "follow", value_parser = interval)]
    pub(crate) interval: f64,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match (0.01..=86_400.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("not between 0.01 and 86400".to_owned()),
    }
}

const DOCTOR_STATUS: &str = "Exit status: 0 when there is no problem (notes are none); 1 when there is one; \
                             2 for wrong usage, or when a module cannot be imported.";

#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Print the probes as JSON: see `firstfault schema doctor`
    #[arg(long)]
    pub(crate) json: bool,
    /// Import a Python module once capture is in force, and tell whose signal handlers came with it; can be repeated
    #[arg(short = 'm', long = "import", value_name = "MODULE")]
    pub(crate) modules: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// The error file (.json) or black box (.box)
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print the record as JSON, with the functions of its native frames
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people: at most 60 lines of at most 100 columns
    Text,
    /// For programs: see `firstfault schema report`
    Json,
    /// For issues and chats
    Markdown,
    /// For little room, as a Kubernetes termination message: at most 4,000 bytes, the essential first
    Digest,
    /// One line of at most 250 bytes, as for the comment of a Slurm job
    Line,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SchemaOf {
    /// What a dying worker leaves behind
    ErrorFile,
    /// What `report --format json` prints
    Report,
    /// What `doctor --json` prints
    Doctor,
}
