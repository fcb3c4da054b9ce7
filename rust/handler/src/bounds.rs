//! How large an error file may get, and what is left out for it.

use crate::json::{self, Writer};
use crate::modules;

/// A crash record, bytes: half of what a report reads.
pub(crate) const CRASH_MAX: usize = 8 * 1024 * 1024;
/// What a request to end leaves, bytes: a cancelled job must not flood its file system.
pub(crate) const SNAPSHOT_MAX: usize = 512 * 1024;

/// More than one frame takes: CPython's dumper writes 500 characters of a name, each as up to ten.
const FRAME_MAX: usize = 12 * 1024;
/// More than what stands behind threads and modules takes, but for the records that precede: breadcrumbs, stages.
const REST_MAX: usize = 32 * 1024;
/// What a module takes beside its path.
const MODULE_SIZE: usize = 160;

/// The room that is left while the threads are written, and what did not fit.
#[derive(Debug)]
pub(crate) struct Room {
    /// Where the threads must end.
    end: usize,
    /// How many modules are listed.
    pub(crate) modules: usize,
    pub(crate) threads_cut: usize,
    pub(crate) python_frames_cut: usize,
    pub(crate) native_frames_cut: usize,
    pub(crate) modules_cut: usize,
    pub(crate) other_crashes_cut: usize,
}

impl Room {
    /// Returns the room in a file of this size, of which the last part needs so much.
    pub(crate) fn new(most: usize, behind: usize) -> Self {
        let mut size = 0_usize;
        let mut kept = 0_usize;
        let mut all = 0_usize;
        for module in modules::used() {
            let path = json::escaped_length(module.path());
            let next = size.saturating_add(path).saturating_add(MODULE_SIZE);
            // A quarter: the frames that go through them are worth as much.
            if kept == all && next <= most / 4 {
                size = next;
                kept = kept.saturating_add(1);
            }
            all = all.saturating_add(1);
        }
        let behind = behind.saturating_add(size).saturating_add(REST_MAX);
        Self {
            end: most.saturating_sub(behind),
            modules: kept,
            threads_cut: 0,
            python_frames_cut: 0,
            native_frames_cut: 0,
            modules_cut: all.saturating_sub(kept),
            other_crashes_cut: 0,
        }
    }

    /// Returns whether one more frame fits.
    pub(crate) fn has_frame(&self, writer: &Writer<'_>) -> bool {
        writer.length().saturating_add(FRAME_MAX) <= self.end
    }

    /// Writes what was cut, as a member.
    pub(crate) fn write(&self, writer: &mut Writer<'_>, stacks_cut: usize) {
        let counts = [
            ("threads", self.threads_cut),
            ("python_frames", self.python_frames_cut),
            ("native_frames", self.native_frames_cut),
            ("native_stacks", stacks_cut),
            ("modules", self.modules_cut),
            ("other_crashes", self.other_crashes_cut),
        ];
        if counts.iter().all(|(_, count)| *count == 0) {
            return;
        }
        writer.key("truncated");
        writer.open(b'{');
        for (name, count) in counts {
            writer.key(name);
            writer.number(count as i64);
        }
        writer.close(b'}');
    }
}
