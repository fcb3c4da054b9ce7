//! Jobs made of a few files, in a directory that goes away with the test.
#![allow(
    dead_code,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub
)]

use firstfault_analysis::schema::Confidence;
use firstfault_analysis::{Options, Report, analyze};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A directory that goes away with the test.
pub struct Job(pub PathBuf);

impl Job {
    pub fn new(name: &str) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("firstfault-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, content).expect("written");
        path
    }

    pub fn record(&self, name: &str, record: &Value) {
        self.write(name, record.to_string());
    }

    pub fn report(&self) -> Report {
        analyze(std::slice::from_ref(&self.0), &Options::default()).expect("readable")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub const SECOND: i64 = 1_000_000_000;
pub const START: i64 = 1_795_970_000 * SECOND;
pub const PEER: &str = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:4039. This is typically caused by a remote worker crashing.";

pub fn torch(message: &str, time_ns: i64) -> Value {
    let stack = format!(
        "Traceback (most recent call last):\n  File \"/j/train.py\", line 9, in main\n{message}\n"
    );
    json!({"message": {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": (time_ns / SECOND).to_string()}}})
}

pub fn ours(rank: u32, message: &str, time_ns: i64) -> Value {
    let (type_name, text) = message.split_once(": ").unwrap_or((message, ""));
    let mut record = torch(message, time_ns);
    record["firstfault"] = json!({
        "schema_version": 1, "kind": "exception", "final": true, "time_ns": time_ns,
        "host": {"name": format!("node{}", rank / 2)}, "process": {"pid": 1000 + rank},
        "rank": {"rank": rank, "local_rank": rank % 2, "world_size": 4, "run_id": "job", "attempt": 0},
        "exception": {"type": type_name, "message": text},
    });
    record
}

pub fn signal(rank: u32, time_ns: i64) -> Value {
    let mut record = ours(rank, "x", time_ns);
    record["message"]["message"] = json!(
        "SIGSEGV (Segmentation fault): null pointer at 0x0, in libc.so.6+0x1234, thread 'python3'"
    );
    record["message"]["errorCode"] = json!(-11);
    let section = record["firstfault"].as_object_mut().expect("an object");
    section.remove("exception");
    section.insert("kind".into(), json!("signal"));
    section.insert(
        "signal".into(),
        json!({"number": 11, "name": "SIGSEGV", "code": "SEGV_MAPERR", "address": "0x0"}),
    );
    section.insert("modules".into(), json!([{"path": "/usr/lib/libc.so.6"}]));
    section.insert("threads".into(), json!([{
        "tid": 7, "crashed": true, "native": [{"address": "0x1", "module": 0, "offset": "0x1234"}],
        "python": [{"file": "/usr/lib/python3.11/ctypes/__init__.py", "line": 519, "function": "string_at"},
                   {"file": "/j/worker.py", "line": 41, "function": "train_step"}],
    }]));
    record
}

pub fn cause(report: &Report) -> (Option<u32>, &str, Confidence) {
    let cause = report.root_cause.as_ref().expect("a cause");
    (cause.rank, &cause.category, cause.confidence)
}
