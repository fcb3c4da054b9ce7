//! Alternate signal stacks: without one, a thread that has used up its own dies without a word.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;

use crate::sys::{self, Errno};

/// Room for the kernel's frame (over 11 KiB with AMX) of every nested stage.
pub const SIZE: usize = 256 * 1024;
/// An unreadable page below it, so that even its overflow ends as a fault.
const GUARD_SIZE: usize = 4096;
const WHOLE: usize = SIZE.wrapping_add(GUARD_SIZE);

/// What a capture needs at least, on the small stack of another library: up to the first record.
const NEEDED: usize = 10 * 1024;

/// Returns whether the calling handler has room for a capture, where it runs on an alternate stack.
pub(crate) fn has_room() -> bool {
    left().is_none_or(|left| left >= NEEDED)
}

/// Returns whether so many bytes of the calling thread's stack are left, for what a record can do without.
///
/// A small stack of another library's would overflow, and the kernel begin at its top again: over the context that the
/// process has to die in. Whether there is memory below it says nothing of that.
pub(crate) fn has_room_for(bytes: usize) -> bool {
    left().map_or_else(|| sys::has_stack(bytes), |left| left >= bytes)
}

/// Returns how much of the alternate stack is below this frame, bytes; `None` where the thread does not run on it.
#[inline(never)]
fn left() -> Option<usize> {
    let here = 0_u8;
    let present = sys::alternate_stack();
    let left = (&raw const here).addr().wrapping_sub(present.ss_sp.addr());
    (present.ss_flags & libc::SS_DISABLE == 0 && left < present.ss_size).then_some(left)
}

/// Memory for one; dropped, it is given back, and no thread may have it as its stack then.
///
/// It is used only where it is touched: in a crash.
#[derive(Debug)]
pub struct Room {
    start: usize,
}

impl Room {
    /// Returns new memory.
    ///
    /// # Errors
    /// There is none.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: a new private mapping touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                WHOLE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(sys::errno());
        }
        let room = Self {
            start: start as usize,
        };
        // SAFETY: the range is inside the new mapping.
        let failed =
            unsafe { libc::mprotect(room.bottom(), SIZE, libc::PROT_READ | libc::PROT_WRITE) != 0 };
        if failed {
            return Err(sys::errno());
        }
        Ok(room)
    }

    /// Returns where the stack's lowest byte is, above the guard.
    pub(crate) fn bottom(&self) -> *mut c_void {
        self.start.wrapping_add(GUARD_SIZE) as *mut c_void
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made for this; no thread has it as its stack.
        unsafe { libc::munmap(self.start as *mut c_void, WHOLE) };
    }
}

/// The alternate signal stack that a thread was given; its memory is leaked unless it is taken back on that thread.
#[derive(Debug)]
pub struct AlternateStack {
    room: ManuallyDrop<Room>,
    /// It is the thread's own.
    _not_sent: PhantomData<*mut c_void>,
}

impl AlternateStack {
    /// Gives the calling thread an alternate signal stack, `None` where it has one that is large enough.
    ///
    /// # Errors
    /// No memory, or the thread runs on its alternate stack just now.
    pub fn give(room: impl FnOnce() -> Result<Room, Errno>) -> Result<Option<Self>, Errno> {
        let present = sys::alternate_stack();
        if present.ss_flags & libc::SS_DISABLE == 0 && present.ss_size >= SIZE {
            return Ok(None);
        }
        let room = room()?;
        let stack = libc::stack_t {
            ss_sp: room.bottom(),
            ss_flags: 0,
            ss_size: SIZE,
        };
        // SAFETY: the room lives until the stack is taken back.
        if unsafe { libc::sigaltstack(&raw const stack, core::ptr::null_mut()) } != 0 {
            return Err(sys::errno());
        }
        Ok(Some(Self {
            room: ManuallyDrop::new(room),
            _not_sent: PhantomData,
        }))
    }

    /// Takes it back and returns its memory, `None` where the thread runs on it just now, which then stays.
    pub fn take_back(self) -> Option<Room> {
        let present = sys::alternate_stack();
        if present.ss_sp == self.room.bottom() {
            let none = libc::stack_t {
                ss_sp: core::ptr::null_mut(),
                ss_flags: libc::SS_DISABLE,
                ss_size: 0,
            };
            // SAFETY: the value lives through the call.
            if unsafe { libc::sigaltstack(&raw const none, core::ptr::null_mut()) } != 0 {
                return None;
            }
        }
        Some(ManuallyDrop::into_inner(self.room))
    }
}

/// Returns how large the calling thread's alternate signal stack is, bytes; 0 is none.
pub fn size() -> usize {
    let present = sys::alternate_stack();
    if present.ss_flags & libc::SS_DISABLE == 0 {
        present.ss_size
    } else {
        0
    }
}
