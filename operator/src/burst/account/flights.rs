//! Chunks in flight, each with its attempt and its device.

use std::{collections::BTreeMap, ops::Range};

use sahasra_ranges::{AttemptRange, RangeMap, length};

use super::DeviceKey;

/// Index of a device among the devices of the burst.
pub(super) type DeviceNumber = u32;

/// State of chunks in flight on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) attempt: u32,
    pub(super) device: DeviceNumber,
    /// Whether the agent had the chunks when a stream was opened. The agent may have them on another device or count them as another
    /// attempt.
    pub(super) adopted: bool,
}

/// All chunks of a burst in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    flights: RangeMap<Flight>,
    adopted: u64,
    numbers: BTreeMap<DeviceKey, DeviceNumber>,
    /// Worker of each device, by the device's number.
    workers: Vec<String>,
    /// Number of chunks on each device, by the device's number.
    on: Vec<u64>,
}

impl Flights {
    pub(super) fn chunks(&self) -> u64 {
        self.flights.len()
    }

    pub(super) fn has_adopted(&self) -> bool {
        self.adopted > 0
    }

    pub(super) fn chunks_on(&self, device: &DeviceKey) -> u64 {
        self.number(device).map_or(0, |number| self.on[number as usize])
    }

    /// Number of the device, if chunks were ever assigned to it.
    pub(super) fn number(&self, device: &DeviceKey) -> Option<DeviceNumber> {
        self.numbers.get(device).copied()
    }

    pub(super) fn worker(&self, flight: Flight) -> &str {
        &self.workers[flight.device as usize]
    }

    /// Workers with adopted chunks whose device is not known.
    pub(super) fn workers_with_unknown_devices(&self) -> impl Iterator<Item = &str> {
        let unknown = self
            .numbers
            .iter()
            .filter(|(key, number)| key.device.is_empty() && self.on[**number as usize] > 0);
        unknown.map(|(key, _)| key.worker.as_str())
    }

    /// Assigns chunks to a device; `adopted` if its agent already has them. None of them may be in flight.
    pub(super) fn insert(&mut self, device: &DeviceKey, chunks: AttemptRange, adopted: bool) {
        let device = self.number(device).unwrap_or_else(|| {
            let number = DeviceNumber::try_from(self.on.len()).expect("a pool has fewer than 2^32 devices");
            self.numbers.insert(device.clone(), number);
            self.workers.push(device.worker.clone());
            self.on.push(0);
            number
        });
        let attempt = chunks.attempt;
        self.put(chunks.indices(), Flight { attempt, device, adopted });
    }

    /// Marks a part of a flight, as returned by [`Flights::within`], as adopted.
    pub(super) fn mark_adopted(&mut self, part: Range<u64>, flight: Flight) {
        if !flight.adopted {
            self.cut(part.clone());
            self.put(part, Flight { adopted: true, ..flight });
        }
    }

    /// Chunks in flight on the devices with these numbers. Visits all chunks in flight, so it must only be called for losses, not for every
    /// answer.
    pub(super) fn on(&self, devices: &[DeviceNumber]) -> Vec<AttemptRange> {
        if devices.iter().all(|number| self.on[*number as usize] == 0) {
            return Vec::new();
        }
        let flights = self.flights.iter().filter(|(_, flight)| devices.contains(&flight.device));
        flights.map(|(range, flight)| AttemptRange::new(range, flight.attempt)).collect()
    }

    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Flight)> {
        self.flights.within(range).map(|(part, flight)| (part, *flight))
    }

    /// The parts of flights within `range` that `matches` returns true for.
    pub(super) fn matching(&self, range: Range<u64>, matches: impl Fn(Flight) -> bool) -> Vec<AttemptRange> {
        let parts = self.within(range).filter(|(_, flight)| matches(*flight));
        parts.map(|(part, flight)| AttemptRange::new(part, flight.attempt)).collect()
    }

    /// Removes the chunks of `range`. The rest of a flight that reaches beyond it stays.
    pub(super) fn cut(&mut self, range: Range<u64>) {
        for (part, flight) in self.flights.cut(range) {
            self.on[flight.device as usize] -= length(&part);
            self.adopted -= if flight.adopted { length(&part) } else { 0 };
        }
    }

    fn put(&mut self, range: Range<u64>, flight: Flight) {
        let chunks = length(&range);
        let is_free = self.flights.insert(range, flight);
        debug_assert!(is_free, "a chunk is in flight once");
        self.on[flight.device as usize] += chunks;
        self.adopted += if flight.adopted { chunks } else { 0 };
    }
}
