//! Logs as containers, collectors and loggers dress them: the same failure is found in each, and blamed on nobody else.

mod common;

use common::{Job, PEER, cause};
use firstfault_analysis::schema::Confidence;
use serde_json::json;

const BAD: &str = "ValueError: bad batch";

fn traceback(error: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/j/train.py\", line 9, in main\n    step()\n    ^^^^^^\n{error}\n"
    )
}

fn prefixed(margin: &str, text: &str) -> String {
    text.lines()
        .map(|line| format!("{margin}{line}\n"))
        .collect()
}

/// The words of four ranks, of which rank 2 raises and the others lose it.
fn ranks() -> [(u32, String); 4] {
    [0, 1, 2, 3].map(|rank| (rank, traceback(if rank == 2 { BAD } else { PEER })))
}

#[test]
fn every_loggers_json_is_read() {
    let one = |rank: u32, text: &str| {
        let text = text.trim_end();
        [
            json!({"time": "2026-11-29T16:33:26Z", "level": "ERROR", "rank": rank, "message": format!("failed\n{text}")}),
            json!({"asctime": "2026-11-29 16:33:26,123", "levelname": "ERROR", "global_rank": rank, "message": "failed", "exc_info": text}),
            json!({"event": "failed", "level": "error", "rank": rank, "exception": text}),
            json!({"text": format!("ERROR failed\n{text}\n"), "record": {"extra": {"rank": rank}, "message": "failed"}}),
            json!({"severity": "ERROR", "jsonPayload": {"message": "failed", "rank": rank, "stack_trace": text}}),
            json!({"log": format!("[rank{rank}]: {}", text.replace('\n', &format!("\n[rank{rank}]: "))), "time": "t", "message": ""}),
        ]
    };
    for form in 0..6 {
        let job = Job::new("json");
        let lines = ranks().map(|(rank, text)| one(rank, &text)[form].to_string() + "\n");
        job.write("trainer.log", lines.concat());
        let found = job.report();
        let (rank, category, _) = cause(&found);
        assert_eq!((rank, category), (Some(2), "python_exception"), "{form}");
        assert_eq!(found.root_cause.as_ref().unwrap().title, BAD, "{form}");
        assert_eq!(found.ranks.collateral, "0-1,3", "{form}");
        let evidence = found.root_cause.unwrap().evidence.join("\n");
        assert!(evidence.contains("trainer.log:3"), "{form}: {evidence}");
    }
}

#[test]
fn every_margin_is_taken_off() {
    let text: String = ranks()
        .iter()
        .map(|(rank, text)| prefixed(&format!("[rank{rank}]: "), text))
        .collect();
    let docker: String = text
        .lines()
        .map(|line| json!({"log": format!("{line}\n"), "stream": "stderr", "time": "2026-11-29T16:33:26.1Z"}).to_string() + "\n")
        .collect();
    for dressed in [
        docker,
        prefixed("2026-11-29T16:33:26.123456789Z stderr F ", &text),
        prefixed(
            "[pod/trainer-0/main] 2026-11-29T16:33:26.123456789Z ",
            &text,
        ),
        prefixed("2026-11-29 16:33:26,123 ", &text),
        prefixed("trainer-0  | ", &text),
        prefixed("2026-11-29 16:33:26 [trainer-0, 10.0.0.2] ", &text),
        prefixed("(RayTrainWorker pid=41, ip=10.0.0.2) ", &text),
        prefixed("\u{1b}[36m(RayTrainWorker pid=41)\u{1b}[0m ", &text),
        prefixed("2026-11-29 16:33:26 UTC | main.0 | ", &text),
        prefixed("2026-11-29 16:33:26,123 - tuner - INFO - ", &text),
        prefixed("Nov 29 16:33:26 gpu7 python[4711]: ", &text),
        prefixed("INFO\t2026-11-29 16:33:26 +0000\tworkerpool0-0\t", &text),
        prefixed("  | 2026-11-29T16:33:26.123Z | ", &text),
        prefixed("> ", &text),
        prefixed("    ", &text),
        prefixed("\t", &text),
    ] {
        let job = Job::new("margin");
        job.write("trainer.log", &dressed);
        let found = job.report();
        let root = found.root_cause.as_ref().expect(&dressed);
        assert_eq!(
            (root.rank, root.title.as_str()),
            (Some(2), BAD),
            "{dressed}"
        );
        let evidence = root.evidence.join("\n");
        assert!(evidence.contains("trainer.log:15"), "{evidence}\n{dressed}");
    }
}

#[test]
fn utf_16_is_read() {
    let text = prefixed("[rank2]: ", &traceback(BAD));
    let bytes: Vec<u8> = [0xff, 0xfe]
        .into_iter()
        .chain(text.encode_utf16().flat_map(u16::to_le_bytes))
        .collect();
    let job = Job::new("utf16");
    job.write("train.log", bytes);
    assert_eq!(cause(&job.report()).0, Some(2));
}

const RICH: &str = "\
╭─────────────────── Traceback (most recent call last) ───────────────────╮
│ /j/train.py:41 in main                                                  │
│                                                                         │
│   40 │   for batch in loader:                                           │
│ ❱ 41 │   │   step(batch)                                                │
│                                                                         │
│ /opt/lib/python3.11/site-packages/torch/nn/module.py:12 in step         │
╰─────────────────────────────────────────────────────────────────────────╯
";

#[test]
fn drawn_tracebacks_are_read_where_workers_write_them() {
    let loguru = "2026-11-29 16:33:26.123 | ERROR    | __main__:<module>:20 - failed\nTraceback (most recent call last):\n\n> File \"/j/train.py\", line 41, in main\n    step(None)\n    │    └ None\n    └ <function step at 0x7f>\n\n";
    for drawn in [RICH, loguru] {
        let job = Job::new("drawn");
        for (rank, error) in [(0, PEER), (1, BAD)] {
            job.write(
                &format!("run_abcdefgh/attempt_0/{rank}/stderr.log"),
                format!("step 1\n{drawn}{error}\n"),
            );
        }
        let found = job.report();
        let root = found.root_cause.as_ref().unwrap();
        assert_eq!((root.rank, root.title.as_str()), (Some(1), BAD), "{drawn}");
        let group = found.groups.iter().find(|group| group.role == "primary");
        let place = &group.unwrap().example.location;
        assert!(place.contains("train.py:41"), "{place}");
    }
}

#[test]
fn a_caught_exception_of_a_programs_logger_is_not_sure() {
    // The labels are the program's: rank 0 survived its exception, and rank 3 was killed without a word.
    let mut text = prefixed("[rank0]: ", "step 1\n");
    text += &prefixed("[rank0]: ", &traceback(BAD));
    for rank in [1, 2] {
        text += &prefixed(
            &format!("[rank{rank}]: "),
            &format!("step 1\n{}", traceback(PEER)),
        );
    }
    let job = Job::new("own-logger");
    job.write("train.log", &text);
    assert!(cause(&job.report()).2 < Confidence::High);
    // A launcher that saw how a worker ended knows better.
    text += "E1129 16:33:27.4 9 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 3 (pid: 44) of binary: python\n";
    job.write("train.log", &text);
    let (rank, category) = (cause(&job.report()).0, cause(&job.report()).1.to_owned());
    assert_eq!((rank, category.as_str()), (Some(3), "killed_unknown"));
}

#[test]
fn json_of_a_caught_exception_is_not_sure() {
    let line = |rank: u32, text: &str| {
        json!({"level": "ERROR", "rank": rank, "message": "failed", "exc_info": text}).to_string()
            + "\n"
    };
    let job = Job::new("json-caught");
    let text: String = ranks()
        .iter()
        .map(|(rank, text)| line(*rank, text))
        .collect();
    job.write("train.log", text);
    let found = job.report();
    assert_eq!(
        cause(&found),
        (Some(2), "python_exception", Confidence::Medium)
    );
    // What goes on after it was not ended by it.
    let mut text = line(0, &traceback(BAD));
    for step in 0..3 {
        text += &(json!({"level": "INFO", "rank": 0, "message": format!("step {step}")})
            .to_string()
            + "\n");
    }
    text += &line(1, &traceback("KeyError: 'x'"));
    job.write("train.log", text);
    assert_eq!(cause(&job.report()).0, Some(1));
}

#[test]
fn pods_without_ranks_are_told_by_name_and_not_numbered() {
    let job = Job::new("pods");
    let (bad, lost) = (traceback(BAD), traceback(PEER));
    let lines = bad.lines().zip(lost.lines());
    // In turns, as a collector writes them.
    let text: String = lines
        .map(|(one, other)| format!("[pod/trainer-1/main] {one}\n[pod/trainer-0/main] {other}\n"))
        .collect();
    job.write("all.log", text);
    let found = job.report();
    let root = found.root_cause.as_ref().unwrap();
    assert_eq!(
        (root.rank, root.host.as_str(), root.title.as_str()),
        (None, "trainer-1", BAD)
    );
    assert!(root.confidence < Confidence::High);
}

#[test]
fn the_cause_is_found_among_tracebacks_that_nothing_labels() {
    for order in [[BAD, PEER, PEER], [PEER, BAD, PEER], [PEER, PEER, BAD]] {
        let job = Job::new("unlabelled");
        job.write(
            "train.log",
            format!("step 1\n{}", order.map(traceback).concat()),
        );
        let found = job.report();
        let root = found.root_cause.as_ref().unwrap();
        assert_eq!((root.rank, root.title.as_str()), (None, BAD), "{order:?}");
        assert!(root.confidence < Confidence::High);
        assert!(
            found
                .incomplete
                .iter()
                .any(|note| note.contains("numbered as they come"))
        );
    }
}

#[test]
fn a_margin_that_tells_the_rank_is_believed() {
    for form in [
        "[rank {}] ",
        "Rank {}: ",
        "rank={} | ",
        "(rank {}) ",
        "rank{}: ",
        "12:00:01 [RANK={}] ",
    ] {
        let job = Job::new("margin");
        let lines =
            ranks().map(|(rank, text)| prefixed(&form.replace("{}", &rank.to_string()), &text));
        job.write("train.log", lines.concat());
        let found = job.report();
        assert_eq!(cause(&found).0, Some(2), "{form}");
        assert_eq!(found.ranks.collateral, "0-1,3", "{form}");
    }
    // A number among those of one host, or of something else, is none of all ranks.
    for form in ["[local rank {}] ", "crank {}: "] {
        let job = Job::new("margin");
        let lines =
            ranks().map(|(rank, text)| prefixed(&form.replace("{}", &rank.to_string()), &text));
        job.write("train.log", lines.concat());
        assert_eq!(
            job.report().root_cause.and_then(|cause| cause.rank),
            None,
            "{form}"
        );
    }
}

#[test]
fn each_line_twice_and_a_byte_order_mark_change_nothing() {
    let text: String = ranks()
        .iter()
        .map(|(rank, text)| prefixed(&format!("[rank{rank}]: "), text))
        .collect();
    let twice: String = text
        .lines()
        .map(|line| format!("{line}\n{line}\n"))
        .collect();
    let judged = |text: &str| {
        let job = Job::new("twice");
        job.write("train.log", text);
        let found = job.report();
        let (rank, category, confidence) = cause(&found);
        (
            rank,
            category.to_owned(),
            confidence,
            found.ranks.collateral.clone(),
        )
    };
    assert_eq!(judged(&twice), judged(&text));
    assert_eq!(judged(&format!("\u{feff}{text}")), judged(&text));
}

#[test]
fn a_rank_that_a_path_tells_is_assumed() {
    let job = Job::new("path");
    for (rank, text) in ranks() {
        job.write(&format!("rank_{rank}.log"), text);
    }
    let found = job.report();
    assert_eq!(
        cause(&found),
        (Some(2), "python_exception", Confidence::Medium)
    );
    let evidence = found.root_cause.unwrap().evidence.join("\n");
    assert!(evidence.contains("assumed"), "{evidence}");
}

#[test]
fn exception_groups_and_coloured_tracebacks_are_read() {
    let group = "  + Exception Group Traceback (most recent call last):\n  |   File \"/j/train.py\", line 9, in main\n  | ExceptionGroup: workers (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File \"/j/train.py\", line 4, in step\n    | ValueError: bad batch\n    +---------------- 2 ----------------\n    | Traceback (most recent call last):\n    |   File \"/j/train.py\", line 5, in step\n    | ValueError: bad batch\n    +------------------------------------\n";
    let coloured = "Traceback (most recent call last):\n  File \u{1b}[35m\"/j/train.py\"\u{1b}[0m, line \u{1b}[35m9\u{1b}[0m, in \u{1b}[35mmain\u{1b}[0m\n    \u{1b}[31mstep\u{1b}[0m\u{1b}[1;31m()\u{1b}[0m\n    \u{1b}[31m~~~~\u{1b}[0m\u{1b}[1;31m^^\u{1b}[0m\n\u{1b}[1;35mValueError\u{1b}[0m: \u{1b}[35mbad batch\u{1b}[0m\n";
    for text in [group, coloured] {
        let job = Job::new("new-python");
        job.write("rank_1.log", text);
        let found = job.report();
        assert_eq!(found.root_cause.as_ref().unwrap().title, BAD, "{text}");
        let place = &found.groups[0].example.location;
        assert!(place.contains("train.py"), "{place}");
    }
}

#[test]
fn clouds_margins_name_the_worker_and_its_host() {
    let time = "2026-11-29T16:33:26.123456Z";
    for (lost, raised, host) in [
        (
            format!("INFO {time} [resource.labels.taskName: workerpool0-0] "),
            format!("ERROR {time} [resource.labels.taskName: workerpool1-0] "),
            "workerpool1-0",
        ),
        (
            "(head, rank=0, pid=4711) ".to_owned(),
            "(worker1, rank=1, pid=4712, ip=10.0.0.2) ".to_owned(),
            "10.0.0.2",
        ),
    ] {
        let text = prefixed(&lost, &traceback(PEER)) + &prefixed(&raised, &traceback(BAD));
        let job = Job::new("cloud");
        job.write("job.log", text);
        let found = job.report();
        let root = found.root_cause.as_ref().unwrap();
        assert_eq!((root.title.as_str(), root.host.as_str()), (BAD, host));
        assert!(root.confidence < Confidence::High, "{root:?}");
    }
}

#[test]
fn determineds_margin_tells_the_rank() {
    let time = "2026-11-29T16:33:26.123456Z";
    let said = |(rank, text): (u32, String)| {
        prefixed(&format!("[{time}] 8de2ca81 [rank={rank}] || "), &text)
    };
    let text: String = ranks().into_iter().map(said).collect();
    let job = Job::new("trial");
    job.write(
        "trial.log",
        format!("[{time}]          || INFO: Trial 1\n{text}"),
    );
    let found = job.report();
    let root = found.root_cause.as_ref().unwrap();
    assert_eq!((root.rank, root.title.as_str()), (Some(2), BAD));
    assert_eq!(found.ranks.collateral, "0-1,3");
}
