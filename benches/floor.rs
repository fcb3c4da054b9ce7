//! The floor: what reading files costs when nothing is done with them.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Opens, reads and closes every file with so many threads; returns the bytes read.
///
/// # Panics
/// A file cannot be read.
pub fn read_all(paths: &[PathBuf], threads: usize) -> usize {
    shared_out(paths, threads, || {
        let mut buffer = Vec::with_capacity(64 * 1024);
        move |path: &Path| {
            buffer.clear();
            let mut file = File::open(path).expect("the file was just written");
            file.read_to_end(&mut buffer).expect("it can be read")
        }
    })
}

/// Counts the lines of every file with so many threads, in pieces that stay in the cache.
///
/// # Panics
/// A file cannot be read.
pub fn count_lines(paths: &[PathBuf], threads: usize) -> usize {
    shared_out(paths, threads, || {
        let mut buffer = vec![0; 64 * 1024];
        move |path: &Path| {
            let mut file = File::open(path).expect("the file was just written");
            let mut lines = 0;
            loop {
                match file.read(&mut buffer).expect("it can be read") {
                    0 => return lines,
                    length => lines += memchr::memchr_iter(b'\n', &buffer[..length]).count(),
                }
            }
        }
    })
}

/// Returns the sum of what each file counts.
fn shared_out<F: FnMut(&Path) -> usize>(
    paths: &[PathBuf],
    threads: usize,
    reader: impl Fn() -> F + Sync,
) -> usize {
    let share = paths.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let readers: Vec<_> = paths
            .chunks(share)
            .map(|paths| {
                let reader = &reader;
                scope.spawn(move || {
                    let mut count = reader();
                    paths.iter().map(|path| count(path)).sum::<usize>()
                })
            })
            .collect();
        let counts = readers
            .into_iter()
            .map(|thread| thread.join().expect("no reader panics"));
        counts.sum()
    })
}
