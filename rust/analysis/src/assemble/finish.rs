//! What is told of the job and its hosts once all ranks are known.

use super::{HostKey, Job, RankEvidence};
use crate::Options;
use crate::decide::count;
use crate::scan::Evidence;
use std::collections::{BTreeMap, BTreeSet};

impl Job {
    pub(super) fn finish(&mut self, evidence: &Evidence, options: &Options) {
        // In one pass: each looks at memory that is far apart.
        let (mut stated, mut waited, mut seen, mut run_id) = (None, None, 0, None);
        let mut said: BTreeMap<&str, usize> = BTreeMap::new();
        for rank in self.all_ranks() {
            let boxed = rank.black_box.as_ref().map(|boxed| &boxed.content.rank);
            let own = rank.record.as_ref().map(|record| record.identity);
            let own = own.and_then(|identity| identity.world_size);
            stated = stated.max(own.or(boxed.and_then(|boxed| boxed.world_size)));
            waited = waited.max(waited_for(rank));
            seen = seen.max(rank.rank.saturating_add(1));
            run_id = run_id.or_else(|| {
                let run_id = rank.section().and_then(|section| section.run_id.as_ref());
                run_id.or_else(|| boxed?.run_id.as_ref())
            });
            let notes = rank.record.iter().flat_map(|record| &record.failure.notes);
            notes.for_each(|note| *said.entry(note).or_default() += 1);
        }
        let said: Vec<String> = said
            .into_iter()
            .map(|(note, number)| format!("{}: {note}", count(number, "error file")))
            .collect();
        let run_id = run_id.cloned();
        // A world of more ranks than there are machines is a mistake, not a list to write out.
        self.world_size = options
            .world_size
            .or(stated)
            // A store may be that of some ranks.
            .or(waited)
            .unwrap_or(0)
            .max(seen)
            .min((1 << 22).max(seen));
        if self.run_id.is_empty() {
            self.run_id = run_id.unwrap_or_default();
        }
        self.label_hosts();
        let mut notes = Vec::new();
        let told = !self.hosts.is_empty() && self.hosts.values().all(|host| host.reported);
        self.is_stated = options.world_size.or(stated).is_some();
        self.is_counted = told || self.is_stated;
        if !self.is_counted {
            notes.push(
                "the number of ranks is not stated: --world-size shows ranks that left nothing"
                    .to_owned(),
            );
        }
        if evidence.replaced > 0 {
            notes.push(format!(
                "{} that a later record took the place of, kept out",
                count(evidence.replaced, "error file")
            ));
        }
        notes.extend(said);
        self.notes.append(&mut notes);
    }

    fn label_hosts(&mut self) {
        let mut names: BTreeMap<HostKey, String> = BTreeMap::new();
        let mut last: Option<(&HostKey, bool)> = None;
        for rank in self.attempts.values().flat_map(BTreeMap::values) {
            // Ranks of one host mostly follow each other, and one of them names it.
            if last == Some((&rank.host, true)) {
                continue;
            }
            let in_box = || {
                rank.black_box
                    .as_ref()
                    .map(|boxed| &boxed.content.host.name)
            };
            let stated = rank
                .section()
                .map(|section| &section.host.name)
                .or_else(in_box);
            let known = names.entry(rank.host.clone()).or_default();
            if let Some(name) = stated.filter(|_| known.is_empty()) {
                known.clone_from(name);
            }
            last = Some((&rank.host, !known.is_empty()));
        }
        let keys: BTreeSet<HostKey> = names.keys().cloned().collect();
        let parents: BTreeSet<_> = keys.iter().filter_map(parent_name).collect();
        let told_apart = keys.len() > 1 && parents.len() == keys.len();
        self.hosts
            .retain(|key, host| keys.contains(key) || host.signalled.is_some());
        for key in keys {
            let parent = parent_name(&key).filter(|_| told_apart);
            let host = self.hosts.entry(key.clone()).or_default();
            if let Some(name) = names.remove(&key).filter(|name| !name.is_empty()) {
                host.label = name;
            } else if let HostKey::Name(name) = &key {
                host.label.clone_from(name);
            } else if let Some(parent) =
                parent.filter(|_| matches!(host.label.as_str(), "" | "localhost"))
            {
                host.label = parent;
            }
        }
    }
}

/// Reads how many ranks the store of a job waited for: `Timed out after 13 seconds waiting for clients. 3/4 clients joined.`
///
/// Source: torch/csrc/distributed/c10d/TCPStore.cpp, `waitForWorkers`
fn waited_for(rank: &RankEvidence) -> Option<u32> {
    let told = rank.words.iter().flat_map(|words| &words.chain);
    told.map(|told| &*told.headline).find_map(|text| {
        let joined = text.split_once(" waiting for clients. ")?.1;
        let all = joined.split_once(" clients joined")?.0.split_once('/')?.1;
        all.parse().ok()
    })
}

fn parent_name(key: &HostKey) -> Option<String> {
    let HostKey::Run(run) = key else { return None };
    Some(run.parent()?.file_name()?.to_string_lossy().into_owned())
}
