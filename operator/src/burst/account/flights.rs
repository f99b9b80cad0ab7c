//! Chunks in flight, each with its attempt and its device.

use std::{collections::BTreeMap, ops::Range};

use sahasra_names::{DeviceId, WorkerName};
use sahasra_ranges::{RangeMap, length};

/// Index of a device among the devices of the burst.
pub(crate) type DeviceNumber = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    /// Number of the attempt, as the agent knows it.
    pub(super) attempt: u32,
    /// Number of attempts made, including this one. Exceeds `attempt` if a later attempt failed while this one continued.
    pub(super) made: u32,
    pub(super) device: DeviceNumber,
}

impl Flight {
    pub(super) fn new(attempt: u32, device: DeviceNumber) -> Self {
        let made = attempt.max(1);
        Self { attempt, made, device }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    flights: RangeMap<Flight>,
    numbers: BTreeMap<DeviceId, DeviceNumber>,
    /// Worker of each device, by the device's number.
    workers: Vec<WorkerName>,
    /// Number of chunks on each device, by the device's number.
    on: Vec<u64>,
}

impl Flights {
    pub(super) fn chunks(&self) -> u64 {
        self.flights.len()
    }

    pub(super) fn chunks_on(&self, device: DeviceNumber) -> u64 {
        self.on[device as usize]
    }

    /// Number of the device, if it was ever registered.
    pub(super) fn number(&self, device: &DeviceId) -> Option<DeviceNumber> {
        self.numbers.get(device).copied()
    }

    /// Number of the device, which is assigned on first use.
    pub(super) fn register(&mut self, device: &DeviceId) -> DeviceNumber {
        self.number(device).unwrap_or_else(|| {
            let number = DeviceNumber::try_from(self.on.len()).expect("a pool has fewer than 2^32 devices");
            self.workers.push(device.worker.clone());
            self.on.push(0);
            self.numbers.insert(device.clone(), number);
            number
        })
    }

    pub(super) fn worker(&self, flight: Flight) -> &WorkerName {
        &self.workers[flight.device as usize]
    }

    /// Chunks in flight on the devices with these numbers. Visits all chunks in flight, so it must only be called for losses, not for every
    /// answer.
    pub(super) fn on(&self, devices: &[DeviceNumber]) -> Vec<(Range<u64>, Flight)> {
        if devices.iter().all(|number| self.on[*number as usize] == 0) {
            return Vec::new();
        }
        self.matching(0..u64::MAX, |flight| devices.contains(&flight.device))
    }

    /// The parts of flights within `range` that `matches` returns true for.
    pub(super) fn matching(&self, range: Range<u64>, matches: impl Fn(Flight) -> bool) -> Vec<(Range<u64>, Flight)> {
        let parts = self.flights.within(range).map(|(part, flight)| (part, *flight));
        parts.filter(|(_, flight)| matches(*flight)).collect()
    }

    /// Removes the chunks of `range`. The rest of a flight that reaches beyond it stays.
    pub(super) fn cut(&mut self, range: Range<u64>) {
        for (part, flight) in self.flights.cut(range) {
            self.on[flight.device as usize] -= length(&part);
        }
    }

    /// Adds chunks, none of which may be in flight.
    pub(super) fn insert(&mut self, range: Range<u64>, flight: Flight) {
        let chunks = length(&range);
        let is_free = self.flights.insert(range, flight);
        debug_assert!(is_free, "a chunk is in flight once");
        self.on[flight.device as usize] += chunks;
    }
}
