//! `firstfault report`: one report, or one after another while files arrive.

use crate::arguments::{Format, Report as Arguments};
use crate::commands::{USAGE, send};
use crate::progress::with_progress;
use crate::{complain, no_colour};
use firstfault_analysis::report::{digest, json, line, markdown, redact, text};
use firstfault_analysis::{Error, ErrorKind, Options, Report, user_rules};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A job is over after so many readings without a change.
const QUIET: u32 = 5;

pub(crate) fn run(arguments: &Arguments) -> u8 {
    if let Some(output) = arguments.output.as_deref()
        && is_input(output, arguments)
    {
        let output = output.display();
        complain(&match arguments.follow {
            true => format!("firstfault: {output}: lies among the inputs, and would be read again"),
            false => {
                format!("firstfault: {output}: exists among the inputs, and is not overwritten")
            }
        });
        return USAGE;
    }
    let rules = match arguments.rules.as_deref().map(user_rules).transpose() {
        Ok(rules) => rules,
        Err(error) => return fail(&error),
    };
    let options = Options::default()
        .with_world_size(arguments.world_size)
        .with_rules(rules);
    match arguments.follow {
        true => follow(arguments, &options),
        false => match with_progress(&arguments.paths, &options) {
            Ok(found) => {
                let status = status(&found, arguments);
                write(found, arguments).map_or_else(|ended| ended, |()| status)
            }
            Err(error) => fail(&error),
        },
    }
}

/// Reads again and again, and writes a report whenever the verdict has changed, and the last one.
fn follow(arguments: &Arguments, options: &Options) -> u8 {
    let mut last: Option<Report> = None;
    let mut written: Option<Report> = None;
    let mut quiet = 0;
    let mut is_waiting = false;
    loop {
        match with_progress(&arguments.paths, options) {
            Err(error) if is_early(&error) => {
                if !std::mem::replace(&mut is_waiting, true) {
                    complain(&format!("firstfault: {error}; waiting for it"));
                }
            }
            Err(error) => return fail(&error),
            Ok(found) => {
                let is_same = last.as_ref() == Some(&found);
                quiet = if is_same { quiet + 1 } else { 0 };
                let is_over = found.is_complete && quiet + 1 >= QUIET;
                let news = match &written {
                    Some(written) if is_over => *written != found,
                    Some(written) => verdict(written) != verdict(&found),
                    None => true,
                };
                if news {
                    if let Err(ended) = write(found.clone(), arguments) {
                        return ended;
                    }
                    written = Some(found.clone());
                }
                if is_over {
                    return status(&found, arguments);
                }
                last = Some(found);
            }
        }
        std::thread::sleep(Duration::from_secs_f64(arguments.interval));
    }
}

/// Whether there is nothing to read yet.
fn is_early(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::NothingFound => true,
        ErrorKind::Io(source) => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Returns what a report names and how sure it is: what else is said changes with every file.
fn verdict(report: &Report) -> impl PartialEq {
    let causes = report.root_cause.iter().chain(&report.also_primary);
    let causes: Vec<_> = causes
        .map(|cause| {
            (
                cause.rank,
                cause.host.clone(),
                cause.attempt,
                cause.category.clone(),
                cause.title.clone(),
                cause.confidence,
            )
        })
        .collect();
    let suspects = report.suspects.iter().map(|suspect| suspect.rank);
    (causes, suspects.collect::<Vec<_>>())
}

/// Writes a report in the form that is asked for; the error is the exit status once nothing more can be written.
fn write(found: Report, arguments: &Arguments) -> Result<(), u8> {
    let status = status(&found, arguments);
    let found = match arguments.redact {
        true => redact::redacted(found),
        false => found,
    };
    let text = match arguments.format {
        Format::Json => json::render(&found),
        Format::Markdown => markdown::render(&found),
        Format::Digest => digest::render(&found),
        Format::Line => line::render(&found),
        Format::Text => {
            let colour = arguments.output.is_none() && io::stdout().is_terminal() && !no_colour();
            text::render(&found, colour)
        }
    };
    let Some(output) = &arguments.output else {
        return send(&text, status);
    };
    match std::fs::write(output, text) {
        Ok(()) => Ok(()),
        Err(error) => {
            complain(&format!("firstfault: {}: {error}", output.display()));
            Err(USAGE)
        }
    }
}

fn status(found: &Report, arguments: &Arguments) -> u8 {
    match (arguments.check, &found.root_cause) {
        (false, _) => 0,
        (true, Some(_)) => 1,
        (true, None) if found.is_undetermined() => USAGE,
        (true, None) => 0,
    }
}

fn fail(error: &Error) -> u8 {
    complain(&format!("firstfault: {error}{}", advice(error)));
    USAGE
}

/// Whether the output would be taken for an input: a file that exists and is, or lies below, one of the paths; while the
/// paths are read again, one that does not exist yet, too.
fn is_input(output: &Path, arguments: &Arguments) -> bool {
    let real = match output.canonicalize() {
        Ok(real) if real.is_file() => real,
        Ok(_) => return false,
        Err(_) if arguments.follow => {
            let name = output.file_name().unwrap_or_default();
            let directory = output.parent().filter(|path| !path.as_os_str().is_empty());
            let Ok(directory) = directory.unwrap_or(Path::new(".")).canonicalize() else {
                return false;
            };
            directory.join(name)
        }
        Err(_) => return false,
    };
    let holds = |path: &PathBuf| path.canonicalize().is_ok_and(|path| real.starts_with(path));
    arguments.paths.iter().any(holds)
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
