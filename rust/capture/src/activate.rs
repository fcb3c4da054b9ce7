//! Makes this process one whose death leaves a file.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use firstfault_format::env;

use firstfault_handler::install::{self, Configuration};
use firstfault_handler::place::{Kind, Place};
use firstfault_handler::termination::{self, Snapshot};
use firstfault_handler::{abort, error_file, handle};

use crate::black_box;
use crate::identity::Identity;
use crate::leftovers;
use crate::panics;
use crate::patience::Wanted;
use crate::record;
use crate::target::{self, Claim, Target};
use crate::threads;

/// What activation learned from its caller and keeps for later records.
struct Caller {
    arguments: Vec<String>,
    entrypoint: Option<String>,
}

static CALLER: Mutex<Option<Caller>> = Mutex::new(None);

/// What the caller of [`activate`] has to do next.
#[derive(Debug)]
pub struct Activation {
    /// The value of `FIRSTFAULT_CLAIM` for the children of this process, `None` where it is itself a child.
    pub claim: Option<String>,
}

/// Prepares this process: decides where its records go and tells the handler.
///
/// Can be called again: a changed error file, entry point or environment takes effect.
///
/// # Errors
/// A target's directory cannot be made; everything else is in force then.
pub fn activate(
    error_file: Option<&Path>,
    arguments: &[String],
    entrypoint: Option<&str>,
) -> io::Result<Activation> {
    let result = put_in_force(error_file, arguments, entrypoint);
    *TROUBLE.lock().unwrap_or_else(PoisonError::into_inner) =
        result.as_ref().err().map(ToString::to_string);
    result
}

/// What the latest activation failed to do.
static TROUBLE: Mutex<Option<String>> = Mutex::new(None);

/// Returns what the latest [`activate`] failed to do, `None` where it did everything.
pub(crate) fn trouble() -> Option<String> {
    let trouble = TROUBLE.lock().unwrap_or_else(PoisonError::into_inner);
    trouble.clone()
}

/// Returns the targets that the handler was told of, but for the spare one; empty before [`activate`].
pub(crate) fn armed_targets() -> Vec<Target> {
    let armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut targets = armed
        .as_ref()
        .map(|(targets, _)| targets.clone())
        .unwrap_or_default();
    targets.retain(|target| target.kind != Kind::Spare);
    targets
}

fn put_in_force(
    error_file: Option<&Path>,
    arguments: &[String],
    entrypoint: Option<&str>,
) -> io::Result<Activation> {
    *CALLER
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Caller {
        arguments: arguments.to_vec(),
        entrypoint: entrypoint.map(str::to_owned),
    });
    #[cfg(feature = "inject")]
    if let Ok(plan) = std::env::var("FIRSTFAULT_INJECT") {
        use std::os::fd::IntoRawFd;
        let happened = std::env::var("FIRSTFAULT_INJECTED").ok().and_then(|path| {
            let mut options = std::fs::OpenOptions::new();
            options.append(true).create(true).open(path).ok()
        });
        let happened = happened.map_or(-1, IntoRawFd::into_raw_fd);
        firstfault_handler::inject::plan(Box::leak(Box::new(&*plan.leak())), happened);
    }
    let wanted = Wanted::now(error_file);
    let error_file = error_file.and_then(target::usable);
    let own = Claim::own(error_file);
    let parent = own.inherited_from(std::env::var(env::CLAIM).ok().as_deref());
    let identity = identity();
    let (targets, mut failed) = target::targets(
        error_file,
        target::archive_directory().as_deref(),
        &identity,
        parent,
    );
    wanted.remember(&targets);
    if let Some(first) = targets.first() {
        leftovers::sweep(first);
    }
    if parent.is_none() {
        failed = failed.or(record::probe(&targets).err());
    }
    let mut with_spare = targets.clone();
    if !targets.is_empty() {
        with_spare.extend(Target::spare());
    }
    arm(&with_spare, &identity)?;
    // A child's requests to end are its parent's business.
    if parent.is_none() {
        take_requests(&with_spare)?;
    }
    black_box::open(&targets, &identity, parent);
    if let Some(entrypoint) = entrypoint {
        black_box::breadcrumb("enter", Some(entrypoint));
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(Activation {
            claim: parent.is_none().then(|| own.format()),
        }),
    }
}

/// Returns the identity of this process, with what [`activate`] was told of it.
pub fn identity() -> Identity {
    let caller = CALLER
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*caller {
        Some(caller) => Identity::of_this_process(&caller.arguments, caller.entrypoint.as_deref()),
        None => {
            let arguments: Vec<String> = std::env::args_os()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect();
            Identity::of_this_process(&arguments, None)
        }
    }
}

/// What the handler was last told, to tell it again only what changed: nothing that it was told is ever freed.
static ARMED: Mutex<Option<(Vec<Target>, Identity)>> = Mutex::new(None);

type Places = &'static [&'static Place<'static>];

/// The same of requests to end.
static REQUESTS: Mutex<Option<(Vec<Target>, &'static Places)>> = Mutex::new(None);

/// Tells the handler of this process and its targets, and installs it, or puts it back above handlers that it knows.
fn arm(targets: &[Target], identity: &Identity) -> io::Result<()> {
    handle::notice_survival();
    let errno = |errno| io::Error::from_raw_os_error(errno);
    let mut armed = ARMED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let told = armed
        .as_ref()
        .is_some_and(|(known, who)| known == targets && who == identity);
    if !told {
        let (park_signal, watchdog_signal) = match install::configuration() {
            Some(configuration) => (configuration.park_signal, configuration.watchdog_signal),
            None => install::free_signals()
                .ok_or_else(|| io::Error::other("no real-time signal is free"))?,
        };
        let places: Vec<&'static Place<'static>> = targets
            .iter()
            .map(record::place)
            .collect::<io::Result<_>>()?;
        install::configure(Box::leak(Box::new(Configuration {
            places: Box::leak(places.into_boxed_slice()),
            identity: for_handler(identity),
            park_signal,
            watchdog_signal,
        })));
        *armed = Some((targets.to_vec(), identity.clone()));
    }
    abort::install();
    panics::end_stages();
    threads::give_alternate_stack()?;
    firstfault_unwind::install();
    install::install(0).map_err(errno)
}

/// Puts the handler back above handlers that it knows, and above any for the signals that it held until just now: a set
/// of bits from [`install::held`]. Before [`activate`] there is nothing to put back.
///
/// # Errors
/// The kernel refused an action.
pub fn reassert(held: u32) -> io::Result<()> {
    handle::notice_survival();
    match install::configuration() {
        Some(_) => install::install(held).map_err(io::Error::from_raw_os_error),
        None => Ok(()),
    }
}

/// Takes requests to end, whose files have names of their own.
fn take_requests(targets: &[Target]) -> io::Result<()> {
    let snapshot = match std::env::var(env::SNAPSHOT).as_deref() {
        Ok("0") => Snapshot::Off,
        Ok("all") => Snapshot::All,
        _ => Snapshot::Own,
    };
    let wanted: Vec<Target> = targets.iter().map(Target::terminated).collect();
    let mut known = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let places = match &*known {
        Some((targets, places)) if *targets == wanted => *places,
        _ => {
            let places: Vec<&'static Place<'static>> = wanted
                .iter()
                .map(record::place)
                .collect::<io::Result<_>>()?;
            let places: Places = Box::leak(places.into_boxed_slice());
            let places = &*Box::leak(Box::new(places));
            *known = Some((wanted, places));
            places
        }
    };
    termination::configure(places, snapshot);
    termination::install().map_err(io::Error::from_raw_os_error)
}

/// The identity as JSON members, which the handler copies into a file.
fn for_handler(identity: &Identity) -> error_file::Identity {
    error_file::Identity {
        host_and_rank: leak(format!(
            "\"host\":{},\"rank\":{}",
            to_json(&identity.host),
            to_json(&identity.rank)
        )),
        process: leak(shared_members(&identity.process)),
        id: identity.process.pid,
        parent_id: identity.process.ppid,
        start_time_ns: identity.process.start_time_ns,
    }
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers always become JSON")
}

fn leak(text: String) -> &'static [u8] {
    Box::leak(text.into_boxed_str()).as_bytes()
}

/// The members of `process` that a forked child shares with its parent.
fn shared_members(process: &crate::identity::Process) -> String {
    let mut members = format!(
        "\"argv\":{},\"executable\":{}",
        to_json(&process.argv),
        to_json(&process.executable)
    );
    if let Some(entrypoint) = &process.entrypoint {
        members.push_str(&format!(",\"entrypoint\":{}", to_json(entrypoint)));
    }
    members
}
