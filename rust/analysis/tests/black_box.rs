//! Black boxes: read whole, torn and hostile, and what a job's verdict makes of them.

mod common;

use common::{Job, PEER, SECOND, START, cause, ours, signal, torch};
use firstfault_analysis::black_box::{Fate, State, parse};
use firstfault_analysis::report::{safe, show};
use firstfault_analysis::schema::Confidence;
use firstfault_analysis::{Options, Report, analyze, report};
use firstfault_format::black_box::{
    HEADER_WORDS, MAGIC, NONE, SIZE, Text, VERSION, WORDS, begun, checksum, crash, header, known,
    ring, state, whole,
};
use std::fs;
use std::os::unix::fs::symlink;

const BOOT: &str = "db829f29-c7e1-4b76-82a7-b16c17551f67";
const NAMESPACE: u64 = 4_026_531_836;

/// A box, as the writer would have left it.
struct Image(Vec<u64>);

impl Image {
    fn of(rank: u32) -> Self {
        let mut image = Self(vec![0; WORDS]);
        for (at, value) in [
            (header::MAGIC, MAGIC),
            (header::VERSION, VERSION),
            (header::SIZE, SIZE as u64),
            (header::PID, 1000 + u64::from(rank)),
            (header::PID_NAMESPACE, NAMESPACE),
            (header::START_TICKS, 50 + u64::from(rank)),
            (header::START_TIME_NS, START as u64),
            (header::INSTALL_NS, START as u64),
            (header::STATE, state::RUNNING),
            (header::LAST_NS, (START + SECOND) as u64),
            (header::RANK, rank.into()),
            (header::LOCAL_RANK, (rank % 2).into()),
            (header::WORLD_SIZE, 4),
            (header::GROUP_RANK, NONE),
            (header::ATTEMPT, 0),
        ] {
            image.0[at] = value;
        }
        image
            .text(header::BOOT_ID, BOOT)
            .text(header::HOST, &format!("node{}", rank / 2))
            .text(header::RUN_ID, "job")
    }

    fn set(mut self, at: usize, value: u64) -> Self {
        self.0[at] = value;
        self
    }

    fn text(mut self, place: Text, text: &str) -> Self {
        for (number, bytes) in text.as_bytes().chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.0[place.first + number] = u64::from_le_bytes(word);
        }
        self
    }

    fn breadcrumb(mut self, index: u64, name: &str, value: &str) -> Self {
        let first = ring::FIRST + (index as usize % ring::SLOTS) * ring::SLOT_WORDS;
        let lengths = name.len() as u64 | (value.len() as u64) << 8 | 1 << 16;
        self.0[first + ring::TIME_NS] = (START + index as i64) as u64;
        self.0[first + ring::LENGTHS] = lengths;
        let text = Text {
            first: first + ring::TEXT,
            words: ring::SLOT_WORDS - ring::TEXT,
        };
        self = self.text(text, &format!("{name}{value}"));
        let slot = &self.0[first..first + ring::SLOT_WORDS];
        let content = [whole(index)]
            .into_iter()
            .chain(slot[ring::TIME_NS..].iter().copied());
        self.0[first + ring::CHECKSUM] = checksum(content);
        self.0[first + ring::SEQUENCE] = whole(index);
        self.0[header::NEXT] = self.0[header::NEXT].max(index + 1);
        self
    }

    fn crash(self, time_ns: i64) -> Self {
        self.set(header::STATE, state::CRASHED)
            .set(crash::SIGNAL, 11)
            .set(crash::TIME_NS, time_ns as u64)
            .set(crash::KNOWN, known::CODE | known::ADDRESS)
            .set(crash::CODE, 1)
            .set(crash::ADDRESS, 0x10)
            .set(crash::TID, 7)
            .text(crash::THREAD_NAME, "loader")
    }

    fn step(self, step: i64) -> Self {
        self.set(header::STEP, step as u64)
            .set(header::STEP_NS, START as u64)
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

fn place(job: &Job, rank: u32, image: &Image) {
    let name = format!(
        "logs/job_abcd1234/attempt_0/{rank}/error.{}.box",
        1000 + rank
    );
    job.write(&name, image.bytes());
}

fn record(job: &Job, rank: u32, message: &str) {
    let name = format!("logs/job_abcd1234/attempt_0/{rank}/error.json");
    job.record(&name, &ours(rank, message, START + 2 * SECOND));
}

/// A process file system in which the processes of these ranks are there.
fn proc(job: &Job, alive: &[u32]) {
    job.write("proc/sys/kernel/random/boot_id", format!("{BOOT}\n"));
    fs::create_dir_all(job.0.join("proc/self/ns")).expect("a directory");
    symlink(format!("pid:[{NAMESPACE}]"), job.0.join("proc/self/ns/pid")).expect("a link");
    stat(job, 1, "S", 0);
    for rank in alive {
        stat(job, 1000 + rank, "S", 50 + u64::from(*rank));
    }
}

fn stat(job: &Job, pid: u32, letter: &str, start: u64) {
    let zeros = "0 ".repeat(18);
    job.write(
        &format!("proc/{pid}/stat"),
        format!("{pid} (py) thon) {letter} {zeros}{start} 0 0\n"),
    );
}

fn judged(job: &Job) -> Report {
    let options = Options::default().with_proc(job.0.join("proc"));
    analyze(&[job.0.join("logs")], &options).expect("readable")
}

#[test]
fn a_rank_that_vanished_is_named_by_its_box_alone() {
    let job = Job::new("vanished");
    proc(&job, &[]);
    for rank in [0, 1, 3] {
        record(&job, rank, PEER);
    }
    let image = Image::of(2)
        .step(1200)
        .breadcrumb(0, "enter", "main")
        .breadcrumb(1, "load", "shard 7");
    place(&job, 2, &image);
    let report = judged(&job);
    assert_eq!(cause(&report), (Some(2), "vanished", Confidence::Medium));
    let found = report.root_cause.as_ref().expect("a cause");
    assert_eq!(found.step, Some(1200));
    assert_eq!(
        found.breadcrumbs.last().map(|note| note.name.as_str()),
        Some("load")
    );
    assert_eq!(found.time_ns, Some(START + SECOND));
    let text = report::text::render(&report, false);
    assert!(
        text.contains("at step 1200 · latest breadcrumbs: load=shard 7 < enter=main"),
        "{text}"
    );
    let heard = "its black box was last written at 2026-11-29 16:33:21.000 UTC; its process is gone, though main ran";
    assert!(
        found.evidence.iter().any(|line| line.starts_with(heard)),
        "{:?}",
        found.evidence
    );
    assert!(report::markdown::render(&report).contains("step 1200"));
    assert!(report::json::render(&report).contains("\"shard 7\""));
    assert_eq!(
        (
            report.ranks.primary.as_str(),
            report.ranks.collateral.as_str()
        ),
        ("2", "0-1,3")
    );
}

#[test]
fn a_job_that_runs_has_not_failed() {
    let job = Job::new("runs");
    proc(&job, &[0, 1, 2, 3]);
    for rank in 0..4 {
        place(&job, rank, &Image::of(rank));
    }
    let report = judged(&job);
    assert!(report.root_cause.is_none());
    assert!(
        report
            .incomplete
            .contains(&"ranks 0-3 are still running".to_owned()),
        "{:?}",
        report.incomplete
    );
}

#[test]
fn elsewhere_a_box_tells_only_when_its_rank_was_last_heard_of() {
    type Change = fn(&Job);
    let ways: [(&str, Change); 3] = [
        ("boot", |job| {
            drop(job.write("proc/sys/kernel/random/boot_id", "another\n"))
        }),
        ("namespace", |job| {
            fs::remove_file(job.0.join("proc/self/ns/pid")).expect("removed");
            symlink("pid:[5]", job.0.join("proc/self/ns/pid")).expect("a link");
        }),
        ("hidepid", |job| {
            fs::remove_file(job.0.join("proc/1/stat")).expect("removed")
        }),
    ];
    for (name, change) in ways {
        let job = Job::new(name);
        proc(&job, &[]);
        change(&job);
        for rank in 0..4 {
            place(&job, rank, &Image::of(rank));
        }
        let report = judged(&job);
        assert!(report.root_cause.is_none(), "{name}");
        let note = report
            .incomplete
            .iter()
            .find(|note| note.contains("last heard of at"));
        assert!(
            note.is_some_and(|note| note.contains("ranks 0-3")),
            "{name}"
        );
    }
}

#[test]
fn a_process_is_one_id_and_one_start() {
    let content = parse(&Image::of(2).bytes()).expect("a box");
    for (letter, start, fate) in [
        ("S", 52, Fate::Alive),
        ("D", 52, Fate::Alive),
        ("Z", 52, Fate::Gone),
        ("S", 53, Fate::Gone),
    ] {
        let job = Job::new("fate");
        proc(&job, &[]);
        stat(&job, 1002, letter, start);
        assert_eq!(content.fate(&job.0.join("proc")), fate, "{letter} {start}");
    }
    let job = Job::new("no-proc");
    assert_eq!(content.fate(&job.0.join("proc")), Fate::Unknown);
}

#[test]
fn a_rank_whose_main_had_returned_did_not_fail() {
    let job = Job::new("exiting");
    proc(&job, &[]);
    // A box that could not be removed says that the process has finished.
    for (rank, state) in (0..).zip([state::EXITING, state::FINISHED].repeat(2)) {
        place(&job, rank, &Image::of(rank).set(header::STATE, state));
    }
    let report = judged(&job);
    assert!(report.root_cause.is_none());
    assert_eq!(report.ranks.succeeded, "0-3");
}

#[test]
fn a_rank_that_was_asked_to_end_is_no_cause() {
    let job = Job::new("asked");
    proc(&job, &[]);
    record(&job, 0, PEER);
    for rank in [1, 3] {
        place(&job, rank, &Image::of(rank).set(header::REQUEST_SIGNAL, 15));
    }
    place(&job, 2, &Image::of(2));
    let report = judged(&job);
    assert_eq!(cause(&report).0, Some(2));
    assert_eq!(
        (
            report.ranks.primary.as_str(),
            report.ranks.terminated.as_str()
        ),
        ("2", "1,3")
    );
}

#[test]
fn a_failure_that_is_recorded_beats_ranks_that_vanished() {
    let job = Job::new("recorded");
    proc(&job, &[]);
    record(&job, 1, "ValueError: loss is nan");
    for rank in [0, 2, 3] {
        place(&job, rank, &Image::of(rank));
    }
    assert_eq!(cause(&judged(&job)).0, Some(1));
    assert_eq!(cause(&judged(&job)).1, "nan_loss");
}

#[test]
fn of_several_that_vanished_none_is_sure() {
    let job = Job::new("several");
    proc(&job, &[]);
    record(&job, 0, PEER);
    record(&job, 3, PEER);
    place(
        &job,
        1,
        &Image::of(1).set(header::LAST_NS, (START + 9 * SECOND) as u64),
    );
    place(&job, 2, &Image::of(2));
    let report = judged(&job);
    assert_eq!(cause(&report), (Some(2), "vanished", Confidence::Low));
    assert_eq!(report.also_primary.len(), 1);
    let all = Job::new("all-vanished");
    proc(&all, &[]);
    for rank in 0..4 {
        place(&all, rank, &Image::of(rank));
    }
    let report = judged(&all);
    assert_eq!((cause(&report).0, cause(&report).1), (None, "vanished"));
}

#[test]
fn what_the_launcher_saw_decides() {
    let job = Job::new("launcher");
    proc(&job, &[]);
    for rank in 0..3 {
        place(
            &job,
            rank,
            &Image::of(rank).breadcrumb(0, "load", "shard 7"),
        );
    }
    record(&job, 3, PEER);
    let entry = |rank: u32, status: i32, file: &str| {
        format!(
            "[0]:\n  time      : 2026-11-29_16:33:26\n  host      : localhost\n  rank      : {rank} (local_rank: {rank})\n  \
             exitcode  : {status} (pid: {})\n  error_file: {file}\n  traceback : x\n",
            1000 + rank
        )
    };
    let own = "/x/job_abcd1234/attempt_0/3/error.json";
    let text = format!("Failures:\n{}{}", entry(2, -9, "<N/A>"), entry(3, 1, own));
    job.write("logs/agent.err", text);
    let report = judged(&job);
    assert_eq!(
        (cause(&report).0, cause(&report).1),
        (Some(2), "killed_unknown")
    );
    assert_eq!(report.ranks.succeeded, "0-1");
    assert_eq!(report.root_cause.expect("a cause").breadcrumbs.len(), 1);
}

#[test]
fn a_crash_that_left_no_error_file_is_in_the_box() {
    let job = Job::new("crash-box");
    proc(&job, &[]);
    for rank in [0, 1, 3] {
        record(&job, rank, PEER);
    }
    place(&job, 2, &Image::of(2).crash(START + SECOND).step(3));
    let report = judged(&job);
    assert_eq!(cause(&report), (Some(2), "segfault", Confidence::High));
    let found = report.root_cause.expect("a cause");
    assert_eq!(
        found.title,
        "SIGSEGV (Segmentation fault): SEGV_MAPERR at 0x10, thread 'loader'"
    );
    assert_eq!(found.step, Some(3));
    assert!(found.error_file.ends_with("error.1002.box"));
}

#[test]
fn a_crash_in_a_file_and_in_a_box_is_one() {
    let job = Job::new("crash-both");
    proc(&job, &[]);
    job.record(
        "logs/job_abcd1234/attempt_0/2/error.json",
        &signal(2, START),
    );
    place(
        &job,
        2,
        &Image::of(2)
            .crash(START)
            .set(header::HOST.first, u64::from_le_bytes(*b"node1\0\0\0")),
    );
    let report = judged(&job);
    assert!(
        report
            .root_cause
            .as_ref()
            .expect("a cause")
            .error_file
            .ends_with("error.json")
    );
    assert!(
        !report.incomplete.iter().any(|note| note.contains("beside")),
        "{:?}",
        report.incomplete
    );
}

#[test]
fn a_page_that_points_at_a_box_in_memory_is_that_box() {
    let job = Job::new("pointer");
    proc(&job, &[]);
    for rank in [0, 1, 3] {
        record(&job, rank, PEER);
    }
    let elsewhere = job.write("shm/firstfault.0.1002.52.box", Image::of(2).step(9).bytes());
    let page = Image::of(2).text(header::ELSEWHERE, elsewhere.to_str().expect("UTF-8"));
    let name = "logs/job_abcd1234/attempt_0/2/error.1002.box";
    job.write(name, &page.bytes()[..HEADER_WORDS * 8]);
    let report = judged(&job);
    assert_eq!(
        (cause(&report).0, report.root_cause.expect("a cause").step),
        (Some(2), Some(9))
    );
    // Another process's box under that name is not this one's.
    fs::write(
        &elsewhere,
        Image::of(2).step(9).set(header::START_TICKS, 1).bytes(),
    )
    .expect("written");
    assert_eq!(judged(&job).root_cause.expect("a cause").step, None);
    fs::remove_file(&elsewhere).expect("removed");
    assert_eq!(cause(&judged(&job)).0, Some(2));
}

fn shown(job: &Job, name: &str, image: &Image) -> String {
    let path = job.write(name, image.bytes());
    show::text(&show::read(&path).expect("a box"), false)
}

#[test]
fn shown_alone_a_box_says_its_state_and_where_it_is() {
    let job = Job::new("shown-box");
    let finished = Image::of(1).set(header::STATE, state::FINISHED);
    for (name, image, expected) in [
        ("1.box", Image::of(1), "Last heard of while main ran\n"),
        // Its name does not matter where it begins like one.
        (
            "exiting",
            Image::of(1).set(header::STATE, state::EXITING),
            "Last heard of after main had ended\n",
        ),
        (
            "2.box",
            finished,
            "The process finished, and could not remove its black box\n",
        ),
        (
            "3.box",
            Image::of(1).set(header::STATE, 77),
            "state unknown, since ",
        ),
        (
            "4.box",
            Image::of(1).set(header::REQUEST_SIGNAL, 15),
            "  asked to end, by SIGTERM\n",
        ),
        (
            "5.box",
            Image::of(1).step(9).breadcrumb(0, "load", "shard 7"),
            ", step 9, run job",
        ),
        (
            "6.box",
            Image::of(1).step(9).breadcrumb(0, "load", "shard 7"),
            "  load shard 7\n",
        ),
        (
            "7.box",
            Image::of(1).text(header::ELSEWHERE, "/dev/shm/nowhere.box"),
            "the box itself is /dev/shm/nowhere.box, on host node0\n",
        ),
    ] {
        let text = shown(&job, name, &image);
        assert!(text.contains(expected), "{name}: {text}");
    }
    let whole = Image::of(2).step(17);
    let path = job.write("shm/whole.box", whole.bytes());
    let page = Image::of(2).text(header::ELSEWHERE, path.to_str().expect("UTF-8"));
    assert!(shown(&job, "page.box", &page).contains(", step 17"));
}

#[test]
fn a_box_fits_the_page_whatever_it_holds() {
    let job = Job::new("shown-hostile-box");
    let evil = "x\u{1b}[31m\u{9b}\n".repeat(8);
    let mut image = full().crash(START).text(header::HOST, &evil);
    for index in 0..40 {
        image = image.breadcrumb(1000 + index, &evil[..40], &evil[..40]);
    }
    let text = shown(&job, "evil.box", &image);
    assert!(!text.contains(['\x1b', '\u{9b}']), "{text}");
    assert!(
        text.lines()
            .all(|line| safe::width(line) <= show::MAX_COLUMNS)
    );
    let noted = text
        .lines()
        .skip_while(|line| !line.starts_with("BREADCRUMBS"));
    assert_eq!(noted.skip(1).count(), 32);
    let path = job.write("README.box", b"# no box");
    let error = show::read(&path).expect_err("no box");
    assert!(error.to_string().contains("not a black box"), "{error}");
}

#[test]
fn a_process_alone_needs_no_rank() {
    let job = Job::new("alone");
    proc(&job, &[]);
    let image = Image::of(2)
        .set(header::RANK, NONE)
        .set(header::LOCAL_RANK, NONE);
    job.write(
        "logs/no_run/attempt_0/no_rank.h.1002.1002.box",
        image.bytes(),
    );
    let report = judged(&job);
    assert_eq!((cause(&report).0, cause(&report).1), (None, "vanished"));
}

#[test]
fn what_is_no_box_is_damaged() {
    let job = Job::new("damaged");
    proc(&job, &[]);
    record(&job, 0, "ValueError: loss is nan");
    let version = Image::of(1).set(header::VERSION, 9).bytes();
    let images: [(&str, &[u8]); 4] = [
        ("error.1.box", b""),
        ("error.2.box", b"{}"),
        ("error.3.box", &Image::of(1).bytes()[..100]),
        ("error.4.box", &version),
    ];
    for (name, bytes) in images {
        job.write(&format!("logs/job_abcd1234/attempt_0/0/{name}"), bytes);
    }
    let report = judged(&job);
    assert_eq!(report.damaged_files.len(), 4);
    assert_eq!(cause(&report).1, "nan_loss");
}

/// A small generator, so that a failure can be had again. Source: xorshift64*, Vigna 2016
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

/// A box whose ring has gone round; every breadcrumb says the same thing twice.
fn full() -> Image {
    (0..600_u64).fold(Image::of(2).step(5), |image, index| {
        image.breadcrumb(index, &format!("n{index}"), &format!("n{index}"))
    })
}

fn are_whole(bytes: &[u8]) -> usize {
    let Ok(content) = parse(bytes) else { return 0 };
    for note in &content.breadcrumbs {
        assert_eq!(Some(&note.name), note.value.as_ref());
        let index: i64 = note.name[1..].parse().expect("a number");
        assert_eq!(note.time_ns, Some(START + index));
    }
    content.breadcrumbs.len()
}

#[test]
fn a_whole_box_tells_its_latest_breadcrumbs_in_order() {
    let content = parse(&full().bytes()).expect("a box");
    let names: Vec<&str> = content
        .breadcrumbs
        .iter()
        .map(|note| note.name.as_str())
        .collect();
    let expected: Vec<String> = (568..600).map(|index| format!("n{index}")).collect();
    assert_eq!(names, expected);
    assert_eq!((content.state, content.step), (State::Running, Some(5)));
    assert_eq!(content.rank.run_id.as_deref(), Some("job"));
}

#[test]
fn a_slot_that_was_being_written_is_dropped_and_no_other() {
    let index = 599_usize;
    let first = ring::FIRST + (index % ring::SLOTS) * ring::SLOT_WORDS;
    // Killed at each store of the next round's writer.
    let next = full()
        .breadcrumb(599 + ring::SLOTS as u64, "later", "later")
        .0;
    let before = full().0;
    for stores in 0..ring::SLOT_WORDS {
        let mut torn = before.clone();
        torn[first] = begun(599 + ring::SLOTS as u64);
        torn[first + ring::TIME_NS..][..stores.min(14)]
            .copy_from_slice(&next[first + ring::TIME_NS..][..stores.min(14)]);
        if stores == 15 {
            torn[first + ring::CHECKSUM] = next[first + ring::CHECKSUM];
        }
        assert_eq!(are_whole(&Image(torn.clone()).bytes()), 32);
        let content = parse(&Image(torn).bytes()).expect("a box");
        assert!(
            !content
                .breadcrumbs
                .iter()
                .any(|note| note.name == "n599" || note.name == "later")
        );
    }
}

#[test]
fn every_flipped_bit_and_every_cut_leaves_whole_breadcrumbs() {
    let bytes = full().bytes();
    let mut random = Random(0x5eed);
    for _ in 0..500 {
        let mut image = bytes.clone();
        for _ in 0..=random.below(3) {
            let bit = ring::FIRST * 64 + random.below((WORDS - ring::FIRST) * 64);
            image[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(are_whole(&image), 32);
    }
    for length in (0..bytes.len()).step_by(251) {
        are_whole(&bytes[..length]);
    }
}

#[test]
fn hostile_bytes_are_read_without_harm() {
    let crashed = full().crash(START).0;
    let mut random = Random(0xdead);
    for _ in 0..500 {
        let mut image = crashed.clone();
        for _ in 0..1 + random.below(40) {
            let at = random.below(WORDS);
            image[at] = match random.below(4) {
                0 => u64::MAX,
                1 => 1 << 63,
                2 => 0,
                _ => random.0,
            };
        }
        (image[header::MAGIC], image[header::VERSION]) = (MAGIC, VERSION);
        let content = parse(&Image(image).bytes()).expect("a box");
        let _ = content.failure();
        let _ = content.fate(std::path::Path::new("/nonexistent"));
    }
}

#[test]
fn torch_files_and_boxes_go_together() {
    let job = Job::new("torch-and-box");
    proc(&job, &[]);
    for rank in 0..2 {
        job.record(
            &format!("logs/job_abcd1234/attempt_0/{rank}/error.json"),
            &torch(PEER, START),
        );
    }
    place(&job, 2, &Image::of(2));
    assert_eq!(
        cause(&judged(&job)),
        (Some(2), "vanished", Confidence::Medium)
    );
}
