//! The build ID of a module, from the notes in its memory.

use crate::sys;

/// The longest build ID that is kept: SHA-1 has 20 bytes.
pub(super) const BUILD_ID_MAX: usize = 32;

/// Finds the build ID note of the ELF image at an address. Returns its length.
///
/// Source: elf(5); the note's name is "GNU" and its type `NT_GNU_BUILD_ID`, 3.
pub(super) fn find(base: u64, found: &mut [u8; BUILD_ID_MAX]) -> Option<usize> {
    const PT_LOAD: u32 = 1;
    const PT_NOTE: u32 = 4;
    const HEADERS_MAX: u64 = 64;
    let mut header = [0_u8; 64];
    sys::read_memory(base, &mut header).ok()?;
    // 64 bits, little-endian: all that firstfault runs on.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (word(&header, 32)?, half(&header, 54)?, half(&header, 56)?);
    let mut first = None;
    for index in 0..count.min(HEADERS_MAX) {
        let mut program = [0_u8; 56];
        let at = base
            .checked_add(table)?
            .checked_add(index.checked_mul(size)?)?;
        sys::read_memory(at, &mut program).ok()?;
        let kind = program
            .first_chunk::<4>()
            .copied()
            .map(u32::from_le_bytes)?;
        let address = word(&program, 16)?;
        if kind == PT_LOAD && first.is_none() {
            // The page that the file's first byte is in.
            first = Some(address & !0xfff);
        }
        if kind == PT_NOTE {
            let at = base.checked_add(address.checked_sub(first.unwrap_or(0))?)?;
            let length = word(&program, 40)?;
            if let Some(length) = note(at, length, found) {
                return Some(length);
            }
        }
    }
    None
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

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

fn quarter(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u64::from(u32::from_le_bytes(*bytes)))
}

fn half(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u64::from(u16::from_le_bytes(*bytes)))
}
