//! Places on network file systems, which may not answer: a helper thread writes to them what is in memory already.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

use crate::commit::{Content, Paths};
use crate::crash_record::{ChildPath, Writing};
use crate::helper::{self, Work};
use crate::install::Places;
use crate::place::{Kind, PATIENCE_NS, Place};
use crate::sys::{self, Errno, ThreadTimer};

/// A record in a memory file, which is complete.
pub(crate) struct Copy<'a> {
    pub(crate) descriptor: i32,
    pub(crate) buffer: &'a mut [u8],
    pub(crate) compact: &'a [u8],
}

impl Content for Copy<'_> {
    fn write(&mut self, descriptor: i32) -> Result<(), Errno> {
        let mut offset = 0_u64;
        loop {
            let count = sys::read_at(self.descriptor, self.buffer, offset)?;
            if count == 0 {
                return Ok(());
            }
            sys::write_all(descriptor, self.buffer.get(..count).unwrap_or_default())?;
            offset = offset.saturating_add(count as u64);
        }
    }

    fn compact(&self) -> &[u8] {
        self.compact
    }
}

/// What the helper does.
#[derive(Clone, Copy)]
struct Job {
    places: Places,
    writing: Writing,
    descriptor: i32,
    compact_length: usize,
}

/// What only the helper touches while it runs, and who starts it before.
struct Room {
    job: UnsafeCell<Option<Job>>,
    paths: UnsafeCell<Paths>,
    child: UnsafeCell<ChildPath>,
    buffer: UnsafeCell<[u8; 8192]>,
    compact: UnsafeCell<[u8; 4000]>,
}

// SAFETY: see `Room`; `helper::Helper` knows whether it runs.
unsafe impl Sync for Room {}

static ROOM: Room = Room {
    job: UnsafeCell::new(None),
    paths: UnsafeCell::new(Paths::new()),
    child: UnsafeCell::new(ChildPath::new()),
    buffer: UnsafeCell::new([0; 8192]),
    compact: UnsafeCell::new([0; 4000]),
};

/// Writes a record into memory; returns the descriptor of its file.
pub(crate) fn keep(record: &mut dyn Content) -> Option<i32> {
    let descriptor = sys::memory_file(c"firstfault")?;
    match record.write(descriptor) {
        Ok(()) => Some(descriptor),
        Err(_) => {
            sys::close(descriptor);
            None
        }
    }
}

/// Commits what a memory file holds to the remote ones of these places. Returns whether all took it.
pub(crate) fn commit(places: Places, writing: Writing, descriptor: i32, compact: &[u8]) -> bool {
    if helper::WRITER.is_busy() {
        fail(places, libc::ETIMEDOUT);
        return false;
    }
    // SAFETY: see `Room`: the helper does not run.
    let (job, room) = unsafe { (&mut *ROOM.job.get(), &mut *ROOM.compact.get()) };
    for (copy, byte) in room.iter_mut().zip(compact) {
        *copy = *byte;
    }
    *job = Some(Job {
        places,
        writing,
        descriptor,
        compact_length: compact.len(),
    });
    let result = run(Work {
        run: write,
        undo: withdraw_all,
    });
    match result {
        // A helper that has not come back may still read it.
        Err(errno) => fail(places, errno),
        Ok(_) => sys::close(descriptor),
    }
    result == Ok(true)
}

/// Notes why the remote places do not have the record.
pub(crate) fn fail(places: Places, errno: Errno) {
    for place in places.iter().filter(|place| place.kind() == Kind::Remote) {
        place.trouble.store(errno, Ordering::Relaxed);
    }
}

/// Takes back what the remote ones of these places hold, now or when the file system answers.
pub(crate) fn withdraw(places: Places, writing: Writing) {
    let is_remote = |place: &&Place<'_>| place.kind() == Kind::Remote;
    if !places.iter().any(is_remote) || helper::WRITER.abandon() || helper::WRITER.is_busy() {
        return;
    }
    // SAFETY: see `Room`: the helper does not run.
    unsafe {
        *ROOM.job.get() = Some(Job {
            places,
            writing,
            descriptor: -1,
            compact_length: 0,
        });
    }
    let _ = run(Work {
        run: || {
            withdraw_all();
            true
        },
        undo: || {},
    });
}

/// Where no thread can be made, this one does it, and ends the process should it not come back.
fn run(work: Work) -> Result<bool, Errno> {
    match helper::WRITER.run(work, PATIENCE_NS) {
        Ok(result) => Ok(result),
        Err(libc::ETIMEDOUT) => Err(libc::ETIMEDOUT),
        Err(_) => {
            let timer = ThreadTimer::new(libc::SIGKILL)?;
            timer.arm(PATIENCE_NS);
            let result = (work.run)();
            timer.delete();
            Ok(result)
        }
    }
}

fn remote_places() -> impl Iterator<Item = (&'static Place<'static>, Job)> {
    // SAFETY: see `Room`.
    let job = unsafe { *ROOM.job.get() };
    let all = job
        .into_iter()
        .flat_map(|job| job.places.iter().map(move |place| (*place, job)));
    all.filter(|(place, _)| place.kind() == Kind::Remote)
}

fn write() -> bool {
    // SAFETY: see `Room`.
    let (paths, child, buffer, compact) = unsafe {
        (
            &mut *ROOM.paths.get(),
            &mut *ROOM.child.get(),
            &mut *ROOM.buffer.get(),
            &*ROOM.compact.get(),
        )
    };
    let mut all = true;
    for (place, job) in remote_places() {
        let mut content = Copy {
            descriptor: job.descriptor,
            buffer: &mut *buffer,
            compact: compact.get(..job.compact_length).unwrap_or_default(),
        };
        all &= job.writing.commit(place, &mut content, paths, child);
    }
    all
}

fn withdraw_all() {
    // SAFETY: see `Room`.
    let (paths, child) = unsafe { (&mut *ROOM.paths.get(), &mut *ROOM.child.get()) };
    for (place, job) in remote_places() {
        job.writing.withdraw(place, paths, child);
    }
}
