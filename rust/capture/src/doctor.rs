//! What capture can and cannot do in this process, for `firstfault doctor`: each probe tries the real thing.

use firstfault_format::env;
use firstfault_handler::handlers::{self, Neighbours};
use firstfault_handler::sys::{self, ClockError, ThreadTimer};
use firstfault_handler::{alternate_stack, foreign, install};

use crate::activate;
use crate::black_box;

mod places;

/// One thing that was looked at.
pub type Probe = firstfault_format::probe::Probe<String>;

/// Looks at everything, in this process as it is now.
pub fn probes() -> Vec<Probe> {
    let mut probes = vec![capture()];
    let Some(configuration) = install::configuration() else {
        return probes;
    };
    probes.extend(places::probes());
    probes.push(box_of_this_process());
    probes.extend(handlers::neighbours().map(|found| handler(&found)));
    probes.push(own_stack());
    probes.push(python_stacks());
    probes.push(native_stacks());
    probes.push(memory_file());
    probes.push(memory_map());
    probes.push(memory());
    probes.push(own_signals(configuration));
    probes.push(watchdog(configuration.watchdog_signal));
    probes.push(clock(sys::clock_error()));
    probes
}

fn capture() -> Probe {
    const NAME: &str = "capture";
    let is_disabled = std::env::var_os(env::DISABLE).is_some_and(|value| value == "1");
    match (install::configuration(), activate::trouble()) {
        (None, None) if is_disabled => Probe::problem(
            NAME,
            format!("switched off by {}=1", env::DISABLE),
            "unset it, and failures leave records again",
        ),
        (None, None) => Probe::problem(
            NAME,
            "not in force: no function with @record has been entered",
            "decorate main with firstfault.record",
        ),
        (_, Some(trouble)) => Probe::problem(
            NAME,
            trouble,
            "what failed is not in force; everything else is",
        ),
        (Some(_), None) => Probe::ok(NAME, "in force"),
    }
}

fn box_of_this_process() -> Probe {
    const NAME: &str = "black box";
    match black_box::trouble() {
        None if black_box::is_open() => Probe::ok(NAME, "open"),
        None => Probe::note(
            NAME,
            "none: there is no error file, or this is a child of a rank",
            "a rank that is killed by SIGKILL then leaves nothing",
        ),
        Some(trouble) => Probe::note(
            NAME,
            trouble,
            "a box in memory is found on this host only; without one, SIGKILL leaves nothing",
        ),
    }
}

/// Who is called at a signal, and in which order.
fn handler(found: &Neighbours) -> Probe {
    let name = found.signal.name;
    let below = || match found.below {
        None | Some(libc::SIG_DFL) => "the default".to_owned(),
        Some(libc::SIG_IGN) => "nothing".to_owned(),
        Some(below) => function(below, found.is_below_known),
    };
    let is_function = |handler: &usize| !handlers::is_none(*handler);
    match found.above {
        None if found.signal.request => Probe::ok(name, format!("firstfault, then {}", below())),
        None if found.below.as_ref().is_some_and(is_function) && !found.is_below_known => {
            Probe::note(
                name,
                format!("firstfault, then {}", below()),
                "firstfault does not know that handler: it may recover, so only the facts are recorded before it",
            )
        }
        None => Probe::ok(name, format!("firstfault, then {}", below())),
        Some(libc::SIG_IGN) if found.signal.request => Probe::ok(name, "ignored, and stays so"),
        Some(libc::SIG_IGN) => Probe::note(
            name,
            "ignored, and stays so",
            "where it was sent, nothing happens; where it is a fault, the process dies without a record",
        ),
        Some(libc::SIG_DFL) if found.signal.request => {
            Probe::ok(name, "the default: not taken here")
        }
        Some(libc::SIG_DFL) => Probe::problem(
            name,
            "the default: something has removed firstfault's handler",
            "this crash leaves no record; let the program put back what it found, not the default",
        ),
        Some(above) if found.signal.request => Probe::note(
            name,
            format!("{}, above firstfault", function(above, false)),
            "a request to end leaves a snapshot only if that handler hands it on",
        ),
        Some(above) => Probe::problem(
            name,
            format!(
                "{}, above firstfault",
                function(above, install::is_known_in_force(found.signal.number))
            ),
            "a crash leaves a record only if it hands the signal on; load it before main is entered",
        ),
    }
}

/// `symbol (file+offset)`, as much of it as is known.
fn function(address: usize, is_known: bool) -> String {
    let Some(found) = install::locate(address) else {
        return format!("{address:#x} (in no file)");
    };
    let path = String::from_utf8_lossy(found.path);
    let file = path.rsplit('/').next().unwrap_or_default();
    let place = format!("{file}+{:#x}", found.offset);
    // Where both are functions of the interpreter without a name that is exported.
    let interpreter = install::locate(install::interpreter_address());
    let is_pythons = interpreter.is_some_and(|interpreter| interpreter.path == found.path);
    match found.symbol {
        Some(symbol) => format!("{} ({place})", String::from_utf8_lossy(symbol)),
        None if is_pythons && is_known => "faulthandler".to_owned(),
        None if is_pythons => format!("a handler in Python ({place})"),
        None => place,
    }
}

fn own_stack() -> Probe {
    const NAME: &str = "alternate stack";
    let size = alternate_stack::size();
    let found = format!("{} KiB, in this thread", size / 1024);
    if size == 0 {
        Probe::problem(
            NAME,
            "none in this thread: something has taken it away",
            "a stack overflow here leaves no record; look for sigaltstack(2) in the libraries that were loaded",
        )
    } else if size < alternate_stack::SIZE {
        Probe::note(
            NAME,
            found,
            "smaller than firstfault's: a crash in a deep stack may be recorded in part",
        )
    } else {
        Probe::ok(NAME, found)
    }
}

fn python_stacks() -> Probe {
    const NAME: &str = "Python stacks";
    if foreign::python_dumper_address() == 0 {
        Probe::problem(
            NAME,
            "CPython's dumper was not found",
            "records of crashes have no Python stacks; let nothing replace the module faulthandler",
        )
    } else {
        Probe::ok(NAME, "by CPython's own dumper")
    }
}

fn native_stacks() -> Probe {
    const NAME: &str = "native stacks";
    if foreign::has_unwinder() {
        Probe::ok(NAME, "by unwind tables")
    } else {
        Probe::problem(
            NAME,
            "there is no unwinder",
            "native stacks end at the first function without a frame pointer",
        )
    }
}

fn memory_file() -> Probe {
    const NAME: &str = "memory file";
    match sys::memory_file(c"firstfault") {
        Some(descriptor) => {
            sys::close(descriptor);
            Probe::ok(NAME, "memfd_create(2) works")
        }
        None => Probe::problem(
            NAME,
            "memfd_create(2) fails",
            "records have no Python stacks; allow the call in the container's seccomp profile",
        ),
    }
}

fn memory_map() -> Probe {
    const NAME: &str = "memory map";
    match std::fs::read("/proc/self/maps") {
        Ok(map) if !map.is_empty() => Probe::ok(NAME, "/proc/self/maps is readable"),
        _ => Probe::problem(
            NAME,
            "/proc/self/maps cannot be read",
            "records name no modules; mount /proc in the container",
        ),
    }
}

/// How the unwinder reads stacks that may be damaged.
fn memory() -> Probe {
    const NAME: &str = "reading memory";
    let known = 0x5a_u8;
    let mut copy = [0];
    let result = sys::read_memory((&raw const known).addr() as u64, &mut copy);
    sys::close_memory();
    match result {
        Ok(()) if !sys::is_memory_refused() => Probe::ok(NAME, "process_vm_readv(2) works"),
        Ok(()) => Probe::note(
            NAME,
            "process_vm_readv(2) is refused; /proc/self/mem serves",
            "native stacks take a free file descriptor; allow the call in the seccomp profile",
        ),
        Err(_) => Probe::problem(
            NAME,
            "process_vm_readv(2) and /proc/self/mem are refused",
            "records have one native frame only; allow process_vm_readv in the seccomp profile",
        ),
    }
}

/// The real-time signals that stop threads and end stages.
fn own_signals(configuration: &install::Configuration) -> Probe {
    const NAME: &str = "own signals";
    let own = [configuration.park_signal, configuration.watchdog_signal];
    let taken = own.iter().find_map(|signal| {
        let action = sys::action(*signal).ok()?.sa_sigaction;
        (action != libc::SIG_DFL).then_some((*signal, action))
    });
    match taken {
        None => Probe::ok(
            NAME,
            format!("{} and {}, used by nobody else", own[0], own[1]),
        ),
        Some((signal, action)) => Probe::note(
            NAME,
            format!("{signal} is used by {} too", function(action, false)),
            "firstfault takes it for the time of a crash; have main entered after that library is loaded",
        ),
    }
}

fn watchdog(signal: i32) -> Probe {
    const NAME: &str = "watchdog";
    match ThreadTimer::new(signal) {
        Ok(timer) => {
            timer.delete();
            Probe::ok(NAME, "timer_create(2) works")
        }
        Err(_) => Probe::note(
            NAME,
            "timer_create(2) fails",
            "a stage of the handler that hangs is not ended; raise ulimit -i or allow the call",
        ),
    }
}

fn clock(error: Option<ClockError>) -> Probe {
    const NAME: &str = "clock";
    match error {
        None => Probe::note(
            NAME,
            "adjtimex(2) is refused: its error is unknown",
            "failures of different hosts are then ordered with less confidence",
        ),
        Some(error) if !error.synchronized => Probe::note(
            NAME,
            "not synchronized, says the kernel",
            "run chrony or another NTP client, so that failures of different hosts can be ordered",
        ),
        Some(error) => Probe::ok(
            NAME,
            format!("synchronized, at most {} ms off", error.max_error_us / 1000),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firstfault_format::probe::Status;
    use firstfault_format::signals;

    #[test]
    fn the_unwinder_is_missing_before_it_is_installed() {
        assert_eq!(native_stacks().status, Status::Problem);
        firstfault_unwind::install();
        assert_eq!(native_stacks().status, Status::Ok);
    }

    #[test]
    fn a_clock_is_as_good_as_the_kernel_says() {
        let error = |synchronized| {
            Some(ClockError {
                max_error_us: 16_999,
                synchronized,
            })
        };
        let said = [None, error(false), error(true)].map(|error| {
            let probe = clock(error);
            (probe.status, probe.found)
        });
        let wanted = [
            (Status::Note, "adjtimex(2) is refused: its error is unknown"),
            (Status::Note, "not synchronized, says the kernel"),
            (Status::Ok, "synchronized, at most 16 ms off"),
        ];
        assert_eq!(
            said,
            wanted.map(|(status, found)| (status, found.to_owned()))
        );
    }

    #[test]
    fn advice_is_given_where_something_is_amiss() {
        for above in [None, Some(libc::SIG_DFL), Some(libc::SIG_IGN), Some(4096)] {
            for below in [None, Some(libc::SIG_DFL), Some(8192)] {
                for signal in signals::SIGNALS.iter().filter(|s| s.crash || s.request) {
                    let probe = handler(&Neighbours {
                        signal,
                        above,
                        below,
                        is_below_known: false,
                    });
                    let is_ok = probe.status == Status::Ok;
                    assert_eq!(is_ok, probe.advice.is_empty(), "{probe:?}");
                }
            }
        }
    }
}
