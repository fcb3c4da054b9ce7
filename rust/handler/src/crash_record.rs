//! The crash record on its way to its files: the process's own places, or a forked child's.

use core::cell::UnsafeCell;

use firstfault_format::{files, signals};

use crate::commit::{self, Content, Paths, Strength, commit};
use crate::context::Facts;
use crate::error_file::{Record, StageReport};
use crate::foreign;
use crate::install::Configuration;
use crate::json::Writer;
use crate::modules::Module;
use crate::path::PathBuffer;
use crate::place::{Place, Process};
use crate::sys::{self, Errno, View};
use crate::termination;

/// How much of the Python stacks a snapshot holds: the file is at most 512 KiB.
const SNAPSHOT_MAX: usize = 128 * 1024;
/// How much of them a record holds where no page more can be mapped.
const UNMAPPED_MAX: usize = 64 * 1024;

/// What only the owner of the handler touches.
struct Room {
    paths: UnsafeCell<Paths>,
    error: UnsafeCell<PathBuffer>,
    stem: UnsafeCell<PathBuffer>,
    buffer: UnsafeCell<[u8; 8192]>,
    compact: UnsafeCell<[u8; 4000]>,
    dump: UnsafeCell<[u8; UNMAPPED_MAX]>,
}

// SAFETY: one thread at a time owns the handler (`handle::OWNER`), and only it writes. A nested entry on that thread
// abandons the frames whose references into the room it overlaps; they are never used again.
unsafe impl Sync for Room {}

static ROOM: Room = Room {
    paths: UnsafeCell::new(Paths::new()),
    error: UnsafeCell::new(PathBuffer::new()),
    stem: UnsafeCell::new(PathBuffer::new()),
    buffer: UnsafeCell::new([0; 8192]),
    compact: UnsafeCell::new([0; 4000]),
    dump: UnsafeCell::new([0; UNMAPPED_MAX]),
};

/// The record as something that the writer can write.
struct Body<'a> {
    record: Record<'a>,
    compact: &'a [u8],
}

impl Content for Body<'_> {
    fn write(&mut self, descriptor: i32) -> Result<(), Errno> {
        // SAFETY: see `Room`; nothing else uses the buffer while a record is written.
        let mut writer = Writer::new(unsafe { &mut *ROOM.buffer.get() }, Some(descriptor));
        self.record.write(&mut writer);
        writer.finish().map(drop)
    }

    fn compact(&self) -> &[u8] {
        self.compact
    }
}

/// What the stages have found by now.
pub(crate) struct Findings<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) module: Option<&'a Module>,
    /// Where the crashed thread's text ends in the dump.
    pub(crate) own_stack_end: usize,
    pub(crate) other_crashes: &'a [(i32, i32)],
    /// Whether the black box can be read.
    pub(crate) has_black_box: bool,
    pub(crate) stages: &'a [StageReport],
}

/// Writes the record, as rich as it is by now, to every place. Returns whether all took it.
pub(crate) fn write(
    findings: &Findings<'_>,
    configuration: &Configuration,
    strength: Strength,
) -> bool {
    let (facts, identity) = (findings.facts, &configuration.identity);
    let view;
    let dump = match foreign::prepare_python_dump() {
        Some(descriptor) if strength == Strength::Enriched => {
            let length = sys::seek(descriptor, 0, libc::SEEK_CUR).unwrap_or(0) as usize;
            view = View::new(descriptor, length);
            match &view {
                Some(view) => view.bytes(),
                None => read_dump(descriptor, length),
            }
        }
        _ => &[],
    };
    let dump = match dump.get(..SNAPSHOT_MAX) {
        Some(first) if signals::is_request(facts.signal) => first,
        _ => dump,
    };
    let record = Record {
        facts,
        identity,
        module: findings.module,
        own_stack: dump.get(..findings.own_stack_end).unwrap_or_default(),
        shows_native: strength == Strength::Enriched,
        dump,
        preceded_by: configuration.preceded_by(),
        other_crashes: findings.other_crashes,
        has_black_box: findings.has_black_box,
        stages: findings.stages,
    };
    // SAFETY: see `Room`.
    let compact = unsafe { &mut *ROOM.compact.get() };
    let mut writer = Writer::new(compact, None);
    record.write_compact(&mut writer);
    let length = writer.finish().unwrap_or(0);
    let mut body = Body {
        record,
        compact: compact.get(..length).unwrap_or_default(),
    };
    // SAFETY: see `Room`.
    let paths = unsafe { &mut *ROOM.paths.get() };
    let is_child = facts.process != identity.id;
    let process = Process {
        id: facts.process,
        start_time_ns: if is_child { 0 } else { identity.start_time_ns },
    };
    let mut all = true;
    for place in termination::places(facts, configuration) {
        all &= if is_child {
            // A forked child has its own names, under its parent's, and never more than this one record.
            child_place(place, identity.id, facts.process)
                .is_some_and(|place| write_child(&place, &process, strength, &mut body, paths))
        } else {
            commit(place, &process, strength, &mut body, paths).is_ok()
        };
    }
    all
}

/// Reads the dump, or its first part, where no page more can be mapped: under a limit of the address space.
fn read_dump(descriptor: i32, length: usize) -> &'static [u8] {
    // SAFETY: see `Room`; nothing else uses the buffer while a record is written.
    let buffer = unsafe { &mut *ROOM.dump.get() };
    let _ = sys::seek(descriptor, 0, libc::SEEK_SET);
    let count = sys::read(descriptor, buffer).unwrap_or(0);
    let _ = sys::seek(descriptor, length as i64, libc::SEEK_SET);
    buffer.get(..count.min(length)).unwrap_or_default()
}

/// A child's place is made anew for each commit, so it does not remember what it holds: the second one replaces.
fn write_child(
    place: &Place<'_>,
    process: &Process,
    strength: Strength,
    body: &mut Body<'_>,
    paths: &mut Paths,
) -> bool {
    match strength {
        Strength::Enriched => commit::replace(place, process, body, paths).is_ok(),
        _ => commit(place, process, strength, body, paths).is_ok(),
    }
}

/// `<stem>.<parent>.child_<child>.json`
fn child_place(place: &Place<'static>, parent: i32, child: i32) -> Option<Place<'static>> {
    // SAFETY: see `Room`.
    let (stem, error): (&'static mut PathBuffer, &'static mut PathBuffer) =
        unsafe { (&mut *ROOM.stem.get(), &mut *ROOM.error.get()) };
    stem.start(place.stem().to_bytes())
        .push(b".")
        .push_decimal(parent.unsigned_abs().into())
        .push(files::CHILD.as_bytes())
        .push_decimal(child.unsigned_abs().into());
    let stem: &'static PathBuffer = stem;
    error
        .start(stem.as_c_str()?.to_bytes())
        .push(files::ERROR.as_bytes());
    let error: &'static PathBuffer = error;
    Some(Place::new(
        error.as_c_str()?,
        stem.as_c_str()?,
        place.directory(),
    ))
}

/// Takes back the files of a capture whose failure was none.
pub(crate) fn withdraw(facts: &Facts, configuration: &Configuration) {
    // SAFETY: see `Room`.
    let paths = unsafe { &mut *ROOM.paths.get() };
    let identity = &configuration.identity;
    let id = sys::process_id();
    let process = Process {
        id,
        start_time_ns: identity.start_time_ns,
    };
    for place in termination::places(facts, configuration) {
        if id == identity.id {
            place.withdraw(&process, paths);
        } else if let Some(place) = child_place(place, identity.id, id) {
            let _ = sys::unlink(place.error());
        }
    }
}
