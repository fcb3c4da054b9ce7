//! What must not change a verdict: the order in which files are found, and one node's clock.

use firstfault_analysis::schema::Confidence;
use firstfault_analysis::{Options, Progress, Report, analyze, analyze_files};
use rayon::prelude::*;
use regex::{Captures, Regex};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Files = Vec<(PathBuf, Vec<u8>)>;
type Verdict = Option<(Option<u32>, String, Confidence)>;

const SKEW_SECONDS: i64 = 5;

fn verdict(report: &Report) -> Verdict {
    let cause = report.root_cause.as_ref()?;
    Some((cause.rank, cause.category.clone(), cause.confidence))
}

fn of(files: &Files) -> Verdict {
    let progress = Arc::new(Progress::default());
    let report = analyze_files(files, &Options::default(), &progress);
    verdict(&report.expect("a job's files"))
}

fn cases() -> Vec<(String, PathBuf, Files)> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/corpus");
    let cases = fs::read_dir(corpus).expect("a directory");
    let cases = cases.map(|case| case.expect("an entry").path());
    let case = |path: PathBuf| {
        let mut files = Files::new();
        collect(&path, Path::new(""), &mut files);
        let name = path.file_name().expect("a name").to_string_lossy();
        (name.into_owned(), path.clone(), files)
    };
    cases.map(case).collect()
}

fn collect(directory: &Path, below: &Path, files: &mut Files) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = below.join(path.file_name().expect("a name"));
        if path.is_dir() {
            collect(&path, &name, files);
        } else if !path.ends_with("expected.json") {
            files.push((name, fs::read(&path).expect("a file")));
        }
    }
    files.sort();
}

/// A generator of whole numbers below a limit, the same in every run.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for last in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(
            last,
            usize::try_from(state % (last as u64 + 1)).expect("small"),
        );
    }
}

#[test]
fn the_order_of_files_changes_nothing() {
    cases().into_par_iter().for_each(|(name, path, mut files)| {
        let whole = analyze(std::slice::from_ref(&path), &Options::default());
        let expected = verdict(&whole.expect("a case"));
        files.reverse();
        assert_eq!(of(&files), expected, "{name} backwards");
        for seed in 1..=3 {
            shuffle(&mut files, seed);
            assert_eq!(of(&files), expected, "{name}, order {seed}");
        }
        // The same as several paths.
        let entries = fs::read_dir(&path).expect("a directory");
        let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
        paths.retain(|path| !path.ends_with("expected.json") && is_evidence(path));
        paths.sort();
        for seed in 0..3 {
            let report = analyze(&paths, &Options::default()).expect("a case");
            assert_eq!(verdict(&report), expected, "{name}, paths {seed}");
            shuffle(&mut paths, seed + 1);
        }
    });
}

/// A launcher's status beside its log is nothing that a user would name.
fn is_evidence(path: &Path) -> bool {
    path.extension().is_none_or(|extension| extension != "rc")
}

#[test]
fn the_clock_of_one_node_changes_nothing() {
    cases().into_par_iter().for_each(|(name, _, files)| {
        let expected = of(&files);
        let mut nodes: Vec<char> = files.iter().filter_map(|(name, _)| node(name)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        for node_off in nodes {
            for seconds in [SKEW_SECONDS, -SKEW_SECONDS] {
                let move_one = |(name, content): &(PathBuf, Vec<u8>)| {
                    let is_off = node(name) == Some(node_off);
                    let moved = is_off.then(|| moved(content, seconds));
                    (name.clone(), moved.unwrap_or_else(|| content.clone()))
                };
                let skewed: Files = files.iter().map(move_one).collect();
                assert!(skewed != files, "{name}: no time on node {node_off}");
                let found = of(&skewed);
                assert_eq!(found, expected, "{name}, node {node_off} {seconds:+} s");
            }
        }
    });
}

/// The number of the node that a file was written on: `node1/…`, `agent1.err`.
fn node(name: &Path) -> Option<char> {
    let first = name.iter().next()?.to_str()?;
    let rest = ["node", "agent"]
        .iter()
        .find_map(|word| first.strip_prefix(word))?;
    rest.chars().next().filter(char::is_ascii_digit)
}

/// Moves every time in a file: those of torch's logs and summaries, and those of error files.
fn moved(content: &[u8], seconds: i64) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(content) else {
        return content.to_owned();
    };
    let clock = Regex::new(r"\b(\d\d):(\d\d):(\d\d)\b").expect("a pattern");
    let stamp = Regex::new(r#"("timestamp": ?"?)(\d{10})\b"#).expect("a pattern");
    let number = |found: &Captures<'_>, group: usize| found[group].parse::<i64>().expect("digits");
    let text = clock.replace_all(text, |found: &Captures<'_>| {
        let [hours, minutes, second] = [1, 2, 3].map(|group| number(found, group));
        // No case was recorded around midnight.
        let all = hours * 3600 + minutes * 60 + second + seconds;
        format!("{:02}:{:02}:{:02}", all / 3600, all / 60 % 60, all % 60)
    });
    let text = stamp.replace_all(&text, |found: &Captures<'_>| {
        format!("{}{}", &found[1], number(found, 2) + seconds)
    });
    text.into_owned().into_bytes()
}
