//! The threads of an error file: the crashed one first, then the others as the kernel lists them, the main thread first.

use firstfault_format::signals;

use super::Record;
use crate::bounds::{self, Room};
use crate::context::until_nul;
use crate::json::Writer;
use crate::native::{self, Frame};
use crate::{modules, park, python_stack, python_state, symbols, sys};

/// How many Python frames of one thread are kept.
const FRAMES_MAX: usize = 128;

/// Writes the members `threads`, `threads_total`, `modules` and `truncated`.
pub(super) fn write(record: &Record<'_>, writer: &mut Writer<'_>) {
    let most = if signals::is_request(record.facts.signal) {
        bounds::SNAPSHOT_MAX
    } else {
        bounds::CRASH_MAX
    };
    let mut room = Room::new(most, record.preceded_by.len());
    writer.key("threads");
    writer.open(b'[');
    // It runs this.
    let running = sys::words_of_thread_state(b'R');
    write_head(
        writer,
        record.facts.thread,
        &record.facts.thread_name,
        true,
        running,
    );
    write_holds_gil(writer, python_state::is_held_here());
    write_python_frames(writer, record.own_stack, &mut room);
    write_native_frames(writer, record.native_frames(), &mut room);
    writer.close(b'}');
    let mut written = 1_usize;
    for (index, slot) in (0..park::THREADS_MAX).zip(park::slots()) {
        // Without room for one frame a thread has nothing to say.
        if !room.has_frame(writer) {
            break;
        }
        written = written.saturating_add(1);
        let status = slot.status();
        write_head(
            writer,
            slot.thread(),
            &status.name,
            false,
            sys::words_of_thread_state(status.state),
        );
        if slot.has_answered() {
            write_holds_gil(writer, python_state::is_held_by(Some(slot.python())));
            write_python_frames(
                writer,
                record.dump.get(slot.dumped()).unwrap_or_default(),
                &mut room,
            );
            write_native_frames(writer, native::frames_of_slot(index), &mut room);
        } else {
            write_holds_gil(writer, python_state::is_held_by(None));
            writer.key("answered");
            writer.boolean(false);
        }
        writer.close(b'}');
    }
    writer.close(b']');
    if !record.shows_native {
        // The others have not been looked for yet.
        return;
    }
    let total = park::total().saturating_add(1);
    writer.key("threads_total");
    writer.number(total as i64);
    write_modules(writer, &room);
    room.threads_cut = total.saturating_sub(written);
    room.other_crashes_cut = record.other_crashes_cut;
    room.write(writer, native::stacks_cut());
}

/// Opens a thread's object with what every thread has.
fn write_head(writer: &mut Writer<'_>, thread: i32, name: &[u8], crashed: bool, state: &str) {
    writer.open(b'{');
    writer.key("tid");
    writer.number(i64::from(thread));
    writer.key("name");
    writer.string(until_nul(name));
    if !state.is_empty() {
        writer.key("state");
        writer.string(state.as_bytes());
    }
    writer.key("crashed");
    writer.boolean(crashed);
}

fn write_holds_gil(writer: &mut Writer<'_>, holds: Option<bool>) {
    if let Some(holds) = holds {
        writer.key("holds_gil");
        writer.boolean(holds);
    }
}

fn write_python_frames(writer: &mut Writer<'_>, text: &[u8], room: &mut Room) {
    writer.key("python");
    writer.open(b'[');
    let mut kept = 0_usize;
    for frame in python_stack::frames(text) {
        if kept == FRAMES_MAX || !room.has_frame(writer) {
            room.python_frames_cut = room.python_frames_cut.saturating_add(1);
            continue;
        }
        kept = kept.saturating_add(1);
        writer.open(b'{');
        writer.key("file");
        writer.string(frame.file);
        if let Some(line) = frame.line {
            writer.key("line");
            writer.number(line);
        }
        writer.key("function");
        writer.string(frame.function);
        writer.close(b'}');
    }
    writer.close(b']');
}

/// `offset` lies inside the instruction: for a call, one byte before the address that it returns to.
fn write_native_frames(
    writer: &mut Writer<'_>,
    frames: impl Iterator<Item = Frame>,
    room: &mut Room,
) {
    let mut frames = frames.peekable();
    if frames.peek().is_none() {
        return;
    }
    writer.key("native");
    writer.open(b'[');
    for frame in frames {
        if !room.has_frame(writer) {
            room.native_frames_cut = room.native_frames_cut.saturating_add(1);
            continue;
        }
        writer.open(b'{');
        writer.key("address");
        writer.hex(frame.address);
        if let Some(module) = modules::module_of(frame.lookup)
            && let Some(number) = module.number()
            && usize::from(number) < room.modules
        {
            writer.key("module");
            writer.number(i64::from(number));
            writer.key("offset");
            writer.hex(frame.lookup.wrapping_sub(module.base));
        }
        if let Some(symbol) = symbols::of(frame.lookup) {
            writer.key("symbol");
            writer.string(symbol);
        }
        writer.close(b'}');
    }
    writer.close(b']');
}

fn write_modules(writer: &mut Writer<'_>, room: &Room) {
    let mut modules = modules::used().take(room.modules).peekable();
    if modules.peek().is_none() {
        return;
    }
    writer.key("modules");
    writer.open(b'[');
    for module in modules {
        writer.open(b'{');
        writer.key("path");
        writer.string(module.path());
        if !module.build_id().is_empty() {
            writer.key("build_id");
            writer.begin_string();
            for byte in module.build_id() {
                writer.text_hex_byte(*byte);
            }
            writer.end_string();
        }
        writer.key("base");
        writer.hex(module.base);
        writer.close(b'}');
    }
    writer.close(b']');
}
