//! Memory of this process that may not be there: read through the kernel, which answers with an error and no fault.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::{Errno, close, errno, open, process_id};

/// The kernel or a filter refuses process_vm_readv(2): /proc/self/mem serves instead.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);
/// /proc/self/mem, opened for one stage; -1 is closed.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// The granularity in which memory is there or not.
const PAGE: usize = 4096;

/// Fills a buffer from memory that may not be mapped; the buffer is undefined after an error.
pub fn read_memory(address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
    let count = if IS_REFUSED.load(Ordering::Relaxed) {
        read_file(address, buffer)?
    } else {
        match read_process(address, buffer) {
            Err(libc::ENOSYS | libc::EPERM | libc::EACCES) => {
                IS_REFUSED.store(true, Ordering::Relaxed);
                read_file(address, buffer)?
            }
            result => result?,
        }
    };
    if count == buffer.len() {
        Ok(())
    } else {
        Err(libc::EFAULT)
    }
}

/// Returns whether the kernel or a filter has refused process_vm_readv(2) by now.
pub fn is_memory_refused() -> bool {
    IS_REFUSED.load(Ordering::Relaxed)
}

/// Source: process_vm_readv(2), of this process: no privilege is asked for.
fn read_process(address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as usize as *mut _,
        iov_len: buffer.len(),
    };
    // SAFETY: the local vector is one live buffer; the remote one is only an address to the kernel.
    let count = unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            process_id(),
            &raw const local,
            1_usize,
            &raw const remote,
            1_usize,
            0_usize,
        )
    };
    if count < 0 {
        Err(errno())
    } else {
        Ok(count as usize)
    }
}

fn read_file(address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut descriptor = DESCRIPTOR.load(Ordering::Relaxed);
    if descriptor < 0 {
        descriptor = open(c"/proc/self/mem", libc::O_RDONLY, 0)?;
        DESCRIPTOR.store(descriptor, Ordering::Relaxed);
    }
    // SAFETY: pointer and length are of one live buffer. By bare system call: pread(2) is in no list of safe ones.
    let count = unsafe {
        libc::syscall(
            libc::SYS_pread64,
            descriptor,
            buffer.as_mut_ptr(),
            buffer.len(),
            address,
        )
    };
    if count < 0 {
        Err(errno())
    } else {
        Ok(count as usize)
    }
}

/// Closes what reading has opened; a forked child must not read its parent's memory.
pub fn close_memory() {
    let descriptor = DESCRIPTOR.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        close(descriptor);
    }
}

/// One page of memory, kept for the next reads near by.
#[derive(Debug)]
pub struct MemoryPage {
    start: u64,
    is_there: bool,
    bytes: [u8; PAGE],
}

impl Default for MemoryPage {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryPage {
    /// Returns a page that holds nothing yet.
    pub const fn new() -> Self {
        Self {
            start: u64::MAX,
            is_there: false,
            bytes: [0; PAGE],
        }
    }

    /// Lets the next read ask the kernel: memory has changed since.
    pub fn forget(&mut self) {
        self.start = u64::MAX;
    }

    /// Returns the word at an address, `None` where no memory is.
    pub fn word(&mut self, address: u64) -> Option<u64> {
        let offset = address as usize & (PAGE - 1);
        let start = address.wrapping_sub(offset as u64);
        let end = offset.saturating_add(8);
        if end > PAGE {
            let mut word = [0; 8];
            read_memory(address, &mut word).ok()?;
            return Some(u64::from_ne_bytes(word));
        }
        if start != self.start {
            self.start = start;
            self.is_there = read_memory(start, &mut self.bytes).is_ok();
        }
        let word = self.bytes.get(offset..end)?.try_into().ok()?;
        self.is_there.then(|| u64::from_ne_bytes(word))
    }
}

/// Returns whether so much of the calling thread's stack is left below this frame.
///
/// Only a hint: it asks whether the pages are there. The main thread's stack grows by itself and so looks smaller.
#[inline(never)]
pub fn has_stack(bytes: usize) -> bool {
    let here = 0_u8;
    let here = (&raw const here).addr() as u64;
    let mut byte = [0_u8];
    (1..=bytes / PAGE).all(|page| {
        let below = (page as u64).wrapping_mul(PAGE as u64);
        read_memory(here.wrapping_sub(below), &mut byte).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let word = 0x0123_4567_89ab_cdef_u64;
        let address = (&raw const word).addr() as u64;
        for refused in [false, true] {
            IS_REFUSED.store(refused, Ordering::Relaxed);
            let mut page = MemoryPage::new();
            assert_eq!(page.word(address), Some(word));
            assert_eq!(page.word(0x10), None);
            assert_eq!(page.word(u64::MAX - 2), None);
            assert_eq!(page.word(0x8000_0000_0000_0000), None);
            assert!(has_stack(16 * 1024));
            assert!(!has_stack(1 << 30));
        }
        close_memory();
        IS_REFUSED.store(false, Ordering::Relaxed);
    }
}
