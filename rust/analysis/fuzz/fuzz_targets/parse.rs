//! Bytes as an error file and as a black box, to the verdict on a job of which they are all.
#![no_main]

use firstfault_analysis::children::{Child, root_cause};
use firstfault_analysis::{black_box, classify, parse};
use libfuzzer_sys::fuzz_target;
use std::path::{Path, PathBuf};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(failure) = parse::error_file(Path::new("error.json"), bytes) {
        classify::classify(&failure);
        let child = |rank, status| Child {
            rank,
            status,
            error_file: Some((PathBuf::from("error.json"), bytes.to_owned())),
            ..Child::default()
        };
        root_cause(vec![child(0, 1), child(1, -11)]);
    }
    if let Ok(content) = black_box::parse(bytes) {
        content.failure();
        content.fate(Path::new("/nonexistent"));
    }
});
