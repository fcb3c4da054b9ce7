//! Whether the last traceback of an output is the end of it, or was printed in passing.

use crate::traceback::{self, RAY_UNHANDLED, is_headline, is_start};
use std::collections::BTreeMap;

/// What interpreters, torch and loggers print after the exception that ends a process.
const TEARDOWN: &[&str] = &[
    "[W",
    "[E",
    "[I",
    "[F",
    "frame #",
    "Exception ignored ",
    "Exception raised from ",
    "resource_tracker",
    "terminate called",
    "Fatal Python error",
    "Extension modules:",
    "Current thread ",
    "Thread 0x",
    "wandb:",
    "*** ",
    "Aborted",
    "Error in atexit",
    "Error in sys.excepthook",
    "SystemExit",
    "An exception has occurred, use %tb",
    "Set the environment variable HYDRA_FULL_ERROR",
    "srun: ",
    "slurmstepd: ",
    "Terminated",
    "Killed",
    // The rest of a message of the hub's client, after an empty line. Source: huggingface_hub/utils/_http.py
    "Internal Error - We're working hard",
    "Repository Not Found for url: ",
    "Entry Not Found for url: ",
    "Revision Not Found for url: ",
    "Bucket Not Found for url: ",
    "Please make sure you specified the correct ",
    "If you are trying to access a private or gated repo",
    "make sure you are authenticated.",
    "Cannot access gated repo for url ",
    "Access to model ",
    "Access to dataset ",
    "We had to rate limit you",
    "Invalid user token.",
    "Invalid username or password.",
    "Invalid credentials in Authorization header",
    "Make sure your token has the correct permissions.",
    "Cannot access content at: ",
];

const TEARDOWN_PARTS: &[&str] = &[
    "destroy_process_group",
    "resource_tracker",
    "leaked semaphore",
    "leaked shared_memory",
    "Warning: ",
    "ProcessGroup",
    "TCPStore",
    "TORCH_NCCL",
    "NCCL WARN",
    "NCCL INFO",
    "(most recent call first)",
    // Other processes of the job, which import DeepSpeed.
    "Setting ds_accelerator to ",
];

/// Returns how many lines of other output follow the last traceback of a text, those of a teardown not counted; `None`
/// where there is no traceback.
pub(crate) fn lines_after(text: &str) -> Option<usize> {
    let lines: Vec<&str> = traceback::from_first(text)?.lines().collect();
    let ignored = |index: usize| index > 0 && is_ignored(lines[index - 1]);
    let start = (0..lines.len())
        .rev()
        .find(|&index| is_start(lines[index].trim()) && !ignored(index))?;
    let mut rest = lines[start + 1..]
        .iter()
        .copied()
        .skip_while(|line| line.starts_with(' ') || line.trim().is_empty());
    let headline = rest.next();
    let rest: Vec<&str> = rest.collect();
    let rest = &rest[fenced(&rest)..];
    // A message goes on until an empty line, or until lines come that no message has.
    let mut shapes: BTreeMap<String, usize> = BTreeMap::new();
    let unindented = |line: &&&str| !line.starts_with([' ', '\t']);
    for line in rest
        .iter()
        .take_while(|line| !line.trim().is_empty())
        .filter(unindented)
    {
        *shapes.entry(shape(line)).or_default() += 1;
    }
    let of_loop = |line: &str| {
        let shape = shape(line);
        shape.contains('#') && shapes.get(&shape).is_some_and(|&count| count > 1)
    };
    let own = rest.iter().position(|line| {
        line.trim().is_empty()
            || !line.starts_with([' ', '\t'])
                && (of_loop(line) || is_log(line))
                && !is_teardown(line)
    });
    let mut after = 0;
    let mut quiet = false;
    // A message that begins below its class may have paragraphs, all of them indented.
    let mut in_message = headline.is_some_and(|line| line.trim_end().ends_with(':'));
    for line in rest.iter().skip(own.unwrap_or(rest.len())) {
        let indented = line.starts_with([' ', '\t']);
        in_message &= indented || line.trim().is_empty();
        if in_message {
            // Belongs to the exception.
        } else if is_teardown(line) {
            quiet = true;
        } else if (indented || is_start(line.trim())) && quiet || line.trim().is_empty() {
            // Belongs to the line before.
        } else if quiet && is_headline(line) {
            quiet = false;
        } else {
            quiet = false;
            after += 1;
        }
    }
    Some(after)
}

/// How many lines of a message stand from one line of dashes to the next, empty ones with them.
///
/// Source: fairseq/trainer.py, `_check_grad_norms`
fn fenced(rest: &[&str]) -> usize {
    let is_fence = |line: &&&str| line.len() >= 20 && line.bytes().all(|byte| byte == b'-');
    let Some(fence) = rest.first().filter(is_fence) else {
        return 0;
    };
    let end = rest.iter().skip(1).position(|line| line == fence);
    end.map_or(0, |end| end + 2)
}

/// Returns whether little follows the last words of a crash in a text: a program that goes on says more.
pub(crate) fn is_near_end(text: &str) -> bool {
    const MOST: usize = 10;
    let crash = ["Fatal Python error: ", "terminate called"];
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().rposition(|line| {
        crash.iter().any(|words| line.starts_with(words)) || line.contains(RAY_UNHANDLED)
    });
    let after = lines.iter().skip(last.map_or(0, |last| last + 1));
    let own = after.filter(|line| {
        let of_dump = line.starts_with([' ', '\t', '<']) || line.trim().is_empty();
        !of_dump && !is_teardown(line)
    });
    own.count() <= MOST
}

/// Returns whether a line announces an exception that ends nothing. Source: Python/errors.c, Modules/atexitmodule.c
pub(crate) fn is_ignored(line: &str) -> bool {
    line.starts_with("Exception ignored ") || line.starts_with("Error in atexit._run_exitfuncs")
}

/// Returns whether torch's own hook for uncaught exceptions printed a traceback. Source: torch/distributed/distributed_c10d.py
pub(crate) fn is_uncaught(raw: &str) -> bool {
    let mut labelled = traceback::lines_after_label(raw);
    labelled.any(|(_, rest)| rest.strip_prefix(' ').is_some_and(is_start))
}

pub(crate) fn is_teardown(line: &str) -> bool {
    let line = line.trim_start();
    TEARDOWN.iter().any(|start| line.starts_with(start))
        || TEARDOWN_PARTS.iter().any(|part| line.contains(part))
}

/// A line as loggers write them: it begins with a level or a date.
fn is_log(line: &str) -> bool {
    let line = line.trim_start_matches(['[', '(']);
    let level = ["INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL"]
        .iter()
        .any(|level| line.starts_with(level));
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let year = digits(line);
    let date = year == 4 && line[4..].starts_with(['-', '/']) && digits(&line[5..]) == 2;
    let time = year == 2 && line[2..].starts_with(':') && digits(&line[3..]) == 2;
    level || date || time
}

/// A line without its numbers.
pub(crate) fn shape(line: &str) -> String {
    let mut out = String::new();
    for c in line.chars() {
        if !c.is_ascii_digit() {
            out.push(c);
        } else if !out.ends_with('#') {
            out.push('#');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: &str = "Traceback (most recent call last):\n  File \"t.py\", line 7, in main\n    open(x)\nOSError: no";

    #[test]
    fn an_exception_at_the_end_is_the_end() {
        let teardown =
            "[W1129 20:01:41 ProcessGroup.cpp:1] Warning: destroy_process_group() was not called\n";
        let fence = "-".repeat(80);
        let ignored = "Exception ignored in: <function f>\nTraceback (most recent call last):\n  File \"a\", line 1, in f\nAssertionError: x\n";
        for tail in [
            "",
            "\n",
            "\nsecond line of it\n",
            "\nCUDA kernel errors might be late\nFor debugging use 1\n\n",
            &format!("\n{teardown}"),
            &format!("\n{ignored}"),
            &format!("\n\n{teardown}{ignored}"),
            "\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
            ":\n        Look at this:\n\n        python -m x\n\n        and at that\n[2023] Setting ds_accelerator to cuda (auto detect)\n",
            "\n\nInternal Error - We're working hard to fix that as soon as possible!\n",
            "\n\nRepository Not Found for url: https://h/x.\nPlease make sure you specified the correct `repo_id` and `repo_type`.\n",
            "\nAn exception has occurred, use %tb to see the full traceback.\n\nSystemExit: 1\n",
            &format!("\n{fence}\nnorms:\nrank   0 = nan\nrank   1 = nan\n\n{fence}\n"),
        ] {
            assert_eq!(lines_after(&format!("{ERROR}{tail}")), Some(0), "{tail}");
        }
    }

    #[test]
    fn an_exception_before_other_output_is_not() {
        for tail in [
            "\nstep 1\nstep 2\n",
            "\nINFO:root:retrying\nok\n",
            "\n2026-11-29 20:00:01 step\n1\n",
            "\n\nnext\nepoch\n",
            ":\n    one\n\n    two\nnext\nepoch\n",
            "\n\nSet the environment variable X=1\nSystem exits\n",
            &format!("\n{}\nstep 1\nstep 2\n", "-".repeat(80)),
        ] {
            assert_eq!(lines_after(&format!("{ERROR}{tail}")), Some(2), "{tail}");
        }
        assert_eq!(lines_after("step 1\n"), None);
    }

    #[test]
    fn torchs_own_hook_tells_what_was_not_caught() {
        assert!(is_uncaught(
            "x\n[rank3]: Traceback (most recent call last):\n"
        ));
        assert!(!is_uncaught(
            "[default3]: Traceback (most recent call last):\n[rank3]:[W x] y\n"
        ));
    }
}
