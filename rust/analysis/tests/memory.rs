//! How much of what ranks left is kept in memory: not their texts.
#![allow(missing_docs)]

mod common;

use common::{Job, PEER, START, torch};
use firstfault_analysis::scan::scan;
use serde_json::json;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are allocated and not freed.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: all calls go to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What is kept of one more rank, in bytes; `write` writes what a rank leaves.
fn kept_of_a_rank(write: impl Fn(&Job, usize)) -> usize {
    const RANKS: usize = 32;
    let kept = |ranks: usize| {
        let job = Job::new("memory");
        (0..ranks).for_each(|rank| write(&job, rank));
        let before = LIVE.load(Ordering::Relaxed);
        let evidence = scan(std::slice::from_ref(&job.0), Path::new("/proc")).expect("readable");
        let kept = LIVE.load(Ordering::Relaxed).saturating_sub(before);
        assert!(!evidence.is_empty());
        kept
    };
    // First what is made once in a process.
    kept(RANKS);
    kept(2 * RANKS).saturating_sub(kept(RANKS)) / RANKS
}

/// One test: two at a time would count each other's.
#[test]
fn of_a_rank_less_than_two_kilobytes_are_kept() {
    let place = |rank: usize| format!("run_abcd1234/attempt_0/{rank}");
    let output = |job: &Job, rank: usize| {
        let text = format!(
            "{}Traceback (most recent call last):\n  File \"/j/train.py\", line 9, in main\n{PEER} {rank}\n",
            format!("step {rank} loss 2.3711 grad_norm 0.81\n").repeat(8_000)
        );
        job.write(&format!("{}/stderr.log", place(rank)), text);
    };
    let record = |job: &Job, rank: usize| {
        let mut record = torch(&format!("{PEER} {rank}"), START);
        let frame = json!({"file": "/j/train.py", "line": 9, "function": "main"});
        record["firstfault"] = json!({
            "schema_version": 1, "kind": "exception", "final": true,
            "host": {"name": "node0"}, "rank": {"rank": rank},
            "threads": [{"tid": rank, "python": vec![frame; 400]}],
        });
        job.record(&format!("{}/error.json", place(rank)), &record);
    };
    for (what, kept) in [
        ("an output", kept_of_a_rank(output)),
        ("a record", kept_of_a_rank(record)),
    ] {
        assert!((100..2_000).contains(&kept), "{what}: {kept} bytes");
    }
}
