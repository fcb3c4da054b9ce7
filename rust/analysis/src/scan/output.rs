//! The outputs of workers, in files beside their error files.

use super::{Evidence, Slot};
use crate::dress;
use crate::kept::Shared;
use crate::traceback;
use crate::words::Words;
use rayon::prelude::*;

/// At most this much of the end of a worker's own output is read, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 256 << 10;

/// What was found before a worker's directory was read: behind it is its own.
#[derive(Clone, Copy)]
pub(super) struct Own {
    records: usize,
    boxes: usize,
    slot: usize,
}

impl Own {
    pub(super) fn of(found: &Evidence) -> Self {
        Self {
            records: found.records.len(),
            boxes: found.boxes.len(),
            slot: found.slots.len(),
        }
    }
}

/// Reads the output of the worker whose directory was the last, where no record tells how it ended.
pub(super) fn read(found: &mut Evidence, own: Own, shared: &Shared) {
    let records = &found.records[own.records..];
    let is_ranked = records.iter().any(|record| record.identity.rank.is_some());
    let mut sections = records
        .iter()
        .filter_map(|record| record.failure.section.as_ref());
    let aborted = sections.any(|section| section.signal == Some(6));
    let boxes = found.boxes[own.boxes..].iter();
    let boxes = boxes.map(|boxed| &boxed.content);
    let boxed_rank = boxes.clone().any(|content| content.rank.rank.is_some());
    let mut crashes = boxes.filter_map(|content| content.crash.as_ref());
    let has_record = !records.is_empty() || crashes.clone().next().is_some();
    let aborted = aborted || crashes.any(|crash| crash.signal == 6);
    let slot = &mut found.slots[own.slot];
    slot.has_record = has_record;
    slot.is_ranked = has_record && (is_ranked || boxed_rank);
    // Why a process aborted is often in its output alone.
    if (aborted || !has_record)
        && let Some(stderr) = &slot.stderr
    {
        let text = super::read::tail(stderr, MAX_OUTPUT_BYTES).unwrap_or_default();
        if !has_record {
            slot.torn = !text.ends_with('\n');
            slot.printed_rank = traceback::printed_rank(&text);
            slot.uncaught = crate::ending::is_uncaught(&text);
        }
        let plain = dress::plain(&text);
        let number = |index: usize| match text.len() < MAX_OUTPUT_BYTES && !has_record {
            true => plain.line(index + 1),
            false => 0,
        };
        slot.words = Words::of(&traceback::strip_prefixes(&plain.text), number, shared);
    }
}

/// Reads enough of the outputs of workers whose records do not tell their ranks to learn these.
pub(super) fn read_ranks(slots: &mut [Slot]) {
    // One worker that tells its rank tells those of its neighbours.
    let one_attempt = |a: &Slot, b: &Slot| a.key.attempt == b.key.attempt && a.key.run == b.key.run;
    let attempts: Vec<&mut [Slot]> = slots.chunk_by_mut(one_attempt).collect();
    attempts.into_par_iter().for_each(|slots| {
        if slots.iter().any(|slot| slot.is_ranked) {
            return;
        }
        let untold = slots.iter_mut().filter(|slot| slot.has_record);
        let mut tries =
            untold.filter_map(|slot| Some((slot.stderr.as_ref()?, &mut slot.printed_rank)));
        tries.by_ref().take(8).any(|(stderr, printed_rank)| {
            let head = super::read::head(stderr, 4096).unwrap_or_default();
            *printed_rank = traceback::printed_rank(&head);
            printed_rank.is_some()
        });
    });
}
