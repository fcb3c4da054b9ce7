//! Reads a pickle of plain data: dictionaries, lists, tuples, texts and numbers. No opcode that could name a class or call a
//! function is known here.
//!
//! An own reader, since the library for it takes what a pickle shares between places (torch shares every group's name) for
//! a loop. Source: Lib/pickletools.py; torch/csrc/jit/serialization/pickler.cpp

use serde_json::{Map, Value};
use std::collections::HashMap;

/// At most so many values are built: a pickle can repeat what it holds without end.
const MAX_VALUES: usize = 4 << 20;

/// Returns the value that the bytes hold; lists and tuples become arrays.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let mut reader = Reader {
        bytes,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        values: 0,
    };
    loop {
        let at = reader.at;
        match reader.step() {
            Some(Step::Next) => {}
            Some(Step::Done(value)) => return Ok(value),
            None => return Err(format!("no pickle of plain data, from byte {at} on")),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    values: usize,
}

enum Step {
    Next,
    Done(Value),
}

impl Reader<'_> {
    fn step(&mut self) -> Option<Step> {
        let [opcode] = self.take()?;
        match opcode {
            0x80 => drop(self.take::<1>()?),
            b'.' => return Some(Step::Done(self.stack.pop()?)),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Value::Null)?,
            0x88 => self.push(true.into())?,
            0x89 => self.push(false.into())?,
            b'K' => {
                let [number] = self.take()?;
                self.push(number.into())?;
            }
            b'M' => {
                let number = u16::from_le_bytes(self.take()?);
                self.push(number.into())?;
            }
            b'J' => {
                let number = i32::from_le_bytes(self.take()?);
                self.push(number.into())?;
            }
            0x8a => {
                let number = self.long()?;
                self.push(number.into())?;
            }
            b'G' => {
                let number = f64::from_be_bytes(self.take()?);
                self.push(number.into())?;
            }
            b'X' => {
                let length = u32::from_le_bytes(self.take()?);
                self.text(length as usize)?;
            }
            0x8c => {
                let [length] = self.take()?;
                self.text(usize::from(length))?;
            }
            b'}' => self.push(Value::Object(Map::new()))?,
            b']' => self.push(Value::Array(Vec::new()))?,
            b')' => self.push(Value::Array(Vec::new()))?,
            b't' => self.tuple(None)?,
            0x85..=0x87 => self.tuple(Some(usize::from(opcode - 0x84)))?,
            b's' => self.set(self.stack.len().checked_sub(2)?)?,
            b'u' => {
                let mark = self.marks.pop()?;
                self.set(mark)?;
            }
            b'a' => self.append(self.stack.len().checked_sub(1)?)?,
            b'e' => {
                let mark = self.marks.pop()?;
                self.append(mark)?;
            }
            b'q' => {
                let [id] = self.take()?;
                self.remember(id.into())?;
            }
            b'r' => {
                let id = u32::from_le_bytes(self.take()?);
                self.remember(id)?;
            }
            0x94 => self.remember(u32::try_from(self.memo.len()).ok()?)?,
            b'h' => {
                let [id] = self.take()?;
                self.recall(id.into())?;
            }
            b'j' => {
                let id = u32::from_le_bytes(self.take()?);
                self.recall(id)?;
            }
            0x95 => drop(self.take::<8>()?),
            _ => return None,
        }
        Some(Step::Next)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let found = self.bytes.get(self.at..)?.first_chunk::<N>()?;
        self.at += N;
        Some(*found)
    }

    fn push(&mut self, value: Value) -> Option<()> {
        self.values += size(&value);
        self.stack.push(value);
        (self.values <= MAX_VALUES).then_some(())
    }

    fn text(&mut self, length: usize) -> Option<()> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        self.push(String::from_utf8_lossy(bytes).into_owned().into())
    }

    /// An integer of up to eight bytes.
    fn long(&mut self) -> Option<i64> {
        let [length] = self.take()?;
        let bytes = self.bytes.get(self.at..self.at + usize::from(length))?;
        self.at += usize::from(length);
        let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) {
            0xff
        } else {
            0
        };
        let mut whole = [sign; 8];
        whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(i64::from_le_bytes(whole))
    }

    fn tuple(&mut self, length: Option<usize>) -> Option<()> {
        let from = match length {
            Some(length) => self.stack.len().checked_sub(length)?,
            None => self.marks.pop().filter(|mark| *mark <= self.stack.len())?,
        };
        let items = self.stack.split_off(from);
        self.stack.push(Value::Array(items));
        Some(())
    }

    fn set(&mut self, from: usize) -> Option<()> {
        let mut items = self.above(from)?.into_iter();
        let Some(Value::Object(object)) = self.stack.last_mut() else {
            return None;
        };
        while let Some(key) = items.next() {
            let key = match key {
                Value::String(text) => text,
                other => other.to_string(),
            };
            object.insert(key, items.next()?);
        }
        Some(())
    }

    fn append(&mut self, from: usize) -> Option<()> {
        let items = self.above(from)?;
        let Some(Value::Array(list)) = self.stack.last_mut() else {
            return None;
        };
        list.extend(items);
        Some(())
    }

    fn above(&mut self, from: usize) -> Option<Vec<Value>> {
        (from <= self.stack.len()).then(|| self.stack.split_off(from))
    }

    fn remember(&mut self, id: u32) -> Option<()> {
        let value = self.stack.last()?.clone();
        self.values += size(&value);
        self.memo.insert(id, value);
        (self.values <= MAX_VALUES).then_some(())
    }

    fn recall(&mut self, id: u32) -> Option<()> {
        let value = self.memo.get(&id)?.clone();
        self.push(value)
    }
}

/// How many values a value holds, itself included, and a text's length in units of such.
fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(items) => 1 + items.values().map(size).sum::<usize>(),
        Value::String(text) => 1 + text.len() / 64,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_data_is_read_and_what_is_shared_is_in_both_places() {
        // pickle.dumps({"a": (t := ("0", "pg")), "b": [t, 300, -1, None, True, 1.5, 2**40]}, protocol=2)
        let bytes = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01X\x01\x00\x00\x000q\x02X\x02\x00\x00\x00pgq\x03\x86q\x04X\x01\x00\x00\x00bq\x05]q\x06(h\x04M,\x01J\xff\xff\xff\xffN\x88G?\xf8\x00\x00\x00\x00\x00\x00\x8a\x06\x00\x00\x00\x00\x00\x01eu.";
        assert_eq!(
            parse(bytes).unwrap(),
            json!({"a": ["0", "pg"], "b": [["0", "pg"], 300, -1, null, true, 1.5, 1_i64 << 40]})
        );
    }

    #[test]
    fn what_calls_or_is_cut_off_is_refused() {
        for bytes in [
            &b""[..],
            b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00truetR.",
            b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
            b"\x80\x02}q\x00(X\xff\xff\xff\xffa",
            b"\x80\x02u.",
            b"\x80\x02(t",
            b"\x80\x02h\x00.",
        ] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_repeats_itself_is_bounded() {
        // Each list holds the one before ten times.
        let mut bytes = b"\x80\x02]q\x00".to_vec();
        for _ in 0..30 {
            bytes.extend(b"]q\x01(h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00eq\x00");
        }
        bytes.push(b'.');
        assert!(parse(&bytes).is_err());
    }
}
