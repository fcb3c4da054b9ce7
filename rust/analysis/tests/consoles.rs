//! One log in which many ranks speak: who said what, and which of them failed first.

mod common;

use common::{Job, PEER, cause};
use firstfault_analysis::schema::Confidence;
use firstfault_analysis::{Options, analyze};

fn traceback(error: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/j/train.py\", line 9, in main\n    step()\n{error}\n"
    )
}

fn labelled(label: &str, text: &str) -> String {
    text.lines()
        .map(|line| format!("{label}{line}\n"))
        .collect()
}

/// Ranks 0 to 3, of which rank 1 raises and the others lose it, line by line in turns.
fn in_turns(label: impl Fn(u32) -> String) -> String {
    let texts = [PEER, "ValueError: bad batch", PEER, PEER].map(traceback);
    let lines: Vec<Vec<&str>> = texts.iter().map(|text| text.lines().collect()).collect();
    (0..lines[0].len())
        .flat_map(|line| (0..4).map(move |rank| (line, rank)))
        .map(|(line, rank)| format!("{}{}\n", label(rank as u32), lines[rank][line]))
        .collect()
}

#[test]
fn every_kind_of_label_tells_the_rank() {
    let labels: [fn(u32) -> String; 5] = [
        |rank| format!("[rank{rank}]: "),
        |rank| format!("[default{rank}]:"),
        |rank| format!("[default{rank}]:[rank{rank}]: "),
        |rank| format!("{rank}: "),
        |rank| format!("2026-11-29T20:01:41.461Z [rank{rank}]: "),
    ];
    for label in labels {
        let job = Job::new("labels");
        job.write("slurm-4711.out", in_turns(label));
        let found = job.report();
        // A number on a host is the rank where there is one host, which nothing says here.
        let sure = match label(1).as_str() {
            "[default1]:" => Confidence::Medium,
            _ => Confidence::High,
        };
        assert_eq!(
            cause(&found),
            (Some(1), "python_exception", sure),
            "{}",
            label(1)
        );
        assert_eq!(found.ranks.collateral, "0,2-3", "{}", label(1));
        let told = &found.root_cause.unwrap().evidence;
        assert!(
            told.iter().any(|line| line.contains("slurm-4711.out:14")),
            "{told:?}"
        );
    }
}

#[test]
fn a_log_that_the_user_names_may_be_called_anything() {
    let job = Job::new("named");
    let path = job.write("console", in_turns(|rank| format!("[rank{rank}]: ")));
    let found = analyze(&[path], &Options::default()).unwrap();
    assert_eq!(found.root_cause.unwrap().rank, Some(1));
}

#[test]
fn local_labels_beside_ranks_of_several_hosts_are_left_out_and_said() {
    let job = Job::new("hosts");
    let mut text = labelled("[default0]:", "step 1\n");
    text += &in_turns(|rank| format!("[default{}]:[rank{rank}]: ", rank % 2));
    job.write("out.log", text);
    let found = job.report();
    assert_eq!(found.root_cause.as_ref().unwrap().rank, Some(1));
    assert!(
        found
            .incomplete
            .iter()
            .any(|line| line.contains("labels do not tell")),
        "{:?}",
        found.incomplete
    );
}

#[test]
fn tasks_under_a_launcher_are_hosts() {
    let job = Job::new("tasks");
    let failed = "E1129 16:33:27.4 18241 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 18808) of binary: python3\n";
    let text = labelled("1: ", &(traceback("ValueError: bad batch") + failed));
    job.write("out.log", text);
    let found = job.report();
    assert_ne!(
        found.root_cause.unwrap().rank,
        Some(1),
        "task 1 is a host, not rank 1"
    );
}

#[test]
fn a_log_of_one_rank_is_told_by_its_name() {
    let job = Job::new("by-name");
    for rank in 0..3 {
        let error = if rank == 2 {
            "KeyError: 'labels'"
        } else {
            PEER
        };
        job.write(&format!("rank_{rank}.log"), traceback(error));
    }
    let found = job.report();
    assert_eq!(cause(&found).0, Some(2));
    assert_eq!(found.ranks.collateral, "0-1");
}

#[test]
fn words_without_a_label_are_somebodys() {
    let job = Job::new("nobody");
    job.write(
        "train.out",
        format!("step 1\n{}", traceback("ValueError: bad batch")),
    );
    let found = job.report();
    let root = found.root_cause.as_ref().unwrap();
    assert_eq!(
        (root.rank, root.category.as_str()),
        (None, "python_exception")
    );
    assert_eq!(root.title, "ValueError: bad batch");
}

#[test]
fn the_first_attempt_that_failed_is_judged_first() {
    let job = Job::new("attempts");
    let failed = |status: i32| {
        format!(
            "E1129 16:33:27.4 18241 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {status}) local_rank: 1 (pid: 188) of binary: python3\n"
        )
    };
    let fallout =
        "RuntimeError: Gloo connectFullMesh failed with [/g/pair.cc:152] timed out connecting";
    let text = in_turns(|rank| format!("[rank{rank}]: "))
        + &failed(1)
        + &labelled("[rank1]: ", &traceback(fallout))
        + &failed(1);
    job.write("agent.log", text);
    let found = job.report();
    assert_eq!(found.job.attempts, 2);
    let root = found.root_cause.unwrap();
    assert_eq!((root.rank, root.attempt), (Some(1), 0));
    assert_eq!(root.title, "ValueError: bad batch");
}

#[test]
fn a_record_says_more_than_a_log() {
    let job = Job::new("record");
    job.record(
        "rank_1.node0.4242.json",
        &common::ours(1, "KeyError: 'x'", common::START),
    );
    job.write("out.log", in_turns(|rank| format!("[rank{rank}]: ")));
    let found = job.report();
    assert_eq!(found.root_cause.unwrap().title, "KeyError: 'x'");
    assert_eq!(found.ranks.collateral, "0,2-3");
}
