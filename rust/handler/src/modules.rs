//! Which file an address belongs to, from /proc/self/maps.

use crate::sys;

/// The longest path that is kept; a longer one keeps its end, where the name is.
const PATH_MAX: usize = 256;

/// A mapped file around an address.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    path: [u8; PATH_MAX],
    path_length: usize,
    /// Where the file's first byte would be: an address minus this is an offset that symbol tables know.
    pub base: u64,
}

impl Module {
    /// Returns the path as the kernel shows it, or `[heap]` and the like.
    pub fn path(&self) -> &[u8] {
        self.path.get(..self.path_length).unwrap_or_default()
    }

    /// Returns the file's name without its directory.
    pub fn name(&self) -> &[u8] {
        self.path()
            .rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default()
    }
}

/// What a walk over the lines of a maps file keeps.
struct Walk {
    address: u64,
    /// The first mapping of the file that the walk is in, whose start is the file's base.
    base: u64,
    path: [u8; PATH_MAX],
    path_length: usize,
    found: Option<Module>,
}

impl Walk {
    const fn new(address: u64) -> Self {
        Self {
            address,
            base: 0,
            path: [0; PATH_MAX],
            path_length: 0,
            found: None,
        }
    }

    /// Takes one line, `start-end perms offset device inode path`.
    fn line(&mut self, line: &[u8]) {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let range = fields.next().unwrap_or_default();
        let mut ends = range.splitn(2, |byte| *byte == b'-').map(hex);
        let (Some(Some(start)), Some(Some(end))) = (ends.next(), ends.next()) else {
            return;
        };
        let path = fields.nth(4).unwrap_or_default().trim_ascii();
        let path = path
            .get(path.len().saturating_sub(PATH_MAX)..)
            .unwrap_or_default();
        if self.path.get(..self.path_length) != Some(path) {
            self.base = start;
            self.path_length = path.len();
            for (slot, byte) in self.path.iter_mut().zip(path) {
                *slot = *byte;
            }
        }
        if (start..end).contains(&self.address) && !path.is_empty() {
            self.found = Some(Module {
                path: self.path,
                path_length: self.path_length,
                base: self.base,
            });
        }
    }
}

/// Returns the module of an address, `None` outside any mapped file.
pub fn module_of(address: u64) -> Option<Module> {
    let descriptor = sys::open(c"/proc/self/maps", libc::O_RDONLY, 0).ok()?;
    let mut walk = Walk::new(address);
    let mut line = [0_u8; 512];
    let mut length = 0_usize;
    let mut chunk = [0_u8; 1024];
    while walk.found.is_none() {
        let Ok(count @ 1..) = sys::read(descriptor, &mut chunk) else {
            break;
        };
        for byte in chunk.iter().take(count) {
            if *byte == b'\n' {
                walk.line(line.get(..length).unwrap_or_default());
                length = 0;
            } else if let Some(slot) = line.get_mut(length) {
                *slot = *byte;
                length = length.saturating_add(1);
            }
        }
    }
    sys::close(descriptor);
    walk.found
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
    use super::*;

    #[test]
    fn an_address_of_this_test_lies_in_this_test() {
        let module = module_of(module_of as *const () as u64).expect("mapped");
        assert!(
            module.name().starts_with(b"firstfault_handler-"),
            "{:?}",
            module.name()
        );
        assert!(module.base < module_of as *const () as u64);
        assert!(module_of(0x10).is_none());
    }

    #[test]
    fn the_base_is_that_of_the_files_first_mapping() {
        let mut walk = Walk::new(0x7f00_2000);
        walk.line(b"7f000000-7f001000 r--p 00000000 08:01 12   /lib/a b.so");
        walk.line(b"7f001000-7f003000 r-xp 00001000 08:01 12   /lib/a b.so");
        let module = walk.found.expect("found");
        assert_eq!(
            (module.path(), module.name(), module.base),
            (&b"/lib/a b.so"[..], &b"a b.so"[..], 0x7f00_0000)
        );
    }
}
