//! What each thread of the process needs for its own crash.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Mutex, PoisonError};

use firstfault_handler::alternate_stack::{AlternateStack, Room};
use firstfault_handler::offer::{Answer, Offers};
use firstfault_handler::sys;

/// At most so many rooms are kept for the next threads: making one costs several times what giving it does.
const MOST_IDLE: usize = 16;

static IDLE: Mutex<Vec<Room>> = Mutex::new(Vec::new());

thread_local! {
    static STACK: RefCell<Option<Lent>> = const { RefCell::new(None) };
}

/// The calling thread's stack: taken back as the thread ends, whichever way that is.
struct Lent(Option<AlternateStack>);

impl Drop for Lent {
    fn drop(&mut self) {
        let errno = sys::errno();
        let room = self.0.take().and_then(AlternateStack::take_back);
        if let (Some(room), Ok(mut idle)) = (room, IDLE.try_lock())
            && idle.len() < MOST_IDLE
        {
            idle.push(room);
        }
        sys::set_errno(errno);
    }
}

/// Gives the calling thread an alternate signal stack for as long as it lives, unless it has a large one.
///
/// # Errors
/// No memory.
pub fn give_alternate_stack() -> io::Result<()> {
    let given = AlternateStack::give(|| match idle_room() {
        Some(room) => Ok(room),
        None => Room::new(),
    });
    if let Some(stack) = given.map_err(io::Error::from_raw_os_error)?
        // The main thread's locals are dropped first at exit(3); destructors that may crash run after.
        && sys::thread_id() != sys::process_id()
    {
        STACK.set(Some(Lent(Some(stack))));
    }
    Ok(())
}

/// Never waits: a forked child may have been left a lock that nobody of it holds.
fn idle_room() -> Option<Room> {
    IDLE.try_lock().ok()?.pop()
}

/// What threads were given from outside, by their IDs, and the process that they are of.
///
/// Nobody hears of such a thread's end: its room is given back when the next ones are given.
#[derive(Default)]
struct Given {
    process: i32,
    rooms: HashMap<i32, Room>,
}

static GIVEN: Mutex<Option<Given>> = Mutex::new(None);

/// Gives every other thread of the process that has none an alternate signal stack; returns to how many.
///
/// # Errors
/// No memory, or no real-time signal is free.
pub fn protect_native_threads() -> io::Result<usize> {
    let errno = io::Error::from_raw_os_error;
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    let mut threads = Vec::new();
    sys::for_each_thread(|thread| threads.push(thread));
    if given.process == sys::process_id() {
        let threads: HashSet<i32> = threads.iter().copied().collect();
        given.rooms.retain(|thread, _| threads.contains(thread));
    } else {
        // A forked child's one thread may be on a stack that its parent's had.
        std::mem::forget(std::mem::take(&mut given.rooms));
        given.process = sys::process_id();
    }
    let offers = Offers::begin()
        .map_err(errno)?
        .ok_or_else(|| io::Error::other("no real-time signal is free"))?;
    let mut spare = None;
    let mut count = 0;
    for thread in threads
        .into_iter()
        .filter(|thread| *thread != sys::thread_id())
    {
        if let Some(room) = given.rooms.get(&thread) {
            // A new thread may have the ID of one that has ended.
            count += usize::from(offers.make(thread, room) == Answer::Taken);
            continue;
        }
        let room = match spare.take() {
            Some(room) => room,
            None => Room::new().map_err(errno)?,
        };
        if offers.make(thread, &room) == Answer::Taken {
            given.rooms.insert(thread, room);
            count += 1;
        } else {
            spare = Some(room);
        }
    }
    Ok(count)
}
