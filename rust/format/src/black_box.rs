//! The black box: the layout of the file that a worker keeps mapped and that outlives any death of it.
//!
//! All of it is words of eight bytes, little-endian; signed numbers in two's complement, [`NONE`] for an unknown one,
//! texts NUL-padded. A header page, a page for the facts of a crash, then a ring of breadcrumbs. On a file system that
//! should not be mapped only the header page is written, and [`header::ELSEWHERE`] names the whole box on its host.

/// The first word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ffaultbx");

/// The version of this layout; a reader takes only the versions that it knows.
pub const VERSION: u64 = 1;

/// The size of a box, bytes: of one for each rank.
pub const SIZE: usize = 64 * 1024;

/// The size of a box, words.
pub const WORDS: usize = SIZE / 8;

/// The size of the header page, words; so much is enough to tell whose box it is.
pub const HEADER_WORDS: usize = 512;

/// An unknown number.
pub const NONE: u64 = u64::MAX;

/// A NUL-padded text: its first word and how many it has.
#[derive(Debug, Clone, Copy)]
pub struct Text {
    /// The index of its first word.
    pub first: usize,
    /// The number of its words; so many times eight bytes are the most that it holds.
    pub words: usize,
}

const fn text(first: usize, words: usize) -> Text {
    Text { first, words }
}

/// The header's words.
pub mod header {
    use super::{Text, text};

    /// [`super::MAGIC`], written last: a box without it was never finished.
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`].
    pub const VERSION: usize = 1;
    /// The size of the whole box, bytes.
    pub const SIZE: usize = 2;
    /// The process ID, in its own PID namespace.
    pub const PID: usize = 3;
    /// The inode of that namespace: only inside it does the process ID mean anything. Source: pid_namespaces(7).
    pub const PID_NAMESPACE: usize = 4;
    /// When the process started, clock ticks since boot: with the ID it names one process. Source: proc_pid_stat(5).
    pub const START_TICKS: usize = 5;
    /// The same, nanoseconds since the Unix epoch.
    pub const START_TIME_NS: usize = 6;
    /// When the box was made, nanoseconds since the Unix epoch.
    pub const INSTALL_NS: usize = 7;
    /// One of [`super::state`].
    pub const STATE: usize = 8;
    /// When the process last wrote into the box, nanoseconds since the Unix epoch.
    pub const LAST_NS: usize = 9;
    /// The training step, signed.
    pub const STEP: usize = 10;
    /// When it was told, nanoseconds since the Unix epoch; 0 before.
    pub const STEP_NS: usize = 11;
    /// How many breadcrumbs were begun.
    pub const NEXT: usize = 12;
    /// How many found their slot in use and were lost.
    pub const LOST: usize = 13;
    /// The signal that asked the process to end, 0 while none has.
    pub const REQUEST_SIGNAL: usize = 14;
    /// When it did, nanoseconds since the Unix epoch.
    pub const REQUEST_NS: usize = 15;
    /// Global rank.
    pub const RANK: usize = 16;
    /// Rank on its node.
    pub const LOCAL_RANK: usize = 17;
    /// Number of ranks.
    pub const WORLD_SIZE: usize = 18;
    /// Rank of the node.
    pub const GROUP_RANK: usize = 19;
    /// How often the worker group was restarted before.
    pub const ATTEMPT: usize = 20;
    /// The boot that [`START_TICKS`] counts from.
    pub const BOOT_ID: Text = text(32, 8);
    /// The machine, as gethostname(2) calls it.
    pub const HOST: Text = text(40, 32);
    /// The launcher's name of the run.
    pub const RUN_ID: Text = text(72, 64);
    /// torchrun's `--role`.
    pub const ROLE: Text = text(136, 16);
    /// Where the whole box is, on its host; empty in a whole box.
    pub const ELSEWHERE: Text = text(256, 256);
}

/// What the process was doing when it last said so.
pub mod state {
    /// Its main function runs.
    pub const RUNNING: u64 = 1;
    /// Its main function has returned or its failure is recorded; the interpreter ends.
    pub const EXITING: u64 = 2;
    /// Nothing of the program runs any more; the box is about to be removed.
    pub const FINISHED: u64 = 3;
    /// A crash signal struck; its facts are on the crash page.
    pub const CRASHED: u64 = 4;
}

/// The crash page's words; they count only in [`state::CRASHED`].
pub mod crash {
    use super::{Text, text};

    /// The signal's number.
    pub const SIGNAL: usize = 512;
    /// Nanoseconds since the Unix epoch.
    pub const TIME_NS: usize = 513;
    /// Nanoseconds since boot.
    pub const MONOTONIC_NS: usize = 514;
    /// Which of the optional words are known: the bits of [`super::known`].
    pub const KNOWN: usize = 515;
    /// `si_code`, signed.
    pub const CODE: usize = 516;
    /// The fault address.
    pub const ADDRESS: usize = 517;
    /// Where the thread was.
    pub const PROGRAM_COUNTER: usize = 518;
    /// The sender's process ID.
    pub const SENDER_PID: usize = 519;
    /// The sender's user ID.
    pub const SENDER_UID: usize = 520;
    /// The crashed thread.
    pub const TID: usize = 521;
    /// Its name.
    pub const THREAD_NAME: Text = text(522, 2);
}

/// The bits of [`crash::KNOWN`].
pub mod known {
    /// [`super::crash::CODE`].
    pub const CODE: u64 = 1;
    /// [`super::crash::ADDRESS`].
    pub const ADDRESS: u64 = 2;
    /// [`super::crash::PROGRAM_COUNTER`].
    pub const PROGRAM_COUNTER: u64 = 4;
    /// Both words of the sender.
    pub const SENDER: u64 = 8;
}

/// The ring of breadcrumbs and the words of a slot.
pub mod ring {
    /// The first word of the first slot.
    pub const FIRST: usize = 1024;
    /// The words of one slot: 128 bytes.
    pub const SLOT_WORDS: usize = 16;
    /// How many slots there are.
    pub const SLOTS: usize = (super::WORDS - FIRST) / SLOT_WORDS;

    /// The slot's sequence, of [`super::begun`] or [`super::whole`].
    pub const SEQUENCE: usize = 0;
    /// The [`super::checksum`] of the sequence and all words behind this one.
    pub const CHECKSUM: usize = 1;
    /// Nanoseconds since the Unix epoch.
    pub const TIME_NS: usize = 2;
    /// From the lowest byte: the name's length, the value's length, 1 if there is a value, nothing; then how many
    /// bytes were cut, in the upper half.
    pub const LENGTHS: usize = 3;
    /// The name, then the value, in UTF-8.
    pub const TEXT: usize = 4;
    /// How many bytes they have together at most.
    pub const TEXT_BYTES: usize = (SLOT_WORDS - TEXT) * 8;
    /// How many of them a name has at most, so that a value has room.
    pub const NAME_BYTES: usize = 48;
}

/// Returns the sequence of a slot while breadcrumb number `index` is written into it: odd.
pub const fn begun(index: u64) -> u64 {
    index.wrapping_mul(2).wrapping_add(1)
}

/// Returns the sequence of a slot that holds breadcrumb number `index`: even, and never 0.
pub const fn whole(index: u64) -> u64 {
    index.wrapping_mul(2).wrapping_add(2)
}

/// Returns the number of the breadcrumb that a sequence tells of, `None` for an empty slot and one being written.
pub const fn index_of(sequence: u64) -> Option<u64> {
    if sequence == 0 || sequence % 2 == 1 {
        return None;
    }
    Some(sequence / 2 - 1)
}

/// Returns the checksum of a slot's words: a slot that was half written, by whatever death, does not have it.
///
/// Each step is a bijection, so that no single flipped bit goes unseen.
pub fn checksum(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0x9e37_79b9_7f4a_7c15, |sum, word| {
        (sum ^ word)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let texts = [
            header::BOOT_ID,
            header::HOST,
            header::RUN_ID,
            header::ROLE,
            header::ELSEWHERE,
            crash::THREAD_NAME,
        ];
        let mut end = header::ATTEMPT + 1;
        for text in texts {
            assert!(end <= text.first);
            end = text.first + text.words;
            if text.first < HEADER_WORDS {
                assert!(end <= HEADER_WORDS);
            }
        }
        assert!(end <= ring::FIRST);
        assert_eq!(ring::FIRST + ring::SLOTS * ring::SLOT_WORDS, WORDS);
        const { assert!(ring::TEXT_BYTES < 256 && ring::NAME_BYTES < ring::TEXT_BYTES) };
    }

    #[test]
    fn sequences_tell_whole_from_begun() {
        for index in [0, 1, 447, 448, u64::MAX / 2 - 1] {
            assert_eq!(index_of(begun(index)), None);
            assert_eq!(index_of(whole(index)), Some(index));
        }
        assert_eq!(index_of(0), None);
    }

    #[test]
    fn a_flipped_bit_changes_the_checksum() {
        let words = [7_u64; 15];
        let sum = checksum(words);
        for bit in 0..15 * 64 {
            let mut flipped = words;
            flipped[bit / 64] ^= 1 << (bit % 64);
            assert_ne!(checksum(flipped), sum);
        }
    }
}
