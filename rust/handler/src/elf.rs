//! A module as the loader has mapped it: the program headers of its ELF image, read through the kernel.

use core::mem::size_of;
use core::ops::Range;

use crate::sys;

/// A program header.
pub type Segment = libc::Elf64_Phdr;

/// More program headers than any linker writes.
const SEGMENTS_MAX: u16 = 32;

/// So many program headers are read at once: few, as the stack may be a small one.
const AT_ONCE: usize = 8;

/// No program header. Source: elf(5), `PT_NULL`
const NONE: Segment = Segment {
    p_type: libc::PT_NULL,
    p_flags: 0,
    p_offset: 0,
    p_vaddr: 0,
    p_paddr: 0,
    p_filesz: 0,
    p_memsz: 0,
    p_align: 0,
};

/// Where a module's program headers are, and where it is itself.
#[derive(Debug)]
pub struct Image {
    segments: u64,
    count: u16,
    /// What is added to an address of the file for one in memory.
    bias: u64,
}

impl Image {
    /// Returns the image whose file begins at this address in memory; `None` where no such is.
    ///
    /// Source: elf(5). 64 bits, little-endian: all that firstfault runs on.
    pub fn at(base: u64) -> Option<Self> {
        let mut bytes = [0_u8; size_of::<libc::Elf64_Ehdr>()];
        sys::read_memory(base, &mut bytes).ok()?;
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        // SAFETY: any bytes are a header.
        let header = unsafe { bytes.as_ptr().cast::<libc::Elf64_Ehdr>().read_unaligned() };
        if usize::from(header.e_phentsize) != size_of::<Segment>() {
            return None;
        }
        let mut image = Self {
            segments: base.checked_add(header.e_phoff)?,
            count: header.e_phnum.min(SEGMENTS_MAX),
            bias: 0,
        };
        // The page that the file's first byte is in.
        let first = image.of_type(libc::PT_LOAD).next()?.p_vaddr & !0xfff;
        image.bias = base.wrapping_sub(first);
        Some(image)
    }

    /// Returns the program headers of a type, in their order, up to the first that cannot be read.
    pub fn of_type(&self, kind: u32) -> impl Iterator<Item = Segment> {
        (0..self.count)
            .step_by(AT_ONCE)
            .map_while(|index| self.some(index))
            .flatten()
            .filter(move |segment| segment.p_type == kind)
    }

    /// Reads the next few; behind the last one they are of no type.
    fn some(&self, index: u16) -> Option<[Segment; AT_ONCE]> {
        let mut segments = [NONE; AT_ONCE];
        let count = AT_ONCE.min(self.count.checked_sub(index)?.into());
        let length = count.checked_mul(size_of::<Segment>())?;
        let offset = u64::from(index).wrapping_mul(size_of::<Segment>() as u64);
        // SAFETY: plain numbers, as bytes, no more of them than there are.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(segments.as_mut_ptr().cast::<u8>(), length) };
        sys::read_memory(self.segments.checked_add(offset)?, bytes).ok()?;
        Some(segments)
    }

    /// Returns where a segment is in memory.
    pub fn addresses(&self, segment: &Segment) -> Range<u64> {
        let start = self.address(segment.p_vaddr);
        start..start.saturating_add(segment.p_memsz)
    }

    /// Returns where an address of the file is in memory.
    pub fn address(&self, in_file: u64) -> u64 {
        self.bias.wrapping_add(in_file)
    }

    /// Returns where the readable segment that the loader mapped at an address ends; `None` outside any.
    pub fn end_of_segment(&self, address: u64) -> Option<u64> {
        self.of_type(libc::PT_LOAD)
            .filter(|segment| segment.p_flags & libc::PF_R != 0)
            .map(|segment| self.addresses(&segment))
            .find(|segment| segment.contains(&address))
            .map(|segment| segment.end)
    }
}
