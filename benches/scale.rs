//! Whole jobs: the report against torch's own aggregation, the floor of open, read and close, and the memory it takes;
//! logs against a count of their lines; the memory of many outputs without records; a file system that takes 5 ms an
//! open against reading it one by one.
//!
//! `make bench` runs it. FIRSTFAULT_BENCH_RANKS (`1000,16384,100000`), FIRSTFAULT_BENCH_LOG_MB (512) and
//! FIRSTFAULT_BENCH_PYTHON, an interpreter that has torch, change what is measured.
#![allow(missing_docs, clippy::print_stdout)]

mod jobs;

use firstfault_analysis::{Options, analyze, report};
use firstfault_benches::{count_lines, read_all};
use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Torch needs minutes beyond.
const MOST_FOR_TORCH: usize = 20_000;

const SAMPLES: usize = 5;

/// Workers that left an output alone, longer than what is read of one.
const SILENT_RANKS: usize = 2_000;
const SILENT_BYTES: usize = 300 << 10;

/// Directories with one error file each, below the file system that is made slow.
const SLOW_RANKS: usize = 512;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--once") {
        return once(Path::new(&arguments[at + 1]));
    }
    let ranks = env::var("FIRSTFAULT_BENCH_RANKS").unwrap_or("1000,16384,100000".to_owned());
    let mut peaks = Vec::new();
    for ranks in ranks.split(',').filter_map(|number| number.parse().ok()) {
        peaks.push((ranks, records(ranks)));
    }
    if let [(few, low), .., (many, high)] = peaks[..] {
        let growth = (high - low) as f64 / (many - few) as f64;
        println!("memory: {growth:.0} bytes a rank from {few} to {many} ranks");
    }
    let megabytes = env::var("FIRSTFAULT_BENCH_LOG_MB").ok();
    let megabytes = megabytes.and_then(|number| number.parse().ok());
    logs(megabytes.unwrap_or(512) << 20);
    silent();
    slow_opens();
}

/// What one process has needed at most, and how long it took.
struct Cost {
    time: Duration,
    peak_bytes: i64,
}

/// One report in a process of its own: run by [`cost`].
fn once(job: &Path) {
    let start = Instant::now();
    let report = analyze(&[job.to_owned()], &Options::default()).expect("a report");
    let text = report::text::render(&report, false);
    let time = start.elapsed();
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak
        .and_then(|peak| peak.split_whitespace().next())
        .expect("VmHWM");
    assert!(text.lines().count() <= 60, "{text}");
    println!("{} {peak}", time.as_nanos());
}

fn cost(job: &Path, preload: Option<&Path>) -> Cost {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.arg("--once").arg(job);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library).env("SLOW_BELOW", job);
    }
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.split_whitespace().map(|number| number.parse::<i64>());
    let (Some(Ok(nanoseconds)), Some(Ok(kilobytes))) = (numbers.next(), numbers.next()) else {
        panic!("{text}{}", String::from_utf8_lossy(&output.stderr));
    };
    Cost {
        time: Duration::from_nanos(nanoseconds.unsigned_abs()),
        peak_bytes: kilobytes << 10,
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    std::hint::black_box(work());
    start.elapsed()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Measures one job of mixed records; returns the peak of memory in bytes.
fn records(ranks: usize) -> i64 {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let paths = jobs::mixed(directory.path(), ranks);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bytes = read_all(&paths, threads);
    let (mut floors, mut ours, mut peak) = (Vec::new(), Vec::new(), 0);
    for _ in 0..SAMPLES {
        floors.push(timed(|| read_all(&paths, threads)));
        let cost = cost(directory.path(), None);
        ours.push(cost.time);
        peak = peak.max(cost.peak_bytes);
    }
    let (floor, ours) = (median(&mut floors), median(&mut ours));
    println!(
        "{ranks} ranks, {} MB: report {:.1} ms, open+read+close {:.1} ms, ratio {:.2}, peak memory {} MB",
        bytes / 1_000_000,
        milliseconds(ours),
        milliseconds(floor),
        ours.as_secs_f64() / floor.as_secs_f64(),
        peak / 1_000_000,
    );
    if let Some(python) = env::var_os("FIRSTFAULT_BENCH_PYTHON").filter(|_| ranks <= MOST_FOR_TORCH)
    {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("aggregate.py");
        let output = Command::new(python)
            .arg(script)
            .arg(directory.path())
            .output();
        let output = output.expect("Python runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let seconds: f64 = text.trim().parse().unwrap_or_else(|_| {
            panic!("{text}{}", String::from_utf8_lossy(&output.stderr));
        });
        println!(
            "{ranks} ranks: torch's own aggregation {:.0} ms, {:.1} times as long",
            seconds * 1e3,
            seconds / ours.as_secs_f64()
        );
    }
    peak
}

/// Measures logs of one size: of 1,024 workers in their own files, and all in one.
fn logs(bytes: usize) {
    for (what, write) in [
        (
            "outputs of 1024 workers",
            (|directory, bytes| jobs::outputs(directory, jobs::LOG_RANKS, bytes))
                as fn(&Path, usize) -> Vec<PathBuf>,
        ),
        ("one log of 1024 ranks", jobs::console),
    ] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let paths = write(directory.path(), bytes);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (mut floors, mut ours, mut peak) = (Vec::new(), Vec::new(), 0);
        for _ in 0..SAMPLES {
            floors.push(timed(|| count_lines(&paths, threads)));
            let cost = cost(directory.path(), None);
            ours.push(cost.time);
            peak = peak.max(cost.peak_bytes);
        }
        let (floor, ours) = (median(&mut floors), median(&mut ours));
        println!(
            "{what}, {} MB: report {:.1} ms, counting lines {:.1} ms, ratio {:.2}, peak memory {} MB",
            bytes >> 20,
            milliseconds(ours),
            milliseconds(floor),
            ours.as_secs_f64() / floor.as_secs_f64(),
            peak / 1_000_000,
        );
    }
}

/// Measures the memory that many workers take that left nothing but their outputs.
fn silent() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    jobs::outputs(directory.path(), SILENT_RANKS, SILENT_RANKS * SILENT_BYTES);
    let cost = cost(directory.path(), None);
    println!(
        "{SILENT_RANKS} ranks without a record, {} KB of output each: report {:.1} ms, peak memory {} MB",
        SILENT_BYTES >> 10,
        milliseconds(cost.time),
        cost.peak_bytes / 1_000_000,
    );
}

/// Measures a job on a file system that takes 5 ms for each open, against as many opens one after another.
fn slow_opens() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let library = directory.path().join("slow_open.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("slow_open.c");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source);
    if !compiler.status().is_ok_and(|status| status.success()) {
        println!("slow file system: not measured, there is no C compiler");
        return;
    }
    let job = directory.path().join("job");
    let paths = jobs::mixed(&job, SLOW_RANKS);
    let mut ours: Vec<Duration> = (0..SAMPLES)
        .map(|_| cost(&job, Some(&library)).time)
        .collect();
    let ours = median(&mut ours);
    // Each file, and each directory above it.
    let below = |path: &PathBuf| -> Vec<PathBuf> {
        let above = path.ancestors().take_while(|above| above.starts_with(&job));
        above.map(Path::to_owned).collect()
    };
    let opened: BTreeSet<PathBuf> = paths.iter().flat_map(below).collect();
    let serial = Duration::from_millis(5) * u32::try_from(opened.len()).expect("few");
    println!(
        "{SLOW_RANKS} ranks at 5 ms an open: report {:.0} ms, {} opens one by one {:.0} ms, a {:.0}th",
        milliseconds(ours),
        opened.len(),
        milliseconds(serial),
        serial.as_secs_f64() / ours.as_secs_f64()
    );
}
