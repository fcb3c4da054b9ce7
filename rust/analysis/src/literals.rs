//! Finds which of a thousand short texts occur in another one, whatever their case.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use std::collections::HashMap;

/// An automaton knows so many bytes of each text, and what follows them is compared: one of whole texts has five times
/// as many states, and takes ten milliseconds to build.
const BEGINNING: usize = 8;

/// Beginnings of so many bytes in all make a table of a few megabytes.
const MOST_IN_TABLE: usize = 16 << 10;

/// Short texts, each with a number that says whose it is.
#[derive(Debug)]
pub(crate) struct Literals {
    beginnings: AhoCorasick,
    /// The whole texts of each beginning.
    texts: Vec<Vec<(Box<[u8]>, usize)>>,
}

impl Literals {
    /// Returns what finds these texts in a message.
    ///
    /// # Errors
    ///
    /// They are more than an automaton has room for.
    pub(crate) fn new<'t>(texts: impl Iterator<Item = (&'t str, usize)>) -> Result<Self, String> {
        Self::of(texts, AhoCorasickKind::ContiguousNFA)
    }

    /// Returns what finds these texts in whole logs: it takes longer to build, and costs one look-up a byte.
    ///
    /// # Errors
    ///
    /// As [`Literals::new`].
    pub(crate) fn in_logs<'t>(texts: impl Iterator<Item = &'t str>) -> Result<Self, String> {
        Self::of(texts.map(|text| (text, 0)), AhoCorasickKind::DFA)
    }

    fn of<'t>(
        texts: impl Iterator<Item = (&'t str, usize)>,
        kind: AhoCorasickKind,
    ) -> Result<Self, String> {
        let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
        let (mut beginnings, mut of_each, mut size) = (Vec::new(), Vec::new(), 0);
        for (text, owner) in texts {
            let bytes = text.as_bytes();
            let beginning = bytes[..bytes.len().min(BEGINNING)].to_ascii_lowercase();
            let index = *known.entry(beginning).or_insert_with_key(|beginning| {
                size += beginning.len();
                beginnings.push(beginning.clone());
                of_each.push(Vec::new());
                of_each.len() - 1
            });
            of_each[index].push((bytes.into(), owner));
        }
        let beginnings = AhoCorasick::builder()
            .kind(Some(kind).filter(|_| size <= MOST_IN_TABLE))
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(true)
            .build(beginnings)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            beginnings,
            texts: of_each,
        })
    }

    /// Yields where one of the texts begins in another, and whose it is, for each time that it is there.
    pub(crate) fn find<'t>(&'t self, text: &'t [u8]) -> impl Iterator<Item = (usize, usize)> + 't {
        let found = self.beginnings.find_overlapping_iter(text);
        found.flat_map(move |found| {
            let rest = &text[found.start()..];
            let is_here = move |(whole, _): &&(Box<[u8]>, usize)| {
                let part = rest.get(..whole.len());
                part.is_some_and(|part| part.eq_ignore_ascii_case(whole))
            };
            let here = self.texts[found.pattern().as_usize()]
                .iter()
                .filter(is_here);
            here.map(move |&(_, owner)| (found.start(), owner))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_whole_wherever_they_overlap_and_whatever_their_case() {
        let texts = [
            "Connection reset",
            "connection refused",
            "refused by peer",
            "on",
            "é",
        ];
        let numbered = || texts.into_iter().zip(0..);
        let messages = Literals::new(numbered()).unwrap();
        let logs = Literals::in_logs(texts.into_iter()).unwrap();
        for text in [
            "CONNECTION REFUSED BY PEER",
            "connection refus",
            "Connection reset, connection refused: on é",
            "",
        ] {
            let folded = text.to_ascii_lowercase();
            let mut expected: Vec<(usize, usize)> = numbered()
                .flat_map(|(wanted, owner)| {
                    let wanted = wanted.to_ascii_lowercase();
                    let found = folded.match_indices(&wanted);
                    found.map(|(at, _)| (at, owner)).collect::<Vec<_>>()
                })
                .collect();
            expected.sort_unstable();
            let sorted = |literals: &Literals| {
                let mut found: Vec<_> = literals.find(text.as_bytes()).collect();
                found.sort_unstable();
                found
            };
            assert_eq!(sorted(&messages), expected, "{text}");
            let places: Vec<usize> = expected.iter().map(|(at, _)| *at).collect();
            let found: Vec<usize> = sorted(&logs).iter().map(|(at, _)| *at).collect();
            assert_eq!(found, places, "{text}");
        }
    }
}
