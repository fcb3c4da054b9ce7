//! The bytes of an error file, from the facts of a crash.

use firstfault_format::{SCHEMA_VERSION, SECTION, signals};

use crate::bounds::{self, Room};
use crate::context::{Facts, until_nul};
use crate::json::Writer;
use crate::modules::{self, Module};
use crate::native::{self, Frame};
use crate::{abort, black_box, handlers, park, python_stack, sys};

/// How much of the Python stacks the text for people holds; all of them are in `threads`.
const TEXT_MAX: usize = 16 * 1024;
/// How many Python frames of one thread are kept.
const FRAMES_MAX: usize = 128;

/// What normal code prepared: who the process is, as JSON members.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The members `"host":…,"rank":…`.
    pub host_and_rank: &'static [u8],
    /// The members of `process` that a forked child shares: command line, program, entry point.
    pub process: &'static [u8],
    /// The process that was activated; another one that runs the handler is its forked child.
    pub id: i32,
    /// Its parent.
    pub parent_id: i32,
    /// When it started, nanoseconds since the Unix epoch.
    pub start_time_ns: u64,
}

/// A stage of the handler and how it ended.
#[derive(Debug, Clone, Copy)]
pub struct StageReport {
    /// Its name.
    pub name: &'static str,
    /// `ok`, `fault`, `timeout` or `skipped`.
    pub status: &'static str,
    /// What it took, microseconds.
    pub microseconds: u64,
}

/// Everything that one crash record says.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The facts of the signal.
    pub facts: &'a Facts,
    /// Who the process is.
    pub identity: &'a Identity,
    /// The file that the thread's instruction is in.
    pub module: Option<&'a Module>,
    /// The Python stack of the crashed thread, as CPython's dumper wrote it.
    pub own_stack: &'a [u8],
    /// Whether native stacks have been looked for by now.
    pub shows_native: bool,
    /// The whole dump, which the ranges of the parked threads point into.
    pub dump: &'a [u8],
    /// Earlier, provisional records of this process, as a JSON array's elements.
    pub preceded_by: &'a [u8],
    /// Thread and signal of other threads that crashed at the same time.
    pub other_crashes: &'a [(i32, i32)],
    /// Whether the black box can be read: step and breadcrumbs are there.
    pub has_black_box: bool,
    /// The stages so far.
    pub stages: &'a [StageReport],
}

impl Record<'_> {
    /// Writes the whole error file.
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.open(b'{');
        self.write_message(writer, TEXT_MAX);
        writer.key(SECTION);
        writer.open(b'{');
        self.write_head(writer);
        writer.members(self.identity.host_and_rank);
        self.write_process(writer);
        self.write_signal(writer);
        self.write_last_words(writer);
        self.write_threads(writer);
        if !self.other_crashes.is_empty() {
            writer.key("other_crashes");
            writer.open(b'[');
            for (thread, signal) in self.other_crashes {
                writer.open(b'{');
                writer.key("tid");
                writer.number(i64::from(*thread));
                writer.key("signal");
                writer.number(i64::from(*signal));
                writer.close(b'}');
            }
            writer.close(b']');
        }
        if self.shows_native {
            writer.key("handlers");
            handlers::write(writer, self.facts.signal);
        }
        if self.has_black_box {
            black_box::write_members(writer);
        }
        if !self.preceded_by.is_empty() {
            writer.key("preceded_by");
            writer.open(b'[');
            writer.members(self.preceded_by);
            writer.close(b']');
        }
        if !self.stages.is_empty() {
            writer.key("stages");
            writer.open(b'[');
            for stage in self.stages {
                writer.open(b'{');
                writer.key("name");
                writer.string(stage.name.as_bytes());
                writer.key("status");
                writer.string(stage.status.as_bytes());
                writer.key("us");
                writer.number(stage.microseconds as i64);
                writer.close(b'}');
            }
            writer.close(b']');
        }
        writer.close(b'}');
        writer.close(b'}');
    }

    /// Writes the form for a target of 4,096 bytes that is written in place.
    pub fn write_compact(&self, writer: &mut Writer<'_>) {
        writer.open(b'{');
        self.write_message(writer, 1024);
        writer.key(SECTION);
        writer.open(b'{');
        self.write_head(writer);
        writer.close(b'}');
        writer.close(b'}');
    }

    /// The crashed thread's native frames: its instruction alone where no stack was walked.
    pub(crate) fn native_frames(&self) -> impl Iterator<Item = Frame> {
        let alone = self.facts.program_counter.map(|address| Frame {
            address,
            lookup: address,
        });
        let found = self.shows_native.then(native::crashed_frames);
        let mut found = found.into_iter().flatten().peekable();
        let alone = alone.filter(|_| found.peek().is_none());
        found.chain(alone)
    }

    /// torch's part, which an unmodified torchrun shows.
    fn write_message(&self, writer: &mut Writer<'_>, text_max: usize) {
        writer.key("message");
        writer.open(b'{');
        writer.key("message");
        writer.begin_string();
        self.write_summary(writer);
        writer.end_string();
        writer.key("errorCode");
        writer.number(i64::from(self.facts.signal).wrapping_neg());
        writer.key("extraInfo");
        writer.open(b'{');
        writer.key("py_callstack");
        writer.begin_string();
        self.write_text(writer, text_max);
        writer.end_string();
        writer.key("timestamp");
        writer.begin_string();
        writer.text_decimal(self.facts.clock.time_ns / 1_000_000_000);
        writer.end_string();
        writer.close(b'}');
        writer.close(b'}');
    }

    fn write_head(&self, writer: &mut Writer<'_>) {
        let clock = &self.facts.clock;
        writer.key("schema_version");
        writer.number(i64::from(SCHEMA_VERSION));
        writer.key("kind");
        writer.string(if signals::is_request(self.facts.signal) {
            b"terminated"
        } else {
            b"signal"
        });
        writer.key("final");
        writer.boolean(self.facts.is_final);
        writer.key("time_ns");
        writer.number(clock.time_ns as i64);
        writer.key("monotonic_ns");
        writer.number(clock.monotonic_ns as i64);
        if let Some(error) = clock.error {
            writer.key("clock");
            writer.open(b'{');
            writer.key("max_error_us");
            writer.number(error.max_error_us as i64);
            writer.key("synchronized");
            writer.boolean(error.synchronized);
            writer.close(b'}');
        }
    }

    fn write_process(&self, writer: &mut Writer<'_>) {
        let is_child = self.facts.process != self.identity.id;
        writer.key("process");
        writer.open(b'{');
        writer.key("pid");
        writer.number(i64::from(self.facts.process));
        writer.key("ppid");
        writer.number(i64::from(if is_child {
            self.identity.id
        } else {
            self.identity.parent_id
        }));
        if !is_child {
            writer.key("start_time_ns");
            writer.number(self.identity.start_time_ns as i64);
        }
        writer.members(self.identity.process);
        writer.close(b'}');
    }

    fn write_signal(&self, writer: &mut Writer<'_>) {
        let facts = self.facts;
        writer.key("signal");
        writer.open(b'{');
        writer.key("number");
        writer.number(i64::from(facts.signal));
        if let Some(signal) = signals::by_number(facts.signal) {
            writer.key("name");
            writer.string(signal.name.as_bytes());
        }
        if let Some(code) = facts.code {
            writer.key("code");
            match signals::code_name(facts.signal, code) {
                Some(name) => writer.string(name.as_bytes()),
                None => {
                    writer.begin_string();
                    writer.text_hex(u64::from(code as u32));
                    writer.end_string();
                }
            }
        }
        if let Some(address) = facts.address {
            writer.key("address");
            writer.hex(address);
        }
        writer.key("tid");
        writer.number(i64::from(facts.thread));
        if let Some((process, user)) = facts.sender {
            writer.key("sender");
            writer.open(b'{');
            writer.key("pid");
            writer.number(i64::from(process));
            writer.key("uid");
            writer.number(i64::from(user));
            let name = until_nul(&facts.sender_name);
            if !name.is_empty() {
                writer.key("comm");
                writer.string(name);
            }
            writer.close(b'}');
        }
        writer.close(b'}');
    }

    /// What the process said of its end.
    fn write_last_words(&self, writer: &mut Writer<'_>) {
        let message = abort::message_of(self.facts);
        if !message.is_empty() {
            writer.key("abort_message");
            writer.string(message);
        }
        let exception = abort::exception_of(self.facts);
        if let Some(exception) = exception.filter(|exception| !exception.type_name.is_empty()) {
            writer.key("cpp_exception");
            writer.open(b'{');
            writer.key("type");
            writer.string(exception.type_name);
            writer.key("what");
            writer.string(exception.what);
            writer.close(b'}');
        }
    }

    fn write_threads(&self, writer: &mut Writer<'_>) {
        let most = if signals::is_request(self.facts.signal) {
            bounds::SNAPSHOT_MAX
        } else {
            bounds::CRASH_MAX
        };
        let mut room = Room::new(most, self.preceded_by.len());
        writer.key("threads");
        writer.open(b'[');
        writer.open(b'{');
        writer.key("tid");
        writer.number(i64::from(self.facts.thread));
        writer.key("name");
        writer.string(until_nul(&self.facts.thread_name));
        writer.key("crashed");
        writer.boolean(true);
        write_python_frames(writer, self.own_stack, &mut room);
        write_native_frames(writer, self.native_frames(), &mut room);
        writer.close(b'}');
        let mut written = 1_usize;
        for (index, slot) in (0..park::THREADS_MAX).zip(park::slots()) {
            // Without room for one frame a thread has nothing to say.
            if !room.has_frame(writer) {
                break;
            }
            written = written.saturating_add(1);
            self.write_thread(writer, index, slot, &mut room);
        }
        writer.close(b']');
        let total = park::total().saturating_add(1);
        writer.key("threads_total");
        writer.number(total as i64);
        if self.shows_native {
            write_modules(writer, &room);
        }
        room.threads_cut = total.saturating_sub(written);
        room.write(writer, native::stacks_cut());
    }

    fn write_thread(
        &self,
        writer: &mut Writer<'_>,
        index: usize,
        slot: &park::Slot,
        room: &mut Room,
    ) {
        writer.open(b'{');
        writer.key("tid");
        writer.number(i64::from(slot.thread()));
        let mut name = [0; 16];
        if let Some(name) = sys::name_of_thread(slot.thread(), &mut name) {
            writer.key("name");
            writer.string(name);
        }
        writer.key("crashed");
        writer.boolean(false);
        if slot.has_answered() {
            let text = self.dump.get(slot.dumped()).unwrap_or_default();
            write_python_frames(writer, text, room);
            write_native_frames(writer, native::frames_of_slot(index), room);
        } else {
            writer.key("state");
            writer.string(b"did not answer");
        }
        writer.close(b'}');
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
