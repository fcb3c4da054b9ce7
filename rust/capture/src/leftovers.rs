//! What dead processes left behind: in memory for a day, beside an error file until somebody writes there.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use firstfault_format::files;

use crate::target::{Target, local_prefix};

/// Files that dead processes left in memory are kept for so long.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes what dead processes of this user left there more than a day ago.
pub(crate) fn sweep_local(directory: &Path) {
    let prefix = local_prefix();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            let ids = name.strip_prefix(&prefix)?;
            ids.split('.').next()?.parse::<u32>().ok()
        });
        let Some(pid) = pid else { continue };
        let is_old = entry.metadata().is_ok_and(|metadata| {
            metadata.uid() == nix::unistd::getuid().as_raw()
                && metadata
                    .modified()
                    .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > KEPT))
        });
        if is_old && !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes what a writer that was killed between two steps left beside this error file.
pub(crate) fn sweep(target: &Target) {
    let (Some(directory), Some(name)) = (target.error.parent(), target.error.file_name()) else {
        return;
    };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let writer = file
            .as_bytes()
            .strip_prefix(name.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"."))
            .and_then(|rest| rest.strip_suffix(files::TEMPORARY.as_bytes()))
            .and_then(|ids| {
                str::from_utf8(ids)
                    .ok()?
                    .split('.')
                    .next()?
                    .parse::<u32>()
                    .ok()
            });
        if let Some(pid) = writer
            && !Path::new("/proc").join(pid.to_string()).exists()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}
