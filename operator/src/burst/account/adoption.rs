//! Chunks that an agent has from an earlier coordinator or stream.

use std::ops::Range;

use sahasra_ranges::{AttemptRange, length};
use sahasra_wire::burst::FailureCode;

use super::{Account, DeviceKey, FailureOutcome, flights::Flight};
use crate::burst::index_set::IndexSet;

impl Account {
    /// Adopts chunks, given as ranges (first, count), that a worker's agent has from an earlier coordinator or stream. Waiting chunks
    /// become in flight on an unknown device: their attempt was taken for lost, but continues and costs no retry. Chunks in flight on
    /// another worker are adopted if that attempt fails or returns.
    pub fn adopt(&mut self, worker: &str, ranges: impl IntoIterator<Item = (u64, u64)>) {
        let device = DeviceKey::unknown(worker);
        let mut elsewhere = IndexSet::default();
        for (first, count) in ranges {
            let count = count.min(self.total.saturating_sub(first));
            elsewhere.insert(first, count);
            let flights: Vec<_> = self.in_flight.within(first..first + count).collect();
            for (part, flight) in flights {
                if self.in_flight.worker(flight) == worker {
                    elsewhere.remove(part.start, length(&part));
                    self.in_flight.mark_adopted(part, flight);
                }
            }
            for retry in self.retries.cut(first..first + count) {
                self.adopt_waiting(&device, retry);
                elsewhere.remove(retry.first, retry.count);
            }
            for (first, count) in self.fresh.remove(first, count) {
                self.in_flight.insert(&device, AttemptRange { first, count, attempt: 1 }, true);
                elsewhere.remove(first, count);
            }
        }
        self.elsewhere.remove(worker);
        if !elsewhere.is_empty() {
            self.elsewhere.insert(worker.to_owned(), elsewhere);
        }
    }

    /// Records that a worker's agent has reported the end of these chunks, and no longer has them.
    pub fn answered(&mut self, worker: &str, first: u64, count: u64) {
        if let Some(chunks) = self.elsewhere.get_mut(worker) {
            chunks.remove(first, count.min(self.total.saturating_sub(first)));
            self.elsewhere.retain(|_, chunks| !chunks.is_empty());
        }
    }

    /// Records that a worker's agent no longer has chunks that are in flight elsewhere.
    pub fn forget(&mut self, worker: &str) {
        self.elsewhere.remove(worker);
    }

    /// Number of chunks that a worker's agent has in addition to those in flight on its known devices.
    pub fn beside(&self, worker: &str) -> u64 {
        self.running_on(&DeviceKey::unknown(worker)) + self.elsewhere.get(worker).map_or(0, IndexSet::len)
    }

    /// Whether adopted chunks are in flight. Their agent may have them on other devices than this account.
    pub fn has_adopted(&self) -> bool {
        self.in_flight.has_adopted()
    }

    /// Workers with adopted chunks whose device is not known.
    pub fn workers_with_unknown_devices(&self) -> impl Iterator<Item = &str> {
        self.in_flight.workers_with_unknown_devices()
    }

    /// Counts failed attempts as [`Account::failed`] does, for adopted chunks of a worker, regardless of device and attempt.
    pub fn adopted_failed(&mut self, worker: &str, first: u64, count: u64, code: FailureCode, message: &str, now: u64) -> FailureOutcome {
        let chunks = self.adopted(worker, first..first.saturating_add(count));
        self.end_attempts(chunks, code, message, now)
    }

    /// Returns chunks as [`Account::returned`] does, for adopted chunks of a worker, regardless of device and attempt.
    pub fn adopted_returned(&mut self, worker: &str, first: u64, count: u64) {
        let chunks = self.adopted(worker, first..first.saturating_add(count));
        self.return_attempts(chunks);
    }

    fn adopted(&self, worker: &str, range: Range<u64>) -> Vec<AttemptRange> {
        let is_adopted = |flight: Flight| flight.adopted && self.in_flight.worker(flight) == worker;
        self.in_flight.matching(range, is_adopted)
    }

    /// Adopts chunks that wait, or are about to, for the attempt in `chunks`. They become in flight with the previous attempt, which was
    /// taken for lost.
    fn adopt_waiting(&mut self, device: &DeviceKey, chunks: AttemptRange) {
        if chunks.attempt > 1 {
            self.retried = self.retried.saturating_sub(chunks.count);
        }
        let attempt = chunks.attempt.saturating_sub(1).max(1);
        self.in_flight.insert(device, AttemptRange { attempt, ..chunks }, true);
    }

    /// Adopts the chunks that the agents of other workers have. Returns the remaining ranges.
    pub(super) fn go_on_elsewhere(&mut self, chunks: AttemptRange) -> Vec<AttemptRange> {
        let mut rest = vec![chunks];
        let mut found = Vec::new();
        for (worker, there) in &mut self.elsewhere {
            for asked in std::mem::take(&mut rest) {
                let part = |(first, count)| AttemptRange { first, count, ..asked };
                rest.extend(there.missing(asked.first, asked.count).map(part));
                let removed = there.remove(asked.first, asked.count).into_iter().map(part);
                found.extend(removed.map(|part| (DeviceKey::unknown(worker), part)));
            }
        }
        if !found.is_empty() {
            self.elsewhere.retain(|_, chunks| !chunks.is_empty());
        }
        for (device, chunks) in found {
            self.adopt_waiting(&device, chunks);
        }
        rest
    }
}
