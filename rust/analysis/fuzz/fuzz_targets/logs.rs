//! Text as each kind of log, and as what else a job's folder holds, to all forms of the report.
#![no_main]

use firstfault_fuzz::check;
use libfuzzer_sys::fuzz_target;
use std::fs;

/// Names that say how a file is read.
const NAMES: &[&str] = &[
    "agent0.err",
    "run_x/attempt_0/0/stderr.log",
    "slurm-4242.out",
    "console.log.gz",
    "nccl_trace_rank_0",
    "dump_rank_1.json",
    "run_x/attempt_1/3/error.json",
    "error.4242.term.json",
];

// The first byte chooses the name; where it is 0xff, NULs part a job of several files.
fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, rest)) = bytes.split_first() else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let write = |choice: u8, content: &[u8]| {
        let name = NAMES[usize::from(choice) % NAMES.len()];
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("below")).expect("a directory");
        fs::write(path, content).expect("room");
    };
    if choice == 0xff {
        for part in rest.split(|&byte| byte == 0).take(8) {
            if let Some((&choice, content)) = part.split_first() {
                write(choice, content);
            }
        }
    } else {
        // A seed is a log as it is: its first letter chooses, and belongs to it too.
        write(choice, bytes);
    }
    check(directory.path());
});
