//! 10,000 error files of 3 KB in torch's format: the whole report against the floor of open, read and close by as many
//! threads.
#![allow(missing_docs, clippy::print_stdout)]

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use criterion::{Criterion, criterion_group, criterion_main};
use firstfault_analysis::{Options, analyze};
use firstfault_benches::read_all;

const FILES: usize = 10_000;

fn write_files(directory: &Path) -> Vec<PathBuf> {
    let frames: String = (0..32)
        .map(|n| format!("  File \"/opt/train/layer_{n}.py\", line {n}, in forward\n    return self.inner(x)\n"))
        .collect();
    (0..FILES)
        .map(|rank| {
            let error = format!("ValueError: loss is nan at step {}", rank % 7);
            let file = serde_json::json!({"message": {"message": error, "extraInfo": {
                "py_callstack": format!("Traceback (most recent call last):\n{frames}{error}\n"),
                "timestamp": (1_790_000_000 + rank).to_string(),
            }}});
            let folder = directory
                .join("run")
                .join("attempt_0")
                .join(rank.to_string());
            fs::create_dir_all(&folder).expect("a new directory");
            let path = folder.join("error.json");
            fs::write(&path, file.to_string()).expect("a new file");
            path
        })
        .collect()
}

fn error_files(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let paths = write_files(directory.path());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut group = criterion.benchmark_group("error_files");
    group.sample_size(10);
    group.bench_function("floor", |bencher| {
        bencher.iter(|| read_all(black_box(&paths), threads));
    });
    let job = [directory.path().to_owned()];
    group.bench_function("report", |bencher| {
        bencher.iter(|| analyze(black_box(&job), &Options::default()).expect("a report"));
    });
    group.finish();
}

/// The median of a benchmark of this run, nanoseconds, from criterion's own file.
fn median_ns(name: &str) -> f64 {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "../target".to_owned());
    let path = Path::new(&target)
        .join("criterion/error_files")
        .join(name)
        .join("new/estimates.json");
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let estimates: serde_json::Value = serde_json::from_str(&text).expect("criterion writes JSON");
    estimates["median"]["point_estimate"]
        .as_f64()
        .expect("a number")
}

fn ratio(_: &mut Criterion) {
    let (report, floor) = (median_ns("report"), median_ns("floor"));
    println!(
        "{FILES} error files of 3 KB: report {:.1} ms, open+read+close {:.1} ms, ratio {:.2}",
        report / 1e6,
        floor / 1e6,
        report / floor
    );
}

criterion_group!(benches, error_files, ratio);
criterion_main!(benches);
