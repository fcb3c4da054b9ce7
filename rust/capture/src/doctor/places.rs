//! Probes of the places where records go: each is written to, by the way that a crash would take.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use firstfault_format::{env, files};
use firstfault_handler::commit::{self, Content, Paths, Rung};
use firstfault_handler::place::Kind;
use firstfault_handler::sys::{self, Errno};

use super::Probe;
use crate::target::{self, Target};
use crate::{activate, record};

const ERROR_FILE: &str = "error file";
const ARCHIVE: &str = "archive";

/// How large a record of many threads may become, and so how much must be free.
const RECORD_BYTES: usize = 1024 * 1024;
/// Less free space than this is soon used up, bytes.
const LITTLE: u64 = 64 * 1024 * 1024;

pub(super) fn probes() -> Vec<Probe> {
    let mut targets = activate::armed_targets().into_iter();
    let named = std::env::var_os(env::ERROR_FILE).filter(|value| !value.is_empty());
    let error_file = match &named {
        Some(path) if target::usable(Path::new(path)).is_some() => targets.next().map_or_else(
            || not_in_force(ERROR_FILE),
            |target| place(ERROR_FILE, &target),
        ),
        Some(path) => Probe::note(
            ERROR_FILE,
            format!(
                "{} is {}: no file",
                env::ERROR_FILE,
                Path::new(path).display()
            ),
            "records go to the log; give torchrun a --log-dir, or set FIRSTFAULT_DIR",
        ),
        None => Probe::note(
            ERROR_FILE,
            format!("{} is not set", env::ERROR_FILE),
            "torchrun sets it in its workers; elsewhere records go to the log, or to FIRSTFAULT_DIR",
        ),
    };
    let archive = if target::archive_directory().is_some() {
        targets
            .next()
            .map_or_else(|| not_in_force(ARCHIVE), |target| place(ARCHIVE, &target))
    } else {
        Probe::note(
            ARCHIVE,
            format!("{} is not set", env::DIRECTORY),
            "name a directory there that outlives the job: torchrun may remove its own",
        )
    };
    vec![error_file, archive]
}

fn not_in_force(name: &'static str) -> Probe {
    Probe::problem(
        name,
        "set, but no record goes there",
        "see capture above for the reason",
    )
}

/// Writes a record beside the real one and removes it again.
fn place(name: &'static str, target: &Target) -> Probe {
    let path = target.error.display();
    let directory = target.error.parent().unwrap_or(Path::new("/"));
    let system = file_system(directory);
    let free = nix::sys::statvfs::statvfs(directory)
        .map(|found| found.blocks_available() * found.fragment_size());
    let free = free.unwrap_or(0);
    let found = format!("{path}: {system}, {} MiB free", free / (1024 * 1024));
    if is_mount_point(&target.error) {
        return match OpenOptions::new().write(true).open(&target.error) {
            Ok(_) => Probe::note(
                name,
                format!("{path}: a mount point, written in place"),
                "records there are cut to 4,000 bytes; FIRSTFAULT_DIR takes whole ones",
            ),
            Err(error) => unwritable(name, &format!("{path}: {error}")),
        };
    }
    match trial(target, directory) {
        Err(errno) => {
            let reason = std::io::Error::from_raw_os_error(errno);
            unwritable(name, &format!("{path}: {system}: {reason}"))
        }
        Ok(_) if target.kind == Kind::Remote => Probe::note(
            name,
            format!("{found}, over a network"),
            "where it does not answer, a crashed process ends later, and its record stays on its node",
        ),
        Ok(_) if free < LITTLE => Probe::note(
            name,
            found,
            "a record of many threads takes a megabyte; make room",
        ),
        Ok(Rung::Named) => Probe::note(
            name,
            format!("{found}, by a named temporary file"),
            "SIGKILL while a crash is recorded may leave a *.tmp, which the next start removes",
        ),
        Ok(Rung::Nameless | Rung::InPlace) => Probe::ok(name, found),
    }
}

fn unwritable(name: &'static str, found: &str) -> Probe {
    Probe::problem(
        name,
        found,
        "no record can be written there; name a directory that exists and has room",
    )
}

struct Blank;

impl Content for Blank {
    fn write(&mut self, descriptor: i32) -> Result<(), Errno> {
        sys::write_all(descriptor, &vec![b' '; RECORD_BYTES])
    }

    fn compact(&self) -> &[u8] {
        b" "
    }
}

fn trial(target: &Target, directory: &Path) -> Result<Rung, Errno> {
    let name = target
        .stem
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    // No reader looks at a temporary file, should this process be killed meanwhile.
    let path = directory.join(format!(
        ".{name}.{}.doctor{}",
        std::process::id(),
        files::TEMPORARY
    ));
    let trial = Target {
        error: path.clone(),
        stem: path,
        kind: target.kind,
    };
    let place = trial.leak().map_err(|_| libc::EINVAL)?;
    commit::probe(
        place,
        &record::this_process(),
        &mut Blank,
        &mut Paths::new(),
    )
}

fn is_mount_point(path: &Path) -> bool {
    path.exists() && mounts().iter().any(|(point, _)| point == path)
}

/// The name of the file system that a directory is on: that of the deepest mount above it.
fn file_system(directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or(directory.to_owned());
    let mounts = mounts();
    // Of two mounts on one point the later covers the earlier.
    let deepest = mounts
        .iter()
        .filter(|(point, _)| directory.starts_with(point))
        .max_by_key(|(point, _)| point.components().count());
    deepest.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.clone())
}

/// Mount points and the names of their file systems. Source: proc(5), /proc/[pid]/mountinfo
fn mounts() -> Vec<(PathBuf, String)> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (mount, system) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?;
            Some((
                PathBuf::from(unescaped(point)),
                system.split(' ').next()?.to_owned(),
            ))
        })
        .collect()
}

/// Spaces and the like are written as three octal digits.
fn unescaped(text: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (code, plain)| {
        text.replace(code, plain)
    })
}
