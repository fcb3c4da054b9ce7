//! Records of firstfault itself, beside torchrun's files and in an archive directory, made in a directory of the test's own.

mod common;

use common::{Job, PEER, SECOND, START, cause, ours, signal, torch};
use firstfault_analysis::schema::Confidence;
use firstfault_analysis::{Options, analyze};
use serde_json::json;
use std::fs;
use std::path::Path;

#[test]
fn an_archive_directory_alone_is_enough() {
    let job = Job::new("archive");
    for rank in [0, 1, 3] {
        job.record(
            &format!(
                "job/attempt_0/rank_{rank}.node{}.{}.json",
                rank / 2,
                1000 + rank
            ),
            &ours(rank, PEER, START + 5),
        );
    }
    job.record("job/attempt_0/rank_2.node1.1002.json", &signal(2, START));
    let report = job.report();
    assert_eq!(cause(&report), (Some(2), "segfault", Confidence::High));
    let cause = report.root_cause.as_ref().expect("a cause");
    assert_eq!(
        (cause.local_rank, cause.host.as_str(), cause.time_ns),
        (Some(0), "node1", Some(START))
    );
    assert_eq!(
        (
            report.ranks.collateral.as_str(),
            report.ranks.silent.as_str()
        ),
        ("0-1,3", "")
    );
    let group = report
        .groups
        .iter()
        .find(|group| group.role == "primary")
        .expect("a group");
    assert_eq!(
        group.example.location,
        "in string_at (ctypes/__init__.py:519), called from train_step (worker.py:41)"
    );
    assert_eq!(
        (
            report.job.run_id.as_str(),
            report.job.world_size,
            report.job.hosts
        ),
        ("job", 4, 2)
    );
}

#[test]
fn the_same_failure_in_two_places_is_one() {
    let job = Job::new("twice");
    for rank in 0..4 {
        let record = if rank == 2 {
            ours(2, "ValueError: loss is nan", START)
        } else {
            ours(rank, PEER, START + 5)
        };
        job.record(
            &format!("logs/job_abcd1234/attempt_0/{rank}/error.json"),
            &record,
        );
        job.record(
            &format!("archive/job/attempt_0/rank_{rank}.n.{}.json", 1000 + rank),
            &record,
        );
    }
    let report = job.report();
    assert_eq!(cause(&report), (Some(2), "nan_loss", Confidence::High));
    assert_eq!(
        report.groups.iter().map(|group| group.count).sum::<u32>(),
        4
    );
    assert!(
        !report.incomplete.iter().any(|line| line.contains("record")),
        "{:?}",
        report.incomplete
    );
}

#[test]
fn the_fuller_copy_beside_torchs_short_record_counts() {
    let job = Job::new("copy");
    let mut full = ours(2, "RuntimeError: pipeline failed", START);
    full["firstfault"]["exception"]["chain"] = json!([{"type": "OSError", "message": "[Errno 28] No space left on device", "relation": "cause"}]);
    job.record(
        "job_abcd1234/attempt_0/0/error.json",
        &torch("RuntimeError: pipeline failed", START),
    );
    job.record("job_abcd1234/attempt_0/0/error.firstfault.json", &full);
    let report = job.report();
    assert_eq!(cause(&report).1, "disk_full");
    assert_eq!(
        report.root_cause.as_ref().expect("a cause").rank,
        Some(2),
        "the copy tells the rank"
    );
    assert_eq!(report.groups[0].count, 1);
}

#[test]
fn a_final_record_goes_before_an_earlier_provisional_one() {
    let job = Job::new("provisional");
    let mut tolerated = ours(0, "KeyError: tolerated", START);
    tolerated["firstfault"]["final"] = json!(false);
    job.record("job_abcd1234/attempt_0/0/error.json", &tolerated);
    job.record(
        "job_abcd1234/attempt_0/0/error.1000.json",
        &ours(0, "ValueError: loss is nan", START + SECOND),
    );
    assert_eq!(cause(&job.report()).1, "nan_loss");
}

#[test]
fn what_was_recorded_in_passing_is_not_what_it_died_of() {
    let job = Job::new("passing");
    let mut tolerated = ours(0, "KeyError: tolerated", START);
    tolerated["firstfault"]["final"] = json!(false);
    job.record("job_abcd1234/attempt_0/0/error.json", &tolerated);
    let log = "Failures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_16:33:26\n  host      : n\n  \
               rank      : 0 (local_rank: 0)\n  exitcode  : -11 (pid: 1000)  (SIGSEGV)\n  error_file: /x/job_abcd1234/attempt_0/0/error.json\n";
    job.write("agent.log", log);
    assert_eq!(cause(&job.report()).1, "segfault");
}

#[test]
fn a_child_and_a_stale_file_are_no_evidence_of_the_rank() {
    let job = Job::new("child");
    job.record(
        "job_abcd1234/attempt_0/0/error.1000.child_1010.json",
        &ours(0, "ValueError: in a helper", START - SECOND),
    );
    job.record(
        "job_abcd1234/attempt_0/0/error.1000.replaced.json",
        &ours(0, "MemoryError: yesterday", START - 90 * SECOND),
    );
    job.record(
        "job_abcd1234/attempt_0/0/error.json",
        &ours(0, "ValueError: loss is nan", START),
    );
    job.write("job_abcd1234/attempt_0/0/error.1000.json.tmp", b"{\"mess");
    let report = job.report();
    assert_eq!(cause(&report).1, "nan_loss");
    assert_eq!(report.damaged_files, []);
    for part in ["1 error file that a later record took", "1 record of later"] {
        assert!(
            report.incomplete.iter().any(|line| line.starts_with(part)),
            "{part}: {:?}",
            report.incomplete
        );
    }
}

#[test]
fn a_peer_that_lost_the_first_to_fail_is_never_first() {
    // The victim's clock is ahead: time alone would name it.
    let job = Job::new("skew");
    job.record(
        "job/attempt_0/rank_0.node0.1000.json",
        &ours(0, PEER, START - 10 * SECOND),
    );
    job.record(
        "job/attempt_0/rank_1.node0.1001.json",
        &ours(1, PEER, START - 10 * SECOND),
    );
    job.record(
        "job/attempt_0/rank_2.node1.1002.json",
        &ours(2, "ValueError: loss is nan", START),
    );
    assert_eq!(
        cause(&job.report()),
        (Some(2), "nan_loss", Confidence::High)
    );
}

#[test]
fn two_faults_are_ordered_by_time_only_where_clocks_can_tell() {
    for (gap, host_of_second, expected) in [
        (5, 0, (Some(1), Confidence::Medium)),
        (7 * SECOND, 2, (Some(1), Confidence::Medium)),
        (SECOND, 2, (Some(1), Confidence::Low)),
    ] {
        let job = Job::new(&format!("order-{gap}-{host_of_second}"));
        job.record(
            "job/attempt_0/rank_1.node0.1001.json",
            &ours(1, "ValueError: first", START),
        );
        job.record(
            &format!("job/attempt_0/rank_{host_of_second}.n.1.json"),
            &ours(host_of_second, "OSError: second", START + gap),
        );
        job.record(
            "job/attempt_0/rank_3.node1.1003.json",
            &ours(3, PEER, START),
        );
        let report = job.report();
        let (rank, _, confidence) = cause(&report);
        assert_eq!((rank, confidence), expected, "{gap}");
        assert_eq!(report.also_primary[0].rank, Some(host_of_second));
    }
}

#[test]
fn clocks_five_seconds_apart_change_no_verdict() {
    for skew in [-5, -2, 0, 2, 5] {
        let job = Job::new(&format!("apart-{skew}"));
        // On node 0 the higher rank is first, by its own clock; node 1 is another's.
        for (rank, message, time) in [
            (0, "ValueError: second", START + SECOND),
            (1, "KeyError: 'first'", START),
            (2, "OSError: elsewhere", START + skew * SECOND + SECOND / 2),
            (3, PEER, START + skew * SECOND + SECOND),
        ] {
            let name = format!("job/attempt_0/rank_{rank}.node{}.100{rank}.json", rank / 2);
            job.record(&name, &ours(rank, message, time));
        }
        let report = job.report();
        assert_eq!(
            (cause(&report).0, cause(&report).2),
            (Some(1), Confidence::Low),
            "{skew}"
        );
        let also: Vec<_> = report.also_primary.iter().map(|it| it.rank).collect();
        assert_eq!(also, [Some(0), Some(2)], "{skew}");
    }
}

#[test]
fn another_run_below_the_same_path_is_left_out() {
    let job = Job::new("runs");
    job.record(
        "old_abcd1234/attempt_0/0/error.json",
        &torch("MemoryError: old", START - 900 * SECOND),
    );
    job.record(
        "new_efgh5678/attempt_0/0/error.json",
        &torch("ValueError: loss is nan", START),
    );
    let report = job.report();
    assert_eq!(cause(&report).1, "nan_loss");
    assert_eq!(
        (report.job.run_id.as_str(), report.job.world_size),
        ("new", 1)
    );
    assert!(
        report
            .incomplete
            .iter()
            .any(|line| line.contains("other run")),
        "{:?}",
        report.incomplete
    );
}

#[test]
fn a_directory_without_a_word_is_not_of_the_launcher_whose_ranks_have_another() {
    let job = Job::new("silent-directory");
    for rank in 0..4 {
        let stack = "Traceback (most recent call last):\n  File \"/j/t.py\", line 3, in average\n    all_reduce(x)\n";
        let words: String = format!("{stack}RuntimeError: {PEER}\n")
            .lines()
            .map(|line| format!("[rank{rank}]: {line}\n"))
            .collect();
        let summary = format!(
            "E1129 16:33:27.4 18241 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 22) of binary: /opt/venv/bin/python3\n\
             t.py FAILED\nFailures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_16:33:26\n  host      : node{rank}\n  \
             rank      : {rank} (local_rank: 0)\n  exitcode  : 1 (pid: 22)\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org\n"
        );
        let lost = rank == 3;
        let output = format!("node{rank}/42_abcdefg{rank}/attempt_0/0/stderr.log");
        job.write(&output, if lost { "" } else { &words });
        job.write(
            &format!("agent{rank}.err"),
            if lost { "" } else { &summary },
        );
    }
    let report = job.report();
    assert_eq!(cause(&report).1, "host_lost");
    assert_eq!(report.root_cause.expect("a cause").host, "node3");
    assert_eq!(
        (
            report.ranks.collateral.as_str(),
            report.ranks.silent.as_str()
        ),
        ("0-2", "3")
    );
}

#[test]
fn ranks_that_nothing_tells_are_said_to_be_assumed() {
    let job = Job::new("assumed");
    for node in ["a", "b"] {
        for local in 0..2 {
            let message = if (node, local) == ("b", 1) {
                "ValueError: loss is nan"
            } else {
                PEER
            };
            job.record(
                &format!("{node}/job_{node}bcd1234/attempt_0/{local}/error.json"),
                &torch(message, START),
            );
        }
    }
    let report = job.report();
    assert_eq!(cause(&report), (Some(3), "nan_loss", Confidence::Medium));
    assert_eq!(report.root_cause.as_ref().expect("a cause").host, "b");
    assert!(
        report.incomplete.iter().any(|line| line.contains(
            "ranks below job_abcd1234, job_bbcd1234 (2 directories) are numbered by the order"
        )),
        "{:?}",
        report.incomplete
    );
}

#[test]
fn hostile_files_neither_hang_nor_stop_it() {
    let job = Job::new("hostile");
    let worker = |local: u32| format!("job_abcd1234/attempt_0/{local}/error.json");
    job.record(&worker(0), &torch("ValueError: loss is nan", START));
    job.write(&worker(1), b"{\"message\": {\"mess");
    job.write(&worker(2), b"");
    let at = |local: u32| {
        let path = job.0.join(worker(local));
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        path
    };
    assert!(
        std::process::Command::new("mkfifo")
            .arg(at(3))
            .status()
            .expect("mkfifo")
            .success()
    );
    std::os::unix::fs::symlink("error.json", at(4)).expect("a link to itself");
    std::os::unix::fs::symlink("/dev/zero", at(5)).expect("a link to a device");
    fs::create_dir_all(at(6)).expect("a directory named like a file");
    std::os::unix::fs::symlink(&job.0, job.0.join("loop")).expect("a loop");
    let huge = fs::File::create(at(7)).expect("created");
    huge.set_len(17 << 20).expect("sparse");
    job.write("config.json", b"{\"model\": 1}");
    job.write("notes.json", b"not JSON");
    let report = job.report();
    assert_eq!(cause(&report).1, "nan_loss");
    let damaged: Vec<(&str, &str)> = report
        .damaged_files
        .iter()
        .map(|file| (file.path.as_str(), file.reason.as_str()))
        .collect();
    for (local, reason) in [
        (1, "cut off after 18 bytes"),
        (2, "empty"),
        (3, "not a regular file but a FIFO"),
        (4, "Too many levels of symbolic links"),
        (5, "not a regular file but a device"),
        (7, "larger than 16 MiB"),
    ] {
        let path = job.0.join(worker(local)).display().to_string();
        assert!(
            damaged.contains(&(&path, reason)),
            "{path}: {reason} in {damaged:?}"
        );
    }
    assert_eq!(damaged.len(), 6, "{damaged:?}");
    assert_eq!(report.damaged_files[0].first_bytes, "{\"message\": {\"mess");
}

#[test]
fn a_worker_whose_file_is_damaged_is_still_a_failure() {
    let job = Job::new("torn");
    job.write(
        "job_abcd1234/attempt_0/0/error.json",
        b"{\"message\": {\"mess",
    );
    job.record("job_abcd1234/attempt_0/1/error.json", &torch(PEER, START));
    job.record("job_abcd1234/attempt_0/2/error.json", &torch(PEER, START));
    let log = "Failures:\n[1]:\n  time      : 2026-11-29_16:33:26\n  host      : n\n  rank      : 0 (local_rank: 0)\n  \
               exitcode  : 1 (pid: 1000)\n  error_file: /x/job_abcd1234/attempt_0/0/error.json\n";
    job.write("agent.log", log);
    let report = job.report();
    assert_eq!(cause(&report).0, Some(0));
    assert_eq!(
        report.root_cause.as_ref().expect("a cause").title,
        "exit code 1, its error file is damaged"
    );
}

#[test]
fn the_launchers_own_copy_of_a_workers_record_is_no_second_failure() {
    let job = Job::new("launcher");
    job.record("job_abcd1234/attempt_0/0/error.json", &torch(PEER, START));
    job.record(
        "job_abcd1234/attempt_0/1/error.json",
        &torch("ValueError: loss is nan", START),
    );
    job.record(
        "launcher/error.json",
        &torch("ValueError: loss is nan", START),
    );
    let report = job.report();
    assert_eq!(
        report.groups.iter().map(|group| group.count).sum::<u32>(),
        2
    );
    assert_eq!(cause(&report).0, Some(1));
}

#[test]
fn a_record_without_a_rank_is_not_taken_for_another_ranks() {
    let job = Job::new("stranger");
    job.record("job_abcd1234/attempt_0/0/error.json", &torch(PEER, START));
    job.record("job_abcd1234/attempt_0/1/error.json", &torch(PEER, START));
    job.record(
        "elsewhere/error.json",
        &torch("ValueError: loss is nan", START),
    );
    let report = job.report();
    assert_eq!(cause(&report), (None, "nan_loss", Confidence::Medium));
    assert_eq!(report.ranks.collateral, "0-1");
}

#[test]
fn a_thousand_ranks_fit_on_a_page() {
    let job = Job::new("many");
    for rank in 0..1_000 {
        let message = if rank == 512 {
            "ValueError: \u{1b}[31mloss is nan \u{202e}"
        } else {
            PEER
        };
        job.record(&format!("flat/rank_{rank}.json"), &torch(message, START));
    }
    for number in 0..30 {
        job.write(&format!("flat/error.{number}.json"), b"{\x1b");
    }
    let report = job.report();
    assert_eq!(report.ranks.collateral, "0-511,513-999");
    let text = firstfault_analysis::report::text::render(&report, false);
    assert!(text.lines().count() <= 60, "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert!(
        !text.contains(|c: char| c.is_control() && c != '\n'),
        "{text:?}"
    );
    assert!(text.starts_with("ROOT CAUSE  rank 512"), "{text}");
}

#[test]
fn a_single_file_may_be_given_whatever_its_name() {
    let job = Job::new("single");
    let path = job.write(
        "what.ever",
        torch("ValueError: loss is nan", START).to_string(),
    );
    let report = analyze(&[path], &Options::default()).expect("readable");
    assert_eq!(cause(&report), (None, "nan_loss", Confidence::Medium));
    assert!(
        report
            .incomplete
            .iter()
            .any(|line| line.starts_with("1 error file without a rank")),
        "{:?}",
        report.incomplete
    );
    let empty = job.0.join("empty");
    fs::create_dir(&empty).expect("a directory");
    assert!(analyze(&[empty], &Options::default()).is_err());
    assert!(analyze(&[Path::new("/dev/null").to_owned()], &Options::default()).is_err());
}

fn snapshot(rank: u32, time_ns: i64) -> serde_json::Value {
    let mut record = signal(rank, time_ns);
    record["message"]["message"] =
        json!("SIGTERM (Terminated): sent by process 7 'torchrun' of user 0, thread 'python'");
    record["message"]["errorCode"] = json!(-15);
    record["firstfault"]["kind"] = json!("terminated");
    record["firstfault"]["signal"] = json!({"number": 15, "name": "SIGTERM", "code": "SI_USER"});
    record
}

#[test]
fn a_snapshot_is_never_the_cause() {
    let job = Job::new("terminated");
    // By its time the snapshot would come first.
    for rank in [0, 1, 3] {
        let name = format!(
            "job/attempt_0/rank_{rank}.node{}.{}.{}",
            rank / 2,
            1000 + rank,
            1000 + rank
        );
        job.record(&format!("{name}.term.json"), &snapshot(rank, START - 5));
    }
    // What fails after a request to end goes there too.
    job.record(
        "job/attempt_0/rank_3.node1.1003.1003.term.1003.json",
        &ours(3, "SystemExit: 1", START - 4),
    );
    job.record("job/attempt_0/rank_2.node1.1002.json", &signal(2, START));
    let report = job.report();
    assert_eq!(cause(&report).0, Some(2));
    assert_eq!(report.ranks.terminated, "0-1,3");
    assert_eq!(
        (
            report.ranks.silent.as_str(),
            report.ranks.collateral.as_str()
        ),
        ("", "")
    );
}

#[test]
fn snapshots_alone_name_no_rank() {
    let job = Job::new("terminated-alone");
    for rank in 0..4 {
        job.record(
            &format!("job/attempt_0/rank_{rank}.node0.{rank}.{rank}.term.json"),
            &snapshot(rank, START),
        );
    }
    let report = job.report();
    assert_eq!(cause(&report), (None, "unknown", Confidence::Low));
    assert_eq!(report.ranks.terminated, "0-3");
}

#[test]
fn the_files_of_one_process_without_a_rank_are_one() {
    let of = |pid: u32, message: &str| {
        let mut record = ours(0, message, START);
        record["firstfault"]["rank"] = json!({});
        record["firstfault"]["process"] = json!({"pid": pid});
        record
    };
    for name in ["no_run/attempt_0/no_rank.n.4242", "error"] {
        let job = Job::new("nameless");
        job.record(&format!("{name}.json"), &of(4242, "ValueError: boom"));
        job.record(
            &format!("{name}.firstfault.json"),
            &of(4242, "ValueError: boom"),
        );
        job.record(
            &format!("{name}.4242.child_9.json"),
            &of(9, "KeyError: 'x'"),
        );
        let report = job.report();
        assert_eq!(
            cause(&report),
            (None, "python_exception", Confidence::Medium),
            "{name}"
        );
        assert_eq!(
            (report.ranks.primary.as_str(), report.job.world_size),
            ("0", 1)
        );
        assert_eq!(report.groups.len(), 1);
        // Another process is another rank; the same one told elsewhere is not.
        job.record("other/no_rank.n.4243.json", &of(4243, "KeyError: 'y'"));
        job.record("other/no_rank.n.4242.json", &of(4242, "ValueError: boom"));
        assert_eq!(job.report().ranks.primary, "0-1", "{name}");
    }
}

#[test]
fn runs_of_one_name_are_told_apart_by_when_they_lived() {
    let of = |rank: u32, message: &str, start: i64| {
        let mut record = ours(rank, message, start + SECOND);
        record["firstfault"]["process"] =
            json!({"pid": start / SECOND % 100_000 + i64::from(rank), "start_time_ns": start});
        record
    };
    let day = 86_400 * SECOND;
    // An archive directory that two runs without an ID share.
    let job = Job::new("two-days");
    job.record(
        "none/attempt_0/rank_1.n.11.json",
        &of(1, "ValueError: monday", START),
    );
    job.record(
        "none/attempt_0/rank_0.n.12.json",
        &of(0, "KeyError: 'tuesday'", START + day),
    );
    let report = job.report();
    assert_eq!((cause(&report).0, report.also_primary.len()), (Some(0), 0));
    assert!(
        report
            .incomplete
            .iter()
            .any(|line| line.starts_with("1 other run found here")
                && line.contains("rank_1.n.11.json")),
        "{:?}",
        report.incomplete
    );
    // A log directory that two launchers used, one after another: the log names the one to judge.
    let job = Job::new("two-launchers");
    job.record(
        "none_aaaa1234/attempt_0/1/error.json",
        &of(1, "ValueError: monday", START),
    );
    job.write("none_aaaa1234/attempt_0/0/stderr.log", "");
    job.record(
        "none_bbbb1234/attempt_0/0/error.json",
        &of(0, "KeyError: 'tuesday'", START + day),
    );
    let report = job.report();
    assert_eq!(
        (cause(&report).0, report.ranks.silent.contains('4')),
        (Some(0), false)
    );
    job.write("agent.err", "Failures:\n[0]:\n  time      : 2026-11-29_16:33:26\n  host      : n\n  rank      : 1 (local_rank: 1)\n  \
        exitcode  : 1 (pid: 1)\n  error_file: none_aaaa1234/attempt_0/1/error.json\n  traceback : x\n");
    assert_eq!(cause(&job.report()).0, Some(1));
    // A restart is the same run.
    let job = Job::new("restarted");
    job.record(
        "none/attempt_0/rank_1.n.11.json",
        &of(1, "ValueError: first", START),
    );
    let mut second = of(0, "KeyError: 'second'", START + day);
    second["firstfault"]["rank"]["attempt"] = json!(1);
    job.record("none/attempt_1/rank_0.n.12.json", &second);
    assert_eq!(job.report().job.attempts, 2);
}

#[test]
fn the_number_of_ranks_is_what_a_record_states() {
    let job = Job::new("stated");
    job.record("job/attempt_0/rank_1.node0.1001.json", &signal(1, START));
    let report = job.report();
    assert_eq!(
        (report.job.world_size, report.ranks.silent.as_str()),
        (4, "0,2-3")
    );
    assert!(!report.is_complete);
    for rank in [0, 2, 3] {
        let name = format!("job/attempt_0/rank_{rank}.node0.{}.json", 1000 + rank);
        job.record(&name, &ours(rank, PEER, START + 5));
    }
    let report = job.report();
    assert!(report.is_complete);
    assert_eq!(report.incomplete, [""; 0]);
}

#[test]
fn compressed_files_are_read_as_what_they_hold() {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    let pack = |content: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).expect("to memory");
        encoder.finish().expect("to memory")
    };
    let job = Job::new("packed");
    for rank in [0, 1, 3] {
        let record = ours(rank, PEER, START + SECOND).to_string();
        job.write(
            &format!("rank_{rank}.node0.{rank}.json.gz"),
            pack(record.as_bytes()),
        );
    }
    let summary =
        "E1 api.py:1002] failed (exitcode: -9) local_rank: 2 (pid: 42) of binary: python\n";
    job.write("agent.log.gz", pack(summary.as_bytes()));
    job.write("error.4.json.gz", b"no gzip");
    let found = job.report();
    let (rank, category, _) = cause(&found);
    assert_eq!((rank, category), (Some(2), "killed_unknown"));
    assert_eq!(found.ranks.collateral, "0-1,3");
    assert_eq!(found.damaged_files.len(), 1);
    assert!(found.damaged_files[0].path.ends_with("error.4.json.gz"));
}

#[test]
fn a_cause_under_megabytes_of_later_noise_is_found() {
    let job = Job::new("noise");
    let noise = "[rank0]: step 1 loss 0.5, nothing of interest\n".repeat(600_000);
    let failure = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\", line 1, in main\n[rank1]: ValueError: bad batch\n";
    job.write("train.log", format!("{noise}{failure}{noise}"));
    let found = job.report();
    assert_eq!(cause(&found).0, Some(1));
    let evidence = found
        .root_cause
        .as_ref()
        .expect("a cause")
        .evidence
        .join("\n");
    assert!(evidence.contains("train.log:600003"), "{evidence}");
    assert!(
        found
            .incomplete
            .iter()
            .any(|line| line.contains("left out otherwise")),
        "{:?}",
        found.incomplete
    );
}
