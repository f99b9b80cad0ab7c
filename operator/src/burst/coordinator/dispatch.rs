//! Assigns chunks to devices, and withdraws them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use sahasra_names::{BootId, DeviceId, WorkerName};
use sahasra_wire::burst::{ChunkRange, FailureCode, Submit, Withdraw, client_frame};

use super::{
    Coordinator, Hold,
    streams::{RESUME_WITHIN, State, Stream},
};
use crate::{
    burst::{
        account::{Account, DeviceNumber},
        window::Window,
    },
    fault::Step,
};

/// Time in addition to the chunk timeout after which chunks on a device without slices count as lost.
const OVERDUE: Duration = Duration::from_secs(2);
/// Time for which a device must have been idle before chunks are withdrawn from another device with a long queue.
const REBALANCE_AFTER: Duration = Duration::from_millis(250);
/// Time for which a device receives no chunks after its agent reported that no slice is held on it. By then, the pool knows the slices
/// that are held.
const PAUSE: Duration = Duration::from_millis(500);

/// A device on which the burst holds or held slices.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) window: Window,
    /// Number of the device in the account.
    number: DeviceNumber,
    /// Time since which the burst holds no slices on the device.
    empty_since: Option<Duration>,
    idle_since: Option<Duration>,
    paused_until: Duration,
}

impl Device {
    fn new(number: DeviceNumber, slices: u64, now: Duration) -> Self {
        Self {
            window: Window::new(slices, now),
            number,
            empty_since: None,
            idle_since: None,
            paused_until: Duration::ZERO,
        }
    }

    fn empty(number: DeviceNumber, now: Duration) -> Self {
        Self {
            empty_since: Some(now),
            ..Self::new(number, 0, now)
        }
    }

    pub(super) fn outstanding(&self, account: &Account) -> u64 {
        #[cfg(test)]
        tests::visited();
        account.running_on(self.number)
    }
}

impl Coordinator {
    pub(super) fn follow_grants(&mut self) {
        let now = self.now();
        let mut slices: BTreeMap<DeviceId, u64> = BTreeMap::new();
        let mut endpoints: BTreeMap<&WorkerName, (&str, &str)> = BTreeMap::new();
        for grant in &self.held.grants {
            *slices.entry(grant.device.clone()).or_default() += u64::from(grant.slices);
            endpoints.insert(&grant.device.worker, (&grant.endpoint, &grant.id.boot_id));
        }
        for (key, device) in &mut self.devices {
            let held = slices.remove(key).unwrap_or_default();
            device.window.resize(held);
            device.empty_since = if held > 0 { None } else { device.empty_since.or(Some(now)) };
        }
        for (key, held) in slices {
            let number = self.account.register(&key);
            self.devices.insert(key, Device::new(number, held, now));
        }
        let mut restarted: Vec<WorkerName> = Vec::new();
        for (worker, (endpoint, boot_id)) in &endpoints {
            let stream = self.streams.get(*worker);
            if stream.is_none_or(|stream| stream.boot_id != *boot_id) {
                let replaced = self
                    .streams
                    .insert((*worker).clone(), Stream::new(endpoint, BootId::from(boot_id), now));
                restarted.extend(replaced.map(|_| (*worker).clone()));
            }
        }
        // A new boot of an agent has none of the chunks of the old boot.
        for worker in restarted {
            self.lose_worker(&worker, "the agent was restarted");
        }
        let lost: Vec<WorkerName> = (self.streams.iter())
            .filter(|(worker, stream)| {
                let known = self.context.directory.worker(worker);
                known.is_none_or(|known| known.stale || known.boot_id != stream.boot_id)
            })
            .map(|(worker, _)| worker.clone())
            .collect();
        for worker in lost {
            self.streams.remove(&worker);
            self.lose_worker(&worker, "worker lost");
        }
        self.open_streams();
    }

    /// Adds the devices of chunks that an agent has. The burst may hold no slices there any more.
    pub(super) fn add_devices(&mut self, worker: &WorkerName, chunks: &[ChunkRange]) {
        let now = self.now();
        let names: BTreeSet<&str> = chunks.iter().map(|range| range.device.as_str()).collect();
        for device in names {
            let id = DeviceId::new(worker.clone(), device);
            let number = self.account.register(&id);
            self.devices.entry(id).or_insert_with(|| Device::empty(number, now));
        }
    }

    pub(super) fn dispatch(&mut self) {
        if !self.started || self.hold != Hold::Running {
            return;
        }
        let now = self.now();
        let mut ready = self.account.ready(now);
        let all_slices: u64 = self.devices.values().map(|device| device.window.slices()).sum();
        let mut submitted = 0;
        if ready > 0 {
            let mut at_workers: BTreeMap<WorkerName, u64> = BTreeMap::new();
            let mut order: Vec<(u64, DeviceId)> = Vec::new();
            for (key, device) in &self.devices {
                let outstanding = device.outstanding(&self.account);
                match at_workers.get_mut(&key.worker) {
                    Some(chunks) => *chunks += outstanding,
                    None => {
                        let beside = self.account.beside(&key.worker);
                        at_workers.insert(key.worker.clone(), beside + outstanding);
                    }
                }
                if device.paused_until <= now && device.window.target() > outstanding {
                    let fullness = outstanding * 1024 / device.window.slices().max(1);
                    order.push((fullness, key.clone()));
                }
            }
            // The device with the fewest chunks per slice comes first.
            order.sort();
            let mut by_worker: BTreeMap<WorkerName, Vec<ChunkRange>> = BTreeMap::new();
            for (_, key) in order {
                if ready == 0 {
                    break;
                }
                let Some(max_outstanding) = self.max_outstanding(&key.worker) else {
                    continue;
                };
                let (Some(device), Some(at_worker)) = (self.devices.get(&key), at_workers.get_mut(&key.worker)) else {
                    continue;
                };
                let batch = device
                    .window
                    .batch(device.outstanding(&self.account), ready, all_slices)
                    .min(max_outstanding.saturating_sub(*at_worker));
                if batch == 0 {
                    continue;
                }
                for chunks in self.account.take(&key, batch, now) {
                    *at_worker += chunks.count;
                    ready -= chunks.count;
                    submitted += chunks.count;
                    let ranges = by_worker.entry(key.worker.clone()).or_default();
                    ranges.push(ChunkRange::new(&*key.device, chunks));
                }
            }
            for (worker, ranges) in by_worker {
                self.submit(&worker, ranges);
            }
        }
        if submitted > 0 {
            self.context.metrics.submitted.inc_by(submitted);
            self.context.settings.faults.reached(Step::Dispatch);
        } else if ready == 0 {
            self.rebalance(now);
        }
    }

    pub(super) fn submit(&mut self, worker: &WorkerName, ranges: Vec<ChunkRange>) {
        let open = self.streams.get(worker).and_then(Stream::open);
        let submit = || client_frame::Kind::Submit(Submit { ranges: ranges.clone() });
        if open.is_none_or(|open| !open.stream.send(submit())) {
            self.take_back(worker, &ranges);
        }
    }

    pub(super) fn take_back(&mut self, worker: &WorkerName, ranges: &[ChunkRange]) {
        for range in ranges {
            let device = DeviceId::new(worker.clone(), range.device.as_str());
            self.account.returned(&device, range.into());
        }
    }

    /// Assigns no chunks to a device for the time [`PAUSE`].
    pub(super) fn pause(&mut self, key: &DeviceId, now: Duration) {
        if let Some(device) = self.devices.get_mut(key) {
            device.paused_until = now + PAUSE;
        }
    }

    /// Withdraws unstarted chunks from the device with the longest queue if another device has been idle for the time [`REBALANCE_AFTER`].
    pub(super) fn rebalance(&mut self, now: Duration) {
        let mut dry = false;
        for device in self.devices.values_mut() {
            let idle = device.outstanding(&self.account) * 2 < device.window.slices();
            device.idle_since = if idle { device.idle_since.or(Some(now)) } else { None };
            dry |= device.idle_since.is_some_and(|since| now - since >= REBALANCE_AFTER);
        }
        if !dry {
            return;
        }
        let fullest = (self.devices.iter())
            .map(|(key, device)| (device.outstanding(&self.account), key, device.window.slices()))
            .filter(|(outstanding, _, slices)| *outstanding > slices + slices / 2)
            .max_by_key(|(outstanding, ..)| *outstanding)
            .map(|(_, key, _)| key.clone());
        let Some(key) = fullest else { return };
        if let Some(open) = self.streams.get_mut(&key.worker).and_then(Stream::open_mut)
            && now - open.rebalanced >= REBALANCE_AFTER * 4
        {
            open.rebalanced = now;
            tracing::debug!(worker = %key.worker, device = %key.device, "withdrawing chunks");
            let device = key.device.to_string();
            open.stream.send(client_frame::Kind::Withdraw(Withdraw { device }));
        }
    }

    pub(super) fn withdraw_all(&mut self) {
        for open in self.streams.values().filter_map(Stream::open) {
            open.stream.send(client_frame::Kind::Withdraw(Withdraw::default()));
        }
    }

    /// Handles the passing of time: opens streams that are due, and counts overdue chunks on devices without slices as lost.
    pub(super) fn on_time(&mut self) {
        let now = self.now();
        let overdue = self.overdue().into_iter();
        let overdue: Vec<DeviceId> = overdue.filter(|(_, at)| *at <= now).map(|(key, _)| key).collect();
        self.lose(&overdue, FailureCode::GrantExpired, "the grant expired");
        self.lose_broken(now);
        if self.view.is_some() {
            self.open_streams();
        }
    }

    /// Devices with chunks but without slices, and the times at which these chunks count as lost.
    fn overdue(&self) -> Vec<(DeviceId, Duration)> {
        let overdue_after = self.burst.chunk_timeout + OVERDUE;
        let running = (self.devices.iter()).filter(|(_, device)| device.outstanding(&self.account) > 0);
        let overdue = running.filter_map(|(key, device)| Some((key.clone(), device.empty_since? + overdue_after)));
        overdue.collect()
    }

    /// Earliest time at which something must be done without an event.
    pub(super) fn dispatch_wake(&self, now: Duration) -> Option<Duration> {
        let retry = (self.account.next_retry_at()).filter(|at| *at > now && self.hold == Hold::Running);
        let reopen = self.streams.values().filter_map(|stream| match stream.state {
            State::Closed(at) => Some(at),
            _ => None,
        });
        let broken = (self.streams.values()).filter_map(|stream| Some(stream.broken_since? + RESUME_WITHIN));
        let overdue = self.overdue().into_iter().map(|(_, at)| at);
        let idle = (self.devices.values())
            .filter_map(|device| Some(device.idle_since? + REBALANCE_AFTER))
            .filter(|at| *at > now);
        let paused = (self.devices.values())
            .map(|device| device.paused_until)
            .filter(|until| *until > now);
        let suspended = match self.hold {
            Hold::Suspending(until) => Some(until),
            _ => None,
        };
        retry
            .into_iter()
            .chain(reopen)
            .chain(broken)
            .chain(overdue)
            .chain(idle)
            .chain(paused)
            .chain(suspended)
            .chain(self.fit.due)
            .min()
    }

    pub(super) fn max_outstanding(&self, worker: &WorkerName) -> Option<u64> {
        let stream = self.streams.get(worker)?;
        let accepts = !stream.ending && stream.unsettled.is_none();
        stream.open().filter(|_| accepts).map(|open| open.max_outstanding)
    }
}

#[cfg(test)]
mod tests;
