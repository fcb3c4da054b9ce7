//! The addresses whose functions are wanted, in order, and the names that were found for them.

use core::ops::Range;

use super::exports::{Exports, Function};
use crate::sys::{self, MemoryPage};

/// How many addresses are looked up: those of the crashed thread, and what fits of others.
const WANTED_MAX: usize = 1024;
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
    /// Whether the crashed thread was there.
    is_crashed: bool,
    function: Option<Function>,
    /// Where its name is in the text.
    from: u32,
    length: u16,
}

/// The addresses, each once.
pub(super) struct Names {
    wanted: [Wanted; WANTED_MAX],
    used: usize,
    text: [u8; TEXT_MAX],
    text_used: usize,
    /// When reading ends, by the monotonic clock.
    deadline: u64,
    chunk: Chunk,
}

/// A part of a table on its way from the kernel: a whole number of entries. Measured: a quarter takes twice the time.
pub(super) type Chunk = [u8; 96 * 1024];

impl Names {
    // All zeros, so that it takes no room in the file of the library.
    pub(super) const fn new() -> Self {
        Self {
            wanted: [Wanted {
                address: 0,
                base: 0,
                is_crashed: false,
                function: None,
                from: 0,
                length: 0,
            }; WANTED_MAX],
            used: 0,
            text: [0; TEXT_MAX],
            text_used: 0,
            deadline: 0,
            chunk: [0; 96 * 1024],
        }
    }

    /// Forgets what was wanted and found; what will be is found until this time of the monotonic clock.
    pub(super) fn start(&mut self, deadline: u64) {
        self.used = 0;
        self.text_used = 0;
        self.deadline = deadline;
    }

    /// Asks for the function at an address in the module that begins at `base`, as long as there is room.
    pub(super) fn want(&mut self, address: u64, base: u64, is_crashed: bool) {
        let Err(index) = self.find(address) else {
            return;
        };
        let Some(used) = self.wanted.get_mut(..=self.used) else {
            return;
        };
        self.used = self.used.saturating_add(1);
        let mut next = Wanted {
            address,
            base,
            is_crashed,
            function: None,
            from: 0,
            length: 0,
        };
        // Each later one moves up.
        for slot in used.iter_mut().skip(index) {
            core::mem::swap(slot, &mut next);
        }
    }

    pub(super) fn has(&self, address: u64) -> bool {
        self.find(address).is_ok()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Finds the functions, one module after the other, the crashed thread's first. Returns whether time sufficed.
    pub(super) fn read(&mut self, page: &mut MemoryPage) -> bool {
        page.forget();
        for is_crashed in [true, false] {
            let mut from = 0;
            while let Some(first) = self.wanted.get(from).filter(|_| from < self.used) {
                let base = first.base;
                let rest = self.wanted.get(from..self.used).unwrap_or_default();
                let of_module = rest.iter().take_while(|next| next.base == base);
                let to = from.saturating_add(of_module.clone().count());
                let is_turn = of_module.clone().any(|next| next.is_crashed) == is_crashed;
                if is_turn && self.has_time() {
                    self.read_module(base, from..to, page);
                }
                from = to;
            }
        }
        self.has_time()
    }

    fn has_time(&self) -> bool {
        sys::clock_ns(libc::CLOCK_MONOTONIC) < self.deadline
    }

    fn read_module(&mut self, base: u64, range: Range<usize>, page: &mut MemoryPage) {
        let Some(exports) = Exports::of(base, page, &mut self.chunk, self.deadline) else {
            return;
        };
        let wanted = self.wanted.get_mut(range.clone()).unwrap_or_default();
        let (Some(lowest), Some(highest)) = (wanted.first(), wanted.last()) else {
            return;
        };
        let all = lowest.address..=highest.address;
        exports.scan(&mut self.chunk, self.deadline, |function| {
            // Most functions lie elsewhere.
            if function.start > *all.end() || function.end <= *all.start() {
                return;
            }
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
        for index in range.clone() {
            self.name(&exports, range.start, index);
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
