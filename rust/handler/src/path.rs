//! A path built without allocation.

use core::ffi::CStr;

/// `PATH_MAX` of Linux, the terminating NUL included.
///
/// Source: limits.h of the kernel's user-space headers.
const CAPACITY: usize = 4096;

/// A path in a fixed buffer, always terminated by a NUL.
///
/// A path that does not fit is remembered as such: [`PathBuffer::as_c_str`] is then `None`, so that a cut path is
/// never opened.
pub struct PathBuffer {
    bytes: [u8; CAPACITY],
    length: usize,
    overflowed: bool,
}

impl core::fmt::Debug for PathBuffer {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter
            .debug_tuple("PathBuffer")
            .field(&self.as_c_str())
            .finish()
    }
}

impl Default for PathBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl PathBuffer {
    /// Returns an empty path.
    pub const fn new() -> Self {
        Self {
            bytes: [0; CAPACITY],
            length: 0,
            overflowed: false,
        }
    }

    /// Empties the path and starts it with these bytes.
    pub fn start(&mut self, bytes: &[u8]) -> &mut Self {
        self.length = 0;
        self.overflowed = false;
        self.push(bytes)
    }

    /// Appends bytes; a NUL among them ends the path for whoever opens it.
    pub fn push(&mut self, bytes: &[u8]) -> &mut Self {
        // One byte always stays for the NUL.
        let room = CAPACITY.saturating_sub(1).saturating_sub(self.length);
        if bytes.len() > room {
            self.overflowed = true;
            return self;
        }
        for (slot, byte) in self.bytes.iter_mut().skip(self.length).zip(bytes) {
            *slot = *byte;
        }
        self.length = self.length.saturating_add(bytes.len());
        if let Some(slot) = self.bytes.get_mut(self.length) {
            *slot = 0;
        }
        self
    }

    /// Appends a number in decimal.
    pub fn push_decimal(&mut self, number: u64) -> &mut Self {
        let mut digits = Decimal::new();
        let text = digits.format(number);
        self.push(text)
    }

    /// Returns the path, or `None` where it did not fit.
    pub fn as_c_str(&self) -> Option<&CStr> {
        if self.overflowed {
            return None;
        }
        CStr::from_bytes_until_nul(&self.bytes).ok()
    }
}

/// Room for the decimal digits of a 64-bit number.
#[derive(Debug)]
pub struct Decimal([u8; 20]);

impl Default for Decimal {
    fn default() -> Self {
        Self::new()
    }
}

impl Decimal {
    /// Returns empty room.
    pub const fn new() -> Self {
        Self([0; 20])
    }

    /// Returns the digits of the number, without leading zeros.
    pub fn format(&mut self, number: u64) -> &[u8] {
        let mut rest = number;
        let mut used = 0_usize;
        for slot in self.0.iter_mut().rev() {
            // A remainder of ten fits in a byte.
            *slot = b'0'.wrapping_add((rest % 10) as u8);
            rest /= 10;
            used = used.wrapping_add(1);
            if rest == 0 {
                break;
            }
        }
        self.0
            .get(self.0.len().wrapping_sub(used)..)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_exact() {
        assert_eq!(Decimal::new().format(0), b"0");
        assert_eq!(Decimal::new().format(4711), b"4711");
        assert_eq!(Decimal::new().format(u64::MAX), b"18446744073709551615");
    }

    #[test]
    fn a_path_that_does_not_fit_is_never_cut() {
        let mut path = PathBuffer::new();
        path.start(b"/a").push_decimal(7);
        assert_eq!(path.as_c_str(), Some(c"/a7"));
        for _ in 0..CAPACITY {
            path.push(b"x");
        }
        assert_eq!(path.as_c_str(), None);
        assert_eq!(path.start(b"/b").as_c_str(), Some(c"/b"));
    }
}
