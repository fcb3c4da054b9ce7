//! The ring of breadcrumbs: one is written and read back without a lock, whoever else writes.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use firstfault_format::black_box::{begun, checksum, header, index_of, ring, whole};

use super::{Words, get, set, word_of, words};
use crate::json::Writer;
use crate::sys;

/// How many of the latest breadcrumbs a record holds.
pub const IN_RECORD: u64 = 32;

/// Notes that something happened. Costs nothing where there is no box.
///
/// Of the name 48 bytes are kept, of name and value 96; what was cut is counted. A slot that is being written by
/// another thread, which the ring has overtaken, is left to it.
pub fn breadcrumb(name: &str, value: Option<&str>) {
    let Some(words) = words() else { return };
    let now = sys::clock_ns(libc::CLOCK_REALTIME);
    set(words, header::LAST_NS, now);
    let Some(next) = words.get(header::NEXT) else {
        return;
    };
    // Words are little-endian in the file, and so is every machine that this runs on.
    let index = next.fetch_add(1, Ordering::Relaxed);
    let Some(slot) = slot(words, index) else {
        return;
    };
    if !claim(slot, index) {
        if let Some(lost) = words.get(header::LOST) {
            lost.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    // What is written into the slot is not seen before its sequence is odd.
    fence(Ordering::Release);
    let content = content(now, name, value);
    let sum = checksum([whole(index)].into_iter().chain(content));
    for (word, value) in slot.iter().skip(ring::TIME_NS).zip(content) {
        word.store(value, Ordering::Relaxed);
    }
    set(slot, ring::CHECKSUM, sum);
    if let Some(sequence) = slot.get(ring::SEQUENCE) {
        sequence.store(whole(index), Ordering::Release);
    }
}

fn slot(words: &Words, index: u64) -> Option<&[AtomicU64]> {
    let number = index.checked_rem(ring::SLOTS as u64)? as usize;
    let first = number
        .wrapping_mul(ring::SLOT_WORDS)
        .wrapping_add(ring::FIRST);
    words.get(first..first.wrapping_add(ring::SLOT_WORDS))
}

/// Takes a slot for this breadcrumb, unless somebody is in it or it holds a later one.
fn claim(slot: &[AtomicU64], index: u64) -> bool {
    slot.get(ring::SEQUENCE).is_some_and(|sequence| {
        let found = sequence.load(Ordering::Relaxed);
        found % 2 == 0
            && found < whole(index)
            && sequence
                .compare_exchange(found, begun(index), Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    })
}

/// The words of a slot behind its checksum.
const CONTENT: usize = ring::SLOT_WORDS - ring::TIME_NS;

fn content(now: u64, name: &str, value: Option<&str>) -> [u64; CONTENT] {
    let kept = begin(name, ring::NAME_BYTES);
    let given = value.unwrap_or_default();
    let tail = begin(given, ring::TEXT_BYTES.saturating_sub(kept.len()));
    let cut = name
        .len()
        .saturating_add(given.len())
        .saturating_sub(kept.len())
        .saturating_sub(tail.len());
    let lengths = kept.len() as u64
        | (tail.len() as u64) << 8
        | u64::from(value.is_some()) << 16
        | (cut.min(u32::MAX as usize) as u64) << 32;
    let mut text = [0_u8; ring::TEXT_BYTES];
    if let Some(room) = text.get_mut(..kept.len()) {
        room.copy_from_slice(kept.as_bytes());
    }
    if let Some(room) = text.get_mut(kept.len()..kept.len().saturating_add(tail.len())) {
        room.copy_from_slice(tail.as_bytes());
    }
    let mut content = [0; CONTENT];
    let chunks = text.chunks_exact(8).map(word_of);
    for (word, value) in content
        .iter_mut()
        .zip([now, lengths].into_iter().chain(chunks))
    {
        *word = value;
    }
    content
}

/// Returns the beginning of a text, at most so many bytes, no character cut.
fn begin(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default()
}

/// Writes the member `breadcrumbs` of a record, where there are any.
pub(super) fn write(words: &Words, writer: &mut Writer<'_>) {
    let end = get(words, header::NEXT);
    let mut is_first = true;
    for index in end.saturating_sub(IN_RECORD)..end {
        let Some(found) = Breadcrumb::read(words, index) else {
            continue;
        };
        if is_first {
            writer.key("breadcrumbs");
            writer.open(b'[');
            is_first = false;
        }
        found.write(writer);
    }
    if !is_first {
        writer.close(b']');
    }
}

/// A breadcrumb that was read back whole.
struct Breadcrumb {
    time_ns: u64,
    lengths: u64,
    text: [u8; ring::TEXT_BYTES],
}

impl Breadcrumb {
    fn read(words: &Words, index: u64) -> Option<Self> {
        let slot = slot(words, index)?;
        let sequence = slot.get(ring::SEQUENCE)?.load(Ordering::Acquire);
        if index_of(sequence) != Some(index) {
            return None;
        }
        let mut content = [0; CONTENT];
        for (copy, at) in content.iter_mut().zip(ring::TIME_NS..) {
            *copy = get(slot, at);
        }
        let sum = checksum([sequence].into_iter().chain(content));
        // Another thread may have overtaken us meanwhile; then the sum is not that of these words.
        if sum != get(slot, ring::CHECKSUM) {
            return None;
        }
        let mut text = [0; ring::TEXT_BYTES];
        let bytes = content.iter().skip(2).flat_map(|word| word.to_le_bytes());
        for (copy, byte) in text.iter_mut().zip(bytes) {
            *copy = byte;
        }
        let [time_ns, lengths, ..] = content;
        Some(Self {
            time_ns,
            lengths,
            text,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        let name = (self.lengths & 0xff) as usize;
        let value = ((self.lengths >> 8) & 0xff) as usize;
        writer.open(b'{');
        writer.key("time_ns");
        writer.number(self.time_ns as i64);
        writer.key("name");
        writer.string(self.text.get(..name).unwrap_or_default());
        if (self.lengths >> 16) & 1 == 1 {
            let rest = self.text.get(name..name.saturating_add(value));
            writer.key("value");
            writer.string(rest.unwrap_or_default());
        }
        writer.close(b'}');
    }
}
