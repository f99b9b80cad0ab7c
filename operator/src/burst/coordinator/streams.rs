//! The streams to the agents: opens them where grants are held, reopens them after a failure, and records the received results and
//! failures.

use std::collections::BTreeSet;

use sahasra_service::{backoff::Backoff, causes};
use sahasra_ranges::AttemptRange;
use sahasra_wire::{
    burst::{
        Acknowledge, FailureCode, Failures, Open, Opened, Program, Results as ResultsFrame, Returned, Withdraw, client_frame, server_frame,
    },
    grants::RefusalCode,
};

use super::{Coordinator, CoordinatorError, Hold};
use crate::{
    agents::stream::{BurstStream, StreamEvent, StreamId},
    burst::{account::DeviceKey, checkpoint::Results, results_store::Segment},
};

/// Waits before a broken stream is reopened.
const REOPEN: Backoff = Backoff::milliseconds(100, 5_000);

/// Time within which a stream must be reopened after it broke, in milliseconds. Until then, the agent's chunks continue and cost no
/// attempt. There is time for four attempts to open it.
pub(super) const RESUME_WITHIN: u64 = 3_000;
/// Maximum number of covered ranges in an `Open` frame, which takes at most 1 MiB for them. Results beyond that are repeated by the agent,
/// and acknowledged when they arrive.
const MOST_COVERED_RANGES: usize = 64 << 10;

/// The stream to one worker.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) endpoint: String,
    pub(super) boot_id: String,
    pub(super) state: State,
    /// Number of failures since the stream was last open.
    pub(super) failures: u32,
    /// The agent is shutting down, and receives no more chunks.
    pub(super) ending: bool,
    /// Time since which the stream has been broken while the agent may continue with chunks, in milliseconds of the clock.
    pub(super) broken_since: Option<u64>,
    /// Chunks that the agent has not accounted for since the stream was reopened.
    pub(super) unsettled: Option<Unsettled>,
    /// Highest sequence number of results or failures received from the agent, on this stream or an earlier one. Repeated frames up to it
    /// were counted before.
    pub(super) heard: u64,
}

/// Chunks that were submitted on an earlier stream, and that the agent did not list when the stream was reopened.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// Sorted by first index.
    chunks: Vec<AttemptRange>,
    /// Sequence number by which the agent has repeated the results and failures of all chunks that ended.
    upto: u64,
    /// If set, the remaining chunks never reached the agent. Otherwise, the agent may have dropped them.
    resumed: bool,
}

impl Stream {
    /// A stream to the agent with this boot id, which is opened at `now`.
    pub(super) fn new(endpoint: &str, boot_id: &str, now: u64) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            boot_id: boot_id.to_owned(),
            state: State::Closed(now),
            failures: 0,
            ending: false,
            broken_since: None,
            unsettled: None,
            heard: 0,
        }
    }

    /// The parts of a reported failure that may concern adopted attempts. A repeated failure is of an earlier attempt than those that the
    /// agent had when the stream was opened, so it can only concern unsettled chunks.
    fn of_adopted(&self, told_before: bool, first: u64, count: u64) -> Vec<(u64, u64)> {
        if !told_before {
            return vec![(first, count)];
        }
        self.unsettled
            .as_ref()
            .map_or_else(Vec::new, |unsettled| unsettled.within(first, count))
    }
}

impl Unsettled {
    /// The parts of [first, first + count) that are unsettled.
    fn within(&self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let end = first.saturating_add(count);
        let from = self.chunks.partition_point(|batch| batch.first + batch.count <= first);
        let overlapping = self.chunks[from..].iter().take_while(|batch| batch.first < end);
        let parts = overlapping.map(|batch| (batch.first.max(first), (batch.first + batch.count).min(end)));
        parts.map(|(first, end)| (first, end - first)).collect()
    }
}

#[derive(Debug)]
pub(super) enum State {
    /// The stream must not be opened before this time, in milliseconds of the clock.
    Closed(u64),
    /// A stream with this number is being opened.
    Opening(u64, BurstStream),
    /// The agent has accepted the stream.
    Open {
        number: u64,
        stream: BurstStream,
        max_outstanding: u64,
        /// Sequence number of the last results or failures.
        sequence: u64,
        acknowledged: u64,
        /// Failures up to this sequence number were reported on an earlier stream.
        told_before: u64,
        /// Time at which chunks were last withdrawn.
        rebalanced: u64,
    },
}

impl Coordinator {
    pub(super) fn open_streams(&mut self) {
        let now = self.context.clock.now();
        let granted: BTreeSet<&str> = self.held.grants.iter().map(|grant| grant.worker.as_str()).collect();
        // A closed stream to a worker without grants is dropped, unless the agent may still have chunks.
        self.streams.retain(|worker, stream| {
            granted.contains(worker.as_str()) || !matches!(stream.state, State::Closed(_)) || stream.broken_since.is_some()
        });
        let due: Vec<String> = (self.streams.iter())
            .filter(|(_, stream)| matches!(stream.state, State::Closed(at) if at <= now))
            .map(|(worker, _)| worker.clone())
            .collect();
        for worker in due {
            let open = Open {
                owner: self.owner(),
                boot_id: self.streams[&worker].boot_id.clone(),
                program: Program {
                    store: self.store_folder().filter(|_| matches!(self.results, Results::Store(_))),
                    ..self.burst.program.clone()
                },
                covered: self
                    .covered
                    .ranges()
                    .take(MOST_COVERED_RANGES)
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
                    Some(error) => tracing::warn!(worker = id.worker, error = %causes(error), "stream broke"),
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
                    if refusal.code() == RefusalCode::OtherBoot {
                        self.lose_worker(&id.worker, "the agent was restarted");
                    }
                }
                server_frame::Kind::Results(results) => self.on_results(&id.worker, &results),
                server_frame::Kind::Failures(failures) => self.on_failures(&id.worker, &failures),
                server_frame::Kind::Returned(returned) => self.on_returned(&id.worker, &returned),
            },
        }
        Ok(())
    }

    pub(super) fn on_opened(&mut self, worker: &str, opened: &Opened) {
        let there = opened.outstanding.chunks_exact(2).map(|pair| {
            let count = pair[1].saturating_add(1).saturating_sub(pair[0]);
            (pair[0], count.min(self.burst.total))
        });
        let there: Vec<(u64, u64)> = there.collect();
        let keys = self.keys_of(worker);
        let chunks = self.account.unaccounted(&keys, there.iter().copied());
        self.account.adopt(worker, there);
        let Some(entry) = self.streams.get_mut(worker) else { return };
        entry.failures = 0;
        entry.broken_since = None;
        if !opened.resumed {
            // The agent may have restarted its sequence numbers.
            entry.heard = 0;
        }
        entry.unsettled = Some(Unsettled {
            chunks,
            upto: opened.retold,
            resumed: opened.resumed,
        });
        let now = self.context.clock.now();
        entry.state = match std::mem::replace(&mut entry.state, State::Closed(0)) {
            State::Opening(number, stream) => State::Open {
                number,
                stream,
                max_outstanding: opened.max_outstanding_chunks,
                sequence: 0,
                acknowledged: 0,
                told_before: opened.sequence,
                rebalanced: now,
            },
            other => other,
        };
        if let State::Open { stream, .. } = &entry.state
            && matches!(self.hold, Hold::Suspending(_))
        {
            stream.send(client_frame::Kind::Withdraw(Withdraw::default()));
        }
        self.settle(worker);
    }

    /// Once the agent has repeated its results and failures: makes the submitted chunks that it neither has nor repeated wait again.
    fn settle(&mut self, worker: &str) {
        let Some(Stream {
            state: State::Open { sequence, .. },
            unsettled,
            ..
        }) = self.streams.get_mut(worker)
        else {
            return;
        };
        let Some(Unsettled { chunks, resumed, .. }) = unsettled.take_if(|unsettled| unsettled.upto <= *sequence) else {
            return;
        };
        if chunks.is_empty() {
            return;
        }
        let keys = self.keys_of(worker);
        tracing::debug!(worker, ranges = chunks.len(), resumed, "chunks that did not reach the agent");
        if resumed {
            self.account.undelivered(&keys, &chunks);
            keys.iter().for_each(|key| self.recount(key));
        } else {
            self.lose(&keys, FailureCode::Disconnected, "the agent knows nothing of them");
        }
    }

    /// The devices of a worker that may have chunks, including the unknown device.
    fn keys_of(&self, worker: &str) -> Vec<DeviceKey> {
        let mut keys: Vec<DeviceKey> = self.devices.keys().filter(|key| key.worker == worker).cloned().collect();
        keys.push(DeviceKey::unknown(worker));
        keys
    }

    pub(super) fn on_results(&mut self, worker: &str, results: &ResultsFrame) {
        self.seen(worker, results.sequence);
        let had_adopted = self.account.has_adopted();
        let bytes = self.burst.layout.record_bytes();
        let mut answered = 0;
        let mut done = 0;
        let mut counted = Vec::new();
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
            self.account.answered(worker, run.first, run.count);
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
                counted.push((first, count));
            }
        }
        // A segment is reported in one frame. Chunks of it that were counted before count in another segment.
        if matches!(self.results, Results::Store(_)) && !counted.is_empty() {
            let name = results.segment.clone();
            self.segments.push(Segment { name, counted });
        }
        self.context.metrics.chunks_counted(done, 0);
        self.answered(worker, &results.device, answered);
        self.recount_worker(worker, had_adopted);
        self.settle(worker);
    }

    pub(super) fn on_failures(&mut self, worker: &str, failures: &Failures) {
        let Some(stream) = self.streams.get(worker) else { return };
        if failures.sequence <= stream.heard {
            self.seen(worker, failures.sequence);
            return self.settle(worker);
        }
        let told_before = matches!(stream.state, State::Open { told_before, .. } if failures.sequence <= told_before);
        let key = DeviceKey::new(worker, &failures.device);
        let now = self.context.clock.now();
        let had_adopted = self.account.has_adopted();
        let mut answered = 0;
        for failure in &failures.failures {
            answered += failure.count;
            let code = failure.code();
            if code == FailureCode::GrantExpired && !told_before {
                self.nothing_held(worker, &failures.device);
            }
            let batch = AttemptRange {
                count: failure.count.min(self.burst.total),
                ..failure.into()
            };
            let stream = self.streams.get_mut(worker);
            let adopted = stream
                .as_ref()
                .map(|stream| stream.of_adopted(told_before, batch.first, batch.count));
            let adopted = adopted.unwrap_or_default();
            if !told_before {
                self.account.answered(worker, batch.first, batch.count);
            }
            if code == FailureCode::ShuttingDown {
                // The chunk is not at fault, so this costs no attempt. But it must not be submitted to this agent again.
                if let Some(stream) = stream {
                    stream.ending = true;
                }
                self.account.returned(&key, batch);
                for (first, count) in adopted {
                    self.account.adopted_returned(worker, first, count);
                }
                self.context.metrics.submit_failed(code.label(), failure.count);
                continue;
            }
            let mut outcome = self.account.failed(&key, batch, code, &failure.message, now);
            for (first, count) in adopted {
                outcome += self.account.adopted_failed(worker, first, count, code, &failure.message, now);
            }
            tracing::debug!(worker, device = failures.device, first = failure.first, count = failure.count, %code, message = failure.message, "attempts failed");
            self.context.metrics.submit_failed(code.label(), failure.count);
            self.context.metrics.chunks_retried.inc_by(outcome.retried);
            self.context.metrics.chunks_counted(0, outcome.failed);
        }
        self.seen(worker, failures.sequence);
        self.answered(worker, &failures.device, answered);
        self.recount_worker(worker, had_adopted);
        self.settle(worker);
    }

    fn on_returned(&mut self, worker: &str, returned: &Returned) {
        let had_adopted = self.account.has_adopted();
        for range in &returned.ranges {
            if returned.without_slices {
                self.nothing_held(worker, &range.device);
            }
            let count = range.count.min(self.burst.total);
            self.account.answered(worker, range.first, count);
            self.account.adopted_returned(worker, range.first, count);
        }
        self.take_back(worker, &returned.ranges);
        self.recount_worker(worker, had_adopted);
    }

    /// Updates all devices of a worker, because an answer may have concerned adopted chunks that the account has on another device.
    fn recount_worker(&mut self, worker: &str, had_adopted: bool) {
        if had_adopted {
            self.keys_of(worker).iter().for_each(|key| self.recount(key));
        }
    }

    /// Handles a report of the agent that no slice is held on a device, which the pool does not know yet.
    fn nothing_held(&mut self, worker: &str, device: &str) {
        let key = DeviceKey::new(worker, device);
        // Slices that the pool released itself are expected to be missing.
        if self.devices.get(&key).is_some_and(|device| device.window.slices() > 0) {
            self.pause(&key, self.context.clock.now());
            self.context.pool.suspect(worker);
        }
    }

    pub(super) fn seen(&mut self, worker: &str, number: u64) {
        if let Some(Stream {
            state: State::Open { sequence, .. },
            ..
        }) = self.streams.get_mut(worker)
        {
            *sequence = (*sequence).max(number);
        }
        if let Some(stream) = self.streams.get_mut(worker) {
            stream.heard = stream.heard.max(number);
        }
    }

    pub(super) fn answered(&mut self, worker: &str, device: &str, chunks: u64) {
        let key = DeviceKey::new(worker, device);
        let now = self.context.clock.micros();
        if let Some(device) = self.devices.get_mut(&key) {
            device.window.answered(chunks, now);
        }
        self.recount(&key);
    }

    /// Closes the stream to a worker, to be reopened after a wait. The agent continues with its chunks, which are lost only if the stream
    /// is not reopened in time.
    pub(super) fn close(&mut self, worker: &str) {
        let now = self.context.clock.now();
        if let Some(stream) = self.streams.get_mut(worker) {
            stream.failures += 1;
            stream.state = State::Closed(now + REOPEN.after(stream.failures).as_millis() as u64);
            stream.unsettled = None;
            stream.broken_since.get_or_insert(now);
        }
        self.context.pool.suspect(worker);
    }

    /// Counts the chunks of streams that have been broken for too long as lost.
    pub(super) fn lose_broken(&mut self, now: u64) {
        let overdue: Vec<String> = (self.streams.iter_mut())
            .filter_map(|(worker, stream)| {
                stream
                    .broken_since
                    .take_if(|since| *since + RESUME_WITHIN <= now)
                    .map(|_| worker.clone())
            })
            .collect();
        for worker in overdue {
            self.lose_worker(&worker, "the stream to the agent broke, and it was not reached again in time");
        }
    }

    pub(super) fn lose_worker(&mut self, worker: &str, why: &str) {
        if let Some(stream) = self.streams.get_mut(worker) {
            stream.broken_since = None;
        }
        self.account.forget(worker);
        let keys = self.keys_of(worker);
        self.lose(&keys, FailureCode::Disconnected, why);
    }

    pub(super) fn lose(&mut self, keys: &[DeviceKey], code: FailureCode, why: &str) {
        let outcome = self.account.lost(keys, code, why, self.context.clock.now());
        let attempts = outcome.retried + outcome.failed;
        if attempts > 0 {
            let (worker, device) = (keys.first().map(|key| &key.worker), keys.first().map(|key| &key.device));
            tracing::warn!(worker, device, devices = keys.len(), chunks = attempts, %code, why, "chunks lost");
            self.context.metrics.submit_failed(code.label(), attempts);
            self.context.metrics.chunks_retried.inc_by(outcome.retried);
            self.context.metrics.chunks_counted(0, outcome.failed);
        }
        keys.iter().for_each(|key| self.recount(key));
    }

    /// Closes every stream and counts its chunks as lost.
    pub(super) fn lose_all_streams(&mut self) {
        let workers: BTreeSet<String> = std::mem::take(&mut self.streams).into_keys().collect();
        workers.iter().for_each(|worker| self.account.forget(worker));
        let mut keys: Vec<DeviceKey> = workers.iter().map(|worker| DeviceKey::unknown(worker)).collect();
        keys.extend(self.devices.keys().filter(|key| workers.contains(&key.worker)).cloned());
        self.lose(&keys, FailureCode::Disconnected, "the burst was suspended");
    }

    /// Worker, stream number and sequence number of each stream: what a checkpoint written now would cover.
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

    /// Acknowledges frames that a checkpoint covers, so that agents need not keep them.
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
}
