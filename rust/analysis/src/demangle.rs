//! Exported names of C++ and Rust, as people write them.

use crate::report::safe;
use cpp_demangle::{DemangleOptions, Symbol};
use std::borrow::Cow;
use std::fmt::{self, Write};

/// The longest name that is looked at, and the longest that is made of one, bytes: a short one may repeat itself.
const MAX_LENGTH: usize = 4096;

/// How much of a name stands for a place, columns: templates may fill a page.
const MAX_PLACE: usize = 160;

/// Returns an exported name with its parameters; as it is where it is of neither language, or too long.
pub(crate) fn function(name: &str) -> Cow<'_, str> {
    readable(name, DemangleOptions::new())
}

/// Returns the beginning of the same without parameters and what is returned, which say little about a place.
pub(crate) fn place(name: &str) -> String {
    let options = DemangleOptions::new().no_params().no_return_type();
    safe::cut(&readable(name, options), MAX_PLACE)
}

fn readable(name: &str, options: DemangleOptions) -> Cow<'_, str> {
    let mut text = Bounded(String::new());
    let is_done = if name.len() > MAX_LENGTH {
        false
    } else if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // Without the hash.
        write!(text, "{rust:#}").is_ok()
    } else if name.starts_with("_Z") {
        Symbol::new(name).is_ok_and(|cpp| cpp.structured_demangle(&mut text, &options).is_ok())
    } else {
        false
    };
    match is_done && !text.0.is_empty() {
        true => Cow::Owned(text.0),
        false => Cow::Borrowed(name),
    }
}

/// A text that refuses to get too long.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_LENGTH {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_in_the_source() {
        for (name, expected, short) in [
            (
                "_ZN4c10d16ProcessGroupNCCL8WatchdogEi",
                "c10d::ProcessGroupNCCL::Watchdog(int)",
                "c10d::ProcessGroupNCCL::Watchdog",
            ),
            (
                "_ZN2at3sumIfEET_RKS1_",
                "float at::sum<float>(float const&)",
                "at::sum<float>",
            ),
            (
                "_ZN4core3fmt5write17h0123456789abcdefE",
                "core::fmt::write",
                "core::fmt::write",
            ),
            ("_RNvC3foo3bar", "foo::bar", "foo::bar"),
            ("PyEval_EvalCode", "PyEval_EvalCode", "PyEval_EvalCode"),
            // A plain name that would be a type's.
            ("i", "i", "i"),
            ("_ZN4c10d", "_ZN4c10d", "_ZN4c10d"),
            ("", "", ""),
        ] {
            assert_eq!(function(name), expected);
            assert_eq!(place(name), short);
        }
    }

    #[test]
    fn a_place_has_an_end() {
        let name = "_ZN".to_owned() + &"4deep".repeat(100) + "1fEv";
        let place = place(&name);
        assert!(place.starts_with("deep::deep::") && place.ends_with('…'));
        assert_eq!(place.chars().count(), MAX_PLACE);
        assert!(function(&name).ends_with("::f()"));
    }

    #[test]
    fn a_name_that_explodes_stays_as_it_is() {
        // Each parameter is a pair of two of the one before: the last has 2^30 numbers.
        let mut name = "_Z1fSt4pairIiiE".to_owned();
        for before in "0123456789ABCDEFGHIJKLMNOPQRST".chars() {
            name += &format!("S_IS{before}_S{before}_E");
        }
        for name in [
            name,
            format!("_Z{}", "N1a".repeat(2000)),
            "_ZN".repeat(1300),
        ] {
            assert_eq!(function(&name), name);
        }
    }
}
