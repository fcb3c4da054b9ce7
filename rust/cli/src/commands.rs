//! What each command does, and its exit status.

use crate::arguments::{Arguments, Command, Doctor, SchemaOf, Show};
use crate::doctor::{self, CaptureProbes};
use crate::{complain, no_colour, report};
use firstfault_analysis::report::show;
use firstfault_analysis::schema;
use std::io::{self, IsTerminal, Write};

/// Wrong usage, or nothing that could be read or written.
pub(crate) const USAGE: u8 = 2;

pub(crate) fn run(arguments: Arguments, capture: Option<CaptureProbes<'_>>) -> u8 {
    match arguments.command {
        Command::Report(arguments) => report::run(&arguments),
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

fn run_show(arguments: &Show) -> u8 {
    let shown = match show::read(&arguments.file) {
        Ok(shown) => shown,
        Err(error) => {
            complain(&format!("firstfault: {error}"));
            return USAGE;
        }
    };
    if arguments.json {
        return print(&show::json(&shown), 0);
    }
    let colour = io::stdout().is_terminal() && !no_colour();
    print(&show::text(&shown, colour), 0)
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

/// Writes to standard output and returns the exit status.
pub(crate) fn print(text: &str, status: u8) -> u8 {
    send(text, status).map_or_else(|ended| ended, |()| status)
}

/// Writes to standard output; the error is the exit status once nothing more can be written. A reader that went away
/// early has what it wanted.
pub(crate) fn send(text: &str, status: u8) -> Result<(), u8> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(status),
        Err(error) => {
            complain(&format!("firstfault: standard output: {error}"));
            Err(USAGE)
        }
    }
}
