//! What each command does, and its exit status.

use crate::arguments::{Arguments, Command, Doctor, Format, Report, SchemaOf, Show};
use crate::doctor::{self, CaptureProbes};
use crate::{complain, no_colour};
use firstfault_analysis::{Error, ErrorKind, Options, analyze, report, schema};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Wrong usage, or nothing that could be read or written.
pub(crate) const USAGE: u8 = 2;

pub(crate) fn run(arguments: Arguments, capture: Option<CaptureProbes<'_>>) -> u8 {
    match arguments.command {
        Command::Report(arguments) => run_report(&arguments),
        Command::Show(arguments) => run_show(&arguments),
        Command::Schema {
            format: SchemaOf::ErrorFile,
        } => print(&schema::error_file_schema(), 0),
        Command::Schema {
            format: SchemaOf::Report,
        } => print(&schema::report_schema(), 0),
        Command::Schema {
            format: SchemaOf::Doctor,
        } => print(&doctor::schema(), 0),
        Command::Doctor(arguments) => run_doctor(&arguments, capture),
        Command::Demo { .. } => {
            complain(
                "firstfault: the demo is run by the Python package: python -m firstfault demo",
            );
            USAGE
        }
    }
}

fn run_report(arguments: &Report) -> u8 {
    if let Some(output) = arguments
        .output
        .as_deref()
        .filter(|output| is_input(output, &arguments.paths))
    {
        complain(&format!(
            "firstfault: {}: exists among the inputs, and is not overwritten",
            output.display()
        ));
        return USAGE;
    }
    let options = Options::default().with_world_size(arguments.world_size);
    let found = match analyze(&arguments.paths, &options) {
        Ok(found) => found,
        Err(error) => {
            complain(&format!("firstfault: {error}{}", advice(&error)));
            return USAGE;
        }
    };
    let status = match (arguments.check, &found.root_cause) {
        (false, _) => 0,
        (true, Some(_)) => 1,
        (true, None) if found.is_undetermined() => USAGE,
        (true, None) => 0,
    };
    let text = match arguments.format {
        Format::Json => report::json::render(&found),
        Format::Markdown => report::markdown::render(&found),
        Format::Text => {
            let colour = arguments.output.is_none() && io::stdout().is_terminal() && !no_colour();
            report::text::render(&found, colour)
        }
    };
    let Some(output) = &arguments.output else {
        return print(&text, status);
    };
    match std::fs::write(output, text) {
        Ok(()) => status,
        Err(error) => {
            complain(&format!("firstfault: {}: {error}", output.display()));
            USAGE
        }
    }
}

fn run_show(arguments: &Show) -> u8 {
    let shown = match report::show::read(&arguments.file) {
        Ok(shown) => shown,
        Err(error) => {
            complain(&format!("firstfault: {error}"));
            return USAGE;
        }
    };
    if arguments.json {
        return print(&report::show::json(&shown), 0);
    }
    let colour = io::stdout().is_terminal() && !no_colour();
    print(&report::show::text(&shown, colour), 0)
}

fn run_doctor(arguments: &Doctor, capture: Option<CaptureProbes<'_>>) -> u8 {
    if capture.is_none() && !arguments.modules.is_empty() {
        complain(
            "firstfault: modules are imported by the Python package: python -m firstfault doctor",
        );
        return USAGE;
    }
    let checkup = doctor::examine(capture);
    let status = u8::from(checkup.status == doctor::Status::Problem);
    if arguments.json {
        return print(&doctor::json(&checkup), status);
    }
    let colour = io::stdout().is_terminal() && !no_colour();
    print(&doctor::text(&checkup, colour), status)
}

/// Whether a file that exists is, or lies below, one of the paths to read.
fn is_input(output: &Path, paths: &[PathBuf]) -> bool {
    let Ok(output) = output.canonicalize() else {
        return false;
    };
    output.is_file()
        && paths.iter().any(|path| {
            path.canonicalize()
                .is_ok_and(|path| output.starts_with(path))
        })
}

fn advice(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::NothingFound => {
            "\n\nGive the directory that holds torchrun's worker directories (its --log-dir), FIRSTFAULT_DIR, or the file of an \
             agent's log. Without --log-dir torchrun writes below the temporary directory of each host."
        }
        _ => "",
    }
}

/// Writes to standard output; a reader that went away early has what it wanted.
fn print(text: &str, status: u8) -> u8 {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => status,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => status,
        Err(error) => {
            complain(&format!("firstfault: standard output: {error}"));
            USAGE
        }
    }
}
