//! Dispatch of bursts: chunks go from a coordinator's stream to executors on the slices that the burst's owner holds, and results go back.
//!
//! ```text
//!  stream ──Submit──► Burst ──► Lane (one a device) ──Run──► executor
//!     ▲                 ▲          │ batch, segment
//!     └── retained ◄────┴──────────┘ Results / Failures / Returned
//! ```
//!
//! A [`Burst`] is the agent's state of one owner's work: which chunks are outstanding, and every result and failure that no checkpoint
//! covers yet. It outlives its stream: chunks continue when the stream breaks, and a coordinator of the same or a higher term that opens
//! another stream receives all retained results again. A burst ends when no stream is open and its owner holds no slices.
//!
//! A [`lane`] ties the executor's concurrency to the ledger: it marks slices as in use before chunks may start on them, and vacates them
//! when the executor has confirmed that it holds nothing for them.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Debug,
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use sahasra_ledger::SHUTDOWN_MESSAGE;
use sahasra_names::{DeviceName, OwnerUid};
use sahasra_ranges::AttemptRange;
use sahasra_wire::{
    burst::{ChunkRange, Failure, FailureCode, Failures, Results, Returned, ServerFrame, server_frame},
    frame,
    grants::{Owner, Refusal, RejectionCode},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    burst_executors::{OutstandingChunks, ProgramSpec},
    metrics::SUCCEEDED,
};

mod batch;
mod host;
mod lane;
mod outputs;
mod retention;

pub(crate) use host::Host;
pub use host::Parts;
use lane::Lane;
pub(crate) use outputs::{Outputs, Reported};
use retention::Retention;

/// One owner's work on this agent, see the [module](self).
#[derive(Debug)]
pub(crate) struct Burst {
    owner_uid: OwnerUid,
    namespace: String,
    program: Arc<ProgramSpec>,
    max_retained_bytes: usize,
    chunks: Arc<OutstandingChunks>,
    state: Mutex<State>,
    /// Version of the state. Each change wakes the stream's writer and other waiters.
    version: watch::Sender<u64>,
    closed: CancellationToken,
}

#[derive(Debug)]
struct State {
    term: u64,
    outputs: Outputs,
    retention: Retention,
    /// Number of the current stream, or 0 without one.
    stream: u64,
    streams: u64,
    /// Unstarted chunks to return to the current stream, each with whether the reason is a lack of slices. Not kept for a later stream,
    /// whose list of outstanding chunks simply lacks them.
    returned: VecDeque<(ChunkRange, bool)>,
    /// Highest sequence number handed to the current stream.
    sent: u64,
    lanes: BTreeMap<DeviceName, Arc<Lane>>,
}

/// State of a burst that a new stream starts from.
#[derive(Debug)]
pub(crate) struct Attached {
    /// Number of the stream. Frames of earlier streams are ignored.
    pub stream: u64,
    /// Chunks that still run or wait, with the number of their device.
    pub chunks: Vec<(usize, AttemptRange)>,
    /// Highest sequence number so far.
    pub sequence: u64,
    /// Sequence number of the last retained frame that is sent again, or 0 without one.
    pub last_repeated: u64,
    /// The burst had an earlier stream, and nothing of it was dropped since.
    pub resumed: bool,
}

/// Next action of a stream's writer.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// Frames to send, encoded.
    Frames(Vec<Bytes>),
    Nothing,
    /// Another stream, of this term, has replaced the stream.
    Replaced(u64),
    /// The agent is shutting down, and everything was sent.
    Finished,
}

/// Limit of frames handed to a stream's writer at a time.
const FRAMES_AT_A_TIME: usize = 16;

impl Burst {
    /// Creates a burst with an empty index of chunks. Its results are numbered from `sequence + 1` on.
    pub(crate) fn new(
        owner: &Owner,
        program: Arc<ProgramSpec>,
        outputs: Outputs,
        chunks: OutstandingChunks,
        max_retained_bytes: usize,
        sequence: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            owner_uid: OwnerUid::from(&owner.uid),
            namespace: owner.namespace.clone(),
            program,
            max_retained_bytes,
            chunks: Arc::new(chunks),
            state: Mutex::new(State {
                term: owner.term,
                outputs,
                retention: Retention::after(sequence),
                stream: 0,
                streams: 0,
                returned: VecDeque::new(),
                sent: sequence,
                lanes: BTreeMap::new(),
            }),
            version: watch::Sender::new(0),
            closed: CancellationToken::new(),
        })
    }

    /// Wakes all waiters after a change. The state must not be locked: conditions of waiters lock it while they hold the channel's lock.
    pub(crate) fn announce(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// Returns a receiver that is notified of every change.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(crate) fn program(&self) -> &Arc<ProgramSpec> {
        &self.program
    }

    /// Returns the highest sequence number so far.
    pub(crate) fn sequence(&self) -> u64 {
        self.state.lock().retention.sequence()
    }

    pub(crate) fn has_stream(&self) -> bool {
        self.state.lock().stream != 0
    }

    /// Returns whether the burst has neither outstanding chunks nor slices in use, so that another program may replace it.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        self.chunks.is_empty() && state.lanes.values().all(|lane| lane.is_idle())
    }

    /// Makes a new stream the current one. It receives all retained frames from the start, except those that `covered` covers.
    pub(crate) fn attach(&self, term: u64, outputs: Outputs, covered: &[u64]) -> Attached {
        let attached = {
            let mut state = self.state.lock();
            state.term = state.term.max(term);
            state.outputs = outputs;
            state.retention.cover(covered);
            state.streams += 1;
            state.stream = state.streams;
            state.returned.clear();
            state.sent = 0;
            Attached {
                stream: state.stream,
                sequence: state.retention.sequence(),
                last_repeated: state.retention.last_kept(),
                resumed: state.stream > 1,
                chunks: self.chunks.chunks(),
            }
        };
        self.poke();
        self.announce();
        attached
    }

    /// Ends a stream. Returns `false` when another stream had replaced it.
    pub(crate) fn detach(&self, stream: u64) -> bool {
        let mut state = self.state.lock();
        let current = state.stream == stream;
        if current {
            state.stream = 0;
            state.returned.clear();
        }
        drop(state);
        self.announce();
        current
    }

    /// Returns what the stream must send next.
    pub(crate) fn outgoing(&self, stream: u64, draining: bool) -> Outgoing {
        let mut state = self.state.lock();
        if state.stream != stream {
            return Outgoing::Replaced(state.term);
        }
        let mut frames = Vec::new();
        let (held, without): (Vec<_>, Vec<_>) = state.returned.drain(..).partition(|(_, without_slices)| !without_slices);
        for (returned, without_slices) in [(held, false), (without, true)] {
            if !returned.is_empty() {
                let ranges = returned.into_iter().map(|(range, _)| range).collect();
                let frame = ServerFrame::from(server_frame::Kind::Returned(Returned { ranges, without_slices }));
                frames.push(frame::encode(&frame));
            }
        }
        let mut sent = state.sent;
        for (sequence, frame) in state.retention.after_sequence(sent).take(FRAMES_AT_A_TIME) {
            frames.push(frame.clone());
            sent = sequence;
        }
        state.sent = sent;
        if !frames.is_empty() {
            return Outgoing::Frames(frames);
        }
        if draining && self.chunks.is_empty() {
            return Outgoing::Finished;
        }
        Outgoing::Nothing
    }

    /// Accepts chunks from the stream and passes them to the lanes. On an error no chunk was accepted, and the stream must be rejected.
    pub(crate) fn submit(self: &Arc<Self>, host: &Arc<dyn Host>, stream: u64, ranges: &[ChunkRange]) -> Result<(), Refusal> {
        let devices = host.parts().pool.devices();
        let mut chunks = Vec::with_capacity(ranges.len());
        for range in ranges {
            let place = host.parts().pool.place(&range.device).ok_or_else(|| {
                let message = format!("device {:?} not found", range.device);
                Refusal::new(RejectionCode::UnknownDevice, message)
            })?;
            chunks.push((place, AttemptRange::from(range)));
        }
        {
            let state = self.state.lock();
            if state.stream != stream {
                return Err(Refusal::invalid("replaced by another stream"));
            }
            self.chunks.submit(&chunks).map_err(|error| Refusal::invalid(error.to_string()))?;
        }
        for chunks in chunks.chunk_by(|(place, _), (next, _)| place == next) {
            let device = &devices[chunks[0].0].name;
            let ranges: Vec<AttemptRange> = chunks.iter().map(|(_, range)| *range).collect();
            if host.parts().draining.is_cancelled() {
                self.fail(host.as_ref(), device, &ranges, FailureCode::ShuttingDown, SHUTDOWN_MESSAGE);
            } else if host.active_slices(&self.owner_uid, device) == 0 {
                // The slices were released or have expired, which the coordinator does not know yet.
                ranges.iter().for_each(|range| self.give_back(device, *range, true));
            } else if let Err(error) = self.lane(host, device).and_then(|lane| lane.start(ranges.clone())) {
                self.fail(host.as_ref(), device, &ranges, FailureCode::ExecutorLost, &error);
            }
        }
        Ok(())
    }

    fn lane(self: &Arc<Self>, host: &Arc<dyn Host>, device: &DeviceName) -> Result<Arc<Lane>, String> {
        let mut state = self.state.lock();
        if let Some(lane) = state.lanes.get(device) {
            return Ok(Arc::clone(lane));
        }
        let opened = host.parts().pool.open(device, &self.namespace, self.program.clone(), &self.chunks);
        let (run, events) = opened.map_err(|error| error.to_string())?;
        let lane = lane::start(host, self, device, run, events);
        state.lanes.insert(device.clone(), Arc::clone(&lane));
        Ok(lane)
    }

    /// Drops the retained frames up to `sequence`, which a checkpoint covers.
    pub(crate) fn acknowledge(&self, stream: u64, sequence: u64) {
        let mut state = self.state.lock();
        if state.stream == stream {
            state.retention.acknowledge(sequence);
            drop(state);
            self.poke();
        }
    }

    /// Asks executors to return the chunks that have not started, on the device or on all devices when `device` is empty.
    pub(crate) fn withdraw(&self, device: &str) {
        let state = self.state.lock();
        for lane in state.lanes.values().filter(|lane| device.is_empty() || *lane.device == *device) {
            lane.run.withdraw();
        }
    }

    /// Retains the results and failures of chunks that ended on a device until they are acknowledged.
    fn publish(&self, host: &dyn Host, device: &DeviceName, ended: batch::Ended) {
        let mut state = self.state.lock();
        for run in &ended.runs {
            self.chunks.remove(AttemptRange::from(run));
            host.parts().metrics.chunks(SUCCEEDED, run.count);
        }
        for failure in &ended.failures {
            self.chunks.remove(AttemptRange::from(failure));
            host.parts().metrics.chunks(failure.code().label(), failure.count);
        }
        let indices = ended.runs.iter().map(|run| (run.first, run.count)).collect();
        state.retention.keep(indices, |sequence| {
            ServerFrame::from(server_frame::Kind::Results(Results {
                sequence,
                device: device.to_string(),
                runs: ended.runs,
                segment: ended.segment,
            }))
        });
        let indices = ended.failures.iter().map(|failure| (failure.first, failure.count)).collect();
        state.retention.keep(indices, |sequence| {
            ServerFrame::from(server_frame::Kind::Failures(Failures {
                sequence,
                device: device.to_string(),
                failures: ended.failures,
            }))
        });
        drop(state);
        self.announce();
    }

    fn fail(&self, host: &dyn Host, device: &DeviceName, ranges: &[AttemptRange], code: FailureCode, message: &str) {
        let failures = ranges.iter().map(|range| Failure::new(*range, code, message));
        let failures: Vec<Failure> = failures.collect();
        self.publish(
            host,
            device,
            batch::Ended {
                failures,
                ..batch::Ended::default()
            },
        );
    }

    /// Returns unstarted chunks to the current stream.
    fn give_back(&self, device: &DeviceName, range: AttemptRange, without_slices: bool) {
        let mut state = self.state.lock();
        self.chunks.remove(range);
        if state.stream != 0 {
            state.returned.push_back((ChunkRange::new(device.as_str(), range), without_slices));
        }
        drop(state);
        self.announce();
    }

    /// Returns whether lanes may take results from executors: not while too many retained bytes wait for a checkpoint.
    fn has_room(&self) -> bool {
        self.state.lock().retention.bytes() < self.max_retained_bytes
    }

    /// Returns the current term, and the destination of outputs.
    fn outputs(&self) -> (u64, Outputs) {
        let state = self.state.lock();
        (state.term, state.outputs.clone())
    }

    fn is_storing(&self) -> bool {
        self.state.lock().outputs.store.is_some()
    }

    /// Wakes the lanes after a change that they depend on: of slices, of retained bytes, or to shutdown.
    pub(crate) fn poke(&self) {
        self.state.lock().lanes.values().for_each(|lane| lane.poke());
    }

    /// Wakes the lane of a device on which the owner has fewer slices.
    pub(crate) fn shrunk(&self, device: &DeviceName) {
        if let Some(lane) = self.state.lock().lanes.get(device) {
            lane.poke();
        }
    }

    /// Kills the executor on the device. Its running chunks fail with `code`.
    pub(crate) fn kill(&self, device: &DeviceName, code: FailureCode) {
        if let Some(lane) = self.state.lock().lanes.get(device) {
            lane.run.kill(code);
        }
    }

    /// Kills the burst's executors on all devices. Their running chunks fail with `code`.
    pub(crate) fn kill_all(&self, code: FailureCode) {
        self.state.lock().lanes.values().for_each(|lane| lane.run.kill(code));
    }

    /// Stops the lanes, which drop their chunks.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.announce();
    }

    /// Waits until no chunk is outstanding and no slice is in use.
    pub(crate) async fn settled(&self) {
        let _ = self.watch().wait_for(|_| self.is_idle()).await;
    }

    pub(crate) async fn streams_closed(&self) {
        let _ = self.watch().wait_for(|_| !self.has_stream()).await;
    }
}
