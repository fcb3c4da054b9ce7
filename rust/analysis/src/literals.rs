//! Finds which of a thousand short texts occur in another one, whatever their case.

/// At most so many bytes are looked up at once: a register full.
const WINDOW: usize = 8;

/// So many bits of a hash say whether a text may begin so: of a thousand texts' beginnings they tell apart all but a
/// hundredth of what is none of them, and still fit the nearest cache.
const FILTER_BITS: u32 = 16;

/// Bytes that differ in case alone are the same with this bit.
const CASE: u64 = 0x2020_2020_2020_2020;

/// Short texts, each with a number that says whose it is.
///
/// What is searched is looked up a window at a time, in a Bloom filter first. An automaton (of aho-corasick, and of
/// daachorse) takes two to three times as long, and ten times as long to build.
#[derive(Debug)]
pub(crate) struct Literals {
    /// The bits of a window's bytes: those of the shortest text.
    mask: u64,
    /// The bits of all beginnings' hashes.
    filter: Box<[u64; (1 << FILTER_BITS) / 64]>,
    /// In order of their windows.
    texts: Box<[Literal]>,
}

#[derive(Debug)]
struct Literal {
    /// Its first bytes, up to a register full, the same for each case, and the bits that they take of one.
    beginning: u64,
    mask: u64,
    text: Box<[u8]>,
    owner: usize,
}

impl Literal {
    fn new(text: &str, owner: usize) -> Self {
        let mask = mask(text.len());
        Self {
            beginning: (first(text.as_bytes()) | CASE) & mask,
            mask,
            text: text.as_bytes().into(),
            owner,
        }
    }

    /// Whether a text begins with it, whose first bytes these are.
    fn begins(&self, first: u64, text: &[u8]) -> bool {
        // Of a hundred whose first four bytes are the same most differ in the next four.
        let is_alike = (first | CASE) & self.mask == self.beginning;
        is_alike
            && text
                .get(..self.text.len())
                .is_some_and(|text| text.eq_ignore_ascii_case(&self.text))
    }
}

impl Literals {
    /// Returns what finds these texts, none of them empty.
    pub(crate) fn new<'t>(texts: impl Iterator<Item = (&'t str, usize)>) -> Self {
        let texts = texts.filter(|(text, _)| !text.is_empty());
        let mut texts: Vec<Literal> = texts.map(|(text, of)| Literal::new(text, of)).collect();
        let shortest = texts.iter().map(|literal| literal.mask).min();
        let mask = shortest.unwrap_or_default();
        texts.sort_by_key(|literal| literal.beginning & mask);
        let mut filter = Box::new([0; _]);
        for literal in &texts {
            let (word, bit) = place(literal.beginning & mask);
            filter[word] |= 1 << bit;
        }
        Self {
            mask,
            filter,
            texts: texts.into(),
        }
    }

    /// Yields where one of the texts begins in another, and whose it is, for each time that it is there, in order of
    /// places.
    pub(crate) fn find<'t>(&'t self, text: &'t [u8]) -> impl Iterator<Item = (usize, usize)> + 't {
        let places = std::iter::successors(self.next(text, 0), move |&at| self.next(text, at + 1));
        places.flat_map(move |at| {
            let rest = &text[at..];
            let (first, window) = (first(rest), self.window(rest));
            let of = |literal: &Literal| literal.beginning & self.mask;
            let from = self.texts.partition_point(|literal| of(literal) < window);
            let alike = self.texts[from..].iter();
            let alike = alike.take_while(move |literal| of(literal) == window);
            let here = alike.filter(move |literal| literal.begins(first, rest));
            here.map(move |literal| (at, literal.owner))
        })
    }

    /// Returns the next place where one of the texts may begin.
    fn next(&self, text: &[u8], from: usize) -> Option<usize> {
        let may_begin = |text: &[u8]| {
            let (word, bit) = place(self.window(text));
            self.filter[word] >> bit & 1 == 1
        };
        let mut windows = text.get(from..)?.windows(WINDOW);
        let whole = windows.position(may_begin).map(|index| from + index);
        whole.or_else(|| {
            let last = text.len().saturating_sub(WINDOW - 1).max(from);
            (last..text.len()).find(|&at| may_begin(&text[at..]))
        })
    }

    fn window(&self, text: &[u8]) -> u64 {
        (first(text) | CASE) & self.mask
    }
}

/// Returns the bits that so many bytes take of a register, or all of them.
fn mask(length: usize) -> u64 {
    u64::MAX >> (8 * WINDOW.saturating_sub(length))
}

fn first(text: &[u8]) -> u64 {
    match text.first_chunk::<WINDOW>() {
        Some(first) => u64::from_le_bytes(*first),
        None => text
            .iter()
            .rev()
            .fold(0, |first, &byte| first << 8 | u64::from(byte)),
    }
}

/// Returns which word and which bit of it a beginning has in the filter.
///
/// Multiplicative hashing. Source: Knuth, The Art of Computer Programming, volume 3, section 6.4
fn place(beginning: u64) -> (usize, u32) {
    let hash = beginning.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - FILTER_BITS);
    ((hash >> 6) as usize, (hash & 63) as u32)
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
        for shortest in [0, 1, 3, 9, 17] {
            let texts = texts.iter().filter(|text| text.len() >= shortest);
            let texts: Vec<&str> = texts.copied().collect();
            are_found(&texts);
        }
    }

    fn are_found(texts: &[&str]) {
        let numbered = || texts.iter().copied().zip(0..);
        let literals = Literals::new(numbered());
        for text in [
            "CONNECTION REFUSED BY PEER",
            "connection refus",
            "connection refuted",
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
            let mut found: Vec<_> = literals.find(text.as_bytes()).collect();
            assert!(found.is_sorted_by_key(|(at, _)| *at), "{text}");
            found.sort_unstable();
            assert_eq!(found, expected, "{text}");
        }
    }
}
