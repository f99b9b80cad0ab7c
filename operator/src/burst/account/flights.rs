//! Chunks in flight: ranges that do not overlap, each with its attempt and its device.

use std::collections::BTreeMap;

use super::{DeviceKey, looked_at};

/// Index of a device among the devices of the burst.
pub(super) type DeviceNumber = u32;

/// Consecutive chunks in flight on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) count: u64,
    pub(super) attempt: u32,
    pub(super) device: DeviceNumber,
    /// Whether the agent had the chunks when a stream was opened. The agent may have them on another device or count them as another
    /// attempt.
    pub(super) adopted: bool,
}

/// All chunks of a burst in flight, by the first index of each range.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    by_first: BTreeMap<u64, Flight>,
    chunks: u64,
    /// Number of adopted chunks in flight.
    adopted: u64,
    numbers: BTreeMap<DeviceKey, DeviceNumber>,
    /// Worker of each device, by the device's number.
    workers: Vec<String>,
    /// Number of chunks on each device, by the device's number.
    on: Vec<u64>,
}

impl Flights {
    /// Number of chunks in flight.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    pub(super) fn has_adopted(&self) -> bool {
        self.adopted > 0
    }

    /// Number of chunks in flight on the device.
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

    /// Assigns a range to a device. No chunk of the range may be in flight.
    pub(super) fn hand_over(&mut self, device: &DeviceKey, first: u64, count: u64, attempt: u32) {
        self.put(device, first, count, attempt, false);
    }

    /// Records a range that the device's agent already has, and marks it as adopted. No chunk of the range may be in flight.
    pub(super) fn adopt(&mut self, device: &DeviceKey, first: u64, count: u64, attempt: u32) {
        self.put(device, first, count, attempt, true);
    }

    /// Marks a part of a flight, as returned by [`Flights::within`], as adopted.
    pub(super) fn mark_adopted(&mut self, first: u64, flight: Flight) {
        if !flight.adopted {
            self.cut(first, flight.count);
            self.insert(first, Flight { adopted: true, ..flight });
        }
    }

    fn put(&mut self, device: &DeviceKey, first: u64, count: u64, attempt: u32, adopted: bool) {
        let device = self.number(device).unwrap_or_else(|| {
            let number = DeviceNumber::try_from(self.on.len()).expect("a pool has fewer than 2^32 devices");
            self.numbers.insert(device.clone(), number);
            self.workers.push(device.worker.clone());
            self.on.push(0);
            number
        });
        let flight = Flight {
            count,
            attempt,
            device,
            adopted,
        };
        self.insert(first, flight);
    }

    /// Chunks in flight on the devices with these numbers. Visits all chunks in flight, so it must only be called for losses, not for every
    /// answer.
    pub(super) fn on(&self, devices: &[DeviceNumber]) -> Vec<(u64, Flight)> {
        if devices.iter().all(|number| self.on[*number as usize] == 0) {
            return Vec::new();
        }
        let flights = self.by_first.iter().map(|(first, flight)| (*first, *flight));
        flights
            .inspect(|_| looked_at())
            .filter(|(_, flight)| devices.contains(&flight.device))
            .collect()
    }

    /// The parts of flights within [first, first + count), as pairs of first index and flight.
    pub(super) fn within(&self, first: u64, count: u64) -> Vec<(u64, Flight)> {
        let end = first.saturating_add(count);
        let part = |(from, flight): (u64, Flight)| {
            let (start, stop) = (from.max(first), (from + flight.count).min(end));
            let count = stop.checked_sub(start).filter(|count| *count > 0)?;
            Some((start, Flight { count, ..flight }))
        };
        self.overlapping(first, end).filter_map(part).collect()
    }

    /// Removes [first, first + count). The rest of a flight that reaches beyond this range stays.
    pub(super) fn cut(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        let hit: Vec<(u64, Flight)> = self.overlapping(first, end).collect();
        for (from, flight) in hit {
            self.by_first.remove(&from);
            self.chunks -= flight.count;
            self.adopted -= if flight.adopted { flight.count } else { 0 };
            self.on[flight.device as usize] -= flight.count;
            let stop = from + flight.count;
            if from < first {
                let count = first - from;
                self.insert(from, Flight { count, ..flight });
            }
            if stop > end {
                let count = stop - end;
                self.insert(end, Flight { count, ..flight });
            }
        }
    }

    fn insert(&mut self, first: u64, flight: Flight) {
        self.chunks += flight.count;
        self.adopted += if flight.adopted { flight.count } else { 0 };
        self.on[flight.device as usize] += flight.count;
        self.by_first.insert(first, flight);
    }

    /// Flights that overlap [first, end).
    fn overlapping(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, Flight)> {
        let before = self.by_first.range(..=first).next_back();
        let start = before.map_or(first, |(from, _)| *from);
        let flights = self.by_first.range(start..end.max(start));
        flights
            .inspect(|_| looked_at())
            .map(|(from, flight)| (*from, *flight))
            .filter(move |(from, flight)| from + flight.count > first)
    }
}
