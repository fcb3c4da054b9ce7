//! Who did not enter the collective that the others are in, and who entered another: from the flight recorders' dumps.

use crate::classify::rules;
use crate::decide::{Attempt, Decision, Subject, count};
use crate::groups::ranges;
use crate::recorder::Dump;
use crate::schema::Confidence;
use std::collections::{BTreeMap, BTreeSet};

impl Attempt<'_> {
    /// Returns what the dumps tell where no rank failed by itself.
    pub(crate) fn by_recorder(&self) -> Option<Decision> {
        let dumps = &self.job.dumps;
        let mut groups: BTreeMap<&String, i64> = BTreeMap::new();
        for (name, collectives) in dumps.iter().flat_map(|dump| &dump.groups) {
            let times = collectives.values().map(|collective| collective.time_ns);
            let last = groups.entry(name).or_default();
            *last = times.max().unwrap_or(0).max(*last);
        }
        // The group that was in use last is the one in which the job stopped.
        let mut groups: Vec<(&String, i64)> = groups.into_iter().collect();
        groups.sort_by_key(|(_, last)| std::cmp::Reverse(*last));
        let mut names = groups.iter().map(|(name, _)| *name);
        let mismatch = names.clone().find_map(|group| mismatch(dumps, group));
        mismatch.or_else(|| names.find_map(|group| behind(dumps, group)))
    }
}

/// Ranks that entered different operations, or the same with other sizes, under one number of one group.
fn mismatch(dumps: &[Dump], group: &str) -> Option<Decision> {
    let mut by_number: BTreeMap<u64, BTreeMap<&str, Vec<&Dump>>> = BTreeMap::new();
    for dump in dumps {
        for (number, collective) in dump.groups.get(group).into_iter().flatten() {
            let ranks = by_number.entry(*number).or_default();
            ranks.entry(&collective.what).or_default().push(dump);
        }
    }
    let (number, entered) = by_number
        .into_iter()
        .find(|(_, entered)| entered.len() > 1)?;
    let most = entered.values().map(Vec::len).max()?;
    let place = |dump: &Dump| dump.groups[group][&number].place.clone();
    let told = entered.iter().map(|(what, dumps)| {
        let place = Some(place(dumps[0])).filter(|place| !place.is_empty());
        let place = place.map(|place| format!(", {place}")).unwrap_or_default();
        let ranks = ranges(dumps.iter().map(|dump| dump.rank));
        format!("as collective {number} of group {group} ranks {ranks} entered {what}{place}")
    });
    let reasons = told.collect();
    let few = entered.iter().filter(|(_, dumps)| dumps.len() < most);
    let suspects = few.flat_map(|(what, dumps)| {
        let reason = format!("it entered {what} as collective {number}, others did not");
        dumps.iter().map(move |dump| (dump.rank, reason.clone()))
    });
    Some(Decision {
        subject: Subject::Job(None),
        rule: rules().by_id("collective-mismatch"),
        confidence: Confidence::Medium,
        also: Vec::new(),
        suspects: suspects.collect(),
        reasons,
    })
}

/// Ranks whose last collective of a group is before that of the others, and ranks of it that left no dump.
fn behind(dumps: &[Dump], group: &str) -> Option<Decision> {
    let last = |dump: &Dump| Some((dump.rank, *dump.groups.get(group)?.keys().next_back()?));
    let reached: BTreeMap<u32, u64> = dumps.iter().filter_map(last).collect();
    let furthest = *reached.values().max()?;
    let members: BTreeSet<u32> = dumps
        .iter()
        .flat_map(|dump| dump.members.get(group).into_iter().flatten())
        .copied()
        .collect();
    let late: Vec<(u32, u64)> = reached
        .iter()
        .filter(|(_, number)| **number < furthest)
        .map(|(rank, number)| (*rank, *number))
        .collect();
    let absent: Vec<u32> = members
        .iter()
        .copied()
        // One that left a dump may have left the group out of its ring.
        .filter(|rank| !dumps.iter().any(|dump| dump.rank == *rank))
        .collect();
    let there = reached.len() - late.len();
    if there < 2 || late.is_empty() && absent.is_empty() {
        return None;
    }
    let dump = dumps
        .iter()
        .find(|dump| last(dump).is_some_and(|(_, number)| number == furthest))?;
    let what = &dump.groups[group][&furthest];
    let mut reasons = vec![format!(
        "{} entered collective {furthest} of group {group}, {}{}{}",
        count(there, "rank"),
        what.what,
        if what.place.is_empty() { "" } else { ", " },
        what.place
    )];
    let mut suspects: Vec<(u32, String)> = Vec::new();
    for (rank, number) in &late {
        suspects.push((
            *rank,
            format!("its last collective of group {group} was {number}, that of others {furthest}"),
        ));
    }
    for rank in &absent {
        suspects.push((
            *rank,
            format!(
                "it left no flight recorder's dump, as {} of group {group} did",
                count(reached.len(), "rank")
            ),
        ));
    }
    // The rank behind may be a victim of its own: it is a suspect, and the only one at most likely.
    let (subject, confidence) = match suspects[..] {
        [(rank, _)] => (Subject::Rank(rank), Confidence::Medium),
        _ => (Subject::Job(None), Confidence::Low),
    };
    if let Subject::Rank(_) = subject {
        reasons.extend(suspects.drain(..).map(|(_, reason)| reason));
    }
    Some(Decision {
        subject,
        rule: rules().by_id("hang"),
        confidence,
        also: Vec::new(),
        suspects,
        reasons,
    })
}
