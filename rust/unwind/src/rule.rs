//! How the registers of a caller follow from those of the function that it called, where that is simple.

use firstfault_handler::modules;
use firstfault_handler::native::Registers;
use firstfault_handler::sys::MemoryPage;
use gimli::{CfaRule, RegisterRule};

use crate::row::Row;

#[cfg(target_arch = "x86_64")]
pub(crate) mod numbers {
    use gimli::{Register, X86_64};
    pub(crate) const STACK_POINTER: Register = X86_64::RSP;
    pub(crate) const FRAME_POINTER: Register = X86_64::RBP;
    pub(crate) const RETURN: Register = X86_64::RA;
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod numbers {
    use gimli::{AArch64, Register};
    pub(crate) const STACK_POINTER: Register = AArch64::SP;
    pub(crate) const FRAME_POINTER: Register = AArch64::X29;
    pub(crate) const RETURN: Register = AArch64::X30;
}

/// Where a register of the caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is untouched.
    Same,
    /// In memory, so far from where the caller's stack ends.
    At(i32),
    /// Nowhere: the stack begins here.
    Lost,
}

/// The simple kind, which nearly all functions are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Whether the caller's stack is found by the frame pointer, else by the stack pointer.
    is_by_frame_pointer: bool,
    /// Where the caller's stack ends, from there.
    offset: i32,
    frame_pointer: Place,
    return_address: Place,
}

impl Rule {
    /// Code that keeps frame pointers.
    pub(crate) const FRAME_POINTER: Self = Self {
        is_by_frame_pointer: true,
        offset: 16,
        frame_pointer: Place::At(-16),
        return_address: Place::At(-8),
    };

    /// Code that has not touched the stack: a stub, or the first instruction of a function.
    pub(crate) const UNTOUCHED: Self = if cfg!(target_arch = "x86_64") {
        Self {
            is_by_frame_pointer: false,
            offset: 8,
            frame_pointer: Place::Same,
            return_address: Place::At(-8),
        }
    } else {
        Self {
            is_by_frame_pointer: false,
            offset: 0,
            frame_pointer: Place::Same,
            return_address: Place::Same,
        }
    };

    /// Returns the rule of a row of the tables, `None` where that is not simple.
    pub(crate) fn of_row(row: &Row) -> Option<Self> {
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
            return None;
        };
        let is_by_frame_pointer = match register {
            numbers::STACK_POINTER => false,
            numbers::FRAME_POINTER => true,
            _ => return None,
        };
        Some(Self {
            is_by_frame_pointer,
            offset: offset.try_into().ok()?,
            frame_pointer: match row.register(numbers::FRAME_POINTER) {
                Some(RegisterRule::Undefined) => Place::Same,
                other => place(other)?,
            },
            return_address: place(row.register(numbers::RETURN))?,
        })
    }

    /// Returns the caller's registers; `None` where there is no caller, or no memory where it should be.
    pub(crate) fn apply(self, registers: &Registers, memory: &mut MemoryPage) -> Option<Registers> {
        let from = if self.is_by_frame_pointer {
            registers.frame_pointer
        } else {
            registers.stack_pointer
        };
        let end = from.checked_add_signed(i64::from(self.offset))?;
        let mut value = |place: Place, same: u64| match place {
            Place::Same => Some(same),
            Place::At(offset) => memory.word(end.checked_add_signed(i64::from(offset))?),
            Place::Lost => None,
        };
        let address = value(self.return_address, registers.link)?;
        // In the middle of an epilogue tables name places that are gone.
        let frame_pointer = value(self.frame_pointer, registers.frame_pointer);
        Some(caller(
            address,
            end,
            frame_pointer.unwrap_or(registers.frame_pointer),
        ))
    }
}

/// Returns where a register is, `None` where that takes an expression.
///
/// A rule that is missing means that it is untouched, as compilers use it; x86-64 always has one for the return address.
fn place(rule: Option<RegisterRule<usize>>) -> Option<Place> {
    match rule {
        None | Some(RegisterRule::SameValue) => Some(Place::Same),
        Some(RegisterRule::Undefined) => Some(Place::Lost),
        Some(RegisterRule::Offset(offset)) => Some(Place::At(offset.try_into().ok()?)),
        Some(_) => None,
    }
}

/// Returns the registers of a caller.
pub(crate) fn caller(address: u64, stack_pointer: u64, frame_pointer: u64) -> Registers {
    let has_link = cfg!(target_arch = "aarch64");
    let program_counter = if has_link {
        without_signature(address)
    } else {
        address
    };
    Registers {
        program_counter,
        stack_pointer,
        frame_pointer,
        link: if has_link { program_counter } else { 0 },
    }
}

/// Removes what pointer authentication put above the bits of an address.
fn without_signature(address: u64) -> u64 {
    address & u64::MAX.wrapping_shr(modules::end().leading_zeros())
}

/// How many rules are kept: threads that wait do so in the same few functions.
const KEPT_MAX: usize = 512;

/// The rules of addresses that were looked up before.
pub(crate) struct Kept {
    /// The reading of the memory map that they are of.
    reading: u32,
    /// By address; 0 is none.
    rules: [(u64, Rule); KEPT_MAX],
}

impl Kept {
    // All zeros, so that it takes no room in the file of the library.
    const NONE: (u64, Rule) = (
        0,
        Rule {
            is_by_frame_pointer: false,
            offset: 0,
            frame_pointer: Place::Same,
            return_address: Place::Same,
        },
    );

    pub(crate) const fn new() -> Self {
        Self {
            reading: 0,
            rules: [Self::NONE; KEPT_MAX],
        }
    }

    /// Forgets what was kept of another reading of the memory map.
    pub(crate) fn renew(&mut self) {
        let reading = modules::reading();
        if self.reading != reading {
            self.rules.fill(Self::NONE);
            self.reading = reading;
        }
    }

    pub(crate) fn find(&self, address: u64) -> Option<Rule> {
        let (at, rule) = self.rules.get(Self::slot(address))?;
        (*at == address && address != 0).then_some(*rule)
    }

    pub(crate) fn keep(&mut self, address: u64, rule: Rule) {
        if let Some(slot) = self.rules.get_mut(Self::slot(address)) {
            *slot = (address, rule);
        }
    }

    fn slot(address: u64) -> usize {
        // Fibonacci hashing: addresses of one function differ in their low bits.
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize
    }
}
