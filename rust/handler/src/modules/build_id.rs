//! The build ID of a module, from the notes in its memory.

use crate::elf::Image;
use crate::sys;

/// The longest build ID that is kept: SHA-1 has 20 bytes.
pub(super) const BUILD_ID_MAX: usize = 32;

/// Finds the build ID note of the ELF image at an address. Returns its length.
///
/// Source: elf(5); the note's name is "GNU" and its type `NT_GNU_BUILD_ID`, 3.
pub(super) fn find(base: u64, found: &mut [u8; BUILD_ID_MAX]) -> Option<usize> {
    let image = Image::at(base)?;
    image
        .of_type(libc::PT_NOTE)
        .find_map(|segment| note(image.address(segment.p_vaddr), segment.p_memsz, found))
}

fn note(start: u64, length: u64, found: &mut [u8; BUILD_ID_MAX]) -> Option<usize> {
    const NOTES_MAX: usize = 64;
    let end = start.checked_add(length)?;
    let mut at = start;
    for _ in 0..NOTES_MAX {
        if at.checked_add(16)? > end {
            return None;
        }
        let mut head = [0_u8; 16];
        sys::read_memory(at, &mut head).ok()?;
        let (name, size, kind) = (quarter(&head, 0)?, quarter(&head, 4)?, quarter(&head, 8)?);
        let aligned = |size: u64| size.saturating_add(3) & !3;
        let content = at.checked_add(12)?.checked_add(aligned(name))?;
        if kind == 3 && name == 4 && head.ends_with(b"GNU\0") {
            let room = found.get_mut(..size as usize)?;
            sys::read_memory(content, room).ok()?;
            return Some(size as usize);
        }
        at = content.checked_add(aligned(size))?;
    }
    None
}

fn quarter(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u64::from(u32::from_le_bytes(*bytes)))
}
