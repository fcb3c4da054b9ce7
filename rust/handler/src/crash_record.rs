//! The crash record on its way to its files: the process's own places, or a forked child's.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use firstfault_format::files;

use crate::commit::{self, Content, Paths, Strength, commit};
use crate::context::Facts;
use crate::error_file::{Identity, Record, StageReport};
use crate::install::{Configuration, Places};
use crate::json::Writer;
use crate::modules::Module;
use crate::path::PathBuffer;
use crate::place::{self, Kind, PATIENCE_NS, Place, Process};
use crate::sys::{self, Errno, View};
use crate::{foreign, notice, remote, stages, termination};

/// How much of the Python stacks a record holds where no page more can be mapped.
const UNMAPPED_MAX: usize = 64 * 1024;

/// What only the owner of the handler touches.
struct Room {
    paths: UnsafeCell<Paths>,
    child: UnsafeCell<ChildPath>,
    buffer: UnsafeCell<[u8; 8192]>,
    compact: UnsafeCell<[u8; 4000]>,
    dump: UnsafeCell<[u8; UNMAPPED_MAX]>,
}

// SAFETY: one thread at a time owns the handler (`owner::OWNER`), and only it writes. A nested entry on that thread
// abandons the frames whose references into the room it overlaps; they are never used again.
unsafe impl Sync for Room {}

static ROOM: Room = Room {
    paths: UnsafeCell::new(Paths::new()),
    child: UnsafeCell::new(ChildPath::new()),
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
    /// How many more crashed.
    pub(crate) other_crashes_cut: usize,
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
    let dumped = match strength {
        _ if strength.is_more() => foreign::prepare_python_dump(facts.is_final),
        _ => None,
    };
    let dump = match dumped {
        Some(descriptor) => {
            let length = sys::seek(descriptor, 0, libc::SEEK_CUR).unwrap_or(0) as usize;
            view = View::new(descriptor, length);
            match &view {
                Some(view) => view.bytes(),
                None => read_dump(descriptor, length),
            }
        }
        None => &[],
    };
    let record = Record {
        facts,
        identity,
        module: findings.module,
        own_stack: dump.get(..findings.own_stack_end).unwrap_or(dump),
        shows_native: strength.is_more(),
        dump,
        preceded_by: configuration.preceded_by(),
        other_crashes: findings.other_crashes,
        other_crashes_cut: findings.other_crashes_cut,
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
    let writing = Writing::new(facts, identity, strength);
    deliver(
        termination::places(facts, configuration),
        writing,
        &mut body,
    )
}

/// Writes a record to every place. The spare one has it where another does not take it, or may not answer.
fn deliver(places: Places, writing: Writing, body: &mut Body<'_>) -> bool {
    let has = |kind: Kind| places.iter().any(|place| place.kind() == kind);
    let has_remote = has(Kind::Remote);
    let kept = has_remote.then(|| remote::keep(body)).flatten();
    let spare =
        |body: &mut Body<'_>| has(Kind::Spare) && commit_to(Kind::Spare, places, writing, body);
    let mut is_spared = has_remote && spare(body);
    let mut all = commit_to(Kind::Local, places, writing, body);
    if has_remote {
        stages::extend(PATIENCE_NS);
        all &= match kept {
            Some(descriptor) => remote::commit(places, writing, descriptor, body.compact),
            None => {
                remote::fail(places, libc::EMFILE);
                false
            }
        };
    }
    if all && (is_spared || IS_SPARED.load(Ordering::Relaxed)) {
        // SAFETY: see `Room`.
        let (paths, child) = unsafe { (&mut *ROOM.paths.get(), &mut *ROOM.child.get()) };
        for place in places.iter().filter(|place| place.kind() == Kind::Spare) {
            writing.withdraw(place, paths, child);
        }
    } else if !all && !is_spared {
        is_spared = spare(body);
    }
    IS_SPARED.store(!all && is_spared, Ordering::Relaxed);
    all
}

/// Commits a record to the places of this kind. Returns whether all took it.
fn commit_to(kind: Kind, places: Places, writing: Writing, body: &mut Body<'_>) -> bool {
    // SAFETY: see `Room`.
    let (paths, child) = unsafe { (&mut *ROOM.paths.get(), &mut *ROOM.child.get()) };
    let mut all = true;
    for place in places.iter().filter(|place| place.kind() == kind) {
        all &= writing.commit(place, body, paths, child);
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

/// Whether the spare place has the only whole record.
static IS_SPARED: AtomicBool = AtomicBool::new(false);

/// Who writes, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writing {
    process: Process,
    /// The process that was activated, where this one is its forked child.
    parent: Option<i32>,
    strength: Strength,
}

impl Writing {
    fn new(facts: &Facts, identity: &Identity, strength: Strength) -> Self {
        let is_child = facts.process != identity.id;
        Self {
            process: Process {
                id: facts.process,
                start_time_ns: if is_child { 0 } else { identity.start_time_ns },
            },
            parent: is_child.then_some(identity.id),
            strength,
        }
    }

    /// Commits a record to a place. Returns whether it took it.
    ///
    /// A forked child has its own names, under its parent's. A child that has recorded nothing itself never has more than
    /// one record: its place is made anew for each commit, so it does not remember what it holds, and the second replaces.
    pub(crate) fn commit(
        &self,
        place: &Place<'_>,
        content: &mut dyn Content,
        paths: &mut Paths,
        child: &mut ChildPath,
    ) -> bool {
        let process = &self.process;
        let result = match self.parent {
            None => commit(place, process, self.strength, content, paths),
            Some(parent) => match child.place(place, parent, process.id) {
                None => Err(libc::ENAMETOOLONG),
                Some(own) => match place::of_child(own.error()) {
                    Some(known) => commit(known, process, self.strength, content, paths),
                    None if self.strength.is_more() => {
                        commit::replace(&own, process, content, paths)
                    }
                    None => commit(&own, process, self.strength, content, paths),
                },
            },
        };
        place
            .trouble
            .store(result.err().unwrap_or(0), Ordering::Relaxed);
        result.is_ok()
    }

    /// Returns where [`Writing::commit`] writes to, while nothing else holds that path.
    fn path<'a>(&self, place: &Place<'a>, child: &'a mut ChildPath) -> Option<&'a CStr> {
        match self.parent {
            None => Some(place.error()),
            Some(parent) => child
                .place(place, parent, self.process.id)
                .map(|own| own.error()),
        }
    }

    /// Takes back what [`Writing::commit`] has written.
    pub(crate) fn withdraw(&self, place: &Place<'_>, paths: &mut Paths, child: &mut ChildPath) {
        match self.parent {
            None => place.withdraw(&self.process, paths),
            Some(parent) => {
                let own = child.place(place, parent, self.process.id);
                match own.map(|own| (own.error(), place::of_child(own.error()))) {
                    Some((_, Some(known))) => known.withdraw(&self.process, paths),
                    Some((path, None)) => drop(sys::unlink(path)),
                    None => {}
                }
            }
        }
    }
}

/// Room for the paths of a forked child's place.
pub(crate) struct ChildPath {
    stem: PathBuffer,
    error: PathBuffer,
}

impl ChildPath {
    pub(crate) const fn new() -> Self {
        Self {
            stem: PathBuffer::new(),
            error: PathBuffer::new(),
        }
    }

    /// `<stem>.<parent>.child_<child>.json`
    fn place<'a>(&'a mut self, place: &Place<'a>, parent: i32, child: i32) -> Option<Place<'a>> {
        self.stem
            .start(place.stem().to_bytes())
            .push(b".")
            .push_decimal(parent.unsigned_abs().into())
            .push(files::CHILD.as_bytes())
            .push_decimal(child.unsigned_abs().into());
        let stem = self.stem.as_c_str()?;
        self.error
            .start(stem.to_bytes())
            .push(files::ERROR.as_bytes());
        let error = self.error.as_c_str()?;
        Some(Place::new(error, stem, place.directory(), place.kind()))
    }
}

/// Takes back the files of a capture whose failure was none.
pub(crate) fn withdraw(facts: &Facts, configuration: &Configuration) {
    // SAFETY: see `Room`.
    let (paths, child) = unsafe { (&mut *ROOM.paths.get(), &mut *ROOM.child.get()) };
    let places = termination::places(facts, configuration);
    let writing = Writing::new(facts, &configuration.identity, Strength::Crash);
    for place in places.iter().filter(|place| place.kind() != Kind::Remote) {
        writing.withdraw(place, paths, child);
    }
    remote::withdraw(places, writing);
    IS_SPARED.store(false, Ordering::Relaxed);
}

/// Says on stderr where the record is, if it is not where it was wanted.
pub(crate) fn tell(facts: &Facts, configuration: &Configuration) -> bool {
    if !IS_SPARED.load(Ordering::Relaxed) {
        return true;
    }
    let places = termination::places(facts, configuration);
    let writing = Writing::new(facts, &configuration.identity, Strength::Enriched);
    // SAFETY: see `Room`.
    let child = unsafe { &mut *ROOM.child.get() };
    let spare = places.iter().find(|place| place.kind() == Kind::Spare);
    spare
        .and_then(|place| writing.path(place, child))
        .is_some_and(|file| notice::write(places, file))
}
