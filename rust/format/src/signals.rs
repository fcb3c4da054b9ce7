//! The one table of signals: number, name, description, the names of `si_code`, and what the handler makes of it.
//!
//! Numbers are Linux's on x86-64 and AArch64. Source: signal(7), sigaction(2), asm-generic/siginfo.h.

/// One signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Its number, 1 to 31.
    pub number: i32,
    /// Its name, as `SIGSEGV`.
    pub name: &'static str,
    /// What strsignal(3) calls it, as `Segmentation fault`.
    pub description: &'static str,
    /// Whether the handler captures it as the crash of this process.
    pub crash: bool,
    /// Whether it asks the process to end, and the handler leaves a snapshot before it goes its way.
    pub request: bool,
    /// The signal's own `si_code` values.
    pub codes: &'static [Code],
}

/// One value of `si_code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// The value in `siginfo_t`.
    pub value: i32,
    /// Its name, as `SEGV_MAPERR`.
    pub name: &'static str,
}

const fn code(value: i32, name: &'static str) -> Code {
    Code { value, name }
}

const fn signal(number: i32, name: &'static str, description: &'static str) -> Signal {
    Signal {
        number,
        name,
        description,
        crash: false,
        request: false,
        codes: &[],
    }
}

const fn request(number: i32, name: &'static str, description: &'static str) -> Signal {
    Signal {
        request: true,
        ..signal(number, name, description)
    }
}

const fn crash(
    number: i32,
    name: &'static str,
    description: &'static str,
    codes: &'static [Code],
) -> Signal {
    Signal {
        number,
        name,
        description,
        crash: true,
        request: false,
        codes,
    }
}

/// Codes that any signal can carry: who sent it.
pub const COMMON_CODES: &[Code] = &[
    code(0, "SI_USER"),
    code(0x80, "SI_KERNEL"),
    code(-1, "SI_QUEUE"),
    code(-2, "SI_TIMER"),
    code(-3, "SI_MESGQ"),
    code(-4, "SI_ASYNCIO"),
    code(-5, "SI_SIGIO"),
    code(-6, "SI_TKILL"),
];

/// Every standard signal, in order of number.
pub const SIGNALS: &[Signal] = &[
    request(1, "SIGHUP", "Hangup"),
    signal(2, "SIGINT", "Interrupt"),
    request(3, "SIGQUIT", "Quit"),
    crash(
        4,
        "SIGILL",
        "Illegal instruction",
        &[
            code(1, "ILL_ILLOPC"),
            code(2, "ILL_ILLOPN"),
            code(3, "ILL_ILLADR"),
            code(4, "ILL_ILLTRP"),
            code(5, "ILL_PRVOPC"),
            code(6, "ILL_PRVREG"),
            code(7, "ILL_COPROC"),
            code(8, "ILL_BADSTK"),
        ],
    ),
    crash(
        5,
        "SIGTRAP",
        "Trace/breakpoint trap",
        &[
            code(1, "TRAP_BRKPT"),
            code(2, "TRAP_TRACE"),
            code(3, "TRAP_BRANCH"),
            code(4, "TRAP_HWBKPT"),
        ],
    ),
    crash(6, "SIGABRT", "Aborted", &[]),
    crash(
        7,
        "SIGBUS",
        "Bus error",
        &[
            code(1, "BUS_ADRALN"),
            code(2, "BUS_ADRERR"),
            code(3, "BUS_OBJERR"),
            code(4, "BUS_MCEERR_AR"),
            code(5, "BUS_MCEERR_AO"),
        ],
    ),
    crash(
        8,
        "SIGFPE",
        "Floating point exception",
        &[
            code(1, "FPE_INTDIV"),
            code(2, "FPE_INTOVF"),
            code(3, "FPE_FLTDIV"),
            code(4, "FPE_FLTOVF"),
            code(5, "FPE_FLTUND"),
            code(6, "FPE_FLTRES"),
            code(7, "FPE_FLTINV"),
            code(8, "FPE_FLTSUB"),
        ],
    ),
    signal(9, "SIGKILL", "Killed"),
    signal(10, "SIGUSR1", "User defined signal 1"),
    crash(
        11,
        "SIGSEGV",
        "Segmentation fault",
        &[
            code(1, "SEGV_MAPERR"),
            code(2, "SEGV_ACCERR"),
            code(3, "SEGV_BNDERR"),
            code(4, "SEGV_PKUERR"),
        ],
    ),
    signal(12, "SIGUSR2", "User defined signal 2"),
    signal(13, "SIGPIPE", "Broken pipe"),
    signal(14, "SIGALRM", "Alarm clock"),
    request(15, "SIGTERM", "Terminated"),
    signal(16, "SIGSTKFLT", "Stack fault"),
    signal(17, "SIGCHLD", "Child exited"),
    signal(18, "SIGCONT", "Continued"),
    signal(19, "SIGSTOP", "Stopped (signal)"),
    signal(20, "SIGTSTP", "Stopped"),
    signal(21, "SIGTTIN", "Stopped (tty input)"),
    signal(22, "SIGTTOU", "Stopped (tty output)"),
    signal(23, "SIGURG", "Urgent I/O condition"),
    crash(24, "SIGXCPU", "CPU time limit exceeded", &[]),
    signal(25, "SIGXFSZ", "File size limit exceeded"),
    signal(26, "SIGVTALRM", "Virtual timer expired"),
    signal(27, "SIGPROF", "Profiling timer expired"),
    signal(28, "SIGWINCH", "Window changed"),
    signal(29, "SIGIO", "I/O possible"),
    signal(30, "SIGPWR", "Power failure"),
    crash(31, "SIGSYS", "Bad system call", &[code(1, "SYS_SECCOMP")]),
];

/// Returns the signal of this number, or `None` outside 1 to 31 (a real-time signal has no name of its own).
pub fn by_number(number: i32) -> Option<&'static Signal> {
    SIGNALS.iter().find(|signal| signal.number == number)
}

/// Returns the signal of this name (`SIGSEGV`), or `None`.
pub fn by_name(name: &str) -> Option<&'static Signal> {
    SIGNALS.iter().find(|signal| signal.name == name)
}

/// Returns whether this signal asks the process to end.
pub fn is_request(number: i32) -> bool {
    by_number(number).is_some_and(|signal| signal.request)
}

/// Returns whether a thread that goes on after this signal of the kernel's meets its cause again.
pub fn is_fault(number: i32) -> bool {
    matches!(
        by_number(number).map(|signal| signal.name),
        Some("SIGSEGV" | "SIGBUS" | "SIGFPE" | "SIGILL")
    )
}

/// Returns the name of an `si_code` of this signal, or `None` where the value is not one of Linux's.
pub fn code_name(number: i32, value: i32) -> Option<&'static str> {
    let own = by_number(number).map_or(&[][..], |signal| signal.codes);
    own.iter()
        .chain(COMMON_CODES)
        .find(|code| code.value == value)
        .map(|code| code.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_consecutive_and_names_unique() {
        for (index, signal) in SIGNALS.iter().enumerate() {
            assert_eq!(signal.number as usize, index + 1);
            assert_eq!(by_name(signal.name), Some(signal));
        }
    }

    #[test]
    fn what_is_captured_and_what_is_never_touched() {
        let names = |filter: fn(&Signal) -> bool| -> [Option<&str>; 10] {
            let mut found = SIGNALS.iter().filter(|signal| filter(signal));
            core::array::from_fn(|_| found.next().map(|signal| signal.name))
        };
        let crashes = [
            "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGXCPU", "SIGSYS",
        ];
        let found = names(|signal| signal.crash);
        assert!(found.into_iter().flatten().eq(crashes));
        let found = names(|signal| signal.request);
        assert!(
            found
                .into_iter()
                .flatten()
                .eq(["SIGHUP", "SIGQUIT", "SIGTERM"])
        );
    }

    #[test]
    fn a_code_belongs_to_its_signal_or_to_all() {
        assert_eq!(code_name(11, 1), Some("SEGV_MAPERR"));
        assert_eq!(code_name(7, 2), Some("BUS_ADRERR"));
        assert_eq!(code_name(11, -6), Some("SI_TKILL"));
        assert_eq!(code_name(6, 1), None);
    }
}
