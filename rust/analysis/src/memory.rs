//! A job whose files are in memory: written to a private directory, read from there, and removed.

use crate::error::Error;
use crate::work::Progress;
use crate::{Options, Report, analyze_watched};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Returns the report on the one job that these files are of, each a relative path and its content.
///
/// Paths in the report are the names given. The files lie in a directory that only this user can enter, below the
/// temporary directory, while the report is made.
///
/// # Errors
///
/// [`ErrorKind::Io`](crate::ErrorKind::Io) for a name that is no relative path below a directory, is given twice, or cannot
/// be written; otherwise as [`analyze`](crate::analyze).
pub fn analyze_files(
    files: &[(PathBuf, Vec<u8>)],
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Report, Error> {
    let directory = tempfile::Builder::new().prefix("firstfault-").tempdir();
    let directory = directory.map_err(|error| Error::io(&std::env::temp_dir(), error))?;
    for (name, content) in files {
        write(directory.path(), name, content).map_err(|error| Error::io(name, error))?;
    }
    let root = [directory.path().to_owned()];
    let report = analyze_watched(&root, options, progress)
        .map_err(|error| relative(error, directory.path()))?;
    let prefix = format!("{}/", directory.path().display());
    Ok(report.map_strings(|text| text.replace(&prefix, "")))
}

fn write(directory: &Path, name: &Path, content: &[u8]) -> std::io::Result<()> {
    let is_below = name
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if name.as_os_str().is_empty() || !is_below {
        let kind = std::io::ErrorKind::InvalidInput;
        return Err(std::io::Error::new(
            kind,
            "not a relative path without `..`",
        ));
    }
    let path = directory.join(name);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut file = std::fs::File::create_new(path)?;
    std::io::Write::write_all(&mut file, content)
}

fn relative(error: Error, directory: &Path) -> Error {
    let path = match error.path().strip_prefix(directory) {
        Ok(path) if path.as_os_str().is_empty() => PathBuf::from("the files given"),
        Ok(path) => path.to_owned(),
        Err(_) => return error,
    };
    error.with_path(path)
}
