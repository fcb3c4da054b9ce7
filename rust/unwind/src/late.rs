//! Modules that came after the last [`prepare`](crate::prepare): their tables are found at the time of the walk.
//!
//! framehop's own table cannot grow without allocating. Libraries that load others when these are first used (torch,
//! CUDA, NCCL) would else end every stack that crashes in them.

use core::mem::size_of;

use firstfault_handler::sys::{self, MemoryPage};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Register, RegisterRule,
    UnwindSection, UnwindTableRow,
};

use crate::modules::{bytes, tables};

/// Room for the rules of one function, without allocation.
pub(crate) struct Storage;

impl<O: gimli::ReaderOffset> gimli::UnwindContextStorage<O> for Storage {
    type Rules = [(Register, RegisterRule<O>); 192];
    type Stack = [UnwindTableRow<O, Self>; 4];
}

pub(crate) type Context = gimli::UnwindContext<usize, Storage>;

/// The registers that all callers' frames are found by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub(crate) stack_pointer: u64,
    pub(crate) frame_pointer: u64,
    pub(crate) link: u64,
}

#[cfg(target_arch = "x86_64")]
mod numbers {
    use gimli::{Register, X86_64};
    pub(super) const STACK_POINTER: Register = X86_64::RSP;
    pub(super) const FRAME_POINTER: Register = X86_64::RBP;
    pub(super) const RETURN: Register = X86_64::RA;
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    use gimli::{AArch64, Register};
    pub(super) const STACK_POINTER: Register = AArch64::SP;
    pub(super) const FRAME_POINTER: Register = AArch64::X29;
    pub(super) const RETURN: Register = AArch64::X30;
}

/// More program headers than any linker writes.
const SEGMENTS_MAX: usize = 32;

/// Returns the caller's registers and the address that the function returns to; `None` where the tables do not say.
///
/// `base` is where the module's file begins in memory, `lookup` an address inside the instruction.
pub(crate) fn step(
    base: u64,
    lookup: u64,
    position: &Position,
    context: &mut Context,
    memory: &mut MemoryPage,
) -> Option<(Position, u64)> {
    let mut segments = [EMPTY; SEGMENTS_MAX];
    let segments = segments_at(base, &mut segments)?;
    let first = segments
        .iter()
        .find(|segment| segment.p_type == libc::PT_LOAD)?;
    let bias = base.wrapping_sub(first.p_vaddr & !0xfff);
    let tables = tables(segments, bias)?;
    let bases = BaseAddresses::default()
        .set_eh_frame_hdr(bias.wrapping_add(tables.header.start))
        .set_eh_frame(bias.wrapping_add(tables.frames.start));
    let header = EhFrameHdr::new(bytes(bias, &tables.header)?, LittleEndian);
    let header = header.parse(&bases, 8).ok()?;
    let mut frames = EhFrame::from(EndianSlice::new(bytes(bias, &tables.frames)?, LittleEndian));
    frames.set_address_size(8);
    let index = header.table()?;
    let found = index.lookup(lookup, &bases).ok()?;
    let offset = index.pointer_to_offset(found).ok()?;
    let entry = frames
        .fde_from_offset(&bases, offset, EhFrame::cie_from_offset)
        .ok()?;
    let row = entry
        .unwind_info_for_address(&frames, &bases, context, lookup)
        .ok()?;
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let value = match *register {
                numbers::STACK_POINTER => position.stack_pointer,
                numbers::FRAME_POINTER => position.frame_pointer,
                _ => return None,
            };
            value.checked_add_signed(*offset)?
        }
        CfaRule::Expression(_) => return None,
    };
    let mut value = |register: Register, same: u64| match row.register(register) {
        None | Some(RegisterRule::SameValue) => Some(same),
        Some(RegisterRule::Offset(offset)) => memory.word(cfa.checked_add_signed(offset)?),
        _ => None,
    };
    let frame_pointer = value(numbers::FRAME_POINTER, position.frame_pointer)?;
    let address = value(numbers::RETURN, position.link)?;
    let caller = Position {
        stack_pointer: cfa,
        frame_pointer,
        link: address,
    };
    Some((caller, address))
}

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
