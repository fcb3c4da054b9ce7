//! Where a module's unwind tables are, by the program headers that the loader mapped with it.

use core::mem::size_of;
use core::ops::Range;

use firstfault_handler::sys;
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
        let mut room = [EMPTY; SEGMENTS_MAX];
        let segments = segments_at(base, &mut room)?;
        let loaded = || {
            let is_loaded = |segment: &&Segment| segment.p_type == libc::PT_LOAD;
            segments.iter().filter(is_loaded)
        };
        let bias = base.wrapping_sub(loaded().next()?.p_vaddr & !0xfff);
        // Only a segment that the loader mapped is looked into.
        let end_of_segment = |address: u64| {
            loaded()
                .filter(|segment| segment.p_flags & libc::PF_R != 0)
                .map(|segment| addresses(segment, bias))
                .find(|segment| segment.contains(&address))
                .map(|segment| segment.end)
        };
        let header = segments
            .iter()
            .find(|segment| segment.p_type == libc::PT_GNU_EH_FRAME)?;
        let header = addresses(header, bias);
        let header = header.start..header.end.min(end_of_segment(header.start)?);
        let start = frames_of_header(bytes(&header)?, header.start)?;
        let frames = start..end_of_segment(start)?;
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

/// More program headers than any linker writes.
const SEGMENTS_MAX: usize = 32;

type Segment = libc::Elf64_Phdr;

const EMPTY: Segment = Segment {
    p_type: 0,
    p_flags: 0,
    p_offset: 0,
    p_vaddr: 0,
    p_paddr: 0,
    p_filesz: 0,
    p_memsz: 0,
    p_align: 0,
};

/// Where a segment is in memory.
fn addresses(segment: &Segment, bias: u64) -> Range<u64> {
    let start = bias.wrapping_add(segment.p_vaddr);
    start..start.saturating_add(segment.p_memsz)
}

/// Reads the program headers of the ELF image at an address. Source: elf(5).
fn segments_at(base: u64, room: &mut [Segment; SEGMENTS_MAX]) -> Option<&[Segment]> {
    let mut header = [0_u8; size_of::<libc::Elf64_Ehdr>()];
    sys::read_memory(base, &mut header).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    // SAFETY: any bytes are a header.
    let header = unsafe { header.as_ptr().cast::<libc::Elf64_Ehdr>().read_unaligned() };
    if usize::from(header.e_phentsize) != size_of::<Segment>() {
        return None;
    }
    let count = usize::from(header.e_phnum).min(SEGMENTS_MAX);
    let length = count.checked_mul(size_of::<Segment>())?;
    // SAFETY: plain numbers, as bytes, no more of them than there are.
    let bytes = unsafe { core::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<u8>(), length) };
    sys::read_memory(base.checked_add(header.e_phoff)?, bytes).ok()?;
    room.get(..count)
}

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
