//! JSON into a fixed buffer that is flushed to a descriptor: no allocation, no length known before.

use crate::path::Decimal;
use crate::sys::{self, Errno};

/// Writes one JSON document.
///
/// Commas are its own business; that brackets match is the caller's. After the first error nothing more is written and
/// [`Writer::finish`] tells.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    used: usize,
    /// What has left the buffer.
    flushed: usize,
    /// Where a full buffer goes; without a descriptor a document that does not fit is an error.
    descriptor: Option<i32>,
    comma: bool,
    result: Result<(), Errno>,
}

impl<'a> Writer<'a> {
    /// Returns a writer over this buffer.
    pub fn new(buffer: &'a mut [u8], descriptor: Option<i32>) -> Self {
        Self {
            buffer,
            used: 0,
            flushed: 0,
            descriptor,
            comma: false,
            result: Ok(()),
        }
    }

    /// Ends the document; returns the bytes that are still in the buffer.
    pub fn finish(mut self) -> Result<usize, Errno> {
        if self.descriptor.is_some() {
            self.flush();
        }
        self.result.map(|()| self.used)
    }

    /// Returns how long the document is by now, bytes.
    pub fn length(&self) -> usize {
        self.flushed.saturating_add(self.used)
    }

    /// Begins an object or an array.
    pub fn open(&mut self, bracket: u8) {
        self.separate();
        self.byte(bracket);
        self.comma = false;
    }

    /// Ends an object or an array.
    pub fn close(&mut self, bracket: u8) {
        self.byte(bracket);
        self.comma = true;
    }

    /// Writes a key; a value must follow.
    pub fn key(&mut self, name: &str) {
        self.string(name.as_bytes());
        self.byte(b':');
        self.comma = false;
    }

    /// Writes members that are JSON already, as `"a":1,"b":2`; nothing for an empty text.
    pub fn members(&mut self, json: &[u8]) {
        if !json.is_empty() {
            self.separate();
            self.raw(json);
            self.comma = true;
        }
    }

    /// Writes a whole string.
    pub fn string(&mut self, text: &[u8]) {
        self.begin_string();
        self.text(text);
        self.end_string();
    }

    /// Begins a string that is written in pieces.
    pub fn begin_string(&mut self) {
        self.separate();
        self.byte(b'"');
    }

    /// Ends a string.
    pub fn end_string(&mut self) {
        self.byte(b'"');
        self.comma = true;
    }

    /// Writes a piece of a string; what is not UTF-8 becomes U+FFFD.
    pub fn text(&mut self, text: &[u8]) {
        for chunk in text.utf8_chunks() {
            for byte in chunk.valid().bytes() {
                self.escaped(byte);
            }
            if !chunk.invalid().is_empty() {
                self.raw("\u{fffd}".as_bytes());
            }
        }
    }

    /// Writes a number inside a string.
    pub fn text_decimal(&mut self, number: u64) {
        let mut digits = Decimal::new();
        self.raw(digits.format(number));
    }

    /// Writes a number as `0x…` inside a string.
    pub fn text_hex(&mut self, number: u64) {
        self.raw(b"0x");
        // A hexadecimal digit is four bits; 0 has one digit too.
        let digits = 64_u32
            .wrapping_sub((number | 1).leading_zeros())
            .wrapping_add(3)
            / 4;
        for position in (0..digits).rev() {
            let nibble = (number >> position.saturating_mul(4)) & 0xf;
            self.byte(
                b"0123456789abcdef"
                    .get(nibble as usize)
                    .copied()
                    .unwrap_or(b'?'),
            );
        }
    }

    /// Writes a byte as two hexadecimal digits inside a string.
    pub fn text_hex_byte(&mut self, byte: u8) {
        for nibble in [byte >> 4, byte & 0xf] {
            self.byte(
                b"0123456789abcdef"
                    .get(nibble as usize)
                    .copied()
                    .unwrap_or(b'?'),
            );
        }
    }

    /// Writes a number.
    pub fn number(&mut self, number: i64) {
        self.separate();
        if number < 0 {
            self.byte(b'-');
        }
        self.text_decimal(number.unsigned_abs());
        self.comma = true;
    }

    /// Writes a number as the string `"0x…"`: JSON numbers lose bits above 2^53 in many readers.
    pub fn hex(&mut self, number: u64) {
        self.begin_string();
        self.text_hex(number);
        self.end_string();
    }

    /// Writes true or false.
    pub fn boolean(&mut self, value: bool) {
        self.separate();
        self.raw(if value { b"true" } else { b"false" });
        self.comma = true;
    }

    fn separate(&mut self) {
        if self.comma {
            self.byte(b',');
            self.comma = false;
        }
    }

    fn escaped(&mut self, byte: u8) {
        match byte {
            b'"' => self.raw(b"\\\""),
            b'\\' => self.raw(b"\\\\"),
            b'\n' => self.raw(b"\\n"),
            b'\t' => self.raw(b"\\t"),
            0..0x20 | 0x7f => {
                self.raw(b"\\u00");
                self.text_hex_byte(byte);
            }
            _ => self.byte(byte),
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.byte(*byte);
        }
    }

    fn byte(&mut self, byte: u8) {
        if self.result.is_err() {
            return;
        }
        if self.used == self.buffer.len() {
            self.flush();
        }
        match self.buffer.get_mut(self.used) {
            Some(slot) => {
                *slot = byte;
                self.used = self.used.saturating_add(1);
            }
            None => self.result = Err(libc::EMSGSIZE),
        }
    }

    fn flush(&mut self) {
        if let (Some(descriptor), Ok(())) = (self.descriptor, self.result) {
            self.result =
                sys::write_all(descriptor, self.buffer.get(..self.used).unwrap_or_default());
            self.flushed = self.flushed.saturating_add(self.used);
            self.used = 0;
        }
    }
}

/// Returns how long a text is inside a string, at most.
pub(crate) fn escaped_length(text: &[u8]) -> usize {
    text.iter().fold(0_usize, |sum, byte| {
        sum.saturating_add(match byte {
            b'"' | b'\\' | b'\n' | b'\t' => 2,
            0..0x20 | 0x7f => 6,
            // What is not UTF-8 becomes three bytes.
            0x80.. => 3,
            _ => 1,
        })
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    fn written(write: impl FnOnce(&mut Writer<'_>)) -> String {
        let mut buffer = [0_u8; 4096];
        let mut writer = Writer::new(&mut buffer, None);
        write(&mut writer);
        let length = writer.finish().expect("fits");
        String::from_utf8(buffer[..length].to_vec()).expect("JSON is UTF-8")
    }

    #[test]
    fn commas_stand_between_and_nowhere_else() {
        let text = written(|writer| {
            writer.open(b'{');
            writer.key("a");
            writer.open(b'[');
            writer.number(-1);
            writer.open(b'{');
            writer.close(b'}');
            writer.hex(0xdead_beef);
            writer.hex(0);
            writer.close(b']');
            writer.members(b"\"b\":1,\"c\":2");
            writer.members(b"");
            writer.key("d");
            writer.boolean(true);
            writer.close(b'}');
        });
        assert_eq!(
            text,
            r#"{"a":[-1,{},"0xdeadbeef","0x0"],"b":1,"c":2,"d":true}"#
        );
    }

    #[test]
    fn any_bytes_become_a_string_that_a_parser_reads_back() {
        let all: Vec<u8> = (0..=255).collect();
        let text = written(|writer| writer.string(&all));
        assert!(text.len() <= escaped_length(&all) + 2);
        let parsed: String = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!(parsed, String::from_utf8_lossy(&all));
    }

    #[test]
    fn a_document_larger_than_a_buffer_without_a_descriptor_is_an_error() {
        let mut buffer = [0_u8; 8];
        let mut writer = Writer::new(&mut buffer, None);
        writer.string(b"longer than eight");
        assert_eq!(writer.finish(), Err(libc::EMSGSIZE));
    }
}
