//! Black boxes among the files: read, found elsewhere, told apart, and their processes looked for.

use super::read::Location;
use super::{Boxed, Evidence, FileRole, SlotKey, read};
use crate::black_box::{self, BlackBox, Fate};
use crate::kept::{Record, Shared};
use std::collections::HashSet;
use std::path::Path;

/// Reads a file that is named like a black box.
pub(super) fn read(location: Location<'_>, slot: Option<SlotKey>, found: &mut Evidence) {
    let path = location.path;
    let parsed = read::with_file(location, |bytes| match bytes {
        Ok(bytes) => {
            let first = bytes.iter().take(80).copied().collect::<Vec<u8>>();
            black_box::parse(bytes).map_err(|reason| (reason, first))
        }
        Err(error) => Err((error.reason(), Vec::new())),
    });
    match parsed {
        Ok(content) => found.boxes.push(Boxed {
            path: path.to_owned(),
            slot,
            content: Box::new(whole(content)),
            fate: Fate::Unknown,
        }),
        Err((reason, first)) => found.damage(path, slot, reason, &first),
    }
}

/// Returns the whole box where a file only points at it and it is on this machine.
pub(crate) fn whole(pointer: BlackBox) -> BlackBox {
    let read = |path: &Path| {
        let metadata = path.symlink_metadata().ok()?;
        // The path is what some file says: only a box is read.
        if !metadata.is_file() || metadata.len() != black_box::BOX_BYTES {
            return None;
        }
        read::with_file(Location::of(path), |bytes| {
            black_box::parse(bytes.ok()?).ok()
        })
    };
    let found = pointer.elsewhere.as_deref().and_then(read);
    found
        .filter(|whole| identity(whole) == identity(&pointer))
        .unwrap_or(pointer)
}

fn identity(content: &BlackBox) -> (Option<u32>, Option<u64>, &str) {
    let pid = content.process.pid;
    (pid, content.start_ticks, &content.host.boot_id)
}

/// Drops boxes found twice, looks for their processes, and adds the crashes that they tell of to the records.
pub(super) fn settle(evidence: &mut Evidence, proc: &Path, shared: &Shared) {
    evidence
        .boxes
        .sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    // A box in memory and the file that points at it are one.
    let mut seen = HashSet::new();
    evidence.boxes.retain(|boxed| {
        let (pid, start, boot) = identity(&boxed.content);
        seen.insert((pid, start, boot.to_owned()))
    });
    for boxed in &mut evidence.boxes {
        boxed.fate = boxed.content.fate(proc);
        if let Some(failure) = boxed.content.failure() {
            let (path, slot) = (boxed.path.clone(), boxed.slot.clone());
            let record = Record::new(path, slot, FileRole::BlackBox, failure, shared);
            evidence.records.push(record);
        }
    }
}
