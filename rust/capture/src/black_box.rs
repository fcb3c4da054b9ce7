//! The black box of this process: where it goes, and what it says from the start.
//!
//! It stands beside the error file, or in the archive directory where there is one. A network file system is no place
//! for a mapped file, and a full disk has none: then the box is in memory on this node, and only a page that names it
//! beside the error file. Without any of that the process runs as well as with it.

use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use firstfault_format::black_box::{HEADER_WORDS, header};
use firstfault_format::files;
use firstfault_handler::black_box::{self, Header};
pub use firstfault_handler::black_box::{breadcrumb, exiting, is_open, remove, step};
use firstfault_handler::json::Writer;

use crate::file_system;
use crate::identity::{self, Identity};
use crate::leftovers;
use crate::target::{self, Target};

/// Why there is no box, or why it is not beside the error file; for `firstfault doctor`.
static TROUBLE: Mutex<Option<String>> = Mutex::new(None);

/// How many boxes may stand beside one error file under one process ID: containers use the same ones again and again.
const NUMBERS: u8 = 9;

/// Opens the box of this process, unless it is a child of another, or notes that its main function runs again.
pub(crate) fn open(targets: &[Target], identity: &Identity, parent: Option<i32>) {
    if parent.is_some() || targets.is_empty() {
        return;
    }
    if black_box::is_open() {
        return black_box::running();
    }
    let result = create(targets, identity);
    *TROUBLE.lock().unwrap_or_else(PoisonError::into_inner) = result.err();
}

/// Returns why this process has no black box, or not beside its error file; `None` where all is well.
pub fn trouble() -> Option<String> {
    TROUBLE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Returns the members `step` and `breadcrumbs` of a record as a JSON object.
pub fn to_json() -> String {
    // A breadcrumb takes at most 96 bytes, six times as many when all are escaped, and its time.
    let mut room = vec![0; 32 * 1024];
    let mut writer = Writer::new(&mut room, None);
    writer.open(b'{');
    black_box::write_members(&mut writer);
    writer.close(b'}');
    match writer.finish() {
        Ok(length) => String::from_utf8_lossy(&room[..length]).into_owned(),
        Err(_) => "{}".to_owned(),
    }
}

fn create(targets: &[Target], identity: &Identity) -> Result<(), String> {
    let pid_namespace = fs::read_link("/proc/self/ns/pid").ok().and_then(|name| {
        let name = name.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
        name.parse().ok()
    });
    let (process, rank, host) = (&identity.process, &identity.rank, &identity.host);
    let header = Header {
        pid: process.pid,
        pid_namespace,
        start_ticks: identity::start_ticks(),
        start_time_ns: process.start_time_ns,
        rank: rank.rank,
        local_rank: rank.local_rank,
        world_size: rank.world_size,
        group_rank: rank.group_rank,
        attempt: rank.attempt,
        boot_id: &host.boot_id,
        host: &host.name,
        run_id: rank.run_id.as_deref().unwrap_or_default(),
        role: rank.role.as_deref().unwrap_or_default(),
        elsewhere: b"",
    };
    // The archive outlives the launcher's own directories, and comes last among the targets.
    let mut reasons = Vec::new();
    for target in targets.iter().rev() {
        match beside(target, &header) {
            Ok(()) => return Ok(()),
            Err(reason) => reasons.push(format!("{}: {reason}", target.stem.display())),
        }
    }
    for directory in file_system::local_directories() {
        if let Err(reason) = check_file_system(&directory) {
            reasons.push(format!("{}: {reason}", directory.display()));
            continue;
        }
        leftovers::sweep_local(&directory);
        let path = directory.join(target::local_name(files::BLACK_BOX));
        let pointer = targets
            .last()
            .map(|target| named(&target.stem, header.pid, 1))
            .filter(|pointer| {
                let elsewhere = Header {
                    elsewhere: path.as_os_str().as_bytes(),
                    ..header.clone()
                };
                write_pointer(pointer, &elsewhere).is_ok()
            });
        let created = leaked(&path).and_then(|path| {
            let pointer = pointer.as_deref().map(leaked).transpose()?;
            black_box::create(path, pointer, &header).map_err(io::Error::from_raw_os_error)
        });
        match created {
            Ok(()) => {
                reasons.push(format!("it is {}", path.display()));
                break;
            }
            Err(error) => {
                pointer.map(fs::remove_file);
                reasons.push(format!("{}: {error}", path.display()));
            }
        }
    }
    Err(reasons.join("; "))
}

/// Makes the box beside an error file. A name that is taken is another process's evidence, and is left to it.
fn beside(target: &Target, header: &Header<'_>) -> Result<(), String> {
    let directory = target.stem.parent().unwrap_or(Path::new("/"));
    check_file_system(directory)?;
    for number in 1..=NUMBERS {
        let path = named(&target.stem, header.pid, number);
        if is_of_this_process(&path, header) {
            // Its earlier program's: exec(3) keeps the process.
            let _ = fs::remove_file(&path);
        }
        let path = leaked(&path).map_err(|error| error.to_string())?;
        match black_box::create(path, None, header).map_err(io::Error::from_raw_os_error) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result.map_err(|error| error.to_string()),
        }
    }
    Err(format!("{NUMBERS} boxes of this process ID are there"))
}

/// `<stem>.<pid>.box`, then `<stem>.<pid>.2.box` and so on.
fn named(stem: &Path, pid: i32, number: u8) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(format!(".{pid}"));
    if number > 1 {
        name.push(format!(".{number}"));
    }
    name.push(files::BLACK_BOX);
    PathBuf::from(name)
}

fn write_pointer(path: &Path, header: &Header<'_>) -> io::Result<()> {
    let page: Vec<AtomicU64> = (0..HEADER_WORDS).map(|_| AtomicU64::new(0)).collect();
    header.write(&page);
    let bytes: Vec<u8> = page
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
        .collect();
    if is_of_this_process(path, header) {
        let _ = fs::remove_file(path);
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&bytes).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

/// Whether a file is the box of this very process.
fn is_of_this_process(path: &Path, header: &Header<'_>) -> bool {
    let Ok(bytes) = head(path) else {
        return false;
    };
    let word = |at: usize| {
        let bytes = bytes.get(at * 8..at * 8 + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    word(header::PID) == Some(header.pid as u64)
        && word(header::PID_NAMESPACE) == header.pid_namespace
        && word(header::START_TICKS) == header.start_ticks
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    // Not blocking: a FIFO in its place has no writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path)?;
    let mut bytes = Vec::new();
    file.take(HEADER_WORDS as u64 * 8).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn check_file_system(directory: &Path) -> Result<(), String> {
    match file_system::is_remote(directory) {
        Ok(false) => Ok(()),
        Ok(true) => Err("a network file system".to_owned()),
        Err(errno) => Err(errno.desc().to_owned()),
    }
}

fn leaked(path: &Path) -> io::Result<&'static CStr> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    Ok(Box::leak(path.into_boxed_c_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_process_and_stay_apart() {
        let stem = Path::new("/j/error");
        assert_eq!(named(stem, 7, 1), Path::new("/j/error.7.box"));
        assert_eq!(named(stem, 7, 2), Path::new("/j/error.7.2.box"));
    }
}
