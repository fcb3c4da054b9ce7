//! A report without names: hosts, users, addresses and command lines are replaced, each by the same word everywhere.

use crate::schema::Report;
use aho_corasick::{AhoCorasick, MatchKind};
use regex::{Captures, Regex};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

/// Returns the report with hosts as `node-a`, users as `user-a`, addresses as `addr-1` and command lines as `<argv>`.
///
/// A host is what the evidence names as one, what stands before a port or after a protocol, and what is called like one
/// of a cloud; a user is who has a home directory, a mail address or a numeric ID. The local host keeps its name.
///
/// ```
/// use firstfault_analysis::Report;
/// use firstfault_analysis::report::redact::redacted;
///
/// let mut report = Report::default();
/// report.incomplete.push("cannot reach [gpu17.site]:29500 (10.1.2.3) from /home/ada/job".into());
/// let expected = "cannot reach [node-a]:29500 (addr-1) from /home/user-a/job";
/// assert_eq!(redacted(report).incomplete, [expected]);
/// ```
pub fn redacted(report: Report) -> Report {
    let mut names = Names::default();
    let causes = report.root_cause.iter().chain(&report.also_primary);
    let told = causes.map(|cause| &cause.host);
    let told = told.chain(report.suspects.iter().map(|suspect| &suspect.host));
    told.chain(&report.host_names)
        .for_each(|host| names.add_host(host));
    let report = report.map_strings(|text| {
        names.learn(text);
        text.to_owned()
    });
    let replacer = Replacer::new(names);
    let mut addresses = Aliases::default();
    report.map_strings(|text| replacer.replace(text, &mut addresses))
}

macro_rules! pattern {
    ($name:ident, $pattern:literal) => {
        static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($pattern).expect("it is tested"));
    };
}

pattern!(COMMAND, r"(?s)\bCommand '.*?' (returned|died|timed out)");
pattern!(HOME, r#"/(?:home|homes|Users|users)/([^/\s:"'`,;()\[\]]+)"#);
pattern!(USER_ID, r"(?i)\b(of user |user=|uid[ =:]+)([\w.-]+)");
pattern!(MAIL, r"([\w.+-]+)@([\w-]+(?:\.[\w-]+)+)");
pattern!(BEFORE_PORT, r"\[([A-Za-z0-9.-]+)\]:\d{2,5}\b");
pattern!(
    AFTER_PROTOCOL,
    r"\b(?:tcp|https?|grpc|ssh)://([A-Za-z0-9.-]+)"
);
pattern!(
    OF_CLOUD,
    r"\b([\w.-]+\.(?:internal|svc|cluster\.local|amazonaws\.com)|ip-\d+-\d+-\d+-\d+)\b"
);
pattern!(DOMAIN, r"^(?:\.[A-Za-z][A-Za-z0-9-]*){2,}");
pattern!(IPV4, r"\d{1,3}(?:\.\d{1,3}){3}");
pattern!(IPV6, r"[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*");

/// Words and what each is replaced by, in the order in which they were met.
#[derive(Default)]
struct Aliases {
    known: HashMap<String, usize>,
}

impl Aliases {
    fn number(&mut self, word: &str) -> usize {
        let next = self.known.len();
        *self.known.entry(word.to_ascii_lowercase()).or_insert(next)
    }
}

/// What is to be replaced.
#[derive(Default)]
struct Names {
    hosts: Aliases,
    users: Aliases,
    /// Each spelling of a host, and its number.
    spellings: BTreeSet<(String, usize)>,
}

impl Names {
    /// A host and its first label are one.
    fn add_host(&mut self, name: &str) {
        let name = name.trim_end_matches('.');
        let is_one =
            name.chars().any(|c| c.is_ascii_alphabetic()) && name.parse::<IpAddr>().is_err();
        let label = name.split('.').next().unwrap_or_default();
        // Torchrun's prefixes of lines look like a host before a port.
        let prefix = label.trim_end_matches(|c: char| c.is_ascii_digit());
        if !is_one || label.is_empty() || matches!(prefix, "localhost" | "rank" | "default") {
            return;
        }
        let number = self.hosts.number(label);
        self.spellings.insert((name.to_owned(), number));
        self.spellings.insert((label.to_owned(), number));
    }

    fn learn(&mut self, text: &str) {
        for pattern in [&BEFORE_PORT, &AFTER_PROTOCOL, &OF_CLOUD] {
            for found in pattern.captures_iter(text) {
                self.add_host(&found[1]);
            }
        }
        for found in MAIL.captures_iter(text) {
            self.users.number(&found[1]);
            self.add_host(&found[2]);
        }
        for found in HOME.captures_iter(text) {
            self.users.number(&found[1]);
        }
        for found in USER_ID.captures_iter(text) {
            self.users.number(&found[2]);
        }
    }
}

struct Replacer {
    words: AhoCorasick,
    /// What each word is replaced by, and whether it is so plain a word that it must stand alone.
    aliases: Vec<(String, bool)>,
}

impl Replacer {
    fn new(names: Names) -> Self {
        let mut words: Vec<(String, String)> = Vec::new();
        let hosts = names.spellings.into_iter();
        words.extend(hosts.map(|(host, number)| (host, format!("node-{}", letters(number)))));
        // A number that is somebody's ID is many other things too: it is replaced only where it is said to be one.
        let users = names.users.known.into_iter();
        let users = users.filter(|(user, _)| user.bytes().any(|c| c.is_ascii_alphabetic()));
        words.extend(users.map(|(user, number)| (user, format!("user-{}", letters(number)))));
        words.sort();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(true)
            .build(words.iter().map(|(word, _)| word));
        let is_plain = |word: &str| word.chars().all(|c| c.is_ascii_alphabetic());
        Self {
            words: automaton.expect("names of a few thousand hosts fit"),
            aliases: words
                .into_iter()
                .map(|(word, alias)| (alias, is_plain(&word)))
                .collect(),
        }
    }

    fn replace(&self, text: &str, addresses: &mut Aliases) -> String {
        let text = COMMAND.replace_all(text, "Command '<argv>' $1");
        let text = USER_ID.replace_all(&text, |found: &Captures<'_>| {
            let is_number = found[2].bytes().all(|c| c.is_ascii_digit());
            match is_number {
                true => format!("{}<uid>", &found[1]),
                false => found[0].to_owned(),
            }
        });
        let text = self.words(&text);
        let text = IPV4.replace_all(&text, |found: &Captures<'_>| {
            let address = found[0].parse::<Ipv4Addr>().ok();
            let address =
                address.filter(|address| !address.is_loopback() && !address.is_unspecified());
            alias(address.map(IpAddr::V4), &found[0], addresses)
        });
        let whole = text.clone();
        let text = IPV6.replace_all(&text, |found: &Captures<'_>| {
            let place = found.get(0).map_or(0..0, |found| found.range());
            let address = found[0].parse::<Ipv6Addr>().ok();
            let address = address.filter(|address| {
                let names_nothing = address.is_loopback() || address.is_unspecified();
                !names_nothing
                    && stands_alone(&whole, place.start, place.end, false)
                    && is_number(&found[0])
            });
            alias(address.map(IpAddr::V6), &found[0], addresses)
        });
        text.into_owned()
    }

    fn words(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut done = 0;
        for found in self.words.find_iter(text) {
            let (alias, is_plain) = &self.aliases[found.pattern().as_usize()];
            let (start, end) = (found.start(), found.end());
            if start >= done && stands_alone(text, start, end, *is_plain) {
                out.push_str(&text[done..start]);
                out.push_str(alias);
                done = end + DOMAIN.find(&text[end..]).map_or(0, |domain| domain.len());
            }
        }
        out.push_str(&text[done..]);
        out
    }
}

/// A name of C++, as `c10::ad`, may read as an address; one that is used has a number of digits and groups.
fn is_number(text: &str) -> bool {
    let groups = text.matches(':').count();
    text.bytes().any(|c| c.is_ascii_digit())
        && (groups > 2 || text.starts_with("fe80") || text.starts_with('2'))
}

fn alias(address: Option<IpAddr>, text: &str, addresses: &mut Aliases) -> String {
    match address {
        Some(address) => format!("addr-{}", addresses.number(&address.to_string()) + 1),
        None => text.to_owned(),
    }
}

/// Whether no further letter or digit surrounds a part of a text; around a plain word no dot, dash or underscore either,
/// so that a host called `train` is not found in `train.py`.
fn stands_alone(text: &str, start: usize, end: usize, is_plain: bool) -> bool {
    let of_word = |c: char| c.is_alphanumeric() || is_plain && matches!(c, '.' | '-' | '_');
    let before = text[..start].chars().next_back();
    let mut after = text[end..].chars();
    let (first, second) = (after.next(), after.next());
    // The dot at the end of a sentence.
    let ends = is_plain && first == Some('.') && second.is_none_or(char::is_whitespace);
    !before.is_some_and(of_word) && (ends || !first.is_some_and(of_word))
}

/// `a` to `z`, `aa`, `ab` and so on.
fn letters(number: usize) -> String {
    let letter = char::from(b'a' + u8::try_from(number % 26).unwrap_or(0));
    match number / 26 {
        0 => letter.to_string(),
        more => format!("{}{letter}", letters(more - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::RootCause;

    fn texts(hosts: &[&str], texts: &[&str]) -> Vec<String> {
        let report = Report {
            host_names: hosts.iter().map(|&host| host.to_owned()).collect(),
            incomplete: texts.iter().map(|&text| text.to_owned()).collect(),
            ..Report::default()
        };
        redacted(report).incomplete
    }

    #[test]
    fn names_are_replaced_everywhere_by_the_same_word() {
        for (text, expected) in [
            (
                "/logs/gpu17/rank_3.gpu17.4242.json",
                "/logs/node-a/rank_3.node-a.4242.json",
            ),
            (
                "gpu17.site.org and GPU17, not gpu170",
                "node-a and node-a, not gpu170",
            ),
            (
                "on train, in train.py and train.",
                "on node-b, in train.py and node-b.",
            ),
            (
                "/home/ada/x and /scratch/ada/y, ada@gpu17",
                "/home/user-a/x and /scratch/user-a/y, user-a@node-a",
            ),
            (
                "sent by process 7 (bash) of user 1000, uid=1000",
                "sent by process 7 (bash) of user <uid>, uid=<uid>",
            ),
            (
                "from [10.0.0.2]:29500 and 10.0.0.2, 10.0.0.3",
                "from [addr-1]:29500 and addr-1, addr-2",
            ),
            (
                "[2001:db8::7]:29500, fe80::1%eth0",
                "[addr-1]:29500, addr-2%eth0",
            ),
            (
                "127.0.0.1, ::1, [localhost]:29500, 0.0.0.0",
                "127.0.0.1, ::1, [localhost]:29500, 0.0.0.0",
            ),
            (
                "c10::Error in c10::ad at 12:30:45, torch 2.14.1",
                "c10::Error in c10::ad at 12:30:45, torch 2.14.1",
            ),
            ("ip-10-1-2-3.eu.compute.internal", "node-c"),
            (
                "https://login7/x by ada@example.com",
                "https://node-c/x by user-a@node-d",
            ),
            ("[rank3]: 12, [default3]:12", "[rank3]: 12, [default3]:12"),
            (
                "CalledProcessError: Command '['python', 'x.py', '--key', 'k']' returned non-zero",
                "CalledProcessError: Command '<argv>' returned non-zero",
            ),
        ] {
            assert_eq!(texts(&["gpu17", "train"], &[text]), [expected]);
        }
    }

    #[test]
    fn what_programs_read_stays_as_it_is() {
        let report = Report {
            root_cause: Some(RootCause {
                host: "worker".to_owned(),
                category: "worker".to_owned(),
                title: "worker failed".to_owned(),
                ..RootCause::default()
            }),
            ..Report::default()
        };
        let cause = redacted(report).root_cause.expect("still there");
        assert_eq!(
            (cause.host.as_str(), cause.category.as_str()),
            ("node-a", "worker")
        );
        assert_eq!(cause.title, "node-a failed");
    }

    #[test]
    fn aliases_go_on_after_z() {
        assert_eq!([0, 25, 26, 702].map(letters), ["a", "z", "aa", "aaa"]);
    }
}
