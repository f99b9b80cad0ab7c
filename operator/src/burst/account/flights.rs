//! Chunks handed to devices: ranges that do not overlap, each with its attempt and its device.

use std::collections::BTreeMap;

use super::DeviceKey;

/// Consecutive chunks handed to a device.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) count: u64,
    pub(super) attempt: u32,
    pub(super) device: DeviceKey,
}

/// All of a burst, by first index.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    by_first: BTreeMap<u64, Flight>,
    chunks: u64,
}

impl Flights {
    /// Chunks in flight.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Adds a range of which nothing is in flight.
    pub(super) fn insert(&mut self, first: u64, flight: Flight) {
        self.chunks += flight.count;
        self.by_first.insert(first, flight);
    }

    /// What is on that device.
    pub(super) fn on<'a>(&'a self, device: &'a DeviceKey) -> impl Iterator<Item = (u64, &'a Flight)> {
        let flights = self.by_first.iter().map(|(first, flight)| (*first, flight));
        flights.filter(|(_, flight)| flight.device == *device)
    }

    /// The parts of flights within [first, first + count), as (first index, flight).
    pub(super) fn within(&self, first: u64, count: u64) -> Vec<(u64, Flight)> {
        let end = first.saturating_add(count);
        let part = |(from, flight): (u64, &Flight)| {
            let (start, stop) = (from.max(first), (from + flight.count).min(end));
            let count = stop.checked_sub(start).filter(|count| *count > 0)?;
            Some((start, Flight { count, ..flight.clone() }))
        };
        self.overlapping(first, end).filter_map(part).collect()
    }

    /// Takes [first, first + count) out; a flight that reaches beyond keeps its rest.
    pub(super) fn cut(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        let hit: Vec<u64> = self.overlapping(first, end).map(|(from, _)| from).collect();
        for from in hit {
            let Some(flight) = self.by_first.remove(&from) else { continue };
            self.chunks -= flight.count;
            let stop = from + flight.count;
            if from < first {
                let count = (first - from).min(flight.count);
                self.insert(from, Flight { count, ..flight.clone() });
            }
            if stop > end {
                self.insert(
                    end,
                    Flight {
                        count: stop - end,
                        ..flight
                    },
                );
            }
        }
    }

    /// Flights that may overlap [first, end): the last that begins before it need not.
    fn overlapping(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, &Flight)> {
        let before = self.by_first.range(..=first).next_back();
        let start = before.map_or(first, |(from, _)| *from);
        let flights = self.by_first.range(start..end.max(start));
        flights
            .map(|(from, flight)| (*from, flight))
            .filter(move |(from, flight)| from + flight.count > first)
    }
}
