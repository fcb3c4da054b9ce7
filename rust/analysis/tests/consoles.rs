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
        // How many there were nothing says here, and another may have failed first.
        let expected = (Some(1), "python_exception", Confidence::Medium);
        assert_eq!(cause(&found), expected, "{}", label(1));
        let all = Options::default().with_world_size(Some(4));
        let counted = analyze(std::slice::from_ref(&job.0), &all).expect("readable");
        // A number on a host is the rank where there is one host, which nothing says here.
        let sure = match label(1).as_str() {
            "[default1]:" => Confidence::Medium,
            _ => Confidence::High,
        };
        assert_eq!(cause(&counted).2, sure, "{}", label(1));
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

const ELASTIC: &str = "torch/distributed/elastic/multiprocessing/api.py";

fn failed(launcher: u32, status: i32, local_rank: u32, pid: u32) -> String {
    format!(
        "E1129 16:33:27.4 {launcher} {ELASTIC}:1002] failed (exitcode: {status}) local_rank: {local_rank} (pid: {pid}) of binary: python\n"
    )
}

fn summary(host: &str, rank: u32, local_rank: u32, status: i32, pid: u32) -> String {
    format!(
        "============\nt.py FAILED\n------------\nFailures:\n  <NO_OTHER_FAILURES>\n------------\nRoot Cause (first observed failure):\n[0]:\n  \
         time      : 2026-11-29_16:33:26\n  host      : {host}\n  rank      : {rank} (local_rank: {local_rank})\n  exitcode  : {status} (pid: {pid})\n  \
         error_file: <N/A>\n  traceback : To enable traceback see: https://x\n============\n"
    )
}

#[test]
fn two_nodes_in_one_log_are_told_apart() {
    for first in [0, 1, 2, 3] {
        let job = Job::new("nodes");
        let mut text: String = [0, 2, 3]
            .map(|rank| labelled(&format!("[rank{rank}]: "), &traceback(PEER)))
            .concat();
        // In containers both launchers may be of one number.
        let launchers = if first < 2 { [100, 200] } else { [1, 1] };
        let mut nodes = [
            (
                failed(launchers[0], -9, 1, 4711),
                summary("node0", 1, 1, -9, 4711),
            ),
            (
                failed(launchers[1], 1, 0, 8888),
                summary("node1", 2, 0, 1, 8888),
            ),
        ];
        nodes.rotate_left(first % 2);
        for (line, _) in &nodes {
            text += line;
        }
        for (_, block) in &nodes {
            text += block;
        }
        job.write("slurm-1.out", text);
        let found = job.report();
        let (rank, category, _) = cause(&found);
        assert_eq!((rank, category), (Some(1), "killed_unknown"), "{first}");
        assert_eq!(found.job.attempts, 1);
    }
}

#[test]
fn whom_launchers_of_one_number_ended_is_told_apart() {
    let job = Job::new("containers");
    // (launcher's host, worker that it ended, worker that it saw fail): rank, local rank, process.
    let nodes = [
        ("node1", (2, 0, 20), (3, 1, 21)),
        ("node0", (1, 1, 23), (0, 0, 22)),
    ];
    let mut text = labelled("[rank3]: ", &traceback("ValueError: bad batch"))
        + &[0, 1, 2]
            .map(|rank| labelled(&format!("[rank{rank}]: "), &traceback(PEER)))
            .concat();
    for (_, (.., ended), (_, local_rank, pid)) in nodes {
        text += &format!(
            "W1129 16:33:27.4 1 {ELASTIC}:1028] Sending process {ended} closing signal SIGTERM\n"
        );
        text += &failed(1, 1, local_rank, pid);
    }
    for (host, (rank, local_rank, ended), (first, first_local, pid)) in nodes {
        let other = format!(
            "[1]:\n  time      : 2026-11-29_16:33:26\n  host      : {host}\n  rank      : {rank} (local_rank: {local_rank})\n  \
             exitcode  : -15 (pid: {ended})\n  error_file: <N/A>\n  traceback : Signal 15 (SIGTERM) received by PID {ended}"
        );
        text += &summary(host, first, first_local, 1, pid).replace("  <NO_OTHER_FAILURES>", &other);
    }
    job.write("slurm-1.out", text);
    let found = job.report();
    let root = found.root_cause.unwrap();
    assert_eq!(
        (root.rank, root.title.as_str()),
        (Some(3), "ValueError: bad batch")
    );
    assert_eq!(found.also_primary.len(), 0);
}

#[test]
fn what_a_node_says_after_another_has_failed_is_of_the_same_attempt() {
    let job = Job::new("later-node");
    let text = labelled("[rank0]: ", &traceback(PEER))
        + &failed(100, 1, 0, 11)
        + &labelled("[rank3]: ", &traceback("ValueError: bad batch"))
        + &failed(200, 1, 1, 44)
        + &summary("node0", 0, 0, 1, 11)
        + &summary("node1", 3, 1, 1, 44);
    job.write("slurm-1.out", text);
    let found = job.report();
    let root = found.root_cause.unwrap();
    assert_eq!(
        (root.rank, root.title.as_str()),
        (Some(3), "ValueError: bad batch")
    );
}

#[test]
fn ranks_that_their_watchdog_aborted_are_no_cause() {
    let watchdog = "[E1129 16:33:27.4 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n";
    for aborted in [true, false] {
        let job = Job::new("watchdog");
        let mut text: String = (0..3)
            .map(|rank| labelled(&format!("[rank{rank}]:"), watchdog))
            .collect();
        if aborted {
            for rank in 0..3 {
                text += &failed(100 + rank, -6, 0, 40 + rank);
                text += &summary(&format!("node{rank}"), rank, 0, -6, 40 + rank);
            }
        }
        job.write("slurm-1.out", text);
        let options = Options::default().with_world_size(Some(4));
        let found = analyze(std::slice::from_ref(&job.0), &options).unwrap();
        assert_ne!(
            found.root_cause.as_ref().unwrap().category,
            "abort",
            "{aborted}"
        );
        assert_eq!(found.ranks.collateral, "0-2", "{aborted}");
        assert_eq!(cause(&found).0, Some(3), "{aborted}");
    }
}

#[test]
fn different_words_without_a_label_are_given_to_nobody() {
    let job = Job::new("unlabelled");
    let mut text: String = [PEER, "ValueError: bad batch", PEER]
        .map(traceback)
        .concat();
    for rank in 0..3 {
        text += &failed(100 + rank, 1, 0, 40 + rank);
        text += &summary(&format!("node{rank}"), rank, 0, 1, 40 + rank);
    }
    job.write("slurm-1.out", text);
    let found = job.report();
    assert!(cause(&found).2 < Confidence::Medium);
    assert!(found.root_cause.as_ref().unwrap().title != PEER);
    assert!(
        found
            .incomplete
            .iter()
            .any(|line| line.contains("no label")),
        "{:?}",
        found.incomplete
    );
}

#[test]
fn what_a_program_prints_is_no_label() {
    let step = |label: &dyn Fn(u32) -> String| -> String {
        (0..40).map(|n| format!("{}loss 0.5\n", label(n))).collect()
    };
    let times = step(&|n| format!("14:03:{n:02} INFO "));
    let list = step(&|n| format!("{n}: "));
    let epochs = step(&|n| format!("[epoch{n}]: "));
    for lines in [times, list, epochs] {
        let job = Job::new("no-label");
        job.write(
            "train.log",
            format!("{lines}{}", traceback("ValueError: bad batch")),
        );
        let found = job.report();
        assert_eq!(
            found.root_cause.as_ref().unwrap().title,
            "ValueError: bad batch",
            "{lines}"
        );
        assert!(found.job.world_size <= 1, "{}", found.job.world_size);
    }
}

#[test]
fn what_stands_before_or_in_a_traceback_does_not_hide_it() {
    let text = traceback("ValueError: bad batch");
    let colours = text.replace("ValueError", "\u{1b}[1;35mValueError\u{1b}[0m");
    for said in [
        format!(
            "\rEpoch 0:  10%|#         | 10/100{}",
            labelled("[rank2]: ", &text)
        ),
        format!(
            "\rEpoch 0:   9%|#         | 9/100\r{}",
            labelled("[rank2]: ", &text)
        ),
        labelled("[rank2]: ", &colours),
        labelled("2026-11-29 20:01:41,461 [rank2]: ", &text),
        labelled("node1: [rank2]: ", &text),
        labelled("[pod/trainer-0/main] [rank2]: ", &text),
        format!(
            "W1129 16:00:00.1 99 torch/distributed/run.py:766] *****\n{}",
            labelled("[rank2]: ", &text)
        ),
    ] {
        let job = Job::new("before");
        job.write("train.log", &said);
        let found = job.report();
        let root = found.root_cause.expect(&said);
        assert_eq!(
            (root.rank, root.title.as_str()),
            (Some(2), "ValueError: bad batch"),
            "{said}"
        );
    }
}

#[test]
fn a_launchers_banner_does_not_end_what_ranks_say() {
    let job = Job::new("banner");
    let banner = "W1129 16:00:00.1 99 torch/distributed/run.py:766] *****\n";
    job.write(
        "train.log",
        format!("{banner}{}", traceback("ValueError: bad batch")),
    );
    assert_eq!(
        job.report().root_cause.unwrap().title,
        "ValueError: bad batch"
    );
}

#[test]
fn logs_of_two_jobs_are_not_believed_blindly() {
    let job = Job::new("two-jobs");
    for (number, rank, error) in [(1, 2, "ValueError: old bug"), (2, 1, "KeyError: 'new'")] {
        let mut text: String = (0..4)
            .filter(|r| *r != rank)
            .map(|r| labelled(&format!("[rank{r}]: "), &traceback(PEER)))
            .collect();
        text += &labelled(&format!("[rank{rank}]: "), &traceback(error));
        job.write(&format!("train-{number}.out"), text);
    }
    let found = job.report();
    assert!(cause(&found).2 < Confidence::High);
    assert!(
        found
            .incomplete
            .iter()
            .any(|line| line.contains("of one job or of two")),
        "{:?}",
        found.incomplete
    );
}

#[test]
fn of_several_slurm_jobs_the_latest_that_failed_is_judged_and_the_others_are_said() {
    let job = Job::new("slurm-jobs");
    let failed = |rank: u32, error: &str| {
        let others = (0..4).filter(|other| *other != rank);
        let lost = others.map(|rank| labelled(&format!("[rank{rank}]: "), &traceback(PEER)));
        lost.chain([labelled(&format!("[rank{rank}]: "), &traceback(error))])
            .collect::<String>()
    };
    job.write("slurm-99.out", failed(2, "ValueError: old bug"));
    job.write("slurm-100.out", failed(1, "KeyError: 'new'"));
    let found = job.report();
    let root = found.root_cause.as_ref().unwrap();
    assert_eq!(
        (root.rank, root.title.as_str()),
        (Some(1), "KeyError: 'new'")
    );
    let notes = found.incomplete.join("\n");
    assert!(notes.contains("slurm-99.out"), "{notes}");
    // A later job that did not fail does not make the older one's failure its own.
    job.write("slurm-101.out", "step 1\nstep 2\n");
    let found = job.report();
    let notes = found.incomplete.join("\n");
    assert!(
        notes.contains("job 100 of several") && notes.contains("slurm-101.out"),
        "{notes}"
    );
}

const FAILED: &str = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 2 (pid: 71954) of binary: python\n";

#[test]
fn what_several_processes_raise_is_not_of_the_one_that_the_launcher_saw() {
    let report = |texts: &[String]| {
        let job = Job::new("chorus");
        job.write("train.log", texts.concat() + FAILED);
        job.report()
    };
    let error = || traceback("AssertionError: losses differ");
    let one = report(&[error()]);
    assert_eq!(cause(&one).0, Some(2));
    let two = report(&[error(), error()]);
    assert_eq!((cause(&two).0, cause(&two).1), (None, "assertion"));
    assert!(cause(&two).2 < Confidence::High);
    // The same that its logger shows before it is raised again.
    let logged = format!("ERROR [trainer]: failed\n{}", error());
    assert_eq!(cause(&report(&[logged, error()])).0, Some(2));
    // The same that was survived once.
    let again = report(&[error(), "retrying\nstep 2\nstep 3\n".to_owned(), error()]);
    assert_eq!(cause(&again).0, Some(2));
}

#[test]
fn a_program_that_stops_over_its_loss_says_so_without_an_exception() {
    let job = Job::new("loss-stop");
    job.write(
        "train.log",
        format!("step 1\nLoss is nan, stopping training\n{FAILED}"),
    );
    assert_eq!(
        cause(&job.report()),
        (Some(2), "nan_loss", Confidence::Medium)
    );
}

#[test]
fn lines_of_nccl_between_those_of_ranks_tell_their_host() {
    let job = Job::new("nccl-host");
    let nccl = |process: u32| {
        format!("node-7:{process}:9 [0] NCCL INFO Connection closed by localRank 1\n")
    };
    let raised = labelled("[rank1]: ", &traceback("ValueError: bad batch"));
    let lost = labelled("[rank0]: ", &traceback(PEER));
    job.write("a.log", format!("{raised}{}{}{lost}", nccl(1), nccl(2)));
    let found = job.report();
    assert_eq!(found.root_cause.expect("a cause").host, "node-7");
}
