//! The streams to the agents: opens them where grants are held, and reopens them after a failure.

use std::{collections::BTreeSet, time::Duration};

use sahasra_names::{BootId, DeviceId, WorkerName};
use sahasra_ranges::{AttemptRange, RangeMap};
use sahasra_service::{backoff::Backoff, causes};
use sahasra_wire::{
    burst::{Acknowledge, FailureCode, Open, Opened, Withdraw, client_frame, server_frame},
    grants::RejectionCode,
};

use super::{Coordinator, CoordinatorError, Hold};
use crate::{
    agents::stream::{BurstStream, StreamEvent, StreamId},
    burst::checkpoint::Results,
};

/// Waits before a broken stream is reopened.
const REOPEN: Backoff = Backoff::milliseconds(100, 5_000);

/// Time within which a stream must be reopened after it broke. Until then, the agent's chunks continue and cost no attempt. There is time for
/// four attempts to open it.
pub(super) const RESUME_WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of covered ranges in an `Open` frame, which takes at most 1 MiB for them. Results beyond that are repeated by the agent,
/// and acknowledged when they arrive.
const MAX_COVERED_RANGES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) endpoint: String,
    pub(super) boot_id: BootId,
    pub(super) state: State,
    /// Number of failures since the stream was last open.
    pub(super) failures: u32,
    /// Whether the agent is shutting down, so that it receives no more chunks.
    pub(super) ending: bool,
    /// Time since which the stream has been broken while the agent may continue with chunks.
    pub(super) broken_since: Option<Duration>,
    /// Chunks that the agent has not accounted for since the stream was reopened.
    pub(super) unsettled: Option<Unsettled>,
    /// Highest sequence number of results or failures received from the agent, on this stream or an earlier one. Repeated frames up to it
    /// were counted before.
    pub(super) highest_sequence: u64,
}

/// Chunks that were submitted on an earlier stream, and that the agent did not list when the stream was reopened.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// The chunks with their attempts.
    pub(super) chunks: RangeMap<u32>,
    /// Sequence number by which the agent has repeated the results and failures of all chunks that ended.
    upto: u64,
    /// Whether the remaining chunks never reached the agent. Otherwise, the agent may have dropped them.
    resumed: bool,
}

impl Stream {
    /// A stream to the agent with this boot id, which is opened at `now`.
    pub(super) fn new(endpoint: &str, boot_id: BootId, now: Duration) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            boot_id,
            state: State::Closed(now),
            failures: 0,
            ending: false,
            broken_since: None,
            unsettled: None,
            highest_sequence: 0,
        }
    }

    pub(super) fn open(&self) -> Option<&OpenStream> {
        match &self.state {
            State::Open(open) => Some(open),
            State::Closed(_) | State::Opening(..) => None,
        }
    }

    pub(super) fn open_mut(&mut self) -> Option<&mut OpenStream> {
        match &mut self.state {
            State::Open(open) => Some(open),
            State::Closed(_) | State::Opening(..) => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum State {
    /// The stream must not be opened before this time.
    Closed(Duration),
    Opening(u64, BurstStream),
    Open(OpenStream),
}

#[derive(Debug)]
pub(super) struct OpenStream {
    pub(super) number: u64,
    pub(super) stream: BurstStream,
    pub(super) max_outstanding: u64,
    /// Sequence number of the last results or failures.
    pub(super) sequence: u64,
    pub(super) acknowledged: u64,
    /// Failures up to this sequence number were reported on an earlier stream.
    pub(super) reported_before: u64,
    /// Time at which chunks were last withdrawn.
    pub(super) rebalanced: Duration,
}

impl Coordinator {
    pub(super) fn open_streams(&mut self) {
        let now = self.now();
        let granted: BTreeSet<&WorkerName> = self.held.grants.iter().map(|grant| &grant.device.worker).collect();
        // A closed stream to a worker without grants is dropped, unless the agent may still have chunks.
        self.streams.retain(|worker, stream| {
            granted.contains(worker) || !matches!(stream.state, State::Closed(_)) || stream.broken_since.is_some()
        });
        let due: Vec<WorkerName> = (self.streams.iter())
            .filter(|(_, stream)| matches!(stream.state, State::Closed(at) if at <= now))
            .map(|(worker, _)| worker.clone())
            .collect();
        for worker in due {
            let open = Open {
                owner: self.owner(),
                boot_id: self.streams[&worker].boot_id.to_string(),
                program: (self.burst).program(self.store_folder().filter(|_| matches!(self.results, Results::Store(_)))),
                covered: self
                    .covered
                    .ranges()
                    .take(MAX_COVERED_RANGES)
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
            State::Opening(number, _) | State::Open(OpenStream { number, .. }) => *number == id.number,
            State::Closed(_) => false,
        });
        if !current {
            return Ok(());
        }
        match event {
            StreamEvent::Closed(error) => {
                match &error {
                    Some(error) => tracing::warn!(worker = %id.worker, error = %causes(error), "stream connection lost"),
                    None => tracing::debug!(worker = %id.worker, "stream ended"),
                }
                self.close(&id.worker);
            }
            StreamEvent::Frame(frame) => match *frame {
                server_frame::Kind::Opened(opened) => self.on_opened(&id.worker, &opened),
                server_frame::Kind::Refused(refusal) => {
                    tracing::warn!(worker = %id.worker, code = %refusal.code(), message = refusal.message, "stream rejected");
                    if refusal.code() == RejectionCode::StaleTerm {
                        return Err(CoordinatorError::Superseded);
                    }
                    self.close(&id.worker);
                    if refusal.code() == RejectionCode::BootMismatch {
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

    pub(super) fn on_opened(&mut self, worker: &WorkerName, opened: &Opened) {
        let now = self.now();
        self.add_devices(worker, &opened.chunks);
        let there = opened.chunks.iter().map(|range| (range.device.as_str(), AttemptRange::from(range)));
        let chunks = self.account.adopt(worker, there);
        let Some(entry) = self.streams.get_mut(worker) else { return };
        entry.failures = 0;
        entry.broken_since = None;
        if !opened.resumed {
            // The agent may have restarted its sequence numbers.
            entry.highest_sequence = 0;
        }
        entry.unsettled = Some(Unsettled {
            chunks,
            upto: opened.last_repeated,
            resumed: opened.resumed,
        });
        entry.state = match std::mem::replace(&mut entry.state, State::Closed(Duration::ZERO)) {
            State::Opening(number, stream) => State::Open(OpenStream {
                number,
                stream,
                max_outstanding: opened.max_outstanding_chunks,
                sequence: 0,
                acknowledged: 0,
                reported_before: opened.sequence,
                rebalanced: now,
            }),
            other => other,
        };
        if let Some(open) = entry.open()
            && matches!(self.hold, Hold::Suspending(_))
        {
            open.stream.send(client_frame::Kind::Withdraw(Withdraw::default()));
        }
        self.settle(worker);
    }

    /// Once the agent has repeated its results and failures: makes the submitted chunks that it neither has nor repeated wait again.
    pub(super) fn settle(&mut self, worker: &WorkerName) {
        let Some(stream) = self.streams.get_mut(worker) else { return };
        let Some(sequence) = stream.open().map(|open| open.sequence) else {
            return;
        };
        let settled = stream.unsettled.take_if(|unsettled| unsettled.upto <= sequence);
        let Some(Unsettled { chunks, resumed, .. }) = settled.filter(|settled| !settled.chunks.is_empty()) else {
            return;
        };
        let devices = self.devices_of(worker);
        tracing::debug!(%worker, chunks = chunks.len(), resumed, "chunks not delivered to the agent");
        if resumed {
            self.account.undelivered(&devices, &chunks);
        } else {
            self.lose(&devices, FailureCode::Disconnected, "chunks not found on the agent");
        }
    }

    pub(super) fn devices_of(&self, worker: &WorkerName) -> Vec<DeviceId> {
        self.devices.keys().filter(|id| id.worker == *worker).cloned().collect()
    }

    pub(super) fn seen(&mut self, worker: &WorkerName, number: u64) {
        let Some(stream) = self.streams.get_mut(worker) else { return };
        stream.highest_sequence = stream.highest_sequence.max(number);
        if let Some(open) = stream.open_mut() {
            open.sequence = open.sequence.max(number);
        }
    }

    /// Closes the stream to a worker, to be reopened after a wait. The agent continues with its chunks, which are lost only if the stream
    /// is not reopened in time.
    pub(super) fn close(&mut self, worker: &WorkerName) {
        let now = self.now();
        if let Some(stream) = self.streams.get_mut(worker) {
            stream.failures += 1;
            stream.state = State::Closed(now + REOPEN.after(stream.failures));
            stream.unsettled = None;
            stream.broken_since.get_or_insert(now);
        }
        self.context.pool.suspect(worker);
    }

    /// Worker, stream number and sequence number of each stream: what a checkpoint written now would cover.
    pub(super) fn sequences(&self) -> Vec<(WorkerName, u64, u64)> {
        let open = self.streams.iter().filter_map(|(worker, stream)| Some((worker, stream.open()?)));
        open.filter(|(_, open)| open.sequence > open.acknowledged)
            .map(|(worker, open)| (worker.clone(), open.number, open.sequence))
            .collect()
    }

    /// Acknowledges frames that a checkpoint covers, so that agents need not keep them.
    pub(super) fn acknowledge(&mut self, sequences: Vec<(WorkerName, u64, u64)>) {
        for (worker, number, sequence) in sequences {
            if let Some(open) = self.streams.get_mut(&worker).and_then(Stream::open_mut)
                && open.number == number
                && open.stream.send(client_frame::Kind::Acknowledge(Acknowledge { sequence }))
            {
                open.acknowledged = sequence;
            }
        }
    }
}
