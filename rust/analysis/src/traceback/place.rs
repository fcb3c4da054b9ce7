//! Where a stack stands, for people, and which of its files are the program's own.

use super::FrameRef;
use memchr::memmem;
use std::sync::LazyLock;

/// Returns where a stack stands, for people: the innermost function, and the innermost one of the program itself.
///
/// As `in string_at (ctypes/__init__.py:519), called from train_step (worker.py:41)`. Empty without frames.
pub fn location<'a>(frames: impl Iterator<Item = FrameRef<'a>> + Clone) -> String {
    let Some(inner) = frames.clone().next() else {
        return String::new();
    };
    let place =
        |frame: FrameRef<'_>| format!("{} ({}:{})", frame.function, short(frame.file), frame.line);
    match frames.clone().find(|frame| !is_library(frame.file)) {
        Some(own) if own != inner => format!("in {}, called from {}", place(inner), place(own)),
        _ => format!("in {}", place(inner)),
    }
}

/// Returns whether a source file belongs to Python or an installed package, not to the program.
pub fn is_library(file: &str) -> bool {
    static PACKAGES: LazyLock<memmem::Finder<'_>> =
        LazyLock::new(|| memmem::Finder::new("-packages/"));
    static PYTHON: LazyLock<memmem::Finder<'_>> =
        LazyLock::new(|| memmem::Finder::new("/lib/python3"));
    let bytes = file.as_bytes();
    if PACKAGES.find(bytes).is_some() || PYTHON.find(bytes).is_some() {
        return !file.contains("firstfault/_demo/");
    }
    file.starts_with('<') || file.ends_with("/firstfault/_record.py")
}

/// Returns a file's name as short as still tells which: from the package on, or the last component.
pub fn short(file: &str) -> &str {
    for marker in ["site-packages/", "dist-packages/"] {
        if let Some((_, rest)) = file.rsplit_once(marker) {
            return rest;
        }
    }
    if let Some((_, rest)) = file.split_once("/lib/python3") {
        return rest.split_once('/').map_or(rest, |(_, rest)| rest);
    }
    file.rsplit('/').next().unwrap_or(file)
}
