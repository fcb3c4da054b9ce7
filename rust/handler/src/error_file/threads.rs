//! The threads of an error file: the crashed one first, then the others as the kernel lists them, the main thread first.

use super::Record;
use crate::context::until_nul;
use crate::json::Writer;
use crate::native::{self, Frame};
use crate::{modules, park, python_stack, python_state, sys};

/// How many Python frames of one thread are kept.
const FRAMES_MAX: usize = 128;

/// Writes the members `threads`, `threads_total`, `modules` and `truncated`.
pub(super) fn write(record: &Record<'_>, writer: &mut Writer<'_>) {
    writer.key("threads");
    writer.open(b'[');
    let mut frames_cut = 0;
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
    write_python_frames(writer, record.own_stack, &mut frames_cut);
    write_native_frames(writer, record.native_frames());
    writer.close(b'}');
    let mut slots_cut = 0_usize;
    for (index, slot) in (0..park::THREADS_MAX).zip(park::slots()) {
        // Of a snapshot the dump is cut, so that a cancelled job does not flood its file system.
        if slot.dumped().end > record.dump.len() {
            slots_cut = slots_cut.saturating_add(1);
            continue;
        }
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
                &mut frames_cut,
            );
            write_native_frames(writer, native::frames_of_slot(index));
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
    write_modules(writer);
    let slots = park::slots().len().saturating_sub(slots_cut);
    let threads_cut = total.saturating_sub(slots.saturating_add(1));
    let stacks_cut = native::stacks_cut();
    if threads_cut > 0 || frames_cut > 0 || stacks_cut > 0 {
        writer.key("truncated");
        writer.open(b'{');
        writer.key("threads");
        writer.number(threads_cut as i64);
        writer.key("python_frames");
        writer.number(frames_cut);
        writer.key("native_stacks");
        writer.number(stacks_cut as i64);
        writer.close(b'}');
    }
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

fn write_python_frames(writer: &mut Writer<'_>, text: &[u8], cut: &mut i64) {
    writer.key("python");
    writer.open(b'[');
    let mut kept = 0_usize;
    for frame in python_stack::frames(text) {
        if kept == FRAMES_MAX {
            *cut = cut.saturating_add(1);
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
fn write_native_frames(writer: &mut Writer<'_>, frames: impl Iterator<Item = Frame>) {
    let mut frames = frames.peekable();
    if frames.peek().is_none() {
        return;
    }
    writer.key("native");
    writer.open(b'[');
    for frame in frames {
        writer.open(b'{');
        writer.key("address");
        writer.hex(frame.address);
        if let Some(module) = modules::module_of(frame.lookup)
            && let Some(number) = module.number()
        {
            writer.key("module");
            writer.number(i64::from(number));
            writer.key("offset");
            writer.hex(frame.lookup.wrapping_sub(module.base));
        }
        writer.close(b'}');
    }
    writer.close(b']');
}

fn write_modules(writer: &mut Writer<'_>) {
    let mut modules = modules::used().peekable();
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
