//! Several processes that failed one after another in a log without labels, told apart by their tracebacks.

use crate::console::Output;
use crate::ending;
use crate::traceback::{is_start, starts_another};

/// At most so many processes of one log are told apart.
const MAX_VOICES: usize = 4096;

/// Returns the parts of an output that end in a traceback each, as far as nothing but tracebacks stands between them.
///
/// What a process survived is followed by what it went on to say; what several processes died of is followed by nothing
/// but the others' tracebacks.
pub(crate) fn apart(output: Output) -> Vec<Output> {
    let lines: Vec<&str> = output.text.lines().collect();
    let starts = starts(&lines);
    let text = |from: usize, to: usize| -> String {
        let lines = lines[from..to].iter();
        lines.flat_map(|line| [line, "\n"]).collect()
    };
    // Where the first of the tracebacks begins that nothing but tracebacks follows.
    let mut first = starts.len();
    let mut end = lines.len();
    while let Some(before) = first.checked_sub(1) {
        if ending::lines_after(&text(starts[before], end)) != Some(0) {
            break;
        }
        (first, end) = (before, starts[before]);
    }
    let cuts: Vec<usize> = starts.into_iter().skip(first + 1).collect();
    if cuts.is_empty() || cuts.len() >= MAX_VOICES {
        return vec![output];
    }
    let from = [0].into_iter().chain(cuts.iter().copied());
    let to = cuts.iter().copied().chain([lines.len()]);
    from.zip(to)
        .map(|(from, to)| Output {
            text: text(from, to),
            lines: output.lines[from..to].to_vec(),
            uncaught: output.uncaught,
            by_logger: output.by_logger,
            cut: 0,
            torn: output.torn && to == lines.len(),
            headless: output.headless,
        })
        .collect()
}

/// The lines at which tracebacks begin that belong to none before them.
fn starts(lines: &[&str]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut before = "";
    for (index, line) in lines.iter().enumerate() {
        let trimmed = line.trim();
        if is_start(trimmed) && !line.starts_with(' ') && starts_another(trimmed, before) {
            found.push(index);
        }
        if !trimmed.is_empty() {
            before = trimmed;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let output = Output {
            text: text.to_owned(),
            lines: (1..=text.lines().count()).collect(),
            ..Output::default()
        };
        let parts = apart(output);
        let lines: Vec<usize> = parts.iter().flat_map(|part| part.lines.clone()).collect();
        assert_eq!(lines, (1..=text.lines().count()).collect::<Vec<_>>());
        parts.into_iter().map(|part| part.text).collect()
    }

    fn error(text: &str) -> String {
        format!(
            "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    g()\n{text}\n"
        )
    }

    #[test]
    fn tracebacks_one_after_another_are_of_several() {
        let (one, two) = (error("ValueError: a"), error("KeyError: 'b'"));
        let text = format!(
            "step 1\n{one}{two}[W1129 x.cpp:1] Warning: destroy_process_group() was not called\n{two}"
        );
        assert_eq!(read(&text).len(), 3);
    }

    #[test]
    fn what_was_survived_is_nobodys_end() {
        let text = format!(
            "{}step 2\nstep 3\n{}",
            error("ValueError: a"),
            error("KeyError: 'b'")
        );
        assert_eq!(read(&text).len(), 1);
        let text = format!(
            "{}{}step 3\nstep 4\n",
            error("ValueError: a"),
            error("KeyError: 'b'")
        );
        assert_eq!(read(&text).len(), 1);
    }

    #[test]
    fn one_chain_is_of_one() {
        for between in [
            "\nDuring handling of the above exception, another exception occurred:\n\n",
            "\nThe above exception was the direct cause of the following exception:\n\n",
            "-- Process 1 terminated with the following error:\n",
        ] {
            let text = format!(
                "{}{between}{}",
                error("ValueError: a"),
                error("KeyError: 'b'")
            );
            assert_eq!(read(&text).len(), 1, "{between}");
        }
        let worker = format!(
            "{}{}",
            error("ValueError: Caught ValueError in DataLoader worker process 0."),
            error("ValueError: x").replace("Traceback", "Original Traceback")
        );
        assert_eq!(read(&worker).len(), 1);
    }
}
