//! The firstfault command line: arguments, colours, exit statuses; nothing else.
#![deny(unsafe_code)]

mod arguments;
mod commands;
pub mod doctor;
mod progress;
mod report;

use clap::Parser;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

/// Runs the command line and returns its exit status.
///
/// `arguments` are those after the program's name. Output goes to the process's standard output and error. 0: done,
/// and with `--check` every rank ended well; 1: with `--check`, something had failed; 2: wrong usage, nothing could be read
/// or written, or with `--check` nothing says how the ranks ended. A closed pipe ends the output quietly, with the status it would have had.
///
/// ```
/// assert_eq!(firstfault::run(["report", "/nonexistent"]), 2);
/// ```
pub fn run<I, T>(arguments: I) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    run_with(arguments, None)
}

/// Runs the command line in a process that can capture crashes; `capture` are the probes of `doctor` that only such a
/// process has.
pub fn run_with<I, T>(arguments: I, capture: Option<doctor::CaptureProbes<'_>>) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    match parse(arguments) {
        Ok(arguments) => commands::run(arguments, capture),
        Err(error) => explain(&error),
    }
}

/// Returns the modules that `doctor` is to import first, or `None` where another command or nothing valid is asked for.
pub fn modules_to_import<I, T>(arguments: I) -> Option<Vec<String>>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    match parse(arguments).ok()?.command {
        arguments::Command::Doctor(arguments) => Some(arguments.modules),
        _ => None,
    }
}

fn parse<I, T>(arguments: I) -> Result<arguments::Arguments, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    let name = OsString::from("firstfault");
    let arguments = std::iter::once(name).chain(arguments.into_iter().map(Into::into));
    arguments::Arguments::try_parse_from(arguments)
}

/// Prints what the parser has to say, `--help` and `--version` among it, and returns the exit status.
fn explain(error: &clap::Error) -> u8 {
    let status = u8::try_from(error.exit_code()).unwrap_or(commands::USAGE);
    let text = error.render();
    if error.use_stderr() {
        let ansi = io::stderr().is_terminal() && !no_colour();
        complain(&if ansi {
            text.ansi().to_string()
        } else {
            text.to_string()
        });
    } else {
        let ansi = io::stdout().is_terminal() && !no_colour();
        let text = if ansi {
            text.ansi().to_string()
        } else {
            text.to_string()
        };
        let _ = io::stdout().lock().write_all(text.as_bytes());
    }
    status
}

/// Whether the user wants no colours. Source: no-color.org
fn no_colour() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Writes to standard error; when even that fails there is nobody to tell.
fn complain(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.trim_end().as_bytes());
    let _ = stderr.write_all(b"\n");
}
