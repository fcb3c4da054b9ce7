//! Whatever a job died of, its report fits its page, says nothing that is not so, and counts what it leaves out.

mod common;

use common::{Job, PEER, START, ours, signal};
use firstfault_analysis::Report;
use firstfault_analysis::report::{digest, line, safe, text};
use serde_json::json;
use std::collections::BTreeSet;

/// Texts that a program may have died with, those that attack a terminal among them.
const MESSAGES: &[&str] = &[
    "ValueError: bad sample\u{1b}[2J\u{1b}]0;owned\u{7}",
    "RuntimeError: 漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字",
    "KeyError: 'a\u{202e}b'",
    "AssertionError: \r\nROOT CAUSE  rank 99: all is well",
    "OSError: [Errno 28] No space left on device: '/a/very/long/path/that/goes/on/and/on/and/on/and/on/and/on/and/on/and/on/and/on'",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "ZeroDivisionError: division by zero",
    "LookupError: 🏖\u{fe0f}🏖\u{fe0f}🏖\u{fe0f}",
];

/// Numbers that look random and are the same each time. Source: Marsaglia, "Xorshift RNGs"
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("small")
    }
}

/// Returns the ranks of a list like `0-2,7`, which must be whole.
fn members(list: &str) -> BTreeSet<u32> {
    let ranges = list.split(',').filter(|range| !range.is_empty());
    let both = ranges.map(|range| range.split_once('-').unwrap_or((range, range)));
    both.flat_map(|(first, last)| {
        first.parse::<u32>().expect(list)..=last.parse::<u32>().expect(list)
    })
    .collect()
}

fn random_job(name: &str, seed: u64) -> (Job, Report) {
    let mut numbers = Numbers(seed * 0x9e37_79b9 + 1);
    let job = Job::new(&format!("{name}-{seed}"));
    let ranks = [1, 2, 7, 40, 300][numbers.below(5)];
    let kinds = 1 + numbers.below(MESSAGES.len() + 20);
    let chance = 1 + numbers.below(6);
    for rank in 0..ranks {
        let time = START + i64::try_from(numbers.below(9)).expect("small") * common::SECOND / 3;
        let mut record = match numbers.below(chance + 2) {
            0 => {
                let kind = numbers.below(kinds);
                // Beyond the list each kind is an exception of its own.
                let other = format!("Odd{}Error: broken", ["A", "B", "C"][kind % 3].repeat(kind));
                ours(rank, MESSAGES.get(kind).unwrap_or(&other.as_str()), time)
            }
            1 if numbers.below(4) == 0 => signal(rank, time),
            1 => continue,
            _ => ours(rank, PEER, time + 5),
        };
        record["firstfault"]["rank"]["world_size"] = json!(ranks);
        record["firstfault"]["rank"]["run_id"] = json!("job");
        let name = format!(
            "job/attempt_0/rank_{rank}.node{}.{}.json",
            rank / 2,
            1000 + rank
        );
        job.record(&name, &record);
    }
    job.write("job/attempt_0/rank_0.node0.999.json", "{\"\x1b[31m");
    let report = job.report();
    (job, report)
}

#[test]
fn every_report_fits_and_is_true() {
    for seed in 0..60 {
        let (_job, report) = random_job("page", seed);
        let page = text::render(&report, false);
        let lines: Vec<&str> = page.lines().collect();
        assert!(lines.len() <= text::MAX_LINES, "{seed}: {page}");
        for line in &lines {
            assert!(safe::width(line) <= text::MAX_COLUMNS, "{seed}: {line}");
        }
        for form in [&page, &digest::render(&report), &line::render(&report)] {
            let harmless =
                |c: char| c == '\n' || !c.is_control() && !('\u{202a}'..='\u{202e}').contains(&c);
            assert!(form.chars().all(harmless), "{seed}: {form:?}");
        }
        assert!(lines[0].starts_with("ROOT CAUSE") || report.root_cause.is_none());
        assert!(!lines[1..].iter().any(|line| line.starts_with("ROOT CAUSE")));
        every_distinct_failure_is_shown_or_counted(&report, &lines, seed);
        what_is_said_of_ranks_is_so(&report, &page, seed);
    }
}

fn every_distinct_failure_is_shown_or_counted(report: &Report, lines: &[&str], seed: u64) {
    let Some(cause) = &report.root_cause else {
        return;
    };
    let primary: Vec<_> = report
        .groups
        .iter()
        .filter(|group| group.role == "primary")
        .collect();
    let of_cause = |ranks: &str| {
        cause
            .rank
            .is_some_and(|rank| members(ranks).contains(&rank))
    };
    let others: Vec<_> = primary
        .iter()
        .filter(|group| !of_cause(&group.ranks) && group.title != cause.title)
        .collect();
    let from = lines.iter().position(|line| *line == "ALSO");
    let section: Vec<&&str> = match from {
        Some(from) => lines[from + 1..]
            .iter()
            .take_while(|line| line.starts_with("  "))
            .collect(),
        None => Vec::new(),
    };
    let counted = section
        .iter()
        .find_map(|line| line.strip_prefix("  and ")?.strip_suffix(" more"));
    let counted: usize = counted.map_or(0, |count| count.parse().expect("a number"));
    let shown = others.iter().filter(|group| {
        let category = format!(": {}, ", group.category);
        let title: String = safe::one_line(&group.title).chars().take(20).collect();
        section
            .iter()
            .any(|line| line.contains(&category) && line.contains(title.trim_end()))
    });
    assert!(
        shown.count() + counted >= others.len(),
        "{seed}: {lines:#?}"
    );
}

fn what_is_said_of_ranks_is_so(report: &Report, page: &str, seed: u64) {
    let said: Vec<&str> = page
        .lines()
        .skip_while(|line| !line.starts_with("RANKS"))
        .take_while(|line| line.starts_with("RANKS") || line.starts_with("     "))
        .collect();
    let said = said.join(" ");
    let ranks = &report.ranks;
    for (name, all) in [
        ("primary", &ranks.primary),
        ("collateral", &ranks.collateral),
        ("silent", &ranks.silent),
    ] {
        let Some(at) = said.find(&format!("{name} ")) else {
            assert_eq!(all, "", "{seed}: {name}");
            continue;
        };
        let mut words = said[at + name.len()..].split_whitespace();
        let shown = members(words.next().expect("ranks"));
        let more = match (words.next(), words.next()) {
            (Some("and"), Some(more)) => more.parse().expect("a number"),
            _ => 0,
        };
        let all = members(all);
        assert!(shown.is_subset(&all), "{seed}: {name} in {said}");
        assert_eq!(shown.len() + more, all.len(), "{seed}: {name} in {said}");
    }
}

#[test]
fn a_digest_fits_where_there_is_little_room() {
    for seed in 0..60 {
        let (_job, mut report) = random_job("digest", seed);
        if let Some(cause) = &mut report.root_cause {
            cause.evidence = vec!["漢字 a reason".repeat(60); 40];
            cause.title.push_str(&"🏖".repeat(300));
        }
        let short = digest::render(&report);
        assert!(short.len() <= digest::MAX_BYTES, "{seed}");
        assert!(short.ends_with('\n'));
        let line = line::render(&report);
        assert!(
            line.len() <= line::MAX_BYTES && line.matches('\n').count() == 1,
            "{seed}: {line}"
        );
        if let Some(cause) = &report.root_cause {
            assert!(
                line.contains(&cause.category) && line.contains("(confidence "),
                "{line}"
            );
            let first = short.lines().next().expect("a line");
            assert!(
                first.contains(&cause.category) && first.contains(", confidence "),
                "{short}"
            );
            assert!(short.ends_with(" more lines)\n"), "{short}");
        }
    }
}
