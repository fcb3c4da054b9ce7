//! Says on stderr where the record is, when it is not where it was wanted.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::helper::{self, Work};
use crate::path::Decimal;
use crate::place::{Kind, Place};
use crate::sys;

/// Two paths and some words.
const LINE_MAX: usize = 9000;
/// How long stderr may take: it may be a file where the record could not go.
const PATIENCE_NS: u64 = 50_000_000;

/// What only the owner of the handler touches, and the helper that writes it.
struct Room(UnsafeCell<[u8; LINE_MAX]>);

// SAFETY: see `Room`; whoever fills it has seen that the helper does not run.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new([0; LINE_MAX]));
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Writes a line for every place that did not take the record, which is in this file. Returns whether all came through.
pub(crate) fn write(places: &[&Place<'_>], file: &CStr) -> bool {
    let mut all = true;
    let wanted = places.iter().filter(|place| place.kind() != Kind::Spare);
    for place in wanted {
        let trouble = place.trouble.load(Ordering::Relaxed);
        if trouble == 0 {
            continue;
        }
        if helper::TELLER.is_busy() {
            return false;
        }
        compose(place, trouble, file);
        let work = Work {
            run: write_line,
            undo: || {},
        };
        all &= match helper::TELLER.run(work, PATIENCE_NS) {
            Ok(result) => result,
            Err(libc::ETIMEDOUT) => false,
            Err(_) => write_line(),
        };
    }
    all
}

fn compose(place: &Place<'_>, trouble: i32, file: &CStr) {
    let mut digits = Decimal::new();
    let reason: &[u8] = match trouble {
        libc::ETIMEDOUT => b"does not answer",
        libc::ENOSPC => b"no space left on the device",
        libc::EDQUOT => b"quota exceeded",
        libc::ENOENT => b"no such directory",
        libc::EROFS => b"read-only file system",
        libc::EACCES | libc::EPERM => b"permission denied",
        _ => b"errno ",
    };
    let number: &[u8] = if reason.ends_with(b" ") {
        digits.format(u64::from(trouble.unsigned_abs()))
    } else {
        b""
    };
    let parts = [
        b"firstfault: the error file cannot be written, the record is in ",
        file.to_bytes(),
        b": ",
        place.error().to_bytes(),
        b": ",
        reason,
        number,
        b"\n",
    ];
    // SAFETY: see `Room`.
    let room = unsafe { &mut *ROOM.0.get() };
    let mut length = 0_usize;
    for (slot, byte) in room.iter_mut().zip(parts.into_iter().flatten()) {
        *slot = *byte;
        length = length.saturating_add(1);
    }
    LENGTH.store(length, Ordering::Relaxed);
}

fn write_line() -> bool {
    // SAFETY: see `Room`.
    let room = unsafe { &*ROOM.0.get() };
    let line = room.get(..LENGTH.load(Ordering::Relaxed));
    sys::write_all(libc::STDERR_FILENO, line.unwrap_or_default()).is_ok()
}
