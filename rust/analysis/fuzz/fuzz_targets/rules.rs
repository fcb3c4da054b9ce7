//! Text as a user's file of rules; what is accepted is then matched with the text itself.
#![no_main]

use firstfault_analysis::rules_in;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(rules) = rules_in(text) {
        for line in text.lines() {
            rules.by_text("RuntimeError", line, text);
        }
        for status in [-11, 1, 137] {
            rules.by_status(status);
        }
    }
});
