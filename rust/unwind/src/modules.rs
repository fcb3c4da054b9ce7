//! The loaded modules and their unwind tables, as the loader knows them.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use firstfault_handler::{foreign, sys};
use framehop::{
    CacheNative, ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder,
    UnwinderNative,
};

use crate::late;

type Framehop = UnwinderNative<&'static [u8], MustNotAllocateDuringUnwind>;
type Cache = CacheNative<MustNotAllocateDuringUnwind>;

/// What a walk needs: the modules' unwind tables, and room to read them.
pub struct Prepared {
    pub(crate) unwinder: Framehop,
    /// Touched by the owner of the handler alone.
    pub(crate) cache: UnsafeCell<Cache>,
    #[cfg(target_arch = "aarch64")]
    /// The end of the highest module, from which AArch64's pointer authentication is told.
    pub(crate) highest: u64,
    /// Touched by the owner of the handler alone.
    pub(crate) late: UnsafeCell<Box<late::Context>>,
    /// Where the modules' code is, in the order of addresses.
    known: Vec<Range<u64>>,
    /// Where the C library's signal handlers return to.
    pub(crate) restorer: u64,
    /// How often the loader had added and removed modules.
    version: (u64, u64),
}

impl Prepared {
    /// Returns whether an address lies in a module that was loaded at the time.
    pub(crate) fn knows(&self, address: u64) -> bool {
        let after = self.known.partition_point(|range| range.start <= address);
        let range = after.checked_sub(1).and_then(|index| self.known.get(index));
        range.is_some_and(|range| address < range.end)
    }
}

impl core::fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("Prepared")
    }
}

static PREPARED: AtomicPtr<Prepared> = AtomicPtr::new(core::ptr::null_mut());
/// One thread at a time prepares; another's call is not needed then.
static IS_BUSY: AtomicBool = AtomicBool::new(false);

pub(crate) fn prepared() -> Option<&'static Prepared> {
    // SAFETY: only `prepare` stores here, values that live for ever.
    unsafe { PREPARED.load(Ordering::Acquire).as_ref() }
}

/// Makes the table of the loaded modules, or makes it anew where modules have come or gone since the last time.
///
/// Normal context: allocates and takes the loader's lock. An old table is never freed, since the handler may be using
/// it. Costs a lock and a call where nothing has changed.
pub fn prepare() {
    if IS_BUSY.swap(true, Ordering::Acquire) {
        return;
    }
    let now = version();
    if prepared().is_none_or(|prepared| prepared.version != now) {
        let mut unwinder = Framehop::new();
        let mut known = Vec::new();
        for_each_module(|information| {
            if let Some(module) = module(information) {
                known.push(module.avma_range());
                unwinder.add_module(module);
            }
            true
        });
        known.sort_by_key(|range| range.start);
        let restorer = sys::action(libc::SIGSEGV)
            .ok()
            .and_then(|action| action.sa_restorer)
            .map_or(0, |restorer| restorer as usize as u64);
        let prepared = Box::new(Prepared {
            #[cfg(target_arch = "aarch64")]
            highest: unwinder.max_known_code_address(),
            unwinder,
            cache: UnsafeCell::new(Cache::new_in()),
            late: UnsafeCell::new(Box::new(late::Context::new_in())),
            known,
            restorer,
            version: now,
        });
        PREPARED.store(Box::into_raw(prepared), Ordering::Release);
        foreign::set_unwinder(crate::walk::walk);
    }
    IS_BUSY.store(false, Ordering::Release);
}

/// Returns how often the loader has added and removed modules.
fn version() -> (u64, u64) {
    let mut version = (0, 0);
    for_each_module(|information| {
        version = (information.dlpi_adds, information.dlpi_subs);
        false
    });
    version
}

/// Calls a function with each loaded module while it returns true.
fn for_each_module<F: FnMut(&libc::dl_phdr_info) -> bool>(mut each: F) {
    unsafe extern "C" fn call<F: FnMut(&libc::dl_phdr_info) -> bool>(
        information: *mut libc::dl_phdr_info,
        _size: usize,
        each: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's information lives through the call, and `each` is the function that was passed on.
        let (information, each) = unsafe { (&*information, &mut *each.cast::<F>()) };
        c_int::from(!each(information))
    }
    // SAFETY: the function lives through the call and is called by this thread alone.
    unsafe { libc::dl_iterate_phdr(Some(call::<F>), (&raw mut each).cast()) };
}

/// Where a module's code and unwind tables are, as addresses that the file states.
#[derive(Debug)]
pub(crate) struct Tables {
    code: Range<u64>,
    pub(crate) header: Range<u64>,
    pub(crate) frames: Range<u64>,
}

/// Finds a module's tables through its program headers; `None` for one without code or without tables.
///
/// Source: elf(5), LSB "Exception Frames".
pub(crate) fn tables(segments: &[libc::Elf64_Phdr], bias: u64) -> Option<Tables> {
    let range = |segment: &libc::Elf64_Phdr| {
        segment.p_vaddr..segment.p_vaddr.saturating_add(segment.p_memsz)
    };
    let loaded = segments
        .iter()
        .filter(|segment| segment.p_type == libc::PT_LOAD);
    let code = loaded
        .clone()
        .filter(|segment| segment.p_flags & libc::PF_X != 0);
    let start = code.clone().map(|segment| range(segment).start).min()?;
    let end = code.map(|segment| range(segment).end).max()?;
    let header = segments
        .iter()
        .find(|segment| segment.p_type == libc::PT_GNU_EH_FRAME)
        .map(range)?;
    // Only a segment that the loader mapped is looked into.
    let holding = |address: u64| {
        loaded
            .clone()
            .filter(|segment| segment.p_flags & libc::PF_R != 0)
            .map(range)
            .find(|segment| segment.contains(&address))
    };
    let header = header.start..header.end.min(holding(header.start)?.end);
    let frames = frames_of_header(bytes(bias, &header)?, header.start)?;
    Some(Tables {
        code: start..end,
        header,
        frames: frames..holding(frames)?.end,
    })
}

/// Returns a module that the loader knows, with its unwind tables.
fn module(information: &libc::dl_phdr_info) -> Option<Module<&'static [u8]>> {
    let bias = information.dlpi_addr;
    // SAFETY: the loader's own table of this module's segments.
    let segments = unsafe {
        core::slice::from_raw_parts(information.dlpi_phdr, usize::from(information.dlpi_phnum))
    };
    let tables = tables(segments, bias)?;
    let mapped = bias.checked_add(tables.code.start)?..bias.checked_add(tables.code.end)?;
    let sections = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: Some(tables.code),
        eh_frame: Some(bytes(bias, &tables.frames)?),
        eh_frame_svma: Some(tables.frames),
        eh_frame_hdr: Some(bytes(bias, &tables.header)?),
        eh_frame_hdr_svma: Some(tables.header),
        ..ExplicitModuleSectionInfo::default()
    };
    Some(Module::new(String::new(), mapped, bias, sections))
}

pub(crate) fn bytes(bias: u64, range: &Range<u64>) -> Option<&'static [u8]> {
    let start = bias.checked_add(range.start)? as usize as *const u8;
    let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
    // SAFETY: inside a readable segment of a loaded module, which nobody writes to. It lasts as long as the module is
    // loaded; a walk that comes later faults in a guarded stage.
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
