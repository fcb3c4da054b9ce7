//! The bytes of an error file, from the facts of a crash.

mod threads;

use firstfault_format::{SCHEMA_VERSION, SECTION, signals};

use crate::context::{Facts, until_nul};
use crate::json::Writer;
use crate::modules::Module;
use crate::native::{self, Frame};
use crate::{abort, black_box, handlers};

/// How much of the Python stacks the text for people holds; all of them are in `threads`.
const TEXT_MAX: usize = 16 * 1024;
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
    /// How many more crashed than are told of.
    pub other_crashes_cut: usize,
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
        threads::write(self, writer);
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
        writer.key("handlers");
        handlers::write(writer, self.facts.signal);
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
}
