//! The floor: what reading files costs when nothing is done with them.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// Opens, reads and closes every file with so many threads; returns the bytes read.
///
/// # Panics
/// A file cannot be read.
pub fn read_all(paths: &[PathBuf], threads: usize) -> usize {
    let share = paths.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let readers: Vec<_> = paths
            .chunks(share)
            .map(|paths| {
                scope.spawn(move || {
                    let mut buffer = Vec::with_capacity(64 * 1024);
                    let mut bytes = 0;
                    for path in paths {
                        buffer.clear();
                        let mut file = File::open(path).expect("the file was just written");
                        bytes += file.read_to_end(&mut buffer).expect("it can be read");
                    }
                    bytes
                })
            })
            .collect();
        readers
            .into_iter()
            .map(|reader| reader.join().expect("no reader panics"))
            .sum()
    })
}
