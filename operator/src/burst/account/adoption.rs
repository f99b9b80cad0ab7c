//! Chunks that an agent has from an earlier coordinator or stream.

use std::ops::Range;

use sahasra_names::{DeviceId, WorkerName};
use sahasra_ranges::{AttemptRange, RangeMap, length};

use super::{Account, flights::Flight};

impl Account {
    /// Adopts the chunks that a worker's agent reports to have, each with the name of its device. Returns the chunks in flight on the worker
    /// that are not among them, with their attempts.
    ///
    /// Waiting chunks become in flight: their attempt was taken for lost, but continues and costs no retry. Chunks in flight on the worker
    /// move to the reported device and attempt. Chunks in flight on another worker are adopted if that attempt fails or returns.
    pub(crate) fn adopt<'a>(&mut self, worker: &WorkerName, chunks: impl IntoIterator<Item = (&'a str, AttemptRange)>) -> RangeMap<u32> {
        let mut there = RangeMap::default();
        for (device, chunks) in chunks {
            let device = self.in_flight.register(&DeviceId::new(worker.clone(), device));
            let Range { start, end } = chunks.indices();
            there.insert(start..end.min(self.total), Flight::new(chunks.attempt, device));
        }
        let mut missing = RangeMap::default();
        for (range, flight) in self.in_flight_at(worker, 0..self.total) {
            for gap in there.gaps(range) {
                missing.insert(gap, flight.attempt);
            }
        }
        let mut elsewhere = there.clone();
        for (range, flight) in there.iter() {
            for (part, earlier) in self.in_flight_at(worker, range.clone()) {
                self.in_flight.cut(part.clone());
                elsewhere.cut(part.clone());
                if earlier.attempt == flight.attempt {
                    let device = flight.device;
                    self.in_flight.insert(part, Flight { device, ..earlier });
                } else {
                    self.go_on(part, *flight, earlier.made);
                }
            }
            for chunks in self.retries.cut(range.clone()) {
                elsewhere.cut(chunks.indices());
                self.go_on(chunks.indices(), *flight, chunks.attempt);
            }
            for (first, count) in self.fresh.remove(range.start, length(&range)) {
                elsewhere.cut(first..first + count);
                self.go_on(first..first + count, *flight, 1);
            }
        }
        self.elsewhere.remove(worker);
        if !elsewhere.is_empty() {
            self.elsewhere.insert(worker.clone(), elsewhere);
        }
        missing
    }

    /// Records that a worker's agent has reported the end of these chunks, and no longer has them.
    pub(crate) fn answered(&mut self, worker: &WorkerName, chunks: Range<u64>) {
        if let Some(there) = self.elsewhere.get_mut(worker) {
            there.cut(chunks);
            self.elsewhere.retain(|_, there| !there.is_empty());
        }
    }

    /// Records that a worker's agent no longer has chunks that are in flight elsewhere.
    pub(crate) fn forget(&mut self, worker: &WorkerName) {
        self.elsewhere.remove(worker);
    }

    /// Number of chunks that a worker's agent has in addition to those in flight on its devices.
    pub(crate) fn beside(&self, worker: &WorkerName) -> u64 {
        self.elsewhere.get(worker).map_or(0, RangeMap::len)
    }

    /// Continues chunks that wait, or are about to, where the agents of other workers have them. Returns the remaining ranges.
    pub(super) fn go_on_elsewhere(&mut self, chunks: AttemptRange) -> Vec<AttemptRange> {
        let mut rest = vec![chunks.indices()];
        let mut found = Vec::new();
        for there in self.elsewhere.values_mut() {
            for asked in std::mem::take(&mut rest) {
                rest.extend(there.gaps(asked.clone()));
                found.extend(there.cut(asked));
            }
        }
        if !found.is_empty() {
            self.elsewhere.retain(|_, there| !there.is_empty());
        }
        for (range, flight) in found {
            self.go_on(range, flight, chunks.attempt);
        }
        rest.into_iter().map(|range| AttemptRange::new(range, chunks.attempt)).collect()
    }

    fn in_flight_at(&self, worker: &WorkerName, range: Range<u64>) -> Vec<(Range<u64>, Flight)> {
        self.in_flight.matching(range, |flight| self.in_flight.worker(flight) == worker)
    }

    /// Continues chunks in the attempt that an agent has. They waited for the attempt `next`: if the agent's attempt is an earlier one, that
    /// retry is not made and no longer counted.
    fn go_on(&mut self, chunks: Range<u64>, flight: Flight, next: u32) {
        if flight.attempt < next {
            self.retried = self.retried.saturating_sub(length(&chunks));
        }
        let made = flight.attempt.max(next - 1);
        self.in_flight.insert(chunks, Flight { made, ..flight });
    }
}
