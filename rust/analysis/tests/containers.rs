//! One console of several launchers in containers: all of them, and their workers, have the same few process IDs.

mod common;

use common::{Job, cause};
use firstfault_analysis::Report;
use firstfault_analysis::schema::Confidence;

const API: &str = "torch/distributed/elastic/multiprocessing/api.py";
const WAITED: &str = "RuntimeError: [/g/unbound_buffer.cc:81] Timed out waiting 12000ms for recv operation to complete";

fn failed(pid: u32) -> String {
    format!(
        "E1129 16:33:27.4 18 {API}:1002] failed (exitcode: 1) local_rank: 0 (pid: {pid}) of binary: python\n"
    )
}

fn closing(pid: u32) -> String {
    format!("W1129 16:33:27.4 18 {API}:1028] Sending process {pid} closing signal SIGTERM\n")
}

/// The summary of a launcher of `size` workers that lists its first alone, as torch 2.6 does.
fn summary(node: u32, size: u32, pid: u32) -> String {
    let rule = "=".repeat(60);
    format!(
        "{rule}\nt.py FAILED\nFailures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  \
         time      : 2026-11-29_16:33:26\n  host      : node{node}\n  rank      : {} (local_rank: 0)\n  exitcode  : 1 (pid: {pid})\n  \
         error_file: <N/A>\n  traceback : x\n{rule}\n",
        node * size
    )
}

fn shut_down(node: &str) -> String {
    format!(
        "W1129 16:33:27.5 18 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1298] The node '{node}' has failed to shutdown the rendezvous '42' due to an error of type RendezvousConnectionError.\n"
    )
}

fn waited(ranks: &[u32]) -> String {
    let words = |rank: &u32| {
        let text = format!(
            "Traceback (most recent call last):\n  File \"/j/t.py\", line 3, in average\n    all_reduce(x)\n{WAITED}\n"
        );
        text.lines()
            .map(|line| format!("[rank{rank}]: {line}\n"))
            .collect::<String>()
    };
    ranks.iter().map(words).collect()
}

fn report(console: &str) -> Report {
    let job = Job::new("containers");
    job.write("console.log", console);
    job.report()
}

#[test]
fn a_worker_fails_once_and_what_fails_again_is_anothers() {
    // The second and the third host number their workers alike, and fail before the second sums up.
    let console = waited(&[0, 1, 2])
        + &failed(22)
        + &failed(20)
        + &summary(0, 1, 22)
        + &failed(20)
        + &summary(1, 1, 20)
        + &summary(2, 1, 20);
    let found = report(&console);
    assert_eq!(found.job.attempts, 1);
    assert_eq!(found.ranks.collateral, "0-2");
    // A restart gives its workers new numbers.
    let again = waited(&[0]) + &failed(22) + &failed(30) + &summary(0, 1, 30);
    assert_eq!(report(&again).job.attempts, 2);
}

#[test]
fn who_asked_a_worker_of_that_number_to_end_is_not_who_saw_it_fail() {
    let crashed = failed(41).replace("exitcode: 1", "exitcode: -11");
    // The first launcher's end is cut off; the victim's own worker 41 was asked to end.
    let console = waited(&[1]).replace("rank1", "rank0")
        + &closing(42)
        + &crashed
        + &closing(41)
        + &failed(42)
        + &summary(0, 2, 42);
    let found = report(&console);
    assert_eq!((cause(&found).0, cause(&found).1), (None, "segfault"));
    assert!(cause(&found).2 < Confidence::High);
}

#[test]
fn the_ranks_of_a_launcher_that_left_with_the_rendezvous_are_those_that_the_others_leave() {
    let told = |size: u32, asked: &[u32], gone: &str| {
        let closings: String = asked.iter().map(|pid| closing(*pid)).collect();
        let ranks: Vec<u32> = (0..2 * size).collect();
        waited(&ranks)
            + &failed(23)
            + &failed(21)
            + &summary(1, size, 21)
            + &summary(0, size, 23)
            + &closings
            + &shut_down(gone)
    };
    // Its worker has the number of one that has failed elsewhere.
    let found = report(&told(1, &[21], "node2_18_0"));
    assert_eq!(cause(&found), (Some(2), "hang", Confidence::Medium));
    assert_eq!(found.root_cause.expect("a cause").host, "node2");
    assert_eq!(
        (
            found.ranks.collateral.as_str(),
            found.ranks.terminated.as_str()
        ),
        ("0-1", "2")
    );
    let found = report(&told(2, &[21, 22], "node2_18_0"));
    assert_eq!(
        (
            found.ranks.collateral.as_str(),
            found.ranks.terminated.as_str()
        ),
        ("0-3", "4-5")
    );
    // Of fewer workers than the others have one had ended; a host that sums up is no further one.
    for (size, asked, gone) in [
        (2, &[21][..], "node2_18_0"),
        (1, &[21], "node1_18_0"),
        (1, &[21], "no-node"),
        (1, &[], "node2_18_0"),
    ] {
        let found = report(&told(size, asked, gone));
        assert_eq!(found.ranks.terminated, "", "{size} {asked:?} {gone}");
    }
    let two = told(1, &[21], "node2_18_0") + &shut_down("node3_18_0");
    assert_eq!(report(&two).ranks.terminated, "");
    let quiet = told(2, &[21], "node2_18_0").replace("[rank1]: ", "");
    assert_eq!(report(&quiet).ranks.terminated, "");
}
