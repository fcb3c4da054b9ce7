//! The plain binary: the same command line, without Python.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(firstfault::run(std::env::args_os().skip(1)))
}
