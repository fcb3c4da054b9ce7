//! Where a module's unwind tables are, by the program headers that the loader mapped with it.

use core::ops::Range;

use firstfault_handler::elf::Image;
use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, FrameDescriptionEntry, LittleEndian,
    UnwindSection,
};

pub(crate) type Reader = EndianSlice<'static, LittleEndian>;
pub(crate) type Entry = FrameDescriptionEntry<Reader>;

/// The tables of one module.
pub(crate) struct Tables {
    pub(crate) bases: BaseAddresses,
    pub(crate) frames: EhFrame<Reader>,
    header: EhFrameHdr<Reader>,
}

impl Tables {
    /// Returns the tables of the module whose file begins at this address in memory; `None` for one without.
    ///
    /// Source: elf(5), LSB "Exception Frames".
    pub(crate) fn of(base: u64) -> Option<Self> {
        let image = Image::at(base)?;
        let header = image.addresses(&image.of_type(libc::PT_GNU_EH_FRAME).next()?);
        // Only a segment that the loader mapped is looked into.
        let header = header.start..header.end.min(image.end_of_segment(header.start)?);
        let start = frames_of_header(bytes(&header)?, header.start)?;
        let frames = start..image.end_of_segment(start)?;
        let mut tables = Self {
            bases: BaseAddresses::default()
                .set_eh_frame_hdr(header.start)
                .set_eh_frame(frames.start),
            frames: EhFrame::new(bytes(&frames)?, LittleEndian),
            header: EhFrameHdr::new(bytes(&header)?, LittleEndian),
        };
        tables.frames.set_address_size(ADDRESS_SIZE);
        Some(tables)
    }

    /// Returns the entry of the function at an address.
    pub(crate) fn entry(&self, address: u64) -> Option<Entry> {
        let header = self.header.parse(&self.bases, ADDRESS_SIZE).ok()?;
        let index = header.table()?;
        let found = index.lookup(address, &self.bases).ok()?;
        let offset = index.pointer_to_offset(found).ok()?;
        let entry = self
            .frames
            .fde_from_offset(&self.bases, offset, EhFrame::cie_from_offset)
            .ok()?;
        // The index has the start of each function alone.
        entry.contains(address).then_some(entry)
    }
}

const ADDRESS_SIZE: u8 = 8;

fn bytes(range: &Range<u64>) -> Option<&'static [u8]> {
    let start = range.start as usize as *const u8;
    let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
    // SAFETY: inside a readable segment of a loaded module, which nobody writes to. It lasts as long as the module is
    // loaded; one that goes away meanwhile is a fault in a guarded stage.
    (!start.is_null()).then(|| unsafe { core::slice::from_raw_parts(start, length) })
}

/// Returns the address of `.eh_frame` that an `.eh_frame_hdr` states.
///
/// Source: LSB "The .eh_frame_hdr section": version 1, and a pointer that all linkers write as `DW_EH_PE_pcrel |
/// DW_EH_PE_sdata4`.
fn frames_of_header(header: &[u8], start: u64) -> Option<u64> {
    const PC_RELATIVE_SIGNED_32: u8 = 0x1b;
    if header.first() != Some(&1) || header.get(1) != Some(&PC_RELATIVE_SIGNED_32) {
        return None;
    }
    let offset = i32::from_le_bytes(*header.get(4..)?.first_chunk::<4>()?);
    start.checked_add(4)?.checked_add_signed(i64::from(offset))
}
