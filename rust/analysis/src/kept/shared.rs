//! What many records of one job have in common, kept once; and judged once, where they say the same.

use crate::classify::Finding;
use crate::failure::{Deferred, Exception, Failure, Frame, Host, Kind};
use crate::traceback::FrameRef;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

/// What many records of one job have in common.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Stacks, by the lines of their frames.
    stacks: Mutex<HashMap<u64, Vec<Arc<[Frame]>>>>,
    hosts: Mutex<HashMap<String, Vec<Arc<Host>>>>,
    memory: Mutex<Memory>,
    hasher: RandomState,
}

/// What was judged last, by the hashes of messages: what one thread wrote another should not have to look at.
#[derive(Debug, Default)]
struct Memory {
    /// Of failures of which the same may come again: most texts of a large job name a peer, and no two are the same.
    once: VecDeque<u64>,
    /// Of failures that came twice, the last one first.
    judged: Vec<(u64, Box<Judged>)>,
}

/// So many failures are remembered, none with a longer call stack, in bytes; and so many as seen once.
const MAX_JUDGED: usize = 16;
const MAX_CALLSTACK: usize = 64 << 10;
const MAX_ONCE: usize = 64;

/// A failure without a signal, as far as the rules look at it, and what they make of it.
#[derive(Debug)]
struct Judged {
    message: String,
    callstack: String,
    section: Option<Told>,
    finding: Finding,
    frames: Arc<[Frame]>,
}

#[derive(Debug)]
struct Told {
    kind: Option<Kind>,
    exception: Option<Exception>,
    deferred: Option<Deferred>,
}

impl Judged {
    fn is_of(&self, failure: &Failure) -> bool {
        let told = match (&self.section, failure.section.as_deref()) {
            (None, None) => true,
            (Some(told), Some(section)) => {
                section.signal.is_none()
                    && told.kind == section.kind
                    && told.exception == section.exception
                    && told.deferred == section.deferred
            }
            _ => false,
        };
        self.message == failure.message && told && self.callstack == failure.callstack
    }
}

impl Shared {
    /// Returns the hash by which a failure is remembered.
    pub(super) fn hash(&self, failure: &Failure) -> u64 {
        self.hasher.hash_one(&failure.message)
    }

    /// Returns what the rules make of a failure of this hash, and its frames, where they judged the same before.
    pub(super) fn judged(
        &self,
        hash: u64,
        failure: &Failure,
    ) -> Option<(Finding, Arc<[Frame]>, String)> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |(known, judged): &(u64, Box<Judged>)| *known == hash && judged.is_of(failure);
        let at = memory.judged.iter().position(is_it)?;
        memory.judged[..=at].rotate_right(1);
        let Judged {
            finding, frames, ..
        } = &*memory.judged[0].1;
        Some((finding.clone(), Arc::clone(frames), String::new()))
    }

    /// Remembers what the rules make of a failure with frames, once it comes again; takes of it what nothing looks at any
    /// more.
    pub(super) fn remember(
        &self,
        hash: u64,
        failure: &mut Failure,
        finding: &Finding,
        frames: &Arc<[Frame]>,
    ) {
        let section = failure.section.as_deref_mut();
        let crashed = section
            .as_ref()
            .is_some_and(|section| section.signal.is_some());
        if crashed || failure.callstack.len() > MAX_CALLSTACK || !self.comes_again(hash) {
            return;
        }
        let new = Box::new(Judged {
            message: failure.message.clone(),
            callstack: std::mem::take(&mut failure.callstack),
            section: section.map(|section| Told {
                kind: section.kind,
                exception: section.exception.take(),
                deferred: section.deferred.clone(),
            }),
            finding: finding.clone(),
            frames: Arc::clone(frames),
        });
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = memory.judged.len().min(MAX_JUDGED - 1);
        let forgotten = memory.judged.split_off(kept);
        memory.judged.insert(0, (hash, new));
        drop(memory);
        drop(forgotten);
    }

    fn comes_again(&self, hash: u64) -> bool {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let again = memory.once.contains(&hash);
        if !again {
            memory.once.truncate(MAX_ONCE - 1);
            memory.once.push_front(hash);
        }
        again
    }

    pub(crate) fn stack(&self, frames: &[FrameRef<'_>]) -> Arc<[Frame]> {
        let key = frames.iter().fold(0_u64, |key, frame| {
            key.wrapping_mul(31).wrapping_add(u64::from(frame.line))
        });
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        let alike = stacks.entry(key).or_default();
        let is_it = |known: &&Arc<[Frame]>| {
            known.len() == frames.len() && known.iter().zip(frames).all(|(a, b)| *b == a.as_ref())
        };
        if let Some(known) = alike.iter().find(is_it) {
            return Arc::clone(known);
        }
        let new: Arc<[Frame]> = frames.iter().map(|frame| frame.to_frame()).collect();
        alike.push(Arc::clone(&new));
        new
    }

    pub(super) fn host(&self, host: Host) -> Arc<Host> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let alike = match hosts.get_mut(&host.name) {
            Some(alike) => alike,
            None => hosts.entry(host.name.clone()).or_default(),
        };
        if let Some(known) = alike.iter().find(|known| ***known == host) {
            return Arc::clone(known);
        }
        let new = Arc::new(host);
        alike.push(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::classify;

    #[test]
    fn a_failure_that_came_twice_is_known() {
        let shared = Shared::default();
        let failure = || Failure {
            message: "ValueError: x".to_owned(),
            callstack: "Traceback (most recent call last):\n".to_owned(),
            ..Failure::default()
        };
        let (finding, frames) = (classify(&failure()), Arc::from(Vec::new()));
        let hash = shared.hash(&failure());
        for _ in 0..2 {
            assert!(shared.judged(hash, &failure()).is_none());
            shared.remember(hash, &mut failure(), &finding, &frames);
        }
        let known = shared.judged(hash, &failure()).expect("it came twice");
        assert_eq!(known.0.rule.id, finding.rule.id);
        let other = Failure {
            callstack: "elsewhere".to_owned(),
            ..failure()
        };
        assert!(shared.judged(hash, &other).is_none());
    }
}
