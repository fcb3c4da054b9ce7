//! A crash in words: the one-line summary, and the Python stacks for people.

use firstfault_format::signals;

use crate::context::{Facts, until_nul};
use crate::error_file::Record;
use crate::json::Writer;
use crate::native::Frame;
use crate::{abort, modules, park, python_stack, symbols};

/// Below this an address is a null pointer with an offset: Linux maps nothing there.
///
/// Source: vm.mmap_min_addr of the kernel, 65536 by default.
const NULL_PAGE_END: u64 = 65_536;

/// How many native frames the text for people holds, and how much of the names of each one's module and function; all
/// are in `threads`.
const NATIVE_MAX: usize = 32;
const NAME_MAX: usize = 64;
const SYMBOL_MAX: usize = 256;

impl Record<'_> {
    /// One line in words: signal, reason, place, thread.
    pub(crate) fn write_summary(&self, writer: &mut Writer<'_>) {
        let facts = self.facts;
        match signals::by_number(facts.signal) {
            Some(signal) => {
                writer.text(signal.name.as_bytes());
                writer.text(b" (");
                writer.text(signal.description.as_bytes());
                writer.text(b"): ");
            }
            None => writer.text(b"Signal: "),
        }
        write_reason(writer, facts);
        if let (Some(module), Some(address), true) =
            (self.module, facts.program_counter, facts.is_fault())
        {
            writer.text(b", in ");
            writer.text(module.name());
            writer.text(b"+");
            writer.text_hex(address.wrapping_sub(module.base));
        }
        writer.text(b", thread '");
        writer.text(until_nul(&facts.thread_name));
        writer.text(b"'");
    }

    /// The Python stacks for people: the crashed thread, then the others, as many as fit.
    pub(crate) fn write_text(&self, writer: &mut Writer<'_>, text_max: usize) {
        self.write_summary(writer);
        let what = match abort::exception_of(self.facts) {
            Some(exception) if exception.what.len() > first_line(exception.what).len() => {
                exception.what.trim_ascii_end()
            }
            _ => b"",
        };
        let what = what.get(..text_max / 2).unwrap_or(what);
        if !what.is_empty() {
            writer.text(b"\n\n");
            writer.text(what);
        }
        let text_max = text_max.saturating_sub(what.len());
        writer.text(if signals::is_request(self.facts.signal) {
            b"\n\nThread '"
        } else {
            b"\n\nCrashed thread '"
        });
        writer.text(until_nul(&self.facts.thread_name));
        writer.text(b"' (most recent call first):\n");
        let own = python_stack::without_headline(self.own_stack);
        write_stack(writer, own, text_max);
        if self.shows_native {
            writer.text(b"\nIts native frames (most recent call first):\n");
            write_native(writer, self.native_frames());
        }
        let mut left = text_max.saturating_sub(own.len());
        let mut omitted = 0_u64;
        for slot in park::slots() {
            let stack =
                python_stack::without_headline(self.dump.get(slot.dumped()).unwrap_or_default());
            // A native thread that once called into Python has no frame to show.
            if python_stack::frames(stack).next().is_none() {
                continue;
            }
            if stack.len() > left {
                omitted = omitted.saturating_add(1);
                continue;
            }
            left = left.saturating_sub(stack.len());
            writer.text(b"\nThread '");
            writer.text(until_nul(&slot.status().name));
            writer.text(b"' (most recent call first):\n");
            writer.text(stack);
        }
        if omitted > 0 {
            writer.text(b"\n");
            writer.text_decimal(omitted);
            writer.text(b" more Python threads are in the error file.\n");
        }
    }
}

/// How much of a text goes into the one line.
const LINE_MAX: usize = 500;
/// How much of a C++ type's name.
const TYPE_MAX: usize = 200;

/// Why the process raised the signal itself, as far as it said so.
fn write_last_words(writer: &mut Writer<'_>, facts: &Facts) {
    let message = abort::message_of(facts);
    match abort::exception_of(facts) {
        Some(exception) if exception.type_name.is_empty() => {
            writer.text(b"std::terminate was called without a C++ exception");
        }
        Some(exception) => {
            writer.text(if exception.is_uncaught {
                b"uncaught C++ exception "
            } else {
                b"aborted with a C++ exception in flight, "
            });
            let name = exception.type_name;
            writer.text(name.get(..TYPE_MAX).unwrap_or(name));
            if !exception.what.is_empty() {
                writer.text(b": ");
                writer.text(first_line(exception.what));
            }
        }
        None if !message.is_empty() => {
            writer.text(b"glibc: ");
            writer.text(first_line(message));
        }
        None => writer.text(b"raised by the process itself"),
    }
}

fn first_line(text: &[u8]) -> &[u8] {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.get(..LINE_MAX).unwrap_or(line)
}

/// A stack, or its innermost part where it is too long.
fn write_stack(writer: &mut Writer<'_>, stack: &[u8], most: usize) {
    if stack.is_empty() {
        writer.text(b"  <no Python frame>\n");
    } else if stack.len() <= most {
        writer.text(stack);
    } else {
        writer.text(stack.get(..most).unwrap_or_default());
        writer.text(b"...\n");
    }
}

/// The innermost frames, as `libfoo.so+0x11f9 (function)`; [`NATIVE_MAX`] of them.
fn write_native(writer: &mut Writer<'_>, frames: impl Iterator<Item = Frame>) {
    let mut written = 0_usize;
    let mut omitted = 0_u64;
    for frame in frames {
        if written == NATIVE_MAX {
            omitted = omitted.saturating_add(1);
            continue;
        }
        written = written.saturating_add(1);
        writer.text(b"  ");
        match modules::module_of(frame.lookup) {
            Some(module) => {
                let name = module.name();
                writer.text(name.get(..NAME_MAX).unwrap_or(name));
                writer.text(b"+");
                writer.text_hex(frame.lookup.wrapping_sub(module.base));
            }
            None => writer.text_hex(frame.address),
        }
        if let Some(symbol) = symbols::of(frame.lookup) {
            writer.text(b" (");
            writer.text(symbol.get(..SYMBOL_MAX).unwrap_or(symbol));
            writer.text(b")");
        }
        writer.text(b"\n");
    }
    if written == 0 {
        writer.text(b"  <none found>\n");
    }
    if omitted > 0 {
        writer.text(b"  and ");
        writer.text_decimal(omitted);
        writer.text(b" more\n");
    }
}

/// What happened, as far as signal, code and address alone make it certain.
fn write_reason(writer: &mut Writer<'_>, facts: &Facts) {
    let (Some(code), address) = (facts.code, facts.address.unwrap_or(0)) else {
        return writer.text(b"its information was lost by another handler");
    };
    if let Some((process, user)) = facts.sender {
        if process == facts.process {
            write_last_words(writer, facts);
        } else if process == 0 {
            writer.text(b"sent from outside this PID namespace by user ");
            writer.text_decimal(user.into());
        } else {
            writer.text(b"sent by process ");
            writer.text_decimal(process.unsigned_abs().into());
            let name = until_nul(&facts.sender_name);
            if !name.is_empty() {
                writer.text(b" '");
                writer.text(name);
                writer.text(b"'");
            }
            writer.text(b" of user ");
            writer.text_decimal(user.into());
        }
        return;
    }
    if abort::is_fallback(facts) {
        writer.text(b"abort() as process 1, which SIGABRT does not end: ");
        return write_last_words(writer, facts);
    }
    let executes = facts.program_counter == Some(address);
    let (text, shows_address): (&[u8], bool) = match signals::code_name(facts.signal, code)
        .unwrap_or_default()
    {
        "SEGV_MAPERR" | "SEGV_ACCERR" if facts.is_stack_overflow => (b"stack overflow", true),
        "SEGV_MAPERR" if address < NULL_PAGE_END && executes => {
            (b"call through a null pointer", true)
        }
        "SEGV_MAPERR" if address < NULL_PAGE_END => (b"null pointer", true),
        "SEGV_MAPERR" if executes => (b"jump to nowhere", true),
        "SEGV_MAPERR" => (b"unmapped address", true),
        "SEGV_ACCERR" if executes => (b"executing data", true),
        "SEGV_ACCERR" => (b"forbidden access", true),
        "BUS_ADRALN" => (b"misaligned address", true),
        "BUS_ADRERR" => (
            b"no memory behind the address (file truncated or its file system full)",
            true,
        ),
        "BUS_MCEERR_AR" | "BUS_MCEERR_AO" => (b"hardware memory error", true),
        "FPE_INTDIV" => (b"integer division by zero", false),
        "ILL_ILLOPC" | "ILL_ILLOPN" => (b"illegal instruction", true),
        "TRAP_BRKPT" => (b"breakpoint", true),
        "SYS_SECCOMP" => (b" forbidden by seccomp", false),
        // int3 of x86 says it so.
        "SI_KERNEL" if facts.signal == libc::SIGTRAP => (b"breakpoint", false),
        "SI_KERNEL" if facts.signal == libc::SIGXCPU => (b"limit of the process reached", false),
        // A general protection fault: the kernel does not know the address, and x86 raises it for many reasons.
        "SI_KERNEL" => (b"protection fault, address unknown", false),
        name => (name.as_bytes(), true),
    };
    if let Some(number) = facts.system_call {
        writer.text(b"system call ");
        writer.text_decimal(number.unsigned_abs().into());
    }
    writer.text(text);
    if shows_address {
        writer.text(b" at ");
        writer.text_hex(address);
    }
}
