//! Whose a line is: what launchers and programs put before it.

use super::MAX_RANK;
use crate::logs::ROOT_CAUSE;
use crate::parse::begin;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Whose line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Label {
    /// `[rank3]:`, as torch's own hook for uncaught exceptions and its loggers write it.
    Rank(u32),
    /// `[default3]:`, as torchrun's `--tee` writes it: the rank on its host.
    Local(u32),
    /// `3:`, as `srun --label` writes it, or `[1,3]<stderr>:`, as mpirun does: the number of the task.
    Task(u32),
    /// A process of which only a name is known, as `[pod/trainer-3/main]`: its index.
    Process(u32),
}

/// Whether the numbers before a colon label the lines: most have one, and these are the numbers of tasks.
///
/// What is posted of a large job may show few of its tasks: of these at least half raise, as no list's items do. Where
/// srun speaks itself, a line or two of each will do.
pub(crate) fn are_tasks(text: &str) -> bool {
    const SRUN: [&str; 2] = ["srun: ", "slurmstepd: "];
    let (mut all, mut by_srun) = (0_usize, false);
    let mut raising = BTreeSet::new();
    let mut numbers: BTreeMap<u32, usize> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if SRUN.iter().any(|name| line.starts_with(name)) {
            by_srun = true;
            continue;
        }
        all += 1;
        if let Some((number, rest)) = task(line) {
            *numbers.entry(number).or_default() += 1;
            if crate::traceback::is_start(rest) {
                raising.insert(number);
            }
        }
        if all >= 20_000 {
            break;
        }
    }
    let labelled: usize = numbers.values().sum();
    let most = numbers.keys().next_back().map_or(0, |most| *most as usize);
    // A list counts once; tasks speak again and again, and nearly all of them do.
    labelled * 10 >= all * 7
        && (by_srun || labelled >= numbers.len() * 3)
        && (numbers.len() * 2 > most || numbers.len() == 1 || raising.len() * 2 >= numbers.len())
}

/// Returns whose line it is, by the innermost label, the number of the task that labels it, and the line without labels.
pub(super) fn split(line: &str, tasks: bool) -> (Option<Label>, Option<u32>, &str) {
    let (mut label, mut rest) = (None, line);
    let of_task = tasks.then(|| task(rest)).flatten();
    let of_task = of_task.or_else(|| tagged(rest));
    if let Some((number, after)) = of_task {
        (label, rest) = (Some(Label::Task(number)), after);
    }
    let mut inner = before_label(rest);
    while let Some((name, number, after)) = bracketed(inner) {
        let found = if name == "rank" {
            Label::Rank(number)
        } else {
            Label::Local(number)
        };
        (label, rest) = (Some(found), after);
        inner = after;
    }
    (label, of_task.map(|(number, _)| number), rest)
}

/// Returns a line from the label on that a log collector, a shell or a progress bar left something before.
pub(super) fn before_label(line: &str) -> &str {
    const MOST: usize = 120;
    let from = memchr::memmem::find_iter(begin(line, MOST).as_bytes(), "[rank")
        .find(|&at| bracketed(&line[at..]).is_some());
    match from {
        Some(at) if at > 0 && is_margin(&line[..at], &line[at..]) => &line[at..],
        _ => line,
    }
}

/// Whether what stands before a label is no text of its own: a time, a name, a bar that a traceback cuts off.
pub(super) fn is_margin(before: &str, labelled: &str) -> bool {
    let ends =
        before.ends_with([' ', ':', ']', '|', '\t']) && before.split_whitespace().count() <= 4;
    ends || bracketed(labelled).is_some_and(|(_, _, rest)| crate::traceback::is_start(rest))
}

/// A progress bar may stand before a traceback that has no label.
pub(super) fn from_traceback(line: &str) -> &str {
    match line.find("Traceback (most recent call last):") {
        Some(at) if at > 0 && line[..at].contains("%|") => &line[at..],
        _ => line,
    }
}

/// Reads the rank that NCCL's watchdog gives itself where nothing labels its lines: before torch 2.2.
///
/// A later one says which group it is of, and its rank is one in that group.
pub(super) fn watchdogs(line: &str) -> Option<Label> {
    let (before, rest) = line.split_once("ProcessGroupNCCL.cpp:")?;
    let rest = rest.split_once("] [Rank ")?.1;
    let number = rest.split_once("] ")?.0.parse().ok()?;
    // A progress bar has no line of its own.
    let own = before
        .rfind("[E ")
        .filter(|&at| before[..at].contains("%|"));
    let before = &before[own.unwrap_or(0)..];
    let is_first = before.trim_start().starts_with('[') && before.len() < 60;
    (is_first && number < MAX_RANK && !rest.contains("[PG ")).then_some(Label::Rank(number))
}

/// Reads the rank that says itself whether it came through a monitored barrier, whoever printed that.
///
/// Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, `monitoredBarrier`
pub(super) fn barriers(line: &str) -> Option<Label> {
    const REACHED: &str = " successfully reached monitoredBarrier, but received errors";
    const LATE: &str = " timed out in monitoredBarrier after ";
    const MISSED: &str = " failed to pass monitoredBarrier in ";
    let own = line.split_once(REACHED).or_else(|| line.split_once(LATE));
    let number = match own {
        Some((before, _)) => before.rsplit_once("Rank ")?.1,
        None => {
            let before = line.split_once(MISSED)?.0;
            before.rsplit_once("[Rank ")?.1.split_once("]: Rank")?.0
        }
    };
    let number = number.parse().ok().filter(|number| *number < MAX_RANK)?;
    Some(Label::Rank(number))
}

/// Whether a log has such a line: to look at each costs more than to read it.
pub(super) fn tells_of_barriers(text: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), b"monitoredBarrier").is_some()
}

/// Whether a line goes on with what such a rank says: what it met, which is the next line.
pub(super) fn is_of_barrier(line: &str, before: &str) -> bool {
    const ORIGINAL: &str = "Original exception:";
    line.trim() == ORIGINAL || before.trim() == ORIGINAL
}

/// Reads `[rank3]: rest`.
pub(super) fn bracketed(line: &str) -> Option<(&str, u32, &str)> {
    let (name, rest) = line.strip_prefix('[')?.split_once(']')?;
    let rest = rest.strip_prefix(':')?;
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    // torchrun's role is "default" unless somebody says otherwise; other words are the program's own.
    let is_name = ["rank", "default", "trainer", "worker"].contains(&letters);
    let number = name[letters.len()..].parse().ok()?;
    (is_name && number < MAX_RANK).then_some((letters, number, without_blank(rest)))
}

/// Reads `3: rest` and `[3] rest`.
///
/// Source: srun(1), `--label`; mpiexec of MPICH, `-prepend-rank`
pub(crate) fn task(line: &str) -> Option<(u32, &str)> {
    let line = line.trim_start_matches(' ');
    if let Some(line) = line.strip_prefix('[') {
        let (number, rest) = line.split_once(']')?;
        let number = number.parse().ok().filter(|number| *number < MAX_RANK)?;
        if rest.starts_with('<') {
            return None;
        }
        return Some((
            number,
            without_blank(rest.strip_prefix(':').unwrap_or(rest)),
        ));
    }
    let (number, rest) = line.split_once(':')?;
    let number = number.parse().ok().filter(|number| *number < MAX_RANK)?;
    // `14:03:22` is a time.
    (!rest.starts_with(|c: char| c.is_ascii_digit())).then(|| (number, without_blank(rest)))
}

/// Reads `[1,3]<stderr>:rest`, with whatever a log collector puts before it.
///
/// Source: mpirun(1), `--tag-output`; horovod/runner/common/util/safe_shell_exec.py, which writes `[3]<stderr>:`; SageMaker's
/// mpirun writes `[1,mpirank:3,algo-1]<stderr>:`
pub(super) fn tagged(line: &str) -> Option<(u32, &str)> {
    const MOST: usize = 120;
    let head = begin(line, MOST);
    let at = head.find("]<std")?;
    let (name, rest) = line[at + "]<".len()..].split_once(">:")?;
    let tag = head[..at].rsplit_once('[')?.1;
    let rank = match tag.split(',').collect::<Vec<_>>()[..] {
        [rank] => rank,
        [job, rank, ..] if job.bytes().all(|byte| byte.is_ascii_digit()) => {
            rank.strip_prefix("mpirank:").unwrap_or(rank)
        }
        _ => return None,
    };
    let number = rank.parse().ok().filter(|number| *number < MAX_RANK)?;
    matches!(name, "stdout" | "stderr" | "stddiag").then(|| (number, without_blank(rest)))
}

/// Returns the lines that a terminal which pads its own has left in one, each but the first after the label of the same
/// rank; `None` where it is one line.
pub(super) fn unjoined(line: &str, rank: u32) -> Option<Vec<&str>> {
    const PADDED: &str = "    [rank";
    memchr::memmem::find(line.as_bytes(), PADDED.as_bytes())?;
    let label = format!("{PADDED}{rank}]:");
    let mut parts = line.split(label.as_str());
    let first = parts.next().map(str::trim_end);
    let others = parts.map(|part| without_blank(part).trim_end());
    Some(first.into_iter().chain(others).collect())
}

/// Reads the lines around what a rank said, which Composer's launcher shows when the rank has ended; none at the end of it.
///
/// Source: composer/cli/launcher.py, `_print_process_exit_status`
pub(super) fn block(line: &str) -> Option<Option<Label>> {
    const FENCE: &str = "----------";
    let marker = line.strip_prefix(FENCE)?.trim_end().strip_suffix(FENCE)?;
    let (edge, rest) = marker.split_once(" global rank ")?;
    let (number, stream) = rest.split_once(' ')?;
    let number = number.parse().ok().filter(|number| *number < MAX_RANK)?;
    match (edge, stream) {
        ("Begin", "STDOUT" | "STDERR") => Some(Some(Label::Rank(number))),
        ("End", "STDOUT" | "STDERR") => Some(None),
        _ => None,
    }
}

/// Reads the head of a traceback whose lines have no label of their own: the line before its first, or the same.
///
/// Source: sglang/srt/managers/scheduler.py, `run_scheduler_process`, whose margin names the rank of the tensor-parallel
/// group and, where there are several of these, the stage; lmdeploy/pytorch/engine/model_agent.py, `_start_tp_process`
pub(super) fn heads(line: &str) -> Option<Label> {
    static HEADS: LazyLock<[Regex; 2]> = LazyLock::new(|| {
        let forms = [
            r"^\[[^\[\]]*?(?: PP(?P<stage>\d+))? TP(?P<rank>\d{1,6})(?: EP\d+)?\] .*[Ee]xception: Traceback \(most recent call last\):$",
            r" - ERROR - .* - Rank\[(?P<rank>\d{1,6})\] failed\.$",
        ];
        forms.map(|form| Regex::new(form).expect("a constant"))
    });
    // Of millions of lines few begin or end so.
    let line = line.trim_end();
    let form = match line.strip_suffix(crate::traceback::START) {
        Some(before) if before.starts_with('[') => 0,
        None if line.ends_with("] failed.") => 1,
        _ => return None,
    };
    let found = HEADS[form].captures(line)?;
    let is_first_stage = found
        .name("stage")
        .is_none_or(|stage| stage.as_str() == "0");
    let number = found["rank"]
        .parse()
        .ok()
        .filter(|number| *number < MAX_RANK)?;
    is_first_stage.then_some(Label::Rank(number))
}

/// Whether a line begins with a time, or with the margin of a server without one, as a logger's do; those of a traceback
/// do not.
pub(super) fn is_stamped(line: &str) -> bool {
    let line = line.strip_prefix('[').unwrap_or(line);
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    digits == 4 && line[digits..].starts_with(['-', '/']) || line.starts_with(" TP")
}

/// Some put a blank after a label and some do not; tracebacks are indented by even numbers.
pub(super) fn without_blank(rest: &str) -> &str {
    let blanks = rest.len() - rest.trim_start_matches(' ').len();
    if blanks % 2 == 1 { &rest[1..] } else { rest }
}

/// Whether a launcher wrote a line, or is about to. Source: torch/distributed/elastic/agent, multiprocessing/api.py
pub(super) fn is_launcher(line: &str) -> bool {
    const PLACES: &[&str] = &[
        "torch/distributed/elastic/",
        "torch/distributed/run.py",
        "torch.distributed.elastic",
    ];
    let of_torch = PLACES.iter().any(|place| line.contains(place)) && !line.starts_with(' ');
    of_torch || line.contains("] [launch.py:")
}

/// Whether only a worker, which has a communicator, can have written a line.
pub(super) fn is_workers(line: &str) -> bool {
    line.starts_with("[E") && line.contains(" ProcessGroupNCCL.cpp:")
}

/// Whether a line is a rule, as above and below a launcher's summary.
pub(super) fn is_rule(line: &str) -> bool {
    line.len() >= 20 && line.bytes().all(|byte| byte == b'=')
}

/// Returns the index of the last line in which a launcher says that it ends its workers, or that one has failed.
pub(super) fn last_of_launchers(text: &str) -> Option<usize> {
    let words = ["failed (exitcode: ", " closing signal "];
    let last = |words: &str| memchr::memmem::rfind(text.as_bytes(), words.as_bytes());
    let at = words.into_iter().filter_map(last).max()?;
    Some(memchr::memchr_iter(b'\n', &text.as_bytes()[..at]).count())
}

/// Whether a launcher says of its workers how they ended.
pub(super) fn launcher_reports(text: &str) -> bool {
    const WORDS: &[&str] = &["failed (exitcode: ", ROOT_CAUSE];
    WORDS
        .iter()
        .any(|words| memchr::memmem::find(text.as_bytes(), words.as_bytes()).is_some())
}

/// Whether a line is the exception of which a launcher itself died.
pub(super) fn is_end_of_launcher(line: &str) -> bool {
    line.starts_with("torch.distributed.elastic.")
        && crate::traceback::is_headline(line)
        && !line.contains("ChildFailedError")
}

/// Whether it is among the last that a launcher says.
///
/// Source: torch/distributed/elastic; torch/distributed/launch.py of torch 1.8 and 1.9, `sigkill_handler`
pub(super) fn is_last_of_launcher(line: &str) -> bool {
    if let Some(pid) = line.strip_prefix("Killing subprocess ") {
        return !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
    }
    const WORDS: &[&str] = &[
        "failed (exitcode: ",
        "closing signal ",
        "death signal, shutting down",
        "ChildFailedError",
    ];
    is_launcher(line) && WORDS.iter().any(|words| line.contains(words))
}
