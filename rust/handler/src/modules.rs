//! Which file an address belongs to: the memory map, read once, and the build IDs of the files that stacks go through.

mod build_id;

use core::cell::UnsafeCell;

use build_id::BUILD_ID_MAX;

use crate::sys;

/// How many files and how many ranges of theirs are told apart; addresses in further ones are without a module.
const MODULES_MAX: usize = 1024;
const RANGES_MAX: usize = 4096;
/// Room for the paths of all.
const PATHS_MAX: usize = 128 * 1024;
/// The longest path that is kept; a longer one keeps its end, where the name is.
const PATH_MAX: usize = 256;
/// A range that belongs to no file: code made at run time.
const NO_MODULE: u16 = u16::MAX;

/// A mapped file.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    path_from: u32,
    path_length: u16,
    /// Where the file's first byte would be: an address minus this is an offset that symbol tables know.
    pub base: u64,
    build_id: [u8; BUILD_ID_MAX],
    build_id_length: u8,
    is_examined: bool,
    /// Whether its file may lie on a file server, for a page of which a thread may wait for ever: on a file system
    /// without a disk of its own. Such are overlays of local ones too.
    pub(crate) is_remote: bool,
    /// Its index in the error file plus one; 0 while no frame is in it.
    number: u16,
}

impl Module {
    /// Returns the path as the kernel shows it, or `[vdso]` and the like.
    pub fn path(&self) -> &[u8] {
        let from = self.path_from as usize;
        let to = from.saturating_add(usize::from(self.path_length));
        table().paths.get(from..to).unwrap_or_default()
    }

    /// Returns the file's name without its directory.
    pub fn name(&self) -> &[u8] {
        self.path()
            .rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default()
    }

    /// Returns the build ID, empty where there is none.
    pub fn build_id(&self) -> &[u8] {
        self.build_id
            .get(..usize::from(self.build_id_length))
            .unwrap_or_default()
    }

    /// Returns its index in the error file, `None` while no frame is in it.
    pub fn number(&self) -> Option<u16> {
        self.number.checked_sub(1)
    }
}

/// Memory that is a file's or may be executed.
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    end: u64,
    module: u16,
    is_executable: bool,
}

/// The map of one moment, in the order of addresses.
struct Table {
    ranges: [Range; RANGES_MAX],
    ranges_used: usize,
    modules: [Module; MODULES_MAX],
    modules_used: usize,
    /// The modules with numbers, in the order of these.
    numbered: [u16; MODULES_MAX],
    numbers_used: u16,
    paths: [u8; PATHS_MAX],
    paths_used: usize,
    /// The file of the line before, whose first mapping is its base.
    path: [u8; PATH_MAX],
    path_length: usize,
    base: u64,
    /// Its module, where it has one already.
    current: u16,
    /// Whether the map has been read to its end.
    is_whole: bool,
    /// Changes as the map is forgotten or read anew.
    reading: u32,
}

struct Room(UnsafeCell<Table>);

// SAFETY: one thread at a time owns the handler (`owner::OWNER`), and only it reads and writes the map. A nested entry
// on that thread abandons the frames whose references into the room it overlaps; they are never used again.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new(Table::new()));

fn table() -> &'static Table {
    // SAFETY: see `Room`.
    unsafe { &*ROOM.0.get() }
}

fn table_mut() -> &'static mut Table {
    // SAFETY: see `Room`; each caller is done with it before another has it.
    unsafe { &mut *ROOM.0.get() }
}

impl Table {
    // All zeros, so that it takes no room in the file of the library.
    const fn new() -> Self {
        Self {
            ranges: [Range {
                start: 0,
                end: 0,
                module: 0,
                is_executable: false,
            }; RANGES_MAX],
            ranges_used: 0,
            modules: [Module {
                path_from: 0,
                path_length: 0,
                base: 0,
                build_id: [0; BUILD_ID_MAX],
                build_id_length: 0,
                is_examined: false,
                is_remote: false,
                number: 0,
            }; MODULES_MAX],
            modules_used: 0,
            numbered: [0; MODULES_MAX],
            numbers_used: 0,
            paths: [0; PATHS_MAX],
            paths_used: 0,
            path: [0; PATH_MAX],
            path_length: 0,
            base: 0,
            current: 0,
            is_whole: false,
            reading: 0,
        }
    }

    fn clear(&mut self) {
        self.ranges_used = 0;
        self.modules_used = 0;
        self.numbers_used = 0;
        self.paths_used = 0;
        self.path_length = 0;
        self.current = NO_MODULE;
        self.is_whole = false;
        self.reading = self.reading.wrapping_add(1);
    }

    /// Takes one line, `start-end perms offset device inode path`.
    fn line(&mut self, line: &[u8]) {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let range = fields.next().unwrap_or_default();
        let mut ends = range.splitn(2, |byte| *byte == b'-').map(hex);
        let (Some(Some(start)), Some(Some(end))) = (ends.next(), ends.next()) else {
            return;
        };
        let is_executable = fields
            .next()
            .is_some_and(|permissions| permissions.get(2) == Some(&b'x'));
        // Source: the kernel's devices.txt, major number 0; what is no file's has the inode 0.
        let (device, inode) = (fields.nth(1), fields.next());
        let is_remote = device.is_some_and(|device| device.starts_with(b"00:"))
            && inode.is_some_and(|inode| inode != b"0");
        let path = fields.next().unwrap_or_default().trim_ascii();
        let path = path
            .get(path.len().saturating_sub(PATH_MAX)..)
            .unwrap_or_default();
        if self.path.get(..self.path_length) != Some(path) {
            self.base = start;
            self.current = NO_MODULE;
            self.path_length = path.len();
            for (slot, byte) in self.path.iter_mut().zip(path) {
                *slot = *byte;
            }
        }
        // Heaps and stacks are neither.
        if !is_executable && !path.starts_with(b"/") {
            return;
        }
        if self.current == NO_MODULE && !path.is_empty() {
            self.current = self.add_module(path, is_remote).unwrap_or(NO_MODULE);
        }
        if let Some(slot) = self.ranges.get_mut(self.ranges_used) {
            *slot = Range {
                start,
                end,
                module: self.current,
                is_executable,
            };
            self.ranges_used = self.ranges_used.saturating_add(1);
        }
    }

    fn add_module(&mut self, path: &[u8], is_remote: bool) -> Option<u16> {
        let from = self.paths_used;
        let to = from.checked_add(path.len())?;
        let room = self.paths.get_mut(from..to)?;
        let index = self.modules_used;
        let slot = self.modules.get_mut(index)?;
        for (slot, byte) in room.iter_mut().zip(path) {
            *slot = *byte;
        }
        *slot = Module {
            path_from: from as u32,
            path_length: path.len() as u16,
            base: self.base,
            build_id: [0; BUILD_ID_MAX],
            build_id_length: 0,
            is_examined: false,
            is_remote,
            number: 0,
        };
        self.paths_used = to;
        self.modules_used = index.saturating_add(1);
        Some(index as u16)
    }

    fn range(&self, address: u64) -> Option<&Range> {
        let ranges = self.ranges.get(..self.ranges_used)?;
        let after = ranges.partition_point(|range| range.start <= address);
        let range = ranges.get(after.checked_sub(1)?)?;
        (address < range.end).then_some(range)
    }

    fn number(&mut self, module: u16) {
        let next = self.numbers_used;
        if let (Some(found), Some(slot)) = (
            self.modules.get_mut(usize::from(module)),
            self.numbered.get_mut(usize::from(next)),
        ) && found.number == 0
        {
            *slot = module;
            self.numbers_used = next.saturating_add(1);
            found.number = self.numbers_used;
        }
    }
}

/// Reads the memory map, unless that is done. Returns whether it was to be had.
pub(crate) fn read_once() -> bool {
    table().is_whole || read()
}

/// Reads the memory map. Returns whether it was to be had.
pub fn read() -> bool {
    let Ok(descriptor) = sys::open(c"/proc/self/maps", libc::O_RDONLY, 0) else {
        return false;
    };
    let table = table_mut();
    table.clear();
    let mut line = [0_u8; 512];
    let mut length = 0_usize;
    let mut chunk = [0_u8; 4096];
    while let Ok(count @ 1..) = sys::read(descriptor, &mut chunk) {
        for byte in chunk.iter().take(count) {
            if *byte == b'\n' {
                table.line(line.get(..length).unwrap_or_default());
                length = 0;
            } else if let Some(slot) = line.get_mut(length) {
                *slot = *byte;
                length = length.saturating_add(1);
            }
        }
    }
    sys::close(descriptor);
    table.is_whole = true;
    table.ranges_used > 0
}

/// Forgets the map: the failure was none.
pub(crate) fn forget() {
    table_mut().clear();
}

/// Returns a number that changes as the map is read anew: what was found by an earlier one may be gone.
pub fn reading() -> u32 {
    table().reading
}

/// Returns where the highest range of the map ends; 0 before it is read.
pub fn end() -> u64 {
    let table = table();
    let last = table.ranges_used.checked_sub(1);
    let last = last.and_then(|last| table.ranges.get(last));
    last.map_or(0, |range| range.end)
}

/// Returns whether code may be at an address.
pub fn is_executable(address: u64) -> bool {
    table()
        .range(address)
        .is_some_and(|range| range.is_executable)
}

/// Returns the module of an address, `None` outside any mapped file.
pub fn module_of(address: u64) -> Option<Module> {
    let table = table();
    let range = table.range(address)?;
    table.modules.get(usize::from(range.module)).copied()
}

/// Gives the module of an address a number in the error file. Returns whether code may be at the address.
pub fn note_use(address: u64) -> bool {
    let table = table_mut();
    let Some(range) = table.range(address).copied() else {
        return false;
    };
    table.number(range.module);
    range.is_executable
}

/// Returns the modules with numbers, in the order of these.
pub fn used() -> impl Iterator<Item = &'static Module> {
    let table = table();
    let numbered = table.numbered.iter().take(usize::from(table.numbers_used));
    numbered.filter_map(|module| table.modules.get(usize::from(*module)))
}

/// Finds the build IDs of the modules with numbers, in their memory.
pub fn read_build_ids() {
    let table = table_mut();
    for index in 0..usize::from(table.numbers_used) {
        let module = table.numbered.get(index).copied().map(usize::from);
        let Some(module) = module.and_then(|module| table.modules.get_mut(module)) else {
            continue;
        };
        if !module.is_examined {
            module.is_examined = true;
            let length = build_id::find(module.base, &mut module.build_id).unwrap_or(0);
            module.build_id_length = length as u8;
        }
    }
}

fn hex(digits: &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for digit in digits {
        let value = char::from(*digit).to_digit(16)?;
        number = number.checked_mul(16)?.checked_add(u64::from(value))?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn an_address_of_this_test_lies_in_this_test() {
        assert!(read());
        let address = read as *const () as u64;
        let module = module_of(address).expect("mapped");
        assert!(
            module.name().starts_with(b"firstfault_handler-"),
            "{:?}",
            module.name()
        );
        assert!(module.base < address);
        assert!(module_of(0x10).is_none());
        assert!(!is_executable((&raw const module).addr() as u64));
        assert!(note_use(address) && note_use(address) && !note_use(0x10));
        read_build_ids();
        let numbered: Vec<_> = used().collect();
        assert_eq!(numbered.len(), 1);
        assert_eq!(numbered[0].number(), Some(0));
        // The linker that made this test writes one, or none: then the C library's has one.
        assert!([0, 16, 20, 32].contains(&numbered[0].build_id().len()));
    }

    #[test]
    fn the_base_is_that_of_the_files_first_mapping() {
        let mut table = Box::new(Table::new());
        table.clear();
        for line in [
            &b"7f000000-7f001000 r--p 00000000 08:01 12   /lib/a b.so"[..],
            b"7f001000-7f003000 r-xp 00001000 08:01 12   /lib/a b.so",
            b"7f003000-7f004000 rw-p 00003000 08:01 12   /lib/a b.so",
            b"7f005000-7f006000 r-xp 00000000 00:00 0 ",
        ] {
            table.line(line);
        }
        let module = |address| {
            let range = table.range(address)?;
            assert_eq!(
                range.is_executable,
                matches!(address, 0x7f00_2000 | 0x7f00_5000)
            );
            Some((range.module, table.modules.get(usize::from(range.module))))
        };
        let (index, found) = module(0x7f00_2000).expect("executable");
        let found = found.expect("a file");
        assert_eq!((index, found.base), (0, 0x7f00_0000));
        let path = &table.paths[..usize::from(found.path_length)];
        assert_eq!(path, b"/lib/a b.so");
        assert_eq!(module(0x7f00_3000).map(|found| found.0), Some(0));
        assert!(module(0x7f00_4000).is_none());
        assert_eq!(module(0x7f00_5000).map(|found| found.0), Some(NO_MODULE));
    }
}
