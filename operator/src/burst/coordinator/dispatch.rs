//! Streams to agents: chunks out, results in.

use std::collections::{BTreeMap, BTreeSet};

use sahasra_wire::{
    burst::FailureCode,
    burst::{
        Acknowledge, ChunkRange, Failures, Open, Opened, Program, Results as ResultsFrame, Submit, Withdraw, client_frame, server_frame,
    },
    grants::RefusalCode,
};

use super::{Coordinator, CoordinatorError, Hold};
use crate::{
    agents::stream::{BurstStream, StreamEvent, StreamId},
    burst::{
        account::{Batch, DeviceKey},
        checkpoint::Results,
        index_set::IndexSet,
        window::Window,
    },
    fault::Step,
    pool::Causes,
};

/// First and longest wait before a broken stream is opened again, in milliseconds.
const REOPEN_AFTER: (u64, u64) = (100, 5_000);
/// How much longer than the grace of a grant its chunks are waited for when the grant has ended, in milliseconds.
const OVERDUE: u64 = 2_000;
/// A device has been idle for so long while another still queues: chunks are called back from there, in milliseconds.
const REBALANCE_AFTER: u64 = 250;

/// A device on which the burst holds or held slices.
#[derive(Debug)]
pub(super) struct Device {
    window: Window,
    /// Chunks there, as the account has it.
    outstanding: u64,
    /// Since when it has no slices, if so.
    empty_since: Option<u64>,
    /// Since when it has had nothing to do, if so.
    idle_since: Option<u64>,
}

/// The stream to one worker.
#[derive(Debug)]
pub(super) struct Stream {
    endpoint: String,
    boot_id: String,
    state: State,
    /// Failures since it last was open.
    failures: u32,
}

#[derive(Debug)]
enum State {
    /// Not to be opened before that, in milliseconds of the clock.
    Closed(u64),
    Opening(u64, BurstStream),
    Open {
        number: u64,
        stream: BurstStream,
        max_outstanding: u64,
        /// Of the last results or failures.
        sequence: u64,
        acknowledged: u64,
        rebalanced: u64,
    },
}

/// The device to which chunks belong that a worker had from a predecessor: which one is not told.
fn adopted(worker: &str) -> DeviceKey {
    DeviceKey {
        worker: worker.to_owned(),
        device: String::new(),
    }
}

impl Coordinator {
    /// Brings windows and streams in line with the grants.
    pub(super) fn follow_grants(&mut self) {
        let (now, micros) = (self.context.clock.now(), self.context.clock.micros());
        let mut slices: BTreeMap<DeviceKey, u64> = BTreeMap::new();
        let mut endpoints: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
        for grant in &self.held.grants {
            let key = DeviceKey {
                worker: grant.worker.clone(),
                device: grant.device.clone(),
            };
            *slices.entry(key).or_default() += u64::from(grant.slices);
            endpoints.insert(&grant.worker, (&grant.endpoint, &grant.id.boot_id));
        }
        for (key, device) in &mut self.devices {
            let held = slices.remove(key).unwrap_or_default();
            device.window.resize(held);
            device.empty_since = if held > 0 { None } else { device.empty_since.or(Some(now)) };
        }
        for (key, held) in slices {
            let device = Device {
                window: Window::new(held, micros),
                outstanding: 0,
                empty_since: None,
                idle_since: None,
            };
            self.devices.insert(key, device);
        }
        for (worker, (endpoint, boot_id)) in &endpoints {
            let stream = self.streams.get(*worker);
            // A new boot has nothing of what the old one had.
            if stream.is_none_or(|stream| stream.boot_id != *boot_id) {
                let stream = Stream {
                    endpoint: (*endpoint).to_owned(),
                    boot_id: (*boot_id).to_owned(),
                    state: State::Closed(now),
                    failures: 0,
                };
                self.streams.insert((*worker).to_owned(), stream);
            }
        }
        let lost: Vec<String> = (self.streams.iter())
            .filter(|(worker, stream)| {
                let known = self.context.directory.worker(worker);
                known.is_none_or(|known| known.stale || known.boot_id != stream.boot_id)
            })
            .map(|(worker, _)| worker.clone())
            .collect();
        for worker in lost {
            self.streams.remove(&worker);
            self.lose_worker(&worker, "the worker is gone");
        }
        self.open_streams();
    }

    fn open_streams(&mut self) {
        let now = self.context.clock.now();
        let granted: BTreeSet<&str> = self.held.grants.iter().map(|grant| grant.worker.as_str()).collect();
        // A stream without grants that is closed has nothing more to bring.
        self.streams
            .retain(|worker, stream| granted.contains(worker.as_str()) || !matches!(stream.state, State::Closed(_)));
        let due: Vec<String> = (self.streams.iter())
            .filter(|(_, stream)| matches!(stream.state, State::Closed(at) if at <= now))
            .map(|(worker, _)| worker.clone())
            .collect();
        for worker in due {
            let open = Open {
                owner: self.owner(),
                boot_id: self.streams[&worker].boot_id.clone(),
                program: Program {
                    store: self.store_folder(),
                    ..self.burst.program.clone()
                },
                covered: self
                    .covered
                    .ranges()
                    .flat_map(|(first, count)| [first, first + count - 1])
                    .collect(),
            };
            self.stream_number += 1;
            let id = StreamId {
                worker: worker.clone(),
                number: self.stream_number,
            };
            let Some(stream) = self.streams.get_mut(&worker) else { continue };
            let opened = BurstStream::open(
                self.context.agents.clone(),
                stream.endpoint.clone(),
                open,
                id,
                self.events_sender.clone(),
            );
            stream.state = State::Opening(self.stream_number, opened);
        }
    }

    /// Hands out what is ready to run.
    pub(super) fn dispatch(&mut self) {
        if !self.started || self.hold != Hold::Running {
            return;
        }
        let now = self.context.clock.now();
        let mut ready = self.account.ready(now);
        let all_slices: u64 = self.devices.values().map(|device| device.window.slices()).sum();
        let mut submitted = 0;
        if ready > 0 {
            // The emptiest first, for its slices.
            let mut order: Vec<DeviceKey> = self.devices.keys().cloned().collect();
            order.sort_by_cached_key(|key| {
                let device = &self.devices[key];
                device.outstanding * 1024 / device.window.slices().max(1)
            });
            let mut by_worker: BTreeMap<String, Vec<ChunkRange>> = BTreeMap::new();
            for key in order {
                let Some(max_outstanding) = self.max_outstanding(&key.worker) else {
                    continue;
                };
                let at_worker: u64 = (self.devices.iter())
                    .filter(|(other, _)| other.worker == key.worker)
                    .map(|(_, device)| device.outstanding)
                    .sum();
                let Some(device) = self.devices.get_mut(&key) else { continue };
                let batch = device
                    .window
                    .batch(device.outstanding, ready, all_slices)
                    .min(max_outstanding.saturating_sub(at_worker));
                if batch == 0 {
                    continue;
                }
                for Batch { first, count, attempt } in self.account.take(&key, batch, now) {
                    device.outstanding += count;
                    ready -= count;
                    submitted += count;
                    by_worker.entry(key.worker.clone()).or_default().push(ChunkRange {
                        device: key.device.clone(),
                        first,
                        count,
                        attempt,
                    });
                }
            }
            for (worker, ranges) in by_worker {
                self.submit(&worker, ranges);
            }
        }
        if submitted > 0 {
            self.context.metrics.submitted.inc_by(submitted);
            self.context.faults.reached(Step::Dispatch);
        } else if ready == 0 {
            self.rebalance(now);
        }
    }

    fn submit(&mut self, worker: &str, ranges: Vec<ChunkRange>) {
        let Some(Stream {
            state: State::Open { stream, .. },
            ..
        }) = self.streams.get(worker)
        else {
            return self.take_back(worker, &ranges);
        };
        if !stream.send(client_frame::Kind::Submit(Submit { ranges: ranges.clone() })) {
            self.take_back(worker, &ranges);
        }
    }

    fn take_back(&mut self, worker: &str, ranges: &[ChunkRange]) {
        for range in ranges {
            let key = DeviceKey {
                worker: worker.to_owned(),
                device: range.device.clone(),
            };
            self.account.returned(&key, range.first, range.count);
            self.recount(&key);
        }
    }

    /// When one device has run dry while another still queues far more than it runs: calls what has not started back.
    fn rebalance(&mut self, now: u64) {
        let mut dry = false;
        for device in self.devices.values_mut() {
            let idle = device.outstanding * 2 < device.window.slices();
            device.idle_since = if idle { device.idle_since.or(Some(now)) } else { None };
            dry |= device.idle_since.is_some_and(|since| now - since >= REBALANCE_AFTER);
        }
        if !dry {
            return;
        }
        let fullest = (self.devices.iter())
            .filter(|(_, device)| device.outstanding > device.window.slices() + device.window.slices() / 2)
            .max_by_key(|(_, device)| device.outstanding)
            .map(|(key, _)| key.clone());
        let Some(key) = fullest else { return };
        if let Some(Stream {
            state: State::Open { stream, rebalanced, .. },
            ..
        }) = self.streams.get_mut(&key.worker)
            && now - *rebalanced >= 4 * REBALANCE_AFTER
        {
            *rebalanced = now;
            tracing::debug!(worker = key.worker, device = key.device, "calling chunks back");
            stream.send(client_frame::Kind::Withdraw(Withdraw { device: key.device }));
        }
    }

    /// Calls everything back that has not started.
    pub(super) fn withdraw_all(&mut self) {
        for stream in self.streams.values() {
            if let State::Open { stream, .. } = &stream.state {
                stream.send(client_frame::Kind::Withdraw(Withdraw::default()));
            }
        }
    }

    pub(super) fn on_stream(&mut self, id: &StreamId, event: StreamEvent) -> Result<(), CoordinatorError> {
        let current = self.streams.get(&id.worker).is_some_and(|stream| match &stream.state {
            State::Opening(number, _) | State::Open { number, .. } => *number == id.number,
            State::Closed(_) => false,
        });
        if !current {
            return Ok(());
        }
        match event {
            StreamEvent::Closed(error) => {
                match &error {
                    Some(error) => tracing::warn!(worker = id.worker, error = %Causes(error), "stream broke"),
                    None => tracing::debug!(worker = id.worker, "stream ended"),
                }
                self.close(&id.worker);
            }
            StreamEvent::Frame(frame) => match *frame {
                server_frame::Kind::Opened(opened) => self.on_opened(&id.worker, &opened),
                server_frame::Kind::Refused(refusal) => {
                    tracing::warn!(worker = id.worker, code = %refusal.code(), message = refusal.message, "stream refused");
                    if refusal.code() == RefusalCode::StaleTerm {
                        return Err(CoordinatorError::Superseded);
                    }
                    self.close(&id.worker);
                }
                server_frame::Kind::Results(results) => self.on_results(&id.worker, &results),
                server_frame::Kind::Failures(failures) => self.on_failures(&id.worker, &failures),
                server_frame::Kind::Returned(returned) => {
                    self.take_back(&id.worker, &returned.ranges);
                    for range in &returned.ranges {
                        self.account.returned(&adopted(&id.worker), range.first, range.count);
                    }
                }
            },
        }
        Ok(())
    }

    fn on_opened(&mut self, worker: &str, opened: &Opened) {
        for pair in opened.outstanding.chunks_exact(2) {
            let count = pair[1].saturating_add(1).saturating_sub(pair[0]);
            self.account.adopt(&adopted(worker), pair[0], count.min(self.burst.total));
        }
        let Some(entry) = self.streams.get_mut(worker) else { return };
        entry.failures = 0;
        let now = self.context.clock.now();
        entry.state = match std::mem::replace(&mut entry.state, State::Closed(0)) {
            State::Opening(number, stream) => State::Open {
                number,
                stream,
                max_outstanding: opened.max_outstanding_chunks,
                sequence: 0,
                acknowledged: 0,
                rebalanced: now,
            },
            other => other,
        };
    }

    fn on_results(&mut self, worker: &str, results: &ResultsFrame) {
        self.seen(worker, results.sequence);
        let bytes = self.burst.layout.record_bytes();
        let mut answered = 0;
        let mut done = 0;
        for run in &results.runs {
            let expected = usize::try_from(run.count).ok().and_then(|count| count.checked_mul(bytes));
            if Some(run.outputs.len()) != expected || run.first.saturating_add(run.count) > self.burst.total {
                tracing::error!(
                    worker,
                    first = run.first,
                    count = run.count,
                    bytes = run.outputs.len(),
                    "results of the wrong size"
                );
                continue;
            }
            answered += run.count;
            for (first, count) in self.account.succeeded(run.first, run.count) {
                done += count;
                for index in first..first + count {
                    let at = usize::try_from(index - run.first).unwrap_or_default() * bytes;
                    let record = &run.outputs[at..at + bytes];
                    self.aggregator.add(index, record, &self.burst.layout);
                    if let Results::Inline(records) = &mut self.results {
                        let at = usize::try_from(index).unwrap_or_default() * bytes;
                        records[at..at + bytes].copy_from_slice(record);
                    }
                }
                if matches!(self.results, Results::Store(_)) {
                    self.segments.entry(results.segment.clone()).or_default().insert(first, count);
                }
            }
        }
        self.context.metrics.chunks_done.inc_by(done);
        self.answered(worker, &results.device, answered);
    }

    fn on_failures(&mut self, worker: &str, failures: &Failures) {
        self.seen(worker, failures.sequence);
        let key = DeviceKey {
            worker: worker.to_owned(),
            device: failures.device.clone(),
        };
        let now = self.context.clock.now();
        let mut answered = 0;
        for failure in &failures.failures {
            answered += failure.count;
            let code = failure.code();
            let batch = Batch {
                first: failure.first,
                count: failure.count.min(self.burst.total),
                attempt: failure.attempt,
            };
            let mut outcome = self.account.failed(&key, batch, code, &failure.message, now);
            let inherited = self
                .account
                .adopted_failed(&adopted(worker), batch.first, batch.count, code, &failure.message, now);
            outcome.retried += inherited.retried;
            outcome.failed += inherited.failed;
            tracing::debug!(worker, device = failures.device, first = failure.first, count = failure.count, %code, message = failure.message, "attempts failed");
            self.context.metrics.submit_failed(code.label(), failure.count);
            self.context.metrics.chunks_retried.inc_by(outcome.retried);
            self.context.metrics.chunks_done.inc_by(outcome.failed);
        }
        self.answered(worker, &failures.device, answered);
    }

    fn seen(&mut self, worker: &str, number: u64) {
        if let Some(Stream {
            state: State::Open { sequence, .. },
            ..
        }) = self.streams.get_mut(worker)
        {
            *sequence = (*sequence).max(number);
        }
    }

    fn answered(&mut self, worker: &str, device: &str, chunks: u64) {
        let key = DeviceKey {
            worker: worker.to_owned(),
            device: device.to_owned(),
        };
        let now = self.context.clock.micros();
        if let Some(device) = self.devices.get_mut(&key) {
            device.window.answered(chunks, now);
        }
        self.recount(&key);
    }

    fn recount(&mut self, key: &DeviceKey) {
        if let Some(device) = self.devices.get_mut(key) {
            device.outstanding = self.account.running_on(key);
        }
    }

    /// The stream to a worker is no more: what it had is lost, and it is opened again after a while if grants remain.
    fn close(&mut self, worker: &str) {
        let now = self.context.clock.now();
        if let Some(stream) = self.streams.get_mut(worker) {
            let wait = (REOPEN_AFTER.0 << stream.failures.min(10)).min(REOPEN_AFTER.1);
            stream.failures += 1;
            stream.state = State::Closed(now + wait);
        }
        self.lose_worker(worker, "the stream to the agent broke");
        self.context.pool.suspect(worker);
    }

    fn lose_worker(&mut self, worker: &str, why: &str) {
        let mut keys: Vec<DeviceKey> = self.devices.keys().filter(|key| key.worker == worker).cloned().collect();
        keys.push(adopted(worker));
        for key in keys {
            self.lose(&key, FailureCode::Disconnected, why);
        }
    }

    fn lose(&mut self, key: &DeviceKey, code: FailureCode, why: &str) {
        let outcome = self.account.lost(key, code, why, self.context.clock.now());
        let attempts = outcome.retried + outcome.failed;
        if attempts > 0 {
            tracing::warn!(worker = key.worker, device = key.device, chunks = attempts, %code, why, "chunks lost");
            self.context.metrics.submit_failed(code.label(), attempts);
            self.context.metrics.chunks_retried.inc_by(outcome.retried);
            self.context.metrics.chunks_done.inc_by(outcome.failed);
        }
        self.recount(key);
    }

    /// Closes every stream; what was there is lost.
    pub(super) fn lose_all_streams(&mut self) {
        for worker in std::mem::take(&mut self.streams).into_keys() {
            self.lose_worker(&worker, "the burst was suspended");
        }
    }

    /// Time has passed: streams may be due to open, and chunks overdue on devices without slices.
    pub(super) fn on_time(&mut self) {
        let now = self.context.clock.now();
        let patience = self.burst.chunk_timeout_milliseconds + OVERDUE;
        let overdue: Vec<DeviceKey> = (self.devices.iter())
            .filter(|(_, device)| device.outstanding > 0 && device.empty_since.is_some_and(|since| since + patience <= now))
            .map(|(key, _)| key.clone())
            .collect();
        for key in overdue {
            self.lose(&key, FailureCode::GrantExpired, "the grant ended");
        }
        if self.view.is_some() {
            self.open_streams();
        }
    }

    /// When something here is due by time alone.
    pub(super) fn dispatch_wake(&self, now: u64) -> Option<u64> {
        let retry = (self.account.next_retry_at()).filter(|at| *at > now && self.hold == Hold::Running);
        let reopen = self.streams.values().filter_map(|stream| match stream.state {
            State::Closed(at) => Some(at),
            _ => None,
        });
        let patience = self.burst.chunk_timeout_milliseconds + OVERDUE;
        let overdue = (self.devices.values())
            .filter(|device| device.outstanding > 0)
            .filter_map(|device| Some(device.empty_since? + patience));
        let idle = (self.devices.values())
            .filter_map(|device| Some(device.idle_since? + REBALANCE_AFTER))
            .filter(|at| *at > now);
        let suspended = match self.hold {
            Hold::Suspending(until) => Some(until),
            _ => None,
        };
        retry.into_iter().chain(reopen).chain(overdue).chain(idle).chain(suspended).min()
    }

    /// Sequence numbers that a checkpoint written now would cover.
    pub(super) fn sequences(&self) -> Vec<(String, u64, u64)> {
        (self.streams.iter())
            .filter_map(|(worker, stream)| match stream.state {
                State::Open {
                    number,
                    sequence,
                    acknowledged,
                    ..
                } if sequence > acknowledged => Some((worker.clone(), number, sequence)),
                _ => None,
            })
            .collect()
    }

    /// A checkpoint covers them: agents need not keep them any longer.
    pub(super) fn acknowledge(&mut self, sequences: Vec<(String, u64, u64)>) {
        for (worker, of, upto) in sequences {
            if let Some(Stream {
                state:
                    State::Open {
                        number,
                        stream,
                        acknowledged,
                        ..
                    },
                ..
            }) = self.streams.get_mut(&worker)
                && *number == of
                && stream.send(client_frame::Kind::Acknowledge(Acknowledge { sequence: upto }))
            {
                *acknowledged = upto;
            }
        }
    }

    fn max_outstanding(&self, worker: &str) -> Option<u64> {
        match self.streams.get(worker)?.state {
            State::Open { max_outstanding, .. } => Some(max_outstanding),
            _ => None,
        }
    }

    /// Indices that a written checkpoint covers.
    pub(super) fn cover(&mut self, sets: [&IndexSet; 2]) {
        for (first, count) in sets.into_iter().flat_map(IndexSet::ranges) {
            self.covered.insert(first, count);
        }
    }
}
