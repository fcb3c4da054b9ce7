//! Which signal handlers stand above and below ours.
//!
//! System calls and atomic loads alone: a crash record says it, and so does normal code.

use firstfault_format::signals::{self, Signal};

pub(crate) mod known;

use crate::json::Writer;
use crate::{handle, install, modules, sys};

/// The handlers around ours for one signal; addresses of functions, or `SIG_DFL` and `SIG_IGN`.
#[derive(Debug, Clone, Copy)]
pub struct Neighbours {
    /// The signal.
    pub signal: &'static Signal,
    /// What is in force in place of ours, `None` where ours is.
    pub above: Option<usize>,
    /// What ours calls next, `None` where ours was never in force.
    pub below: Option<usize>,
    /// Whether the one below always ends the process: faulthandler's, or one of torch's own.
    pub is_below_known: bool,
}

/// Returns the neighbours for every signal of which the handler is told: crashes, and requests to end.
pub fn neighbours() -> impl Iterator<Item = Neighbours> {
    signals::SIGNALS.iter().filter_map(|signal| {
        let below = install::captured_signal(signal.number)?.newest();
        let action = sys::action(signal.number).ok()?;
        Some(Neighbours {
            signal,
            above: (!handle::is_ours(&action)).then_some(action.sa_sigaction),
            below: below.map(|below| below.action.sa_sigaction),
            is_below_known: below.is_some_and(|below| below.is_known),
        })
    })
}

/// Returns whether an action is no function: the default, or "ignored".
pub fn is_none(handler: usize) -> bool {
    matches!(handler, libc::SIG_DFL | libc::SIG_IGN)
}

/// Gives the modules of all neighbours numbers in the error file, so that it has their build IDs.
pub(crate) fn note_modules() {
    for handler in neighbours().flat_map(|found| [found.above, found.below]) {
        if let Some(handler) = handler.filter(|handler| !is_none(*handler)) {
            modules::note_use(handler as u64);
        }
    }
}

/// Writes the neighbours for crash signals as a JSON array; `delivered` is the one that is being delivered.
///
/// A handler is `<path>+<offset>`, its address where no file is mapped there. The default has no key below ours.
pub(crate) fn write(writer: &mut Writer<'_>, delivered: i32) {
    writer.open(b'[');
    for found in neighbours().filter(|found| found.signal.crash) {
        // A handler that gave up has put the default back for the delivered signal: it displaced nobody.
        let is_spent = found.signal.number == delivered && found.above == Some(libc::SIG_DFL);
        writer.open(b'{');
        writer.key("signal");
        writer.string(found.signal.name.as_bytes());
        if let Some(above) = found.above.filter(|_| !is_spent) {
            writer.key("above");
            write_handler(writer, above);
        }
        if let Some(below) = found.below.filter(|below| *below != libc::SIG_DFL) {
            writer.key("below");
            write_handler(writer, below);
        }
        writer.close(b'}');
    }
    writer.close(b']');
}

fn write_handler(writer: &mut Writer<'_>, handler: usize) {
    let address = handler as u64;
    writer.begin_string();
    match (handler, modules::module_of(address)) {
        (libc::SIG_DFL, _) => writer.text(b"SIG_DFL"),
        (libc::SIG_IGN, _) => writer.text(b"SIG_IGN"),
        (_, Some(module)) => {
            writer.text(module.path());
            writer.text(b"+");
            writer.text_hex(address.wrapping_sub(module.base));
        }
        // Before the map was read: what was found when it came under ours.
        (_, None) => match known::find(handler) {
            Some((path, offset)) => {
                writer.text(path);
                writer.text(b"+");
                writer.text_hex(offset as u64);
            }
            None => writer.text_hex(address),
        },
    }
    writer.end_string();
}
