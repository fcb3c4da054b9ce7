//! What is kept of an error file once it is read and judged: not its text, or a hundred thousand ranks would need
//! gigabytes, and what many ranks have in common once.

mod shared;

pub(crate) use shared::Shared;

use crate::classify::{self, Finding, Role};
use crate::error::Error;
use crate::failure::{Breadcrumb, Clock, Deferred, Failure, Frame, Host, Section, Survived};
use crate::parse;
use crate::scan::{FileRole, SlotKey};
use crate::traceback::{self, FrameRef, is_library};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// So many frames of a stack are kept, from the innermost on, and after them so many of the program's own.
const MAX_FRAMES: usize = 16;
const MAX_OWN_FRAMES: usize = 5;

/// So many of the latest breadcrumbs are kept, and shown.
pub(crate) const MAX_BREADCRUMBS: usize = 8;

/// One error file.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) path: PathBuf,
    pub(crate) slot: Option<SlotKey>,
    pub(crate) role: FileRole,
    pub(crate) identity: Identity,
    /// In nanoseconds since the Unix epoch.
    pub(crate) time_ns: Option<i64>,
    pub(crate) failure: Box<Kept>,
}

/// What a record states of its process and of the place of that in the job: what records are sorted by, and so not with
/// the rest, each of which lies elsewhere in memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Identity {
    pub(crate) rank: Option<u32>,
    pub(crate) local_rank: Option<u32>,
    pub(crate) world_size: Option<u32>,
    pub(crate) attempt: Option<u32>,
    pub(crate) pid: Option<u32>,
    /// In nanoseconds since the Unix epoch.
    pub(crate) start_time_ns: Option<i64>,
}

impl Identity {
    fn of(section: &Section) -> Self {
        Self {
            rank: section.rank.rank,
            local_rank: section.rank.local_rank,
            world_size: section.rank.world_size,
            attempt: section.rank.attempt,
            pid: section.process.pid,
            start_time_ns: section.process.start_time_ns,
        }
    }
}

/// What is kept of a [`Failure`].
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) message: Arc<str>,
    pub(crate) error_code: Option<i64>,
    pub(crate) whole_seconds: bool,
    pub(crate) notes: Vec<String>,
    /// What the rules make of it.
    pub(crate) finding: Finding,
    /// The frames that tell where, innermost first.
    pub(crate) frames: Arc<[Frame]>,
    /// The native code where it happened; empty where frames tell, or nothing does.
    pub(crate) native_place: String,
    pub(crate) section: Option<Box<KeptSection>>,
}

/// What is kept of a [`Section`].
#[derive(Debug)]
pub(crate) struct KeptSection {
    pub(crate) is_final: bool,
    pub(crate) signal: Option<i32>,
    pub(crate) clock: Option<Clock>,
    pub(crate) host: Arc<Host>,
    pub(crate) run_id: Option<String>,
    pub(crate) step: Option<i64>,
    pub(crate) breadcrumbs: Vec<Breadcrumb>,
    pub(crate) deferred: Option<Box<Deferred>>,
    /// The errors that it had deferred before it failed in another way.
    pub(crate) deferred_before: Vec<Survived>,
}

impl Record {
    /// Reads and judges the bytes of an error file.
    pub(crate) fn read(
        path: &Path,
        slot: Option<SlotKey>,
        role: FileRole,
        bytes: &[u8],
        shared: &Shared,
    ) -> Result<Self, Error> {
        let new = |failure| Self::new(path.to_owned(), slot.clone(), role, failure, shared);
        // Most records have a traceback, and next to it the stacks of threads that did nothing.
        let told = || {
            if role == FileRole::Terminated {
                return None;
            }
            let mut gist = parse::gist(bytes)?;
            let mut record = new(std::mem::take(&mut gist.failure));
            if let Some(section) = &mut record.failure.section
                && !section.is_vain(&record.failure.finding)
            {
                section.breadcrumbs = latest(gist.breadcrumbs()?);
            }
            Some(record).filter(|record| !record.failure.frames.is_empty())
        };
        told().map_or_else(|| parse::error_file(path, bytes).map(new), Ok)
    }

    /// Judges a failure, and keeps of it what a verdict looks at and a report may show.
    pub(crate) fn new(
        path: PathBuf,
        slot: Option<SlotKey>,
        role: FileRole,
        mut failure: Failure,
        shared: &Shared,
    ) -> Self {
        let is_plain = role != FileRole::Terminated;
        let hash = is_plain.then(|| shared.hash(&failure));
        let known = hash.and_then(|hash| shared.judged(hash, &failure));
        let (finding, frames, native_place) = known.unwrap_or_else(|| {
            let stack = traceback::strip_prefixes(&failure.callstack);
            let (finding, frames) = classify::judge(&failure, &stack);
            let section = failure.section.as_deref();
            let waiting = section.filter(|_| !is_plain);
            let frames = waiting.map_or(frames, classify::waiting_frames);
            let native_place = match frames.is_empty() {
                true => section.and_then(classify::native_place).unwrap_or_default(),
                false => String::new(),
            };
            let frames = shared.stack(&telling(frames));
            if let Some(hash) = hash.filter(|_| !frames.is_empty()) {
                shared.remember(hash, &mut failure, &finding, &frames);
            }
            (finding, frames, native_place)
        });
        let identity = failure.section.as_deref().map(Identity::of);
        let section = failure.section.map(|section| {
            let mut section = Box::new(KeptSection::new(*section, shared));
            if section.is_vain(&finding) {
                section.breadcrumbs = Vec::new();
            }
            section
        });
        Self {
            path,
            slot,
            role,
            identity: identity.unwrap_or_default(),
            time_ns: failure.time_ns,
            failure: Box::new(Kept {
                // Most texts are their own headline.
                message: match *finding.headline == *failure.message {
                    true => Arc::clone(&finding.headline),
                    false => failure.message.into(),
                },
                error_code: failure.error_code,
                whole_seconds: failure.whole_seconds,
                notes: failure.notes,
                finding,
                frames,
                native_place,
                section,
            }),
        }
    }
}

impl KeptSection {
    fn new(section: Section, shared: &Shared) -> Self {
        let mut deferred_before = section.preceded_by;
        deferred_before.retain(|earlier| earlier.deferred.is_some());
        Self {
            is_final: section.is_final,
            signal: section.signal.map(|signal| signal.number),
            clock: section.clock,
            host: shared.host(section.host),
            run_id: section.rank.run_id,
            step: section.step,
            breadcrumbs: latest(section.breadcrumbs),
            deferred: section.deferred.map(Box::new),
            deferred_before,
        }
    }

    /// Whether its breadcrumbs say nothing: what a rank had done that then only lost a peer tells no cause.
    fn is_vain(&self, finding: &Finding) -> bool {
        finding.rule.role == Role::Collateral && self.is_final
    }
}

fn latest(mut breadcrumbs: Vec<Breadcrumb>) -> Vec<Breadcrumb> {
    breadcrumbs.drain(..breadcrumbs.len().saturating_sub(MAX_BREADCRUMBS));
    breadcrumbs.shrink_to_fit();
    breadcrumbs
}

/// Returns the frames of a stack that a report shows or that tell one stack from another.
pub(crate) fn telling(mut frames: Vec<FrameRef<'_>>) -> Vec<FrameRef<'_>> {
    let outer = frames.split_off(frames.len().min(MAX_FRAMES));
    let own = outer.into_iter().filter(|frame| !is_library(frame.file));
    frames.extend(own.take(MAX_OWN_FRAMES));
    frames
}
