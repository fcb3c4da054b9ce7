//! Installs the handler, remembers what was there before, and puts itself above handlers that it knows.
//!
//! Runs in normal context, under its caller's lock; the handler reads what is published here by atomic loads.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use firstfault_format::signals;

use crate::error_file::Identity;
use crate::handle;
use crate::handlers::known;
use crate::place::Place;
use crate::sys::{self, Errno};

/// Where records go: the wanted places, and the spare one.
pub type Places = &'static [&'static Place<'static>];

/// What the handler must know; prepared by normal code and never freed.
#[derive(Debug)]
pub struct Configuration {
    /// Where records go.
    pub places: Places,
    /// Who this process is.
    pub identity: Identity,
    /// Stops the other threads. A real-time signal that nobody uses.
    pub park_signal: i32,
    /// Ends a stage that takes too long. Another such signal.
    pub watchdog_signal: i32,
}

impl Configuration {
    /// Returns the provisional records of this process so far, as elements of a JSON array.
    pub fn preceded_by(&self) -> &'static [u8] {
        // A forked child has survived nothing yet.
        if PRECEDED_PROCESS.load(Ordering::Relaxed) != sys::process_id() {
            return &[];
        }
        // SAFETY: only `set_preceded_by` stores here, values that live for ever.
        unsafe { PRECEDED_BY.load(Ordering::Acquire).as_ref() }
            .copied()
            .unwrap_or_default()
    }

    /// Returns whether the latest of the provisional records is among [`Configuration::preceded_by`].
    pub(crate) fn carries_latest(&self) -> bool {
        CARRIES_LATEST.load(Ordering::Relaxed)
    }
}

static CONFIGURATION: AtomicPtr<Configuration> = AtomicPtr::new(core::ptr::null_mut());
static PRECEDED_BY: AtomicPtr<&'static [u8]> = AtomicPtr::new(core::ptr::null_mut());
static PRECEDED_PROCESS: AtomicI32 = AtomicI32::new(0);
static CARRIES_LATEST: AtomicBool = AtomicBool::new(true);

/// Publishes a configuration; the handler uses it from now on.
pub fn configure(configuration: &'static Configuration) {
    CONFIGURATION.store((&raw const *configuration).cast_mut(), Ordering::Release);
}

/// Returns the configuration in force.
pub fn configuration() -> Option<&'static Configuration> {
    // SAFETY: only `configure` stores here, values that live for ever.
    unsafe { CONFIGURATION.load(Ordering::Acquire).as_ref() }
}

/// Sets the provisional records that a crash record will carry, as elements of a JSON array.
pub fn set_preceded_by(json: &'static &'static [u8]) {
    PRECEDED_PROCESS.store(sys::process_id(), Ordering::Relaxed);
    PRECEDED_BY.store((&raw const *json).cast_mut(), Ordering::Release);
}

/// Says whether the latest provisional record is among those that a crash record will carry.
pub fn note_carried(is_latest: bool) {
    CARRIES_LATEST.store(is_latest, Ordering::Relaxed);
}

/// How many actions of one signal are remembered below ours.
const DEPTH_MAX: usize = 4;

/// An action that was there before ours.
#[derive(Clone, Copy)]
pub(crate) struct Previous {
    pub(crate) action: libc::sigaction,
    /// Whether it always ends the process; asked when it is found, since asking takes the loader's lock.
    pub(crate) is_known: bool,
}

/// One captured signal: the actions that were there before us, oldest first.
pub(crate) struct Captured {
    actions: UnsafeCell<[Option<Previous>; DEPTH_MAX]>,
    depth: AtomicUsize,
    /// How many of the actions a delivery in progress has used up, newest first.
    pub(crate) used: AtomicUsize,
    /// The newest action has recovered from this signal before: it is called first.
    pub(crate) recovers: AtomicBool,
}

// SAFETY: `actions` is written under the installer's lock, and only at or above `depth`, which is lowered first and
// raised after.
unsafe impl Sync for Captured {}

impl Captured {
    const fn new() -> Self {
        Self {
            actions: UnsafeCell::new([const { None }; DEPTH_MAX]),
            depth: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            recovers: AtomicBool::new(false),
        }
    }

    /// Returns the newest action that this delivery has not used, `None` when there is none left.
    pub(crate) fn current(&self) -> Option<Previous> {
        let depth = self.depth.load(Ordering::Acquire);
        let index = depth
            .checked_sub(self.used.load(Ordering::Relaxed))?
            .checked_sub(1)?;
        // SAFETY: an entry below `depth` is whole.
        unsafe { (*self.actions.get()).get(index).copied().flatten() }
    }

    /// Returns whether nothing below ours handles the signal. It needs next to no stack.
    pub(crate) fn ends_by_default(&self) -> bool {
        let depth = self.depth.load(Ordering::Acquire);
        // SAFETY: an entry below `depth` is whole.
        let newest = unsafe { &*self.actions.get() }.get(depth.wrapping_sub(1));
        match newest {
            Some(Some(previous)) => previous.action.sa_sigaction == libc::SIG_DFL,
            _ => true,
        }
    }

    /// Returns whether the default is below all that a delivery has not used, and nobody unknown between.
    pub(crate) fn surely_ends(&self) -> bool {
        let depth = self.depth.load(Ordering::Acquire);
        let left = depth.saturating_sub(self.used.load(Ordering::Relaxed));
        // SAFETY: an entry below `depth` is whole.
        let actions = unsafe { &*self.actions.get() };
        let mut left = actions.iter().take(left).flatten();
        left.next().is_none_or(|oldest| {
            oldest.action.sa_sigaction == libc::SIG_DFL && left.all(|previous| previous.is_known)
        })
    }

    /// Returns the newest action below ours, whatever a delivery has used.
    pub(crate) fn newest(&self) -> Option<Previous> {
        let index = self.depth.load(Ordering::Acquire).checked_sub(1)?;
        // SAFETY: an entry below `depth` is whole.
        unsafe { (*self.actions.get()).get(index).copied().flatten() }
    }

    /// Uses up all actions: what is left is the default.
    pub(crate) fn exhaust(&self) {
        self.used.store(DEPTH_MAX, Ordering::Relaxed);
    }

    /// Forgets the actions that a delivery has used up: each was good for one signal, and the process lives.
    pub(crate) fn drop_used(&self) {
        let used = self.used.swap(0, Ordering::Relaxed);
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth
            .store(depth.saturating_sub(used), Ordering::Release);
    }

    /// Returns whether nothing was ever there before ours.
    pub(crate) fn is_empty(&self) -> bool {
        self.depth.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn push(&self, previous: Previous) -> Result<(), Errno> {
        // SAFETY: the installer's lock; the handler does not look at or above `depth`.
        let actions = unsafe { &mut *self.actions.get() };
        let depth = self.depth.load(Ordering::Relaxed);
        let address = previous.action.sa_sigaction;
        let mut kept = 0_usize;
        // faulthandler enabled once more after it was disabled: its old place is gone.
        for index in 0..depth {
            let Some(Some(known)) = actions.get(index).copied() else {
                break;
            };
            if known.action.sa_sigaction == address {
                // A handler that reads meanwhile finds fewer.
                self.depth.store(index, Ordering::Release);
            } else {
                if kept != index
                    && let Some(slot) = actions.get_mut(kept)
                {
                    *slot = Some(known);
                }
                kept = kept.saturating_add(1);
            }
        }
        *actions.get_mut(kept).ok_or(libc::ENOSPC)? = Some(previous);
        self.recovers.store(false, Ordering::Relaxed);
        self.depth.store(kept.saturating_add(1), Ordering::Release);
        Ok(())
    }
}

/// By signal number; only crash signals and requests to end are ever used.
static CAPTURED: [Captured; 32] = [const { Captured::new() }; 32];

/// Forgets what deliveries in another process have used up, of which this one has a copy or shares the memory.
pub(crate) fn forget_deliveries() {
    for captured in &CAPTURED {
        captured.used.store(0, Ordering::Relaxed);
    }
}

/// Returns the record of a signal that the handler takes, `None` for any other signal.
pub(crate) fn captured_signal(signal: i32) -> Option<&'static Captured> {
    signals::by_number(signal).filter(|signal| signal.crash || signal.request)?;
    actions_below(signal)
}

/// The same for a signal that the handler is running for. It needs next to no stack.
pub(crate) fn actions_below(signal: i32) -> Option<&'static Captured> {
    CAPTURED.get(signal as usize)
}

/// Returns whether this signal is one that the handler captures as a crash.
pub(crate) fn is_captured(signal: i32) -> bool {
    signals::by_number(signal).is_some_and(|signal| signal.crash)
}

/// Installs the handler for every crash signal, or puts it back above a handler that is known to end the process.
///
/// A signal that is ignored stays so. Where an unknown handler came after ours, ours stays below it. `held` are the
/// signals whose action was ours until the caller let somebody put back what had been there before: see [`held`].
///
/// # Errors
/// The kernel refused an action, or too many handlers were stacked.
pub fn install(held: u32) -> Result<(), Errno> {
    for signal in signals::SIGNALS.iter().filter(|signal| signal.crash) {
        let Some(captured) = captured_signal(signal.number) else {
            continue;
        };
        let found = sys::action(signal.number)?;
        if found.sa_sigaction == libc::SIG_IGN || handle::is_ours(&found) {
            continue;
        }
        let came_before = captured.is_empty() || held & bit(signal.number) != 0;
        let is_known = is_known(&found);
        if came_before || found.sa_sigaction == libc::SIG_DFL || is_known {
            known::note(found.sa_sigaction);
            captured.push(Previous {
                action: found,
                is_known,
            })?;
            sys::set_action(signal.number, &handle::action())?;
        }
    }
    Ok(())
}

/// Returns the crash signals whose action is ours, as a set of bits for [`install`].
pub fn held() -> u32 {
    let crashes = signals::SIGNALS.iter().filter(|signal| signal.crash);
    crashes
        .filter(|signal| sys::action(signal.number).is_ok_and(|action| handle::is_ours(&action)))
        .fold(0, |held, signal| held | bit(signal.number))
}

fn bit(signal: i32) -> u32 {
    1_u32.wrapping_shl(signal.unsigned_abs())
}

/// Remembers an action as the newest one below ours.
///
/// # Errors
/// The signal is not captured, or too many actions are stacked.
pub fn remember(signal: i32, action: libc::sigaction, is_known: bool) -> Result<(), Errno> {
    captured_signal(signal)
        .ok_or(libc::EINVAL)?
        .push(Previous { action, is_known })
}

/// Returns whether a handler is one that always ends the process: faulthandler's, or one of torch's own.
pub(crate) fn is_known(action: &libc::sigaction) -> bool {
    let address = action.sa_sigaction;
    if action.sa_flags & libc::SA_NODEFER != 0
        && action.sa_flags & libc::SA_SIGINFO == 0
        && is_in_module_of(action, interpreter_address())
    {
        // faulthandler's fatal handler: of CPython's own handlers only it sets SA_NODEFER.
        return true;
    }
    // DataLoader's worker handlers, and c10::FatalSignalHandler.
    module_name(address).is_some_and(|name| {
        [&b"libtorch_python.so"[..], b"libc10.so", b"libtorch_cpu.so"]
            .iter()
            .any(|known| name.ends_with(known))
    })
}

/// Returns an address in the module of the interpreter, which faulthandler's handlers and Python's own are in; 0 where
/// there is none. Normal context.
pub fn interpreter_address() -> usize {
    // SAFETY: the name is NUL-terminated.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"Py_IsInitialized".as_ptr()) as usize }
}

/// Returns whether the handler in force for a signal is one that always ends the process. Normal context.
pub fn is_known_in_force(signal: i32) -> bool {
    sys::action(signal).is_ok_and(|action| is_known(&action))
}

/// Where a function is.
#[derive(Debug, Clone, Copy)]
pub struct Location {
    /// The file that it was loaded from.
    pub path: &'static [u8],
    /// How far behind the file's first byte.
    pub offset: usize,
    /// The exported symbol that it belongs to, where there is one.
    pub symbol: Option<&'static [u8]>,
}

/// Returns where a function is, `None` outside any loaded file. Normal context: it takes the loader's lock.
pub fn locate(address: usize) -> Option<Location> {
    let info = dynamic_info(address)?;
    Some(Location {
        path: text(info.dli_fname)?,
        offset: address.wrapping_sub(info.dli_fbase as usize),
        symbol: text(info.dli_sname),
    })
}

/// Returns whether a handler is in the same module as an address.
pub(crate) fn is_in_module_of(action: &libc::sigaction, address: usize) -> bool {
    module_start(action.sa_sigaction).is_some_and(|start| Some(start) == module_start(address))
}

fn dynamic_info(address: usize) -> Option<libc::Dl_info> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; the room is for one Dl_info. Normal context: it takes the loader's lock.
    let found = unsafe { libc::dladdr(address as *const _, info.as_mut_ptr()) };
    // SAFETY: zeroed, then filled.
    (found != 0).then(|| unsafe { info.assume_init() })
}

fn module_start(address: usize) -> Option<usize> {
    dynamic_info(address).map(|info| info.dli_fbase as usize)
}

fn module_name(address: usize) -> Option<&'static [u8]> {
    text(dynamic_info(address)?.dli_fname)
}

fn text(name: *const libc::c_char) -> Option<&'static [u8]> {
    // SAFETY: the loader's names are NUL-terminated and live while the module is loaded; they are copied before long.
    (!name.is_null()).then(|| unsafe { core::ffi::CStr::from_ptr(name) }.to_bytes())
}

/// Returns two real-time signals that nobody has an action for, from the highest down; `None` where there are not two.
pub fn free_signals() -> Option<(i32, i32)> {
    let mut free = unused_signals();
    Some((free.next()?, free.next()?))
}

/// Returns a real-time signal that nobody has an action for, and that a crash will not use; `None` where there is none.
pub fn spare_signal() -> Option<i32> {
    let configuration = configuration();
    let taken = configuration.map(|known| [known.park_signal, known.watchdog_signal]);
    unused_signals().find(|signal| !taken.is_some_and(|taken| taken.contains(signal)))
}

fn unused_signals() -> impl Iterator<Item = i32> {
    (libc::SIGRTMIN()..libc::SIGRTMAX()).rev().filter(|signal| {
        sys::action(*signal).is_ok_and(|action| action.sa_sigaction == libc::SIG_DFL)
    })
}

/// Returns a crash signal that comes to our handler first, `None` where others are above it everywhere.
pub(crate) fn signal_of_ours() -> Option<i32> {
    let mut crashes = signals::SIGNALS.iter().filter(|signal| signal.crash);
    let is_first = |number| sys::action(number).is_ok_and(|action| handle::is_ours(&action));
    crashes
        .find(|signal| is_first(signal.number))
        .map(|signal| signal.number)
}
