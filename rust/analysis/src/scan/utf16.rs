//! Logs in UTF-16, as PowerShell redirects into, read as UTF-8, and those in UTF-8 without a byte order mark.

use std::io::{self, Cursor, Read};

/// How many bytes are decoded at a time.
const CHUNK: usize = 64 << 10;

/// Returns what reads a log as UTF-8, without a byte order mark: decoded where it begins with that of UTF-16.
pub(super) fn decoded<'r>(mut log: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut first = Vec::new();
    log.by_ref().take(3).read_to_end(&mut first)?;
    let is_big = match first[..] {
        [0xff, 0xfe, ..] => false,
        [0xfe, 0xff, ..] => true,
        [0xef, 0xbb, 0xbf] => return Ok(Box::new(log)),
        _ => return Ok(Box::new(Cursor::new(first).chain(log))),
    };
    Ok(Box::new(Utf16 {
        log,
        is_big,
        raw: first.split_off(2),
        out: Cursor::default(),
    }))
}

struct Utf16<R> {
    log: R,
    is_big: bool,
    /// Bytes that are not decoded yet: half of a unit, or half of a pair.
    raw: Vec<u8>,
    out: Cursor<Vec<u8>>,
}

impl<R: Read> Utf16<R> {
    fn decode(&mut self) -> io::Result<()> {
        let read = self
            .log
            .by_ref()
            .take(CHUNK as u64)
            .read_to_end(&mut self.raw)?;
        let unit = |pair: &[u8]| match self.is_big {
            true => u16::from_be_bytes([pair[0], pair[1]]),
            false => u16::from_le_bytes([pair[0], pair[1]]),
        };
        let mut units: Vec<u16> = self.raw.chunks_exact(2).map(unit).collect();
        // The second half of a pair is in the next chunk.
        if read > 0
            && units
                .last()
                .is_some_and(|unit| (0xd800..0xdc00).contains(unit))
        {
            units.pop();
        }
        self.raw.drain(..units.len() * 2);
        self.out = Cursor::new(String::from_utf16_lossy(&units).into_bytes());
        if read == 0 {
            self.raw.clear();
        }
        Ok(())
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.out.read(buffer)?;
        if read > 0 || buffer.is_empty() {
            return Ok(read);
        }
        // A chunk may end up empty only at the end of the log.
        self.decode()?;
        self.out.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> String {
        let mut text = String::new();
        let mut log = decoded(bytes).unwrap();
        log.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn both_orders_and_pairs_over_chunks_are_read() {
        let text = format!("é{}", "x🧟\n".repeat(CHUNK));
        let units: Vec<u16> = text.encode_utf16().collect();
        let little: Vec<u8> = [0xff, 0xfe]
            .into_iter()
            .chain(units.iter().flat_map(|unit| unit.to_le_bytes()))
            .collect();
        let big: Vec<u8> = [0xfe, 0xff]
            .into_iter()
            .chain(units.iter().flat_map(|unit| unit.to_be_bytes()))
            .collect();
        assert!(read(&little) == text && read(&big) == text);
    }

    #[test]
    fn others_are_left_as_they_are() {
        for text in ["", "a", "ab", "step 1\n"] {
            assert_eq!(read(text.as_bytes()), text);
        }
        assert_eq!(read(&[0xff, 0xfe, b'a']), "");
        assert_eq!(read("\u{feff}step 1\n".as_bytes()), "step 1\n");
    }
}
