//! One log in which many ranks speak in turns: a terminal's, a scheduler's, torchrun's with `--tee`.

mod labels;

pub(crate) use labels::{Label, are_tasks, task};

use crate::dress::{Plain, Whose};
use crate::logs::ROOT_CAUSE;
use crate::parse::begin;
use labels::{
    barriers, block, from_traceback, heads, is_end_of_launcher, is_last_of_launcher, is_launcher,
    is_of_barrier, is_rule, is_stamped, is_workers, last_of_launchers, launcher_reports, split,
    tells_of_barriers, unjoined, watchdogs,
};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// Ranks from here on are a mistake in a label, not ranks.
const MAX_RANK: u32 = 1 << 20;

/// At most so many ranks of one log are told apart.
const MAX_RANKS: usize = 1 << 17;

/// Of what one rank says the last so many bytes are kept, and the first sixteenth of that.
const MAX_OUTPUT: usize = 256 << 10;

/// More lines that look like exceptions are a program's own manner.
const MAX_BEGUN: usize = 256;

/// What one log says of each rank.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Console {
    pub(crate) path: PathBuf,
    /// The lines of each rank, by what labels them.
    pub(crate) ranks: BTreeMap<Label, Output>,
    /// The lines that no label gives to a rank, and that are not the launcher's own.
    pub(crate) unlabelled: Output,
    /// The names of processes, by the numbers in their labels.
    pub(crate) names: Vec<String>,
}

/// Some lines of a log.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) text: String,
    /// The number of each line in the log, from 1.
    pub(crate) lines: Vec<usize>,
    /// Whether torch's hook for uncaught exceptions printed a traceback.
    pub(crate) uncaught: bool,
    /// Whether it is the program's own logger that labels its lines, which may print what was caught.
    pub(crate) by_logger: bool,
    /// How many bytes in the middle were left out.
    pub(crate) cut: usize,
    /// Whether the log ends in the middle of its last line.
    pub(crate) torn: bool,
    /// Whether a traceback of it has no beginning.
    pub(crate) headless: bool,
}

impl Output {
    fn push(&mut self, line: &str, number: usize) {
        self.text.push_str(begin(line, 4096));
        self.text.push('\n');
        self.lines.push(number);
        if self.text.len() > 2 * MAX_OUTPUT {
            self.shorten();
        }
    }

    /// Leaves out whole lines of the middle.
    fn shorten(&mut self) {
        let (head, tail) = (MAX_OUTPUT / 16, self.text.len() - MAX_OUTPUT);
        let after = |at: usize| {
            self.text.as_bytes()[at..]
                .iter()
                .position(|&byte| byte == b'\n')
        };
        let (Some(from), Some(to)) = (after(head), after(tail)) else {
            return;
        };
        let (from, to) = (head + from + 1, tail + to + 1);
        let count = |text: &str| text.bytes().filter(|&byte| byte == b'\n').count();
        let first = count(&self.text[..from]);
        let gone = count(&self.text[from..to]);
        self.lines.drain(first..first + gone);
        self.text.drain(from..to);
        self.cut += to - from;
    }
}

/// Returns what a log says of each rank; `None` where nothing in it is anybody's last words.
pub(crate) fn console(path: &Path, plain: &Plain<'_>) -> Option<Console> {
    let tasks = are_tasks(&plain.text);
    let reports = launcher_reports(&plain.text);
    let mut console = Console {
        path: path.to_owned(),
        names: plain.names.clone(),
        ..Console::default()
    };
    let mut in_launcher: HashSet<Option<Label>> = HashSet::new();
    // Where the last launcher begins to end: what another says before is not its.
    let last = last_of_launchers(&plain.text);
    let mut in_summary: HashSet<Option<Label>> = HashSet::new();
    let mut inside = Inside::default();
    let mut by_logger = false;
    let mut of_block = None;
    // Whose traceback goes on, and has no label.
    let mut headed = None;
    let has_barriers = tells_of_barriers(&plain.text);
    let (mut barrier, mut before) = (None, "");
    for (index, raw) in plain.text.lines().enumerate() {
        // A progress bar has no line of its own.
        let raw = raw.trim_end_matches('\r');
        let raw = raw.rsplit('\r').next().unwrap_or(raw);
        if let Some(whose) = block(raw) {
            of_block = whose;
            continue;
        }
        let (own, task, line) = split(raw, tasks);
        inside.note(own, task);
        let told = plain.whose(index).map(Label::from);
        let speaker = own.or(told);
        let is_ranks = !matches!(own, None | Some(Label::Task(_)))
            || of_block.is_some()
            || matches!(told, Some(Label::Rank(_)));
        if !is_ranks {
            // A launcher speaks at the end: its own traceback, then its summary. Another host's workers may come after it.
            if is_last_of_launcher(line) {
                in_launcher.insert(speaker);
            } else if is_workers(line) {
                in_launcher.remove(&speaker);
            }
            if line.starts_with(ROOT_CAUSE) {
                in_summary.insert(speaker);
            }
            if is_rule(line) && in_summary.remove(&speaker) && last > Some(index) {
                in_launcher.remove(&speaker);
                continue;
            }
            let own_end = !reports && is_end_of_launcher(line);
            if in_launcher.contains(&speaker) || is_launcher(line) && !own_end {
                continue;
            }
        }
        let head = if speaker.is_none() { heads(line) } else { None };
        let goes_on = speaker.is_none() && !is_stamped(line);
        headed = head.or(headed.filter(|_| goes_on));
        let start = head.and_then(|_| line.find(crate::traceback::START));
        let line = &line[start.unwrap_or(0)..];
        let own_word = speaker.or(of_block).or(headed).or_else(|| watchdogs(line));
        let in_barrier = barrier.filter(|_| is_of_barrier(line, before));
        // The last line of a traceback stays with it.
        let told = has_barriers.then(|| barriers(line)).flatten();
        barrier = told
            .filter(|_| !crate::traceback::is_headline(line))
            .or(in_barrier);
        before = line;
        let Some(label) = own_word.or(barrier) else {
            console.unlabelled.push(from_traceback(line), index + 1);
            continue;
        };
        if !console.ranks.contains_key(&label) && console.ranks.len() >= MAX_RANKS {
            continue;
        }
        let output = console.ranks.entry(label).or_default();
        if matches!(own, Some(Label::Rank(_))) {
            let starts = crate::traceback::is_start(line.trim());
            // Torch's hook labels nothing but tracebacks.
            by_logger |= !starts && !output.uncaught && is_programs(line);
            output.uncaught |= starts;
        } else {
            output.by_logger |= matches!(told, Some(Label::Rank(_)));
        }
        let parts = match own {
            Some(Label::Rank(rank)) => unjoined(line, rank),
            _ => None,
        };
        for part in parts.as_deref().unwrap_or(&[line]) {
            output.push(part, index + 1);
        }
    }
    if inside.are_tasks_ranks() {
        console.unite_tasks();
    }
    console.unlabelled.begin_tracebacks();
    for output in console.ranks.values_mut() {
        output.begin_tracebacks();
        output.by_logger |= by_logger && output.uncaught;
        output.uncaught &= !output.by_logger;
    }
    console.mark_torn(&plain.text);
    console.settle();
    let speaks = console.ranks.values().any(Output::speaks) || console.unlabelled.speaks();
    speaks.then_some(console)
}

/// Whether a line labelled with a rank is one of the program, not one of torch's own loggers.
fn is_programs(line: &str) -> bool {
    // Of a traceback whose first line is not here.
    if line.starts_with("  ") || crate::traceback::is_headline(line) {
        return false;
    }
    let line = line.trim_start();
    let is_level = |at: usize| {
        let level = line.as_bytes().get(at);
        let digit = line.as_bytes().get(at + 1).is_some_and(u8::is_ascii_digit);
        digit && level.is_some_and(|level| b"WEIFVC".contains(level))
    };
    !(line.is_empty() || is_level(0) || line.starts_with('[') && is_level(1))
}

/// What torch's labels inside those of a launcher tell of the launcher's numbers.
#[derive(Debug, Default)]
struct Inside {
    same: bool,
    other: bool,
}

impl Inside {
    fn note(&mut self, label: Option<Label>, task: Option<u32>) {
        let (Some(Label::Rank(rank)), Some(task)) = (label, task) else {
            return;
        };
        // The first rank of the first host says nothing.
        self.same |= rank == task && rank > 0;
        self.other |= rank != task;
    }

    /// Whether each task is the rank of its number: then it is so of those that torch has labelled nowhere.
    fn are_tasks_ranks(&self) -> bool {
        self.same && !self.other
    }
}

impl From<Whose> for Label {
    fn from(whose: Whose) -> Self {
        match whose {
            Whose::Rank(rank) => Self::Rank(rank),
            Whose::Process(index) => Self::Process(index),
        }
    }
}

impl Output {
    /// Gives tracebacks whose first lines are cut off, or whose last line is all there is of them, a first line.
    fn begin_tracebacks(&mut self) {
        if crate::traceback::has_start(&self.text) {
            return;
        }
        let lines: Vec<&str> = self.text.lines().collect();
        // What NCCL says of its error code is the second line of a message, and looks like another exception.
        let goes_on = |at: usize| {
            let before = at.checked_sub(1).map_or("", |before| lines[before]);
            let of_message = before.contains("NCCL error in: ") || before.starts_with("  what():");
            lines[at].starts_with("nccl") && of_message
        };
        let is_frame = |line: &&&str| line.starts_with("  ") && !line.starts_with("  what():");
        let is_end = |at: &usize| crate::traceback::is_headline(lines[*at]) && !goes_on(*at);
        let last = (0..lines.len()).rev().find(is_end);
        if last.is_none_or(|last| !crate::hearsay::is_near_end(&lines[last + 1..])) {
            return;
        }
        let ends = (0..lines.len()).filter(is_end);
        let begins: Vec<usize> = ends
            .map(|end| {
                let stack = lines[..end].iter().rev();
                end - stack.take_while(is_frame).count()
            })
            .collect();
        if begins.is_empty() || begins.len() > MAX_BEGUN {
            return;
        }
        let mut text = String::with_capacity(self.text.len() + 64);
        let mut numbers = Vec::with_capacity(lines.len() + begins.len());
        for (at, (line, &number)) in lines.iter().zip(&self.lines).enumerate() {
            if begins.binary_search(&at).is_ok() {
                text.push_str("Traceback (most recent call last):\n");
                numbers.push(number);
            }
            text.push_str(line);
            text.push('\n');
            numbers.push(number);
        }
        (self.text, self.lines, self.headless) = (text, numbers, true);
    }
}

impl Console {
    /// Returns the same with other numbers of lines.
    pub(crate) fn renumbered(mut self, number: impl Fn(usize) -> usize) -> Self {
        let outputs = self.ranks.values_mut().chain([&mut self.unlabelled]);
        for line in outputs.flat_map(|output| &mut output.lines) {
            *line = number(*line);
        }
        self
    }

    /// Returns the host of the ranks that are labelled, where NCCL's lines between theirs name no other and they may be
    /// of one.
    pub(crate) fn host(&self) -> Option<&str> {
        const PER_HOST: u32 = 8;
        let mut blocks = self.ranks.keys().filter_map(|label| match label {
            Label::Rank(rank) => Some(rank / PER_HOST),
            _ => None,
        });
        let first = blocks.next()?;
        if blocks.any(|block| block != first) {
            return None;
        }
        crate::hosts::only_of_nccl(&self.unlabelled.text)
    }

    /// Whether Ray has folded lines that several processes wrote alike.
    ///
    /// Source: ray/_private/ray_logging/__init__.py, `[repeated 3x across cluster]`
    pub(crate) fn is_folded(&self) -> bool {
        let mut outputs = self.ranks.values().chain([&self.unlabelled]);
        outputs.any(|it| memchr::memmem::find(it.text.as_bytes(), b"x across cluster]").is_some())
    }

    /// Notes whose the last line is, where a log does not end with an end of line.
    fn mark_torn(&mut self, text: &str) {
        if text.is_empty() || text.ends_with('\n') {
            return;
        }
        let last = text.lines().count();
        let outputs = self.ranks.values_mut().chain([&mut self.unlabelled]);
        for output in outputs.filter(|output| output.lines.last() == Some(&last)) {
            output.torn = true;
        }
    }

    /// Gives what stands under the numbers of tasks to the ranks of these numbers.
    fn unite_tasks(&mut self) {
        let tasks = self.ranks.keys().filter_map(|label| match label {
            Label::Task(task) => Some(*task),
            _ => None,
        });
        for task in tasks.collect::<Vec<_>>() {
            self.unite(Label::Task(task), task);
        }
    }

    /// Where torch's own labels stand inside a launcher's, the two are one rank.
    fn settle(&mut self) {
        let global = self
            .ranks
            .keys()
            .any(|label| matches!(label, Label::Rank(_)));
        let local = self
            .ranks
            .keys()
            .any(|label| matches!(label, Label::Local(_)));
        if !(global && local) {
            return;
        }
        // With one host, which is where the numbers are the same.
        let most = |of: fn(&Label) -> Option<u32>| self.ranks.keys().filter_map(of).max();
        let ranks = most(|label| match label {
            Label::Rank(rank) => Some(*rank),
            _ => None,
        });
        let locals = most(|label| match label {
            Label::Local(rank) => Some(*rank),
            _ => None,
        });
        if ranks > locals {
            return;
        }
        for number in 0..=locals.unwrap_or(0) {
            self.unite(Label::Local(number), number);
        }
    }

    /// Gives what stands under another label to a rank, in the order of the log.
    fn unite(&mut self, label: Label, rank: u32) {
        let Some(mut whole) = self.ranks.remove(&label) else {
            return;
        };
        if let Some(last) = self.ranks.remove(&Label::Rank(rank)) {
            whole.merge(last);
        }
        self.ranks.insert(Label::Rank(rank), whole);
    }
}

impl Output {
    /// Whether it holds somebody's last words.
    pub(crate) fn speaks(&self) -> bool {
        crate::traceback::has_start(&self.text)
            || crate::words::last_words(&self.text).is_some()
            || crate::traceback::fatal(&self.text).is_some()
            || crate::traceback::terminate(&self.text).is_some()
            || crate::hearsay::last(&self.text).is_some()
    }

    /// Puts another's lines behind its own.
    pub(crate) fn append(&mut self, other: Self) {
        self.text.push_str(&other.text);
        self.lines.extend(other.lines);
        self.uncaught |= other.uncaught;
        self.by_logger |= other.by_logger;
        self.cut += other.cut;
        self.torn |= other.torn;
        self.headless |= other.headless;
    }

    /// Puts the lines of both in the order of the log.
    fn merge(&mut self, other: Self) {
        let lines = |output: &Self| -> Vec<(usize, String)> {
            let texts = output.text.lines().map(str::to_owned);
            output.lines.iter().copied().zip(texts).collect()
        };
        let mut all = lines(self);
        all.extend(lines(&other));
        all.sort_by_key(|(number, _)| *number);
        *self = Self {
            text: all.iter().flat_map(|(_, line)| [line, "\n"]).collect(),
            lines: all.into_iter().map(|(number, _)| number).collect(),
            uncaught: self.uncaught || other.uncaught,
            by_logger: self.by_logger || other.by_logger,
            cut: self.cut + other.cut,
            torn: self.torn || other.torn,
            headless: self.headless || other.headless,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dress::plain;

    fn read(text: &str) -> Console {
        console(Path::new("a"), &plain(text)).unwrap()
    }

    const TRACEBACK: &str = "Traceback (most recent call last):\n  File \"t.py\", line 1, in main\nValueError: bad batch\n";

    fn labelled(label: &str, text: &str) -> String {
        text.lines()
            .map(|line| format!("{label}{line}\n"))
            .collect()
    }

    #[test]
    fn a_few_tasks_of_many_are_told_apart() {
        let text = labelled("14: ", TRACEBACK) + &labelled(" 9: ", TRACEBACK);
        let ranks: Vec<Label> = read(&text).ranks.into_keys().collect();
        assert_eq!(ranks, [Label::Task(9), Label::Task(14)]);
        // Numbers of lines, as an editor or grep puts them before each.
        let numbered: String = (41..)
            .zip(TRACEBACK.lines())
            .map(|(number, line)| format!("{number}:{line}\n"))
            .collect();
        assert!(console(Path::new("a"), &plain(&numbered)).is_none_or(|it| it.ranks.is_empty()));
    }

    #[test]
    fn a_padded_line_holds_several_of_one_rank() {
        let text = labelled("[rank3]: ", TRACEBACK);
        let padded = text.trim_end().replace('\n', &" ".repeat(70));
        let joined = read(&padded);
        assert_eq!(joined.ranks[&Label::Rank(3)].text, TRACEBACK);
        assert_eq!(joined.ranks[&Label::Rank(3)].lines, [1, 1, 1]);
        // Another rank's label in a message is no new line.
        let other = "[rank3]: ValueError: sent to    [rank2]: nothing\n";
        let said = &read(&format!("{text}{other}")).ranks[&Label::Rank(3)].text;
        assert!(said.ends_with("sent to    [rank2]: nothing\n"));
    }

    #[test]
    fn each_label_has_lines_of_its_own() {
        let mut lines: Vec<String> = Vec::new();
        // In turns, line by line.
        for line in TRACEBACK.lines() {
            lines.push(format!("[rank3]: {line}"));
            lines.push(format!("[rank12]:{line}"));
        }
        let console = read(&lines.join("\n"));
        let of = |rank| &console.ranks[&Label::Rank(rank)];
        assert_eq!(
            (of(3).text.as_str(), of(12).text.as_str()),
            (TRACEBACK, TRACEBACK)
        );
        assert_eq!(
            (&of(3).lines[..], &of(12).lines[..]),
            (&[1, 3, 5][..], &[2, 4, 6][..])
        );
        assert!(of(3).uncaught);
    }

    #[test]
    fn labels_of_launchers_and_schedulers() {
        for (label, expected) in [
            ("[default3]:", Label::Local(3)),
            ("[trainer3]: ", Label::Local(3)),
            ("3: ", Label::Task(3)),
            (" 3: ", Label::Task(3)),
            ("[3] ", Label::Task(3)),
            ("[3]: ", Label::Task(3)),
            ("[1,3]<stderr>:", Label::Task(3)),
            ("[3]<stderr>:", Label::Task(3)),
            ("[1,mpirank:3,algo-1]<stderr>:", Label::Task(3)),
            ("2026-11-29T20:01:41.461Z: [1,3]<stdout>:", Label::Task(3)),
            ("2026-11-29T20:01:41.461Z [rank3]: ", Label::Rank(3)),
            ("1: [rank3]: ", Label::Rank(3)),
        ] {
            let console = read(&labelled(label, TRACEBACK));
            assert_eq!(console.ranks[&expected].text, TRACEBACK, "{label}");
        }
    }

    #[test]
    fn a_label_inside_a_label_on_one_host_is_the_same_rank() {
        let text =
            labelled("[default2]:", "step 1\n") + &labelled("[default2]:[rank2]: ", TRACEBACK);
        let console = read(&text);
        assert_eq!(console.ranks.len(), 1);
        let output = &console.ranks[&Label::Rank(2)];
        assert_eq!(output.text, format!("step 1\n{TRACEBACK}"));
        assert!(output.uncaught && output.lines == [1, 2, 3, 4]);
    }

    #[test]
    fn what_looks_like_a_label_is_none() {
        for text in [
            "epoch: 3\n",
            "[2026-11-29 10:00:00]: x\n",
            "7: only now and then\nplain\nplain\n",
            "[W130]: x y\n",
            "[a,3]<stderr>:x\n",
            "[1,3]<stdlog>:x\n",
        ] {
            let console = read(&format!("{text}{TRACEBACK}"));
            let tasks = console
                .ranks
                .keys()
                .any(|label| !matches!(label, Label::Local(130)));
            assert!(!tasks, "{:?}", console.ranks.keys());
            assert!(console.unlabelled.text.ends_with(TRACEBACK));
        }
    }

    #[test]
    fn a_launchers_own_words_are_nobodys() {
        let text = format!(
            "{TRACEBACK}E1129 22:14:50.7 5255 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 5) of binary: python\n{TRACEBACK}"
        );
        assert_eq!(read(&text).unlabelled.text, TRACEBACK);
    }

    #[test]
    fn what_nccl_says_goes_on_with_torchs_message() {
        let text = "  File \"t.py\", line 1, in main\ntorch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\n";
        let begun = format!("Traceback (most recent call last):\n{text}");
        assert_eq!(
            read(&labelled("[rank2]: ", text)).ranks[&Label::Rank(2)].text,
            begun
        );
    }

    #[test]
    fn what_a_cpp_exception_says_begins_no_traceback() {
        let text = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\nncclRemoteError: A call failed possibly due to a network error.\n";
        assert_eq!(read(text).unlabelled.text, text);
        let after = text.replace("ncclRemoteError: ", "other.RemoteError: ");
        let begun = after.replace("other.", "Traceback (most recent call last):\nother.");
        assert_eq!(read(&after).unlabelled.text, begun);
    }

    #[test]
    fn the_launcher_of_older_torch_speaks_last() {
        let text = format!(
            "{TRACEBACK}Killing subprocess 5\nKilling subprocess 6\nTraceback (most recent call last):\n  File \"launch.py\", line 1, in main\nsubprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1.\n"
        );
        assert_eq!(read(&text).unlabelled.text, TRACEBACK);
        let own = format!("Killing subprocess of the pool\n{TRACEBACK}");
        assert_eq!(read(&own).unlabelled.text, own);
    }

    #[test]
    fn another_hosts_worker_speaks_after_a_launcher() {
        let failed = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 0 (pid: 5) of binary: python\n";
        let worker = "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out.\nterminate called after throwing an instance of 'std::runtime_error'\n  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\n";
        let text = format!("{worker}{failed}{TRACEBACK}{worker}{failed}{TRACEBACK}");
        assert_eq!(read(&text).unlabelled.text, format!("{worker}{worker}"));
    }

    #[test]
    fn a_long_log_keeps_the_head_and_the_end_of_each() {
        let noise = "[rank1]: x y z\n".repeat(100_000);
        let text = format!(
            "[rank1]: first\n{noise}{}",
            labelled("[rank1]: ", TRACEBACK)
        );
        let console = read(&text);
        let output = &console.ranks[&Label::Rank(1)];
        assert!(output.text.starts_with("first\n") && output.text.ends_with(TRACEBACK));
        assert!(output.text.len() <= 2 * MAX_OUTPUT && output.cut > 0);
        assert_eq!(output.lines.len(), output.text.lines().count());
        assert_eq!(output.lines.last(), Some(&100_004));
    }

    #[test]
    fn talk_is_no_end() {
        assert_eq!(
            console(Path::new("a"), &plain("[rank0]: step 1\nloss 2\n")),
            None
        );
    }
}
