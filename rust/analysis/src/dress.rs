//! Takes what others put around a log's lines off them: colours, JSON, containers' names and times, boxes drawn by rich.
//!
//! What is left is what the processes wrote, so that the other readers know one form of it. Which line of the log each
//! line came from is kept, and which process or rank it is of, where the wrapping says so.

mod boxes;
mod flush;
mod json;
mod margins;
mod repeated;
mod terminal;
mod whole;

use crate::parse::begin;
use margins::Margins;
use regex::Regex;
use std::borrow::Cow;
use std::sync::LazyLock;
use terminal::Terminal;

/// A log without its wrapping.
#[derive(Debug, Default)]
pub(crate) struct Plain<'a> {
    pub(crate) text: Cow<'a, str>,
    /// The number in the log of each line of `text`, from 1; empty where these are the same.
    numbers: Vec<usize>,
    /// Whose each line is; empty where no wrapping says.
    whose: Vec<Option<Whose>>,
    /// The names of processes, by their numbers.
    pub(crate) names: Vec<String>,
}

/// Whose a line is, by what wraps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A rank's, as the program's own logger says.
    Rank(u32),
    /// A process's of which only a name is known; its index.
    Process(u32),
}

impl Plain<'_> {
    /// Returns the number in the log of a line of the text; both from 1.
    pub(crate) fn line(&self, number: usize) -> usize {
        let index = number.checked_sub(1);
        let known = index.and_then(|index| self.numbers.get(index));
        known.copied().unwrap_or(number)
    }

    /// Returns the host that the name of a line's process tells; the line's number from 1.
    pub(crate) fn host(&self, number: usize) -> Option<String> {
        let Whose::Process(index) = self.whose(number.checked_sub(1)?)? else {
            return None;
        };
        let host = host_of_name(self.names.get(index as usize)?);
        Some(host).filter(|host| !host.is_empty())
    }

    /// Returns whose a line of the text is, counted from 0.
    pub(crate) fn whose(&self, index: usize) -> Option<Whose> {
        self.whose.get(index).copied().flatten()
    }
}

/// The host in the name of a process: the pod of `trainer-3/main`, the address of `RayTrainWorker pid=41, ip=10.0.0.2`.
pub(crate) fn host_of_name(name: &str) -> String {
    if let Some((_, address)) = name.split_once(", ip=") {
        return address.to_owned();
    }
    let pod = name.split('/').next().unwrap_or(name);
    let pod = Some(pod).filter(|pod| !pod.contains(" pid="));
    pod.unwrap_or("").to_owned()
}

/// A longer line is no log's.
const MAX_LINE: usize = 4 << 20;

/// So many kinds of wrapping may lie around one another: a pod's name, a container's time, JSON, a logger's time.
const MAX_LAYERS: usize = 5;

/// At most so many processes of one log are told apart by name.
const MAX_NAMES: usize = 1 << 16;

/// Returns a log without what wraps its lines.
pub(crate) fn plain(text: &str) -> Plain<'_> {
    let text = whole::dedented(without_colours(text));
    let doubled = whole::is_doubled(&text);
    let spaced = whole::is_spaced(&text).then(|| whole::without_spaces(&text));
    let close = spaced.as_deref().unwrap_or(&text);
    let (margins, terminal) = (Margins::of(close), Terminal::of(close));
    let spaced = spaced.is_some();
    let wrapped = !margins.is_none() || terminal.is_some() || json::may_be(&text);
    let mut plain = if !wrapped && !doubled && !spaced {
        Plain {
            text,
            ..Plain::default()
        }
    } else {
        unwrapped(&text, &margins, terminal, doubled, spaced)
    };
    for repaired in [boxes::opened, flush::indented] {
        if let Some(text) = repaired(&plain.text) {
            plain.text = Cow::Owned(text);
        }
    }
    plain
}

fn unwrapped(
    text: &str,
    margins: &Margins,
    terminal: Option<Terminal>,
    doubled: bool,
    spaced: bool,
) -> Plain<'static> {
    let mut out = Builder::default();
    let mut last = None;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let is_space = spaced && line.trim().is_empty();
        if is_space || doubled && whole::is_second(&mut last, line) {
            continue;
        }
        let number = index + 1;
        let next = lines.peek().map(|(_, next)| *next);
        let broken = terminal.is_some_and(|terminal| terminal.goes_on(line, next));
        let line = if terminal.is_some() && !broken {
            line.trim_end()
        } else {
            line
        };
        let mut rest = Cow::Borrowed(line);
        let (mut whose, mut goes_on) = (None, broken);
        let mut told = None;
        for _ in 0..MAX_LAYERS {
            if let Some((margin, after)) = margins.read(&rest) {
                goes_on |= margin.goes_on;
                if let Some(name) = margin.name {
                    whose = out.process(&name).map(Whose::Process).or(whose);
                }
                whose = margin.rank.map(Whose::Rank).or(whose);
                rest = Cow::Owned(after.to_owned());
            } else if let Some(message) = Some(&rest)
                .filter(|rest| rest.len() <= MAX_LINE)
                .and_then(|rest| json::message(rest))
            {
                goes_on |= message.goes_on;
                whose = message.rank.map(Whose::Rank).or(whose);
                told = message.after.or(told);
                rest = Cow::Owned(message.text);
            } else {
                break;
            }
        }
        out.push(&rest, number, whose, goes_on);
        if let Some(after) = told {
            out.push(&after, number, whose, false);
        }
    }
    out.finish()
}

#[derive(Default)]
struct Builder {
    text: String,
    numbers: Vec<usize>,
    whose: Vec<Option<Whose>>,
    names: Vec<String>,
    /// Whether the last line is not at its end.
    open: Option<Option<Whose>>,
}

impl Builder {
    fn push(&mut self, text: &str, number: usize, whose: Option<Whose>, goes_on: bool) {
        let text = text.strip_suffix('\n').unwrap_or(text);
        // A container's runtime cuts long lines into parts.
        let mut continued = self.open.take() == Some(whose);
        if !continued && !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        for line in text.split('\n') {
            if !std::mem::take(&mut continued) {
                self.numbers.push(number);
                self.whose.push(whose);
            }
            self.text.push_str(line);
            self.text.push('\n');
        }
        if goes_on {
            self.text.pop();
            self.open = Some(whose);
        }
    }

    fn process(&mut self, name: &str) -> Option<u32> {
        let known = self.names.iter().position(|known| known == name);
        let index = known.or_else(|| {
            let free = self.names.len();
            (free < MAX_NAMES).then(|| self.names.push(begin(name, 200).to_owned()))?;
            Some(free)
        })?;
        u32::try_from(index).ok()
    }

    fn finish(self) -> Plain<'static> {
        let told = self.whose.iter().any(Option::is_some);
        Plain {
            text: Cow::Owned(self.text),
            numbers: self.numbers,
            whose: if told { self.whose } else { Vec::new() },
            names: self.names,
        }
    }
}

/// Returns the text without the escapes that colour it. Source: ECMA-48, SGR; OSC 8 for links
fn without_colours(text: &str) -> Cow<'_, str> {
    static ESCAPE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x07\x1b\n]*(?:\x07|\x1b\\)")
            .expect("a constant")
    });
    if memchr::memchr(0x1b, text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    ESCAPE.replace_all(text, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: &str = "  File \"/j/train.py\", line 9, in main";

    /// The text, and which line of the log each of its lines came from.
    fn read(text: &str) -> (String, Vec<usize>) {
        let plain = plain(text);
        let count = plain.text.lines().count();
        let numbers = (1..=count).map(|number| plain.line(number)).collect();
        (plain.text.into_owned(), numbers)
    }

    #[test]
    fn what_is_plain_is_left_as_it_is() {
        for text in [
            "",
            "step 1\nstep 2\n",
            "Traceback (most recent call last):\n  File \"a\", line 1, in f\nKeyError: 'a'\n",
            "{\"loss\": 0.5, \"step\": 1}\n{\"loss\": 0.4, \"step\": 2}\n",
            "{\"unfinished\n{not json}\n{}\n",
            "2026-11-29 16:33:26,123 INFO step 1\n2026-11-29 16:33:27,123 INFO step 2\n",
            "[{\"message\": 1}]\n{\"message\": {\"deep\": []}}\n",
        ] {
            let (found, _) = read(text);
            assert_eq!(found, text);
        }
    }

    #[test]
    fn jsons_messages_become_lines_with_their_numbers() {
        let text = "{\"level\":\"INFO\",\"message\":\"step 1\"}\nplain\n{\"levelname\":\"ERROR\",\"message\":\"failed\",\"exc_info\":\"Traceback (most recent call last):\\n  File \\\"/j/train.py\\\", line 9, in main\\nKeyError: 'a'\"}\n";
        let expected = format!(
            "INFO step 1\nplain\nERROR failed\nTraceback (most recent call last):\n{FRAME}\nKeyError: 'a'\n"
        );
        assert_eq!(read(text), (expected, vec![1, 2, 3, 3, 3, 3]));
    }

    #[test]
    fn ranks_of_a_programs_logger_are_told() {
        let text = "{\"event\":\"x\",\"rank\":3,\"level\":\"info\"}\n{\"text\":\"y\\n\",\"record\":{\"extra\":{\"rank\":\"4\"}}}\n{\"msg\":\"z\",\"rank\":-1}\n";
        let plain = plain(text);
        let whose: Vec<_> = (0..3).map(|index| plain.whose(index)).collect();
        assert_eq!(whose, [Some(Whose::Rank(3)), Some(Whose::Rank(4)), None]);
    }

    #[test]
    fn parts_of_a_containers_line_are_one() {
        let docker = "{\"log\":\"Value\",\"stream\":\"stderr\",\"time\":\"t\"}\n{\"log\":\"Error: x\\n\",\"stream\":\"stderr\",\"time\":\"t\"}\n{\"log\":\"next\\n\",\"stream\":\"stdout\",\"time\":\"t\"}\n";
        assert_eq!(
            read(docker),
            ("ValueError: x\nnext\n".to_owned(), vec![1, 3])
        );
        let cri = "2026-11-29T16:33:26.123456789Z stderr P Value\n2026-11-29T16:33:26.123456789Z stderr F Error: x\n2026-11-29T16:33:27.123456789Z stdout F   next\n";
        assert_eq!(
            read(cri),
            ("ValueError: x\n  next\n".to_owned(), vec![1, 3])
        );
    }

    #[test]
    fn times_before_every_line_of_a_traceback_go() {
        for time in [
            "2026-11-29T16:33:26.123Z ",
            "2026-11-29 16:33:26,123 ",
            "[2026-11-29 16:33:26] ",
            "16:33:26 ",
        ] {
            let text = format!(
                "{time}step 1\n{time}Traceback (most recent call last):\n{time}{FRAME}\n{time}KeyError: 'a'\n"
            );
            let expected =
                format!("step 1\nTraceback (most recent call last):\n{FRAME}\nKeyError: 'a'\n");
            assert_eq!(read(&text).0, expected, "{time}");
        }
    }

    #[test]
    fn empty_lines_after_every_line_go_and_the_times_with_them() {
        let lines = [
            "Traceback (most recent call last):",
            "  File \"t.py\", line 1, in f",
            "    x",
            "KeyError: 'a'",
        ];
        let stamped = lines.map(|line| format!("2026-11-29 18:11:31.447 {line}\n\n"));
        let (text, numbers) = read(&stamped.concat());
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        assert_eq!(numbers, [1, 3, 5, 7]);
    }

    #[test]
    fn pods_and_actors_are_processes() {
        for (one, two) in [
            ("[pod/trainer-0/main] ", "[pod/trainer-1/main] "),
            (
                "(RayTrainWorker pid=41, ip=10.0.0.2) ",
                "(RayTrainWorker pid=42, ip=10.0.0.2) ",
            ),
            (
                "(head, rank=0, pid=2972) ",
                "(worker1, rank=1, pid=2973, ip=10.0.0.2) ",
            ),
            ("(node-0 pid=2972) ", "(node-1 pid=2973, ip=10.0.0.2) "),
            (
                "ERROR 2026-11-29T16:33:26.123456789Z [resource.labels.taskName: workerpool0-0] ",
                "INFO 2026-11-29T16:33:26.123456789Z [resource.labels.taskName: workerpool1-0] ",
            ),
            (
                "[2026-11-29T16:33:26.123456Z] 8de2ca81 || ",
                "[2026-11-29T16:33:26.123456Z] 9de2ca82 || ",
            ),
            (
                "<info>    [2026-11-29 16:33:26] 8de2ca81 || ",
                "<>        [2026-11-29 16:33:26] 9de2ca82 || ",
            ),
            ("trainer-0  | ", "trainer-1  | "),
            (
                "2026-11-29 16:33:26 [trainer-0, unknown_ip] ",
                "2026-11-29 16:33:27 [trainer-1, unknown_ip] ",
            ),
        ] {
            let text = format!("{one}a\n{two}b\n{one}  c\n");
            let plain = plain(&text);
            assert_eq!(plain.text, "a\nb\n  c\n", "{one}");
            let whose: Vec<_> = (0..3).map(|index| plain.whose(index)).collect();
            let process = |index| Some(Whose::Process(index));
            assert_eq!(whose, [process(0), process(1), process(0)], "{one}");
        }
    }

    #[test]
    fn a_trials_ranks_are_told() {
        let text = "[2026-11-29T16:33:26.123456Z]          || INFO: x\n[2026-11-29T16:33:26.123456Z] 8de2ca81 [rank=3] || y\n";
        let plain = plain(text);
        assert_eq!(plain.text, "INFO: x\ny\n");
        assert_eq!(
            [plain.whose(0), plain.whose(1)],
            [None, Some(Whose::Rank(3))]
        );
    }

    #[test]
    fn layers_lie_around_one_another() {
        let text = "[pod/trainer-0/main] 2026-11-29T16:33:26.123456789Z {\"message\":\"Traceback (most recent call last):\\n  File \\\"/j/train.py\\\", line 9, in main\\nKeyError: 'a'\",\"rank\":2}\n";
        let plain = plain(text);
        assert_eq!(
            plain.text,
            format!("Traceback (most recent call last):\n{FRAME}\nKeyError: 'a'\n")
        );
        assert_eq!(plain.whose(2), Some(Whose::Rank(2)));
    }

    #[test]
    fn colours_go() {
        let text = "\u{1b}[1;35mValueError\u{1b}[0m: \u{1b}[35mbad\u{1b}[0m\n";
        assert_eq!(read(text).0, "ValueError: bad\n");
    }
}
