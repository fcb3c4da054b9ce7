//! Reads black boxes: what a worker kept mapped until it died, however it died.
//!
//! A box may have been cut short, half written by a process that was killed, or made up. What does not hold together is
//! left out: a slot without its checksum, a text that is not Unicode; only a box without a header is none.

use crate::failure::{
    Breadcrumb, Failure, Host, Kind, Process, Rank, Section, Sender, Signal, Thread,
};
use firstfault_format::black_box::{
    HEADER_WORDS, MAGIC, NONE, SIZE, Text, VERSION, checksum, crash, header, index_of, known, ring,
    state,
};
use firstfault_format::{SCHEMA_VERSION, signals};
use std::path::{Path, PathBuf};

/// How many of the latest breadcrumbs are kept.
const BREADCRUMBS: usize = 32;

/// The size of a whole box, in bytes.
pub const BOX_BYTES: u64 = SIZE as u64;

/// What a box says.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct BlackBox {
    /// The process.
    pub process: Process,
    /// When it started, clock ticks since the boot of `host.boot_id`.
    pub start_ticks: Option<u64>,
    /// The inode of the PID namespace in which its ID counts.
    pub pid_namespace: Option<u64>,
    /// The machine.
    pub host: Host,
    /// The place in the job.
    pub rank: Rank,
    /// What it was doing.
    pub state: State,
    /// When the box was made, nanoseconds since the Unix epoch.
    pub install_ns: Option<i64>,
    /// When the process last wrote into it, nanoseconds since the Unix epoch.
    pub last_ns: Option<i64>,
    /// The training step, where the program told it.
    pub step: Option<i64>,
    /// The latest breadcrumbs that are whole, oldest first.
    pub breadcrumbs: Vec<Breadcrumb>,
    /// The signal that asked the process to end, where one did.
    pub request: Option<i32>,
    /// The crash, in [`State::Crashed`].
    pub crash: Option<Crash>,
    /// In a file that only points at the box: where that is, on its host.
    pub elsewhere: Option<PathBuf>,
}

/// What the process was doing when it last said so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Nothing that this version knows.
    #[default]
    Unknown,
    /// Its main function ran.
    Running,
    /// Its main function had returned, or its failure was recorded.
    Exiting,
    /// It was about to remove its box.
    Finished,
    /// A crash signal had struck.
    Crashed,
}

/// The facts of a crash signal, as the handler found them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Crash {
    /// The signal's number.
    pub signal: i32,
    /// When it struck, nanoseconds since the Unix epoch.
    pub time_ns: Option<i64>,
    /// The same on the clock that counts from boot.
    pub monotonic_ns: Option<i64>,
    /// `si_code`.
    pub code: Option<i32>,
    /// The fault address.
    pub address: Option<u64>,
    /// Process ID and user ID of the sender.
    pub sender: Option<(u32, u32)>,
    /// The crashed thread.
    pub tid: Option<u32>,
    /// Its name.
    pub thread_name: String,
}

/// What became of the process of a box, as far as the machine that looks can tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fate {
    /// The box is of another host, boot or PID namespace, or /proc does not show the processes of others.
    #[default]
    Unknown,
    /// The process is there.
    Alive,
    /// It is not.
    Gone,
}

/// Returns whether the first bytes of a file are those of a box.
pub(crate) fn begins_like_one(bytes: &[u8]) -> bool {
    Words(bytes).get(header::MAGIC) == Some(MAGIC)
}

/// Returns what a box says, or why the bytes are none.
///
/// Any bytes are accepted: what is behind the end of a box that was cut short is missing, nothing more.
pub fn parse(bytes: &[u8]) -> Result<BlackBox, String> {
    let words = Words(bytes);
    if words.get(header::MAGIC) != Some(MAGIC) {
        return Err("not a black box, or one that was never finished".to_owned());
    }
    let version = words.get(header::VERSION).unwrap_or(0);
    if version != VERSION {
        return Err(format!(
            "a black box of version {version}, which this version does not know"
        ));
    }
    if bytes.len() < HEADER_WORDS * 8 {
        return Err("a black box that was cut short in its header".to_owned());
    }
    let state = match words.get(header::STATE) {
        Some(state::RUNNING) => State::Running,
        Some(state::EXITING) => State::Exiting,
        Some(state::FINISHED) => State::Finished,
        Some(state::CRASHED) => State::Crashed,
        _ => State::Unknown,
    };
    let elsewhere = words.bytes(header::ELSEWHERE);
    Ok(BlackBox {
        process: Process {
            pid: words.number(header::PID),
            start_time_ns: words.time(header::START_TIME_NS),
            ..Process::default()
        },
        start_ticks: words.known(header::START_TICKS),
        pid_namespace: words.known(header::PID_NAMESPACE),
        host: Host {
            name: words.text(header::HOST),
            boot_id: words.text(header::BOOT_ID),
            machine_id: String::new(),
        },
        rank: Rank {
            rank: words.number(header::RANK),
            local_rank: words.number(header::LOCAL_RANK),
            world_size: words.number(header::WORLD_SIZE),
            group_rank: words.number(header::GROUP_RANK),
            role: words.some_text(header::ROLE),
            run_id: words.some_text(header::RUN_ID),
            attempt: words.number(header::ATTEMPT),
        },
        state,
        install_ns: words.time(header::INSTALL_NS),
        last_ns: words.time(header::LAST_NS),
        step: words
            .time(header::STEP_NS)
            .and_then(|_| Some(words.get(header::STEP)?.cast_signed())),
        breadcrumbs: breadcrumbs(&words),
        request: words
            .number(header::REQUEST_SIGNAL)
            .and_then(|signal| i32::try_from(signal).ok())
            .filter(|signal| *signal > 0),
        crash: (state == State::Crashed)
            .then(|| crash_of(&words))
            .flatten(),
        elsewhere: (!elsewhere.is_empty()).then(|| {
            use std::os::unix::ffi::OsStrExt;
            PathBuf::from(std::ffi::OsStr::from_bytes(&elsewhere))
        }),
    })
}

/// The words of a box; those behind its end are `None`.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn get(&self, at: usize) -> Option<u64> {
        let (bytes, _) = self.0.get(at.checked_mul(8)?..)?.split_first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }

    fn known(&self, at: usize) -> Option<u64> {
        self.get(at).filter(|word| *word != NONE)
    }

    fn number(&self, at: usize) -> Option<u32> {
        self.known(at).and_then(|word| u32::try_from(word).ok())
    }

    /// A time is unknown where it is 0.
    fn time(&self, at: usize) -> Option<i64> {
        let time = i64::try_from(self.known(at)?).ok()?;
        (time > 0).then_some(time)
    }

    fn bytes(&self, place: Text) -> Vec<u8> {
        let words = (place.first..place.first + place.words).map_while(|at| self.get(at));
        words
            .flat_map(u64::to_le_bytes)
            .take_while(|byte| *byte != 0)
            .collect()
    }

    fn text(&self, place: Text) -> String {
        String::from_utf8_lossy(&self.bytes(place)).into_owned()
    }

    fn some_text(&self, place: Text) -> Option<String> {
        Some(self.text(place)).filter(|text| !text.is_empty())
    }
}

fn breadcrumbs(words: &Words<'_>) -> Vec<Breadcrumb> {
    let mut found: Vec<(u64, Breadcrumb)> = (0..ring::SLOTS)
        .filter_map(|number| slot(words, number))
        .collect();
    found.sort_by_key(|(index, _)| *index);
    let first = found.len().saturating_sub(BREADCRUMBS);
    found
        .drain(first..)
        .map(|(_, breadcrumb)| breadcrumb)
        .collect()
}

/// Returns the breadcrumb in a slot and its number, `None` where the slot is empty or not whole.
fn slot(words: &Words<'_>, number: usize) -> Option<(u64, Breadcrumb)> {
    let first = ring::FIRST + number * ring::SLOT_WORDS;
    let get = |at: usize| words.get(first + at);
    let sequence = get(ring::SEQUENCE)?;
    let index = index_of(sequence).filter(|index| index % ring::SLOTS as u64 == number as u64)?;
    let content: Vec<u64> = (ring::TIME_NS..ring::SLOT_WORDS)
        .map(get)
        .collect::<Option<_>>()?;
    if checksum([sequence].into_iter().chain(content.iter().copied())) != get(ring::CHECKSUM)? {
        return None;
    }
    let lengths = get(ring::LENGTHS)?;
    let text: Vec<u8> = content[ring::TEXT - ring::TIME_NS..]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let name = text.get(..(lengths & 0xff) as usize)?;
    let value = text.get(name.len()..name.len() + (lengths >> 8 & 0xff) as usize)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((
        index,
        Breadcrumb {
            time_ns: i64::try_from(get(ring::TIME_NS)?).ok(),
            name: text(name),
            value: (lengths >> 16 & 1 == 1).then(|| text(value)),
        },
    ))
}

fn crash_of(words: &Words<'_>) -> Option<Crash> {
    let bits = words.get(crash::KNOWN)?;
    let known = |bit: u64, at: usize| words.get(at).filter(|_| bits & bit != 0);
    let sender = |at: usize| known(known::SENDER, at).and_then(|word| u32::try_from(word).ok());
    Some(Crash {
        signal: i32::try_from(words.get(crash::SIGNAL)?).ok()?,
        time_ns: words.time(crash::TIME_NS),
        monotonic_ns: words.time(crash::MONOTONIC_NS),
        code: known(known::CODE, crash::CODE)
            .and_then(|word| i32::try_from(word.cast_signed()).ok()),
        address: known(known::ADDRESS, crash::ADDRESS),
        sender: sender(crash::SENDER_PID).zip(sender(crash::SENDER_UID)),
        tid: words.number(crash::TID),
        thread_name: words.text(crash::THREAD_NAME),
    })
}

impl BlackBox {
    /// Returns the crash as a failure, for a process that could write no error file; `None` where there was none.
    pub fn failure(&self) -> Option<Failure> {
        let crash = self.crash.as_ref()?;
        let name = signals::by_number(crash.signal).map_or_else(
            || format!("signal {}", crash.signal),
            |signal| format!("{} ({})", signal.name, signal.description),
        );
        let code = crash.code.map(|code| {
            signals::code_name(crash.signal, code).map_or_else(|| code.to_string(), str::to_owned)
        });
        let address = crash.address.map(|address| format!("{address:#x}"));
        let place = match (&code, &address) {
            (Some(code), Some(address)) => format!(": {code} at {address}"),
            (Some(code), None) => format!(": {code}"),
            _ => String::new(),
        };
        let message = format!("{name}{place}, thread '{}'", crash.thread_name);
        let section = Section {
            kind: Some(Kind::Signal),
            is_final: true,
            time_ns: crash.time_ns,
            monotonic_ns: crash.monotonic_ns,
            signal: Some(Signal {
                number: crash.signal,
                name: signals::by_number(crash.signal)
                    .map_or("", |signal| signal.name)
                    .to_owned(),
                code,
                address,
                tid: crash.tid,
                sender: crash.sender.map(|(pid, uid)| Sender {
                    pid,
                    uid: Some(uid),
                    comm: None,
                }),
            }),
            threads: vec![Thread {
                tid: crash.tid,
                name: crash.thread_name.clone(),
                crashed: true,
                ..Thread::default()
            }],
            ..self.section()
        };
        Some(Failure {
            message,
            error_code: Some(i64::from(-crash.signal)),
            time_ns: crash.time_ns,
            section: Some(Box::new(section)),
            ..Failure::default()
        })
    }

    /// Returns who the process was and how far it got, in the form of a record that says of no failure.
    pub fn section(&self) -> Section {
        Section {
            schema_version: SCHEMA_VERSION,
            host: self.host.clone(),
            process: self.process.clone(),
            rank: self.rank.clone(),
            step: self.step,
            breadcrumbs: self.breadcrumbs.clone(),
            ..Section::default()
        }
    }

    /// Returns what became of the process, by the process file system at `proc`.
    pub fn fate(&self, proc: &Path) -> Fate {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let boot_id = read(&proc.join("sys/kernel/random/boot_id"));
        let is_same_boot = !self.host.boot_id.is_empty() && boot_id.trim() == self.host.boot_id;
        let namespace = std::fs::read_link(proc.join("self/ns/pid")).unwrap_or_default();
        let is_same_namespace = self
            .pid_namespace
            .is_some_and(|inode| namespace == Path::new(&format!("pid:[{inode}]")));
        // With the mount option hidepid others' processes are not shown. Source: proc(5)
        let shows_all = proc.join("1/stat").exists();
        let (Some(pid), Some(start), true) = (
            self.process.pid,
            self.start_ticks,
            is_same_boot && is_same_namespace && shows_all,
        ) else {
            return Fate::Unknown;
        };
        // The second field, the program's name in parentheses, may hold anything. Source: proc_pid_stat(5)
        let stat = read(&proc.join(format!("{pid}/stat")));
        let Some((_, rest)) = stat.rsplit_once(')') else {
            return Fate::Gone;
        };
        let mut fields = rest.split_ascii_whitespace();
        let has_ended = matches!(fields.next(), Some("Z" | "X" | "x"));
        let started = fields.nth(18).and_then(|field| field.parse::<u64>().ok());
        if has_ended || started != Some(start) {
            return Fate::Gone;
        }
        Fate::Alive
    }
}
