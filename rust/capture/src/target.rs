//! Where this process's records go: torchelastic's error file, the archive directory, or a child's own files.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use firstfault_format::{env, files};
use firstfault_handler::place::{Kind, Place};
use nix::unistd::AccessFlags;

use crate::file_system;
use crate::identity::{self, Identity};
use crate::named_error::named;

/// A process that writes records for a rank, as `FIRSTFAULT_CLAIM` hands it to its children.
///
/// Whoever inherits the claim on the same error file and rank is a child and never writes the rank's own file; a
/// process with another error file or rank is a rank of its own, as a launcher's trainers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pid: i32,
    start_ticks: u64,
    rank: String,
    error_file: String,
}

impl Claim {
    /// Returns the claim that this process would make.
    pub(crate) fn own(error_file: Option<&Path>) -> Self {
        Self {
            pid: nix::unistd::getpid().as_raw(),
            start_ticks: identity::start_ticks().unwrap_or(0),
            rank: std::env::var("RANK").unwrap_or_default().trim().to_owned(),
            error_file: error_file
                .map(|path| path.to_string_lossy().into_owned())
                .unwrap_or_default(),
        }
    }

    /// Returns the claim as the environment holds it.
    pub(crate) fn format(&self) -> String {
        let rank = if self.rank.is_empty() {
            "-"
        } else {
            &self.rank
        };
        format!(
            "{} {} {} {}",
            self.pid, self.start_ticks, rank, self.error_file
        )
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        Some(Self {
            pid: parts.next()?.parse().ok()?,
            start_ticks: parts.next()?.parse().ok()?,
            rank: match parts.next()? {
                "-" => String::new(),
                rank => rank.to_owned(),
            },
            error_file: parts.next()?.to_owned(),
        })
    }

    /// Returns the ID of the process whose claim this one inherited, or `None` where it stands for itself.
    pub(crate) fn inherited_from(&self, inherited: Option<&str>) -> Option<i32> {
        let inherited = Claim::parse(inherited?)?;
        // A process without free descriptors cannot read when it started: 0 is unknown and fits any.
        let same_start = inherited.start_ticks == self.start_ticks
            || inherited.start_ticks == 0
            || self.start_ticks == 0;
        let itself = inherited.pid == self.pid && same_start;
        let same_rank = inherited.rank == self.rank && inherited.error_file == self.error_file;
        (!itself && same_rank).then_some(inherited.pid)
    }
}

/// The paths of one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The error file.
    pub(crate) error: PathBuf,
    /// The error file without `.json`.
    pub(crate) stem: PathBuf,
    /// What can be expected of its file system.
    pub(crate) kind: Kind,
}

impl Target {
    /// Returns a target at exactly this path.
    pub(crate) fn at(error: &Path) -> io::Result<Self> {
        Self::new(error, None)
    }

    /// Returns a target for an error file, for the process itself or for a child of `parent`.
    fn new(error: &Path, parent: Option<i32>) -> io::Result<Self> {
        let error = std::path::absolute(error)?;
        let stem = stem_of(&error);
        let kind = match file_system::is_remote(error.parent().unwrap_or(Path::new("/"))) {
            Ok(true) => Kind::Remote,
            _ => Kind::Local,
        };
        Ok(match parent {
            None => Self { error, stem, kind },
            Some(parent) => {
                let own = format!(".{parent}{}{}", files::CHILD, nix::unistd::getpid());
                let stem = append(&stem, &own);
                Self {
                    error: append(&stem, files::ERROR),
                    stem,
                    kind,
                }
            }
        })
    }

    /// Returns the target of what this process leaves once it was asked to end.
    pub(crate) fn terminated(&self) -> Self {
        let own = format!(".{}{}", nix::unistd::getpid(), files::TERMINATED);
        let stem = append(&self.stem, &own);
        Self {
            error: append(&stem, files::ERROR),
            stem,
            kind: self.kind,
        }
    }

    /// Returns the target on this node for what others do not take; `None` where no directory is fit for it.
    pub(crate) fn spare() -> Option<Self> {
        let is_fit = |directory: &PathBuf| {
            file_system::is_remote(directory) == Ok(false)
                && nix::unistd::access(directory, AccessFlags::W_OK).is_ok()
        };
        let directory = file_system::local_directories().into_iter().find(is_fit)?;
        Some(Self {
            error: directory.join(local_name(files::ERROR)),
            stem: directory.join(local_name("")),
            kind: Kind::Spare,
        })
    }

    /// Returns the path of a file of this target.
    pub(crate) fn beside(&self, suffix: &str) -> PathBuf {
        append(&self.stem, suffix)
    }

    /// Returns a place that lives as long as the process: the handler may need it at any time.
    pub(crate) fn leak(&self) -> io::Result<&'static Place<'static>> {
        let directory = self.error.parent().unwrap_or(Path::new("/"));
        Ok(Box::leak(Box::new(Place::new(
            leak(&self.error)?,
            leak(&self.stem)?,
            leak(directory)?,
            self.kind,
        ))))
    }
}

/// Returns the targets of this process: torchelastic's error file, then the archive.
///
/// A directory that cannot be made costs only its own target: the error comes beside what is left.
pub(crate) fn targets(
    error_file: Option<&Path>,
    directory: Option<&Path>,
    identity: &Identity,
    parent: Option<i32>,
) -> (Vec<Target>, Option<io::Error>) {
    let mut targets = Vec::new();
    let mut failed = None;
    for target in [
        error_file.map(|path| Target::new(path, parent)),
        directory.map(|path| Target::new(&archive_path(path, identity, parent)?, parent)),
    ]
    .into_iter()
    .flatten()
    {
        match target {
            Ok(target) => targets.push(target),
            Err(error) => failed = Some(error),
        }
    }
    (targets, failed)
}

/// Returns the error file that torchelastic asks for, or `None` where its variable means "no file".
///
/// torchrun sets it to `/dev/null` or to nothing when it keeps no logs; a device or a pipe holds no record either, and
/// what `/dev/stdout` leads to is not ours to replace.
pub(crate) fn usable(error_file: &Path) -> Option<&Path> {
    if error_file.as_os_str().is_empty() {
        return None;
    }
    if let Ok(metadata) = fs::metadata(error_file) {
        let kind = metadata.file_type();
        if kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket() {
            return None;
        }
    }
    let is_link = fs::symlink_metadata(error_file).is_ok_and(|metadata| metadata.is_symlink());
    let is_of_the_system = error_file.starts_with("/dev") || error_file.starts_with("/proc");
    (!is_link || !is_of_the_system).then_some(error_file)
}

/// Returns the archive directory that the environment names.
pub(crate) fn archive_directory() -> Option<PathBuf> {
    std::env::var_os(env::DIRECTORY)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// `<dir>/<run_id>/attempt_<n>/rank_<r>.<host>.<pid>.json`; without a rank or a run the names say so.
fn archive_path(directory: &Path, identity: &Identity, parent: Option<i32>) -> io::Result<PathBuf> {
    let rank = &identity.rank;
    let mut path = std::path::absolute(directory)?;
    path.push(
        rank.run_id
            .as_deref()
            .map_or_else(|| "no_run".to_owned(), sanitized),
    );
    path.push(format!("attempt_{}", rank.attempt.unwrap_or(0)));
    fs::create_dir_all(&path).map_err(|error| named(&error, &path))?;
    let host = sanitized(&identity.host.name);
    // A child's files stand beside its parent's.
    let pid = parent.unwrap_or(identity.process.pid);
    path.push(match rank.rank {
        Some(rank) => format!("rank_{rank}.{host}.{pid}{}", files::ERROR),
        None => format!("no_rank.{host}.{pid}{}", files::ERROR),
    });
    Ok(path)
}

/// A name that is one harmless path component on every file system.
fn sanitized(name: &str) -> String {
    let clean: String = name
        .chars()
        .take(128)
        .map(|character| match character {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => character,
            _ => '_',
        })
        .collect();
    // "." and ".." are directories, a leading dot hides.
    if clean.is_empty() || clean.starts_with('.') {
        format!("_{clean}")
    } else {
        clean
    }
}

fn stem_of(error: &Path) -> PathBuf {
    let bytes = error.as_os_str().as_bytes();
    let stem = bytes.strip_suffix(files::ERROR.as_bytes()).unwrap_or(bytes);
    PathBuf::from(std::ffi::OsString::from_vec(stem.to_vec()))
}

fn append(path: &Path, suffix: &str) -> PathBuf {
    let mut whole = path.as_os_str().to_owned();
    whole.push(suffix);
    PathBuf::from(whole)
}

fn leak(path: &Path) -> io::Result<&'static CStr> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    Ok(Box::leak(path.into_boxed_c_str()))
}

/// Returns the name of a file of this process in a directory that all jobs of this node share.
pub(crate) fn local_name(suffix: &str) -> String {
    let started = identity::start_ticks().unwrap_or(0);
    let pid = nix::unistd::getpid();
    format!("{}{pid}.{started}{suffix}", local_prefix())
}

/// What the names of this user's files there begin with.
pub(crate) fn local_prefix() -> String {
    format!("firstfault.{}.", nix::unistd::getuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_makes_children_of_those_that_inherit_it() {
        let parent = Claim {
            pid: 1,
            start_ticks: 7,
            rank: "0".to_owned(),
            error_file: "/a b/error.json".to_owned(),
        };
        let text = parent.format();
        assert_eq!(Claim::parse(&text).as_ref(), Some(&parent));
        assert_eq!(
            parent.inherited_from(Some(&text)),
            None,
            "a process that replaced itself by exec is itself"
        );
        let child = Claim {
            pid: 2,
            ..parent.clone()
        };
        assert_eq!(child.inherited_from(Some(&text)), Some(1));
        let trainer = Claim {
            pid: 2,
            error_file: "/c".to_owned(),
            ..parent.clone()
        };
        assert_eq!(
            trainer.inherited_from(Some(&text)),
            None,
            "another error file is another rank"
        );
        let ranked = Claim {
            pid: 2,
            rank: "1".to_owned(),
            ..parent.clone()
        };
        assert_eq!(ranked.inherited_from(Some(&text)), None);
        let blind = Claim {
            start_ticks: 0,
            ..parent.clone()
        };
        assert_eq!(
            blind.inherited_from(Some(&text)),
            None,
            "who cannot read its start is not its own child"
        );
        let reused = Claim {
            start_ticks: 9,
            ..parent.clone()
        };
        assert_eq!(
            reused.inherited_from(Some(&text)),
            Some(1),
            "the same pid later is another process"
        );
        assert_eq!(parent.inherited_from(Some("nonsense")), None);
    }

    #[test]
    fn run_ids_become_one_harmless_component() {
        assert_eq!(sanitized("../../etc"), "_.._.._etc");
        assert_eq!(sanitized(""), "_");
        assert_eq!(sanitized("job-7.a"), "job-7.a");
        assert_eq!(sanitized("a/b c"), "a_b_c");
    }

    #[test]
    fn variables_that_mean_no_file() {
        assert_eq!(usable(Path::new("")), None);
        assert_eq!(usable(Path::new("/dev/null")), None);
        assert_eq!(usable(Path::new("/dev/stdout")), None);
        let nowhere = Path::new("/nowhere/error.json");
        assert_eq!(usable(nowhere), Some(nowhere));
    }
}
