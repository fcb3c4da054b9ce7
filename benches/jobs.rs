//! Jobs for benchmarks: error files of all sizes, outputs and interleaved logs.

use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const RANKS_PER_HOST: usize = 8;
const START: usize = 1_790_000_000;
pub(crate) const LOG_RANKS: usize = 1024;

/// Writes error files of 3 to 30 KB, torch's and ours; the one in the middle tells the cause. Returns their paths.
pub(crate) fn mixed(directory: &Path, ranks: usize) -> Vec<PathBuf> {
    let one = |rank: usize| {
        let host = format!("host{:05}", rank / RANKS_PER_HOST);
        let folder = directory.join(&host).join("run_a").join("attempt_0");
        let folder = folder.join((rank % RANKS_PER_HOST).to_string());
        fs::create_dir_all(&folder).expect("a new directory");
        let path = folder.join("error.json");
        fs::write(&path, record(rank, ranks, &host).to_string()).expect("a new file");
        path
    };
    (0..ranks).map(one).collect()
}

fn record(rank: usize, ranks: usize, host: &str) -> Value {
    let error = if rank == ranks / 2 {
        format!("ValueError: loss is nan at step {rank}")
    } else {
        let (a, b) = (rank / 256, rank % 256);
        format!(
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.{a}.{b}]:{}. \
             This is typically caused by a remote worker crashing.",
            10_000 + rank
        )
    };
    // Ranks stand in one of a few places.
    let frames: Vec<Value> = (0..30)
        .map(|n| json!({"file": format!("/opt/train/layers/block_{n}.py"), "line": n + rank % 5, "function": "forward"}))
        .collect();
    let stack = frames.iter().rev().fold(String::new(), |mut stack, frame| {
        let (file, line) = (frame["file"].as_str().unwrap_or(""), &frame["line"]);
        let _ = writeln!(
            stack,
            "  File \"{file}\", line {line}, in forward\n    return self.inner(x)"
        );
        stack
    });
    let mut file = json!({"message": {"message": error, "extraInfo": {
        "py_callstack": format!("Traceback (most recent call last):\n{stack}{error}\n"),
        "timestamp": (START + rank % 7).to_string(),
    }}});
    // 3, 8, 15 and 30 KB.
    let threads = [0, 1, 3, 7][rank % 4];
    if threads > 0 {
        let (type_name, message) = error.split_once(": ").expect("both");
        let thread = |tid: usize| json!({"tid": rank * 10 + tid, "name": "worker", "state": "S (sleeping)", "python": frames});
        file["firstfault"] = json!({
            "schema_version": 1, "kind": "exception", "final": true,
            "time_ns": (START + rank % 7) as u64 * 1_000_000_000 + rank as u64,
            "host": {"name": host, "boot_id": format!("{host}-4242-4242-4242-424242424242")},
            "process": {"pid": 1000 + rank, "start_time_ns": 1_789_999_000_000_000_000_u64, "argv": ["train.py"]},
            "rank": {"rank": rank, "local_rank": rank % RANKS_PER_HOST, "world_size": ranks, "run_id": "a", "attempt": 0},
            "exception": {"type": type_name, "message": message, "mro": [type_name, "Exception"]},
            "threads": (0..threads).map(thread).collect::<Vec<_>>(),
            "breadcrumbs": (0..16).map(|step| json!({"time_ns": START, "name": "step", "value": step.to_string()})).collect::<Vec<_>>(),
        });
    }
    file
}

/// Writes the outputs of so many workers that left no error file, so many bytes in all.
pub(crate) fn outputs(directory: &Path, ranks: usize, bytes: usize) -> Vec<PathBuf> {
    let one = |rank: usize| {
        let host = format!("host{:03}", rank / RANKS_PER_HOST);
        let folder = directory.join(host).join("run_a").join("attempt_0");
        let folder = folder.join((rank % RANKS_PER_HOST).to_string());
        fs::create_dir_all(&folder).expect("a new directory");
        let mut text = noise(rank, bytes / ranks, "");
        text.push_str(&ending(rank, ranks, ""));
        let path = folder.join("stderr.log");
        fs::write(&path, text).expect("a new file");
        path
    };
    (0..ranks).map(one).collect()
}

/// Writes one log in which 1,024 ranks speak in turns; the cause stands in its middle.
pub(crate) fn console(directory: &Path, bytes: usize) -> Vec<PathBuf> {
    let path = directory.join("slurm-4242.out");
    let mut text = String::with_capacity(bytes + (bytes >> 3));
    for rank in 0..LOG_RANKS {
        let label = format!("[rank{rank}]: ");
        text.push_str(&noise(rank, bytes / LOG_RANKS, &label));
        if rank == LOG_RANKS / 2 {
            text.push_str(&ending(rank, LOG_RANKS, &label));
        }
    }
    for rank in (0..LOG_RANKS).filter(|&rank| rank != LOG_RANKS / 2) {
        text.push_str(&ending(rank, LOG_RANKS, &format!("[rank{rank}]: ")));
    }
    fs::write(&path, text).expect("a new file");
    vec![path]
}

fn noise(rank: usize, bytes: usize, label: &str) -> String {
    let mut text = String::with_capacity(bytes + 256);
    let mut step = 0;
    while text.len() < bytes {
        step += 1;
        let _ = writeln!(
            text,
            "{label}2026-11-29 16:33:27,423 INFO trainer.py:{rank} step {step} loss 2.3711 grad_norm 0.81 tokens/s 18231.4"
        );
    }
    text
}

fn ending(rank: usize, ranks: usize, label: &str) -> String {
    let error = if rank == ranks / 2 {
        "ValueError: loss is nan at step 9".to_owned()
    } else {
        format!(
            "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.{}]:{rank}. This is typically",
            rank % 256
        )
    };
    [
        "Traceback (most recent call last):",
        "  File \"/opt/train/train.py\", line 65, in main",
        "    step()",
        &error,
    ]
    .iter()
    .fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{label}{line}");
        text
    })
}
