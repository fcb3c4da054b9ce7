//! Rounds of rendezvous in a launcher's log: which attempt of its own met the others where.

/// One round that a launcher took part in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Round {
    /// How often the launcher had restarted its workers: the number in `attempt_<n>`.
    pub attempt: u32,
    /// The address and port that the workers of the round met at: each round has its own.
    pub master: String,
}

/// At most so many rounds of one launcher are told apart.
const MAX_ROUNDS: usize = 10_000;

/// Returns the rounds that a log of one launcher tells of, in its order; they are there at the level INFO alone.
///
/// Source: torch/distributed/elastic/agent/server/api.py, `_initialize_workers`
pub(crate) fn rounds(text: &str) -> Vec<Round> {
    const HEAD: &str = "Rendezvous complete for workers. Result:";
    let mut found = Vec::new();
    for (at, _) in text.match_indices(HEAD).take(MAX_ROUNDS) {
        let field = |name: &str| {
            let lines = text[at..].lines().skip(1).take(12);
            // A collector may have put something before each line.
            let mut values =
                lines.filter_map(|line| line.rsplit_once(name).map(|(_, value)| value.trim()));
            values.next()
        };
        let attempt = field("restart_count=").and_then(|count| count.parse().ok());
        if let (Some(attempt), Some(host), Some(port)) =
            (attempt, field("master_addr="), field("master_port="))
        {
            let master = format!("{host}:{port}");
            found.push(Round { attempt, master });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_read_whatever_stands_before_the_lines() {
        for margin in ["", "0: "] {
            let text = format!(
                "{margin}I1129 16:33:27.4 9 torch/distributed/elastic/agent/server/api.py:525] [default] Rendezvous complete for workers. Result:\n{margin}  restart_count=1\n{margin}  master_addr=node0\n{margin}  master_port=29511\n{margin}  group_rank=0\n"
            );
            let master = "node0:29511".to_owned();
            assert_eq!(rounds(&text), [Round { attempt: 1, master }]);
        }
        assert_eq!(rounds("Rendezvous complete for workers. Result:\n"), []);
    }
}
