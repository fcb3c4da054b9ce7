//! The addresses whose functions are wanted, in order, and the names that were found for them.

use super::exports::{Exports, Function};
use crate::native::CRASHED_FRAMES_MAX;
use crate::sys::{self, MemoryPage};

/// Room for the names of all.
const TEXT_MAX: usize = 64 * 1024;
/// The longest name that is kept. A part of a longer one would be no name: nothing could make it readable.
///
/// Measured: of the 98,000 symbols that torch's libraries export 70 have a longer one.
const NAME_MAX: usize = 1024;

/// An address in a module, and the function that was found to cover it.
#[derive(Clone, Copy)]
struct Wanted {
    address: u64,
    /// Where the module begins.
    base: u64,
    function: Option<Function>,
    /// Where its name is in the text.
    from: u32,
    length: u16,
}

/// The addresses of one thread's stack, each once.
pub(super) struct Names {
    wanted: [Wanted; CRASHED_FRAMES_MAX],
    used: usize,
    text: [u8; TEXT_MAX],
    text_used: usize,
    /// When reading ends, by the monotonic clock.
    deadline: u64,
    chunk: Chunk,
}

/// Symbols on their way from the kernel.
pub(super) type Chunk = [u8; 24 * 1024];

impl Names {
    // All zeros, so that it takes no room in the file of the library.
    pub(super) const fn new() -> Self {
        Self {
            wanted: [Wanted {
                address: 0,
                base: 0,
                function: None,
                from: 0,
                length: 0,
            }; CRASHED_FRAMES_MAX],
            used: 0,
            text: [0; TEXT_MAX],
            text_used: 0,
            deadline: 0,
            chunk: [0; 24 * 1024],
        }
    }

    /// Forgets what was wanted and found; what will be is found until this time of the monotonic clock.
    pub(super) fn start(&mut self, deadline: u64) {
        self.used = 0;
        self.text_used = 0;
        self.deadline = deadline;
    }

    /// Asks for the function at an address in the module that begins at `base`.
    pub(super) fn want(&mut self, address: u64, base: u64) {
        let Err(index) = self.find(address) else {
            return;
        };
        let mut next = Wanted {
            address,
            base,
            function: None,
            from: 0,
            length: 0,
        };
        // Each later one moves up; with all places taken the last is dropped.
        self.used = self.used.saturating_add(1).min(self.wanted.len());
        let used = self.wanted.get_mut(..self.used).unwrap_or_default();
        for slot in used.iter_mut().skip(index) {
            core::mem::swap(slot, &mut next);
        }
    }

    /// Finds the functions, one module after the other. Returns whether time sufficed.
    pub(super) fn read(&mut self, page: &mut MemoryPage) -> bool {
        page.forget();
        let mut from = 0;
        while let Some(first) = self.wanted.get(from).filter(|_| from < self.used) {
            let base = first.base;
            let rest = self.wanted.get(from..self.used).unwrap_or_default();
            let count = rest.iter().take_while(|next| next.base == base).count();
            let to = from.saturating_add(count);
            if !self.has_time() {
                break;
            }
            if let Some(exports) = Exports::of(base, page) {
                self.read_module(&exports, from, to);
            }
            from = to;
        }
        self.has_time()
    }

    fn has_time(&self) -> bool {
        sys::clock_ns(libc::CLOCK_MONOTONIC) < self.deadline
    }

    fn read_module(&mut self, exports: &Exports, from: usize, to: usize) {
        let wanted = self.wanted.get_mut(from..to).unwrap_or_default();
        exports.scan(&mut self.chunk, self.deadline, |function| {
            let covered = wanted.partition_point(|wanted| wanted.address < function.start);
            let covered = wanted.get_mut(covered..).unwrap_or_default().iter_mut();
            for wanted in covered.take_while(|wanted| wanted.address < function.end) {
                if wanted
                    .function
                    .is_none_or(|known| function.fits_better(&known))
                {
                    wanted.function = Some(function);
                }
            }
        });
        for index in from..to {
            self.name(exports, from, index);
        }
    }

    /// Reads the name of the function at an address, where no earlier address of the module has it.
    fn name(&mut self, exports: &Exports, first: usize, index: usize) {
        let Some(function) = self.wanted.get(index).and_then(|wanted| wanted.function) else {
            return;
        };
        let earlier = self.wanted.get(first..index).unwrap_or_default();
        let same = earlier
            .iter()
            .find(|wanted| wanted.function == Some(function));
        let (from, length) = match same {
            Some(known) => (known.from, known.length),
            None => {
                let from = self.text_used;
                let room = self.text.get_mut(from..).unwrap_or_default();
                let most = room.len().min(NAME_MAX);
                let room = room.get_mut(..most).unwrap_or_default();
                let length = exports.name(&function, room).unwrap_or(0);
                self.text_used = from.saturating_add(length);
                (from as u32, length as u16)
            }
        };
        if let Some(wanted) = self.wanted.get_mut(index) {
            (wanted.from, wanted.length) = (from, length);
        }
    }

    /// Returns the name of the function at an address, where one was found.
    pub(super) fn of(&self, address: u64) -> Option<&[u8]> {
        let wanted = self.wanted.get(self.find(address).ok()?)?;
        let from = wanted.from as usize;
        let to = from.saturating_add(usize::from(wanted.length));
        self.text.get(from..to).filter(|name| !name.is_empty())
    }

    /// Returns where an address is, or where it would be.
    fn find(&self, address: u64) -> Result<usize, usize> {
        let wanted = self.wanted.get(..self.used).unwrap_or_default();
        wanted.binary_search_by_key(&address, |wanted| wanted.address)
    }
}
