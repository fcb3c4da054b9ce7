//! The symbols that a module exports, where the loader has them mapped.

use core::mem::size_of;
use core::ops::Range;

use super::names::Chunk;
use crate::elf::Image;
use crate::sys::{self, MemoryPage};

/// More entries than the dynamic section of a library with a hundred dependencies has.
const ENTRIES_MAX: u64 = 1024;
/// More symbols of one hash value than any table has.
const CHAIN_MAX: u64 = 4096;

const SYMBOL_SIZE: usize = size_of::<libc::Elf64_Sym>();

/// A function that a module exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Function {
    /// Where it is in memory.
    pub(super) start: u64,
    pub(super) end: u64,
    is_global: bool,
    /// Where its name is among the module's.
    name: u32,
}

impl Function {
    /// Returns the function that a symbol is; `None` for data, what is imported, and what has no extent.
    fn of(symbol: &[u8; SYMBOL_SIZE], image: &Image) -> Option<Self> {
        const FUNCTION: u8 = 2;
        const INDIRECT_FUNCTION: u8 = 10;
        const GLOBAL: u8 = 1;
        /// Indexes of sections end here: what follows is of no section.
        const SECTIONS_END: u16 = 0xff00;
        // SAFETY: any bytes are a symbol.
        let symbol = unsafe { symbol.as_ptr().cast::<libc::Elf64_Sym>().read_unaligned() };
        let is_function = matches!(symbol.st_info & 0xf, FUNCTION | INDIRECT_FUNCTION);
        let is_defined = (1..SECTIONS_END).contains(&symbol.st_shndx);
        let start = image.address(symbol.st_value);
        (is_function && is_defined && symbol.st_size > 0).then(|| Self {
            start,
            end: start.saturating_add(symbol.st_size),
            is_global: symbol.st_info >> 4 == GLOBAL,
            name: symbol.st_name,
        })
    }

    /// Returns whether this one says more of an address that both cover: it begins later or ends earlier. Of two names
    /// of one function the weak one is mostly made for other standards.
    pub(super) fn fits_better(&self, known: &Self) -> bool {
        let rank = |one: &Self| (one.start, u64::MAX.wrapping_sub(one.end), one.is_global);
        rank(self) > rank(known)
    }
}

/// The tables of one module.
pub(super) struct Exports {
    image: Image,
    /// Where the symbols are that may be defined.
    symbols: Range<u64>,
    names: Range<u64>,
}

impl Exports {
    /// Returns the tables of the module whose file begins at this address; `None` for one without.
    ///
    /// Source: System V gABI, "Dynamic Section"; each table is in a segment that the loader mapped.
    pub(super) fn of(
        base: u64,
        page: &mut MemoryPage,
        chunk: &mut Chunk,
        deadline: u64,
    ) -> Option<Self> {
        let image = Image::at(base)?;
        let dynamic = image.of_type(libc::PT_DYNAMIC).next()?;
        let tables = Tables::of(&image, &image.addresses(&dynamic), page)?;
        let symbols = tables.symbols?;
        let indexes = match (tables.gnu_hash, tables.hash) {
            (Some(table), _) => indexes_by_gnu_hash(table, page, chunk, deadline)?,
            // Its second word is the number of symbols.
            (None, Some(table)) => 1..quarter(page, table, 1)?,
            (None, None) => return None,
        };
        let symbol = |index: u64| {
            let offset = index.checked_mul(SYMBOL_SIZE as u64)?;
            symbols.checked_add(offset)
        };
        let names = tables.names?;
        let within =
            |range: Range<u64>| (range.end <= image.end_of_segment(range.start)?).then_some(range);
        Some(Self {
            symbols: within(symbol(indexes.start)?..symbol(indexes.end)?)?,
            names: within(names..names.checked_add(tables.names_length?)?)?,
            image,
        })
    }

    /// Looks at every function, as long as there is time and the table can be read.
    pub(super) fn scan(&self, chunk: &mut Chunk, deadline: u64, mut look: impl FnMut(Function)) {
        let _ = each(self.symbols.clone(), chunk, deadline, |symbol| {
            if let Some(function) = Function::of(symbol, &self.image) {
                look(function);
            }
        });
    }

    /// Reads a function's name. Returns its length; `None` for one that is longer than the room.
    pub(super) fn name(&self, function: &Function, room: &mut [u8]) -> Option<usize> {
        let start = self.names.start.checked_add(function.name.into())?;
        let left = self.names.end.checked_sub(start)?;
        let most = left.min(room.len() as u64) as usize;
        let name = room.get_mut(..most)?;
        sys::read_memory(start, name).ok()?;
        name.iter().position(|byte| *byte == 0)
    }
}

/// What the dynamic section says of the tables.
#[derive(Default)]
struct Tables {
    symbols: Option<u64>,
    names: Option<u64>,
    names_length: Option<u64>,
    hash: Option<u64>,
    gnu_hash: Option<u64>,
}

impl Tables {
    fn of(image: &Image, section: &Range<u64>, page: &mut MemoryPage) -> Option<Self> {
        const END: u64 = 0;
        const HASH: u64 = 4;
        const NAMES: u64 = 5;
        const SYMBOLS: u64 = 6;
        const NAMES_LENGTH: u64 = 10;
        const GNU_HASH: u64 = 0x6fff_fef5;
        let mut tables = Self::default();
        let mut at = section.start;
        for _ in 0..ENTRIES_MAX {
            if at >= section.end {
                break;
            }
            let (tag, value) = (page.word(at)?, page.word(at.checked_add(8)?)?);
            // glibc has made addresses of memory of them; musl has not, nor has anybody in the vDSO.
            let place = || {
                let candidates = [value, image.address(value)];
                candidates
                    .into_iter()
                    .find(|place| image.end_of_segment(*place).is_some())
            };
            match tag {
                END => break,
                HASH => tables.hash = place(),
                NAMES => tables.names = place(),
                SYMBOLS => tables.symbols = place(),
                NAMES_LENGTH => tables.names_length = Some(value),
                GNU_HASH => tables.gnu_hash = place(),
                _ => {}
            }
            at = at.checked_add(16)?;
        }
        Some(tables)
    }
}

/// Returns the indexes of the symbols that a table finds: all that are defined.
///
/// Source: Oracle's and the GNU linker's `DT_GNU_HASH`: four words, the filter of 64-bit words, the first symbol of each
/// bucket, and for each symbol its hash, whose lowest bit ends the bucket.
fn indexes_by_gnu_hash(
    table: u64,
    page: &mut MemoryPage,
    chunk: &mut Chunk,
    deadline: u64,
) -> Option<Range<u64>> {
    let (buckets, first, filter) = (
        quarter(page, table, 0)?,
        quarter(page, table, 1)?,
        quarter(page, table, 2)?,
    );
    let at = table.checked_add(16)?.checked_add(filter.checked_mul(8)?)?;
    let hashes = at.checked_add(buckets.checked_mul(4)?)?;
    let mut last = 0;
    each(at..hashes, chunk, deadline, |bucket| {
        last = u32::from_le_bytes(*bucket).max(last);
    })?;
    let mut last = u64::from(last);
    if last < first {
        return None;
    }
    for _ in 0..CHAIN_MAX {
        let hash = quarter(page, hashes, last.checked_sub(first)?)?;
        last = last.checked_add(1)?;
        if hash & 1 == 1 {
            return Some(first..last);
        }
    }
    None
}

/// Looks at all entries of a table, in their order; `None` where it cannot be read, or time is over before its end.
fn each<const SIZE: usize>(
    table: Range<u64>,
    chunk: &mut Chunk,
    deadline: u64,
    mut look: impl FnMut(&[u8; SIZE]),
) -> Option<()> {
    let mut at = table.start;
    while at < table.end {
        if sys::clock_ns(libc::CLOCK_MONOTONIC) >= deadline {
            return None;
        }
        let length = (chunk.len() as u64).min(table.end.wrapping_sub(at));
        let bytes = chunk.get_mut(..length as usize)?;
        sys::read_memory(at, bytes).ok()?;
        for entry in bytes.as_chunks().0 {
            look(entry);
        }
        at = at.saturating_add(length);
    }
    Some(())
}

/// Returns a number of 32 bits in a table, whose words do not cross a page.
fn quarter(page: &mut MemoryPage, table: u64, index: u64) -> Option<u64> {
    let at = table.checked_add(index.checked_mul(4)?)?;
    let shift = (at & 4).wrapping_mul(8) as u32;
    Some(page.word(at & !7)?.wrapping_shr(shift) & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::boxed::Box;
    use std::string::String;
    use std::vec::Vec;

    fn names_at(base: u64) -> Vec<String> {
        let mut chunk: Box<Chunk> = Box::new([0; 96 * 1024]);
        let mut page = MemoryPage::new();
        let exports = Exports::of(base, &mut page, &mut chunk, u64::MAX).expect("has tables");
        let mut functions = Vec::new();
        exports.scan(&mut chunk, u64::MAX, |function| functions.push(function));
        let mut room = [0; 256];
        let name = |function: &Function| {
            let length = exports.name(function, &mut room)?;
            Some(String::from_utf8_lossy(&room[..length]).into_owned())
        };
        functions.iter().filter_map(name).collect()
    }

    #[test]
    fn addresses_that_nobody_has_relocated_are_found() {
        // SAFETY: asks for a number.
        let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
        let names = names_at(base);
        let wanted = if cfg!(target_arch = "x86_64") {
            "__vdso_clock_gettime"
        } else {
            "__kernel_clock_gettime"
        };
        assert!(names.iter().any(|name| name == wanted), "{names:?}");
    }

    #[test]
    fn what_is_no_image_has_no_tables() {
        let text = [0x7f_u8; 4096];
        let mut chunk: Box<Chunk> = Box::new([0; 96 * 1024]);
        for base in [0, 0x10, u64::MAX - 3, (&raw const text).addr() as u64] {
            let tables = Exports::of(base, &mut MemoryPage::new(), &mut chunk, u64::MAX);
            assert!(tables.is_none(), "{base:#x}");
        }
    }
}
