//! Index of the outstanding chunks of a burst: those that were submitted and have been neither reported nor returned.
//!
//! Dispatch and the supervisors of all devices of a burst share one index. Each chunk is in it once, on one device, in one attempt and at
//! one [`Stage`]:
//!
//! ```text
//!  submit ──► Queued ──► Running, Alone ──► Ended ──remove──► reported or returned
//!               │ ▲            │              ▲
//!               │ └────────────┘              │
//!               └─────────────────────────────┘
//! ```
//!
//! Only the supervisor of a chunk's device changes the stage of a chunk that was sent to it. Dispatch removes a chunk while it retains the
//! chunk's frame, under the lock of the burst: a chunk is in the index, in the retention, or acknowledged.
//!
//! Locks are taken in this order: state of the burst, state of the run, index. Nothing is locked, sent or encoded under the index's lock.

use std::ops::Range;

use parking_lot::Mutex;
use sahasra_ranges::{AttemptRange, RangeMap, length};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The chunk waits for an executor.
    Queued,
    /// The executor has the chunk.
    Running,
    /// The executor has the chunk and runs it alone, because it was in flight when a context was poisoned.
    Alone,
    /// An event about the chunk is queued or in a batch.
    Ended,
}

impl Stage {
    /// Stages of chunks that an executor has.
    pub(super) const HANDED_OVER: &[Self] = &[Self::Running, Self::Alone];
    /// Stages of chunks without an event.
    pub(super) const UNENDED: &[Self] = &[Self::Queued, Self::Running, Self::Alone];
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    device: usize,
    attempt: u32,
    stage: Stage,
}

/// Reason why a submission was rejected. None of its chunks was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A range is empty or exceeds 2^64, or one of its indices is outstanding or occurs twice in the submission.
    #[error("invalid range of chunks {first} to {last}: it is empty, or some are outstanding")]
    Overlap {
        first: u64,
        /// Last index, inclusive.
        last: u64,
    },
    #[error("more than {limit} chunks would be outstanding")]
    TooMany { limit: u64 },
    #[error("the executors have shut down")]
    ShutDown,
}

/// Index of the outstanding chunks of a burst, see the [module](self).
#[derive(Debug)]
pub struct OutstandingChunks {
    limit: u64,
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    chunks: RangeMap<Chunk>,
    /// Number of chunks by device and stage.
    counts: Vec<[u64; 4]>,
}

impl Index {
    /// Adds chunks. Returns `false`, and adds nothing, if there are none, their indices exceed 2^64, or some are in the index.
    fn insert(&mut self, range: &AttemptRange, device: usize, stage: Stage) -> bool {
        let attempt = range.attempt;
        let inserted = self.chunks.insert(range.indices(), Chunk { device, attempt, stage });
        if inserted {
            self.counts.resize(self.counts.len().max(device + 1), [0; 4]);
            self.counts[device][stage as usize] += range.count;
        }
        inserted
    }

    fn cut(&mut self, indices: Range<u64>) -> Vec<(Range<u64>, Chunk)> {
        let parts = self.chunks.cut(indices);
        for (part, chunk) in &parts {
            self.counts[chunk.device][chunk.stage as usize] -= length(part);
        }
        parts
    }

    /// Removes chunks. Removes nothing unless all are there in the range's attempt, and `accepts` returns true for them.
    fn take(&mut self, range: AttemptRange, accepts: impl Fn(&Chunk) -> bool) -> Option<Vec<(Range<u64>, Chunk)>> {
        let indices = range.indices();
        let is_there = |chunk: &Chunk| chunk.attempt == range.attempt && accepts(chunk);
        let all = !indices.is_empty() && self.chunks.covers(indices.clone(), is_there);
        all.then(|| self.cut(indices))
    }
}

impl OutstandingChunks {
    /// Creates an empty index of at most `limit` chunks.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            index: Mutex::default(),
        }
    }

    /// Adds chunks, each with the number of its device.
    ///
    /// # Errors
    /// [`SubmitError`]; none of the chunks was added then.
    pub fn submit(&self, chunks: &[(usize, AttemptRange)]) -> Result<(), SubmitError> {
        let mut index = self.index.lock();
        let submitted = chunks.iter().fold(0u64, |sum, (_, range)| sum.saturating_add(range.count));
        if index.chunks.len().saturating_add(submitted) > self.limit {
            return Err(SubmitError::TooMany { limit: self.limit });
        }
        for (place, (device, range)) in chunks.iter().enumerate() {
            if !index.insert(range, *device, Stage::Queued) {
                for (_, added) in &chunks[..place] {
                    index.cut(added.indices());
                }
                return Err(SubmitError::Overlap {
                    first: range.first,
                    last: range.first.saturating_add(range.count.saturating_sub(1)),
                });
            }
        }
        Ok(())
    }

    /// Moves chunks to another stage, and returns what they were. Changes nothing unless all are on the device at a stage of `from`.
    pub(super) fn advance(&self, device: usize, range: AttemptRange, from: &[Stage], to: Stage) -> Option<Vec<(AttemptRange, Stage)>> {
        let mut index = self.index.lock();
        let parts = index.take(range, |chunk| chunk.device == device && from.contains(&chunk.stage))?;
        index.insert(&range, device, to);
        let parts = parts.into_iter();
        Some(parts.map(|(part, was)| (AttemptRange::new(part, was.attempt), was.stage)).collect())
    }

    /// Removes chunks that no executor has. Returns `false`, and removes nothing, unless all are there in the range's attempt.
    pub fn remove(&self, range: AttemptRange) -> bool {
        let mut index = self.index.lock();
        index.take(range, |chunk| !Stage::HANDED_OVER.contains(&chunk.stage)).is_some()
    }

    /// Returns the chunks of the device that its executor has, in the order of their indices, with their stage.
    pub(super) fn handed_over(&self, device: usize) -> Vec<(AttemptRange, Stage)> {
        let index = self.index.lock();
        let chunks = index.chunks.iter().filter(|(_, chunk)| chunk.device == device);
        let handed_over = chunks.filter(|(_, chunk)| Stage::HANDED_OVER.contains(&chunk.stage));
        handed_over
            .map(|(indices, chunk)| (AttemptRange::new(indices, chunk.attempt), chunk.stage))
            .collect()
    }

    /// Returns the chunk of this index and its stage, if it is on the device.
    pub(super) fn get(&self, device: usize, index: u64) -> Option<(AttemptRange, Stage)> {
        let state = self.index.lock();
        let (_, chunk) = state.chunks.get(index).filter(|(_, chunk)| chunk.device == device)?;
        Some((AttemptRange::new(index..index + 1, chunk.attempt), chunk.stage))
    }

    /// Returns the number of the device's chunks at these stages.
    pub(super) fn count(&self, device: usize, stages: &[Stage]) -> u64 {
        let index = self.index.lock();
        let counts = index.counts.get(device).copied().unwrap_or_default();
        stages.iter().map(|stage| counts[*stage as usize]).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.index.lock().chunks.is_empty()
    }

    /// Returns all chunks with the number of their device, as few ranges in the order of their indices.
    pub fn chunks(&self) -> Vec<(usize, AttemptRange)> {
        let mut joined: Vec<(usize, AttemptRange)> = Vec::new();
        for (indices, &Chunk { device, attempt, .. }) in self.index.lock().chunks.iter() {
            match joined.last_mut() {
                Some((on, last)) if (*on, last.attempt, last.indices().end) == (device, attempt, indices.start) => {
                    last.count += length(&indices);
                }
                _ => joined.push((device, AttemptRange::new(indices, attempt))),
            }
        }
        joined
    }
}

#[cfg(test)]
mod tests;
