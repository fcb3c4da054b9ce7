//! What is alike: fingerprints of failures, and ranges of ranks.

use crate::traceback::{FrameRef, is_library};
use std::fmt;

/// The same for the same failure on every rank and in every job, whatever numbers its text holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Returns the fingerprint of a failure: its category, its exception or signal, the first line of its text with
    /// numbers left out, and its five innermost frames (of the program's own where it has any).
    pub fn of<'a>(
        category: &str,
        name: &str,
        text: &str,
        frames: impl Iterator<Item = FrameRef<'a>> + Clone,
    ) -> Self {
        let mut hash = Fnv::new();
        hash.part(category.as_bytes());
        hash.part(name.as_bytes());
        hash.without_numbers(text.lines().next().unwrap_or(""));
        let mut shown: Vec<FrameRef<'_>> = frames
            .clone()
            .filter(|frame| !is_library(frame.file))
            .take(5)
            .collect();
        if shown.is_empty() {
            shown.extend(frames.take(5));
        }
        for frame in shown {
            hash.part(frame.function.as_bytes());
            hash.part(frame.file.rsplit('/').next().unwrap_or("").as_bytes());
            hash.part(&frame.line.to_le_bytes());
        }
        Self(hash.0)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// FNV-1a: the standard library's hash may change between versions, a fingerprint may not.
///
/// Source: draft-eastlake-fnv
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }

    fn part(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.byte(byte));
        self.byte(0xff);
    }

    /// Numbers, addresses and ranks differ between ranks that fail alike.
    fn without_numbers(&mut self, text: &str) {
        let mut in_number = false;
        for byte in text.bytes().take(512) {
            let number =
                byte.is_ascii_digit() || in_number && (byte.is_ascii_hexdigit() || byte == b'x');
            if !number {
                self.byte(byte);
            } else if !in_number {
                self.byte(b'#');
            }
            in_number = number;
        }
        self.byte(0xff);
    }
}

/// Returns ranks as ranges, as `0-511,513-1023`; they need not be sorted or unique.
///
/// ```
/// assert_eq!(firstfault_analysis::groups::ranges([3, 0, 1, 2, 5]), "0-3,5");
/// ```
pub fn ranges(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut ranks: Vec<u32> = ranks.into_iter().collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut out = String::new();
    let mut rest = &ranks[..];
    while let Some(&first) = rest.first() {
        let length = rest
            .iter()
            .zip(u64::from(first)..)
            .take_while(|&(&rank, expected)| u64::from(rank) == expected)
            .count();
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(&first.to_string());
        if length > 1 {
            out.push('-');
            out.push_str(&rest[length - 1].to_string());
        }
        rest = &rest[length..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ranks() {
        assert_eq!(ranges([]), "");
        assert_eq!(ranges([7]), "7");
        assert_eq!(ranges([0, 1, 3, 3, 4, 5, 9]), "0-1,3-5,9");
        assert_eq!(ranges([u32::MAX, u32::MAX - 1]), "4294967294-4294967295");
        assert_eq!(
            ranges((0..1024).filter(|&rank| rank != 512)),
            "0-511,513-1023"
        );
    }

    #[test]
    fn numbers_do_not_count_and_frames_do() {
        let frame = |line| FrameRef {
            file: "/a/train.py",
            line,
            function: "main",
        };
        let of = |text: &str, line| Fingerprint::of("c", "E", text, [frame(line)].into_iter());
        assert_eq!(
            of("peer [127.0.0.1]:4242 lost", 1),
            of("peer [10.1.0.12]:7 lost", 1)
        );
        assert_ne!(of("peer lost", 1), of("store lost", 1));
        assert_ne!(of("x", 1), of("x", 2));
    }

    #[test]
    fn a_fingerprint_never_changes() {
        let fingerprint = Fingerprint::of(
            "nan_loss",
            "ValueError",
            "loss is nan at step 20",
            std::iter::empty(),
        );
        assert_eq!(fingerprint.to_string(), "51412171ed7dbb5c");
    }
}
