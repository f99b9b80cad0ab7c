//! A lane is one device's part of a burst. It keeps the executor's concurrency at the number of slices that the ledger allows, and collects
//! results.
//!
//! A slice counts as in use at the ledger before the executor may use it, and until the executor has settled at a lower concurrency: the
//! ledger counts it for as long as the device may hold anything for it.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use sahasra_names::{DeviceName, OwnerUid};
use sahasra_ranges::AttemptRange;
use sahasra_service::tasks;
use sahasra_wire::burst::FailureCode;
use tokio::{sync::Notify, time::Instant};
use tracing::Instrument;

use super::{
    Burst, Host, Outputs, Reported,
    batch::{Batch, Ended, joined},
};
use crate::{
    burst_executors::{Event, Events, ProgramSpec, Run},
    store::{self, SegmentName},
};

/// Longest time that results wait for others in the same frame.
const FLUSH_INTERVAL: Duration = Duration::from_millis(5);
/// Size at which a frame is sent.
const FLUSH_BYTES: usize = 64 << 10;
/// Longest time that results for a store wait for others in the same segment, which makes objects fewer and larger.
const SEGMENT_INTERVAL: Duration = Duration::from_millis(500);
/// Size at which a segment is written.
const SEGMENT_BYTES: usize = 8 << 20;

/// The burst's handle of a lane.
#[derive(Debug)]
pub(super) struct Lane {
    pub device: DeviceName,
    pub run: Run,
    poke: Notify,
    /// Slices in use.
    occupied: AtomicU32,
}

impl Lane {
    /// Returns whether no slice is in use.
    pub(crate) fn is_idle(&self) -> bool {
        self.occupied.load(Ordering::Acquire) == 0
    }

    /// Passes outstanding chunks to the executor.
    pub(crate) fn start(&self, ranges: Vec<AttemptRange>) -> Result<(), String> {
        self.run.start(ranges).map_err(|error| error.to_string())?;
        self.poke();
        Ok(())
    }

    /// Wakes the lane after a change that it depends on.
    pub(crate) fn poke(&self) {
        self.poke.notify_one();
    }
}

/// Starts a lane. It ends when the burst is closed or dropped, or when the executors have shut down.
pub(super) fn start(host: &Arc<dyn Host>, burst: &Arc<Burst>, device: &DeviceName, run: Run, events: Events) -> Arc<Lane> {
    let lane = Arc::new(Lane {
        device: device.clone(),
        run,
        poke: Notify::new(),
        occupied: AtomicU32::new(0),
    });
    let worker = Worker {
        host: Arc::clone(host),
        burst: Arc::downgrade(burst),
        owner_uid: burst.owner_uid.clone(),
        lane: Arc::clone(&lane),
        events,
        limits: VecDeque::new(),
        occupied: 0,
        withdrawn: false,
        batch: Batch::default(),
        batch_since: Instant::now(),
        flushed: Instant::now(),
        writing: None,
    };
    // Not within the span of the stream, which the lane can outlive.
    let span =
        tracing::info_span!(parent: None, "lane", owner = burst.owner_uid.as_str(), namespace = burst.namespace, device = device.as_str());
    tasks::spawn(worker.work(burst.closed.clone()).instrument(span));
    lane
}

type Writing = Pin<Box<dyn Future<Output = Ended> + Send>>;

struct Worker {
    host: Arc<dyn Host>,
    burst: Weak<Burst>,
    owner_uid: OwnerUid,
    lane: Arc<Lane>,
    events: Events,
    /// Concurrency limits that were sent to the executor and at which it has not settled, at most two.
    limits: VecDeque<u32>,
    occupied: u32,
    /// Unstarted chunks were withdrawn because no slice is left. Until the executor has settled at 0, chunks that it returns count as
    /// returned for lack of slices.
    withdrawn: bool,
    batch: Batch,
    /// When the first chunk of the batch arrived.
    batch_since: Instant,
    flushed: Instant,
    writing: Option<Writing>,
}

impl Worker {
    async fn work(mut self, closed: tokio_util::sync::CancellationToken) {
        loop {
            let Some(burst) = self.burst.upgrade() else { break };
            self.adjust();
            let storing = burst.is_storing();
            // While slices must be vacated, events are taken even without room for results: the retained bytes may then exceed their limit
            // by the results that the executor already had.
            let may_take = self.batch_has_room(storing) && (burst.has_room() || !self.limits.is_empty());
            let flush_at = self.flush_at(storing);
            drop(burst);
            tokio::select! {
                biased;
                () = closed.cancelled() => break,
                ended = async { self.writing.as_mut().expect("checked").await }, if self.writing.is_some() => {
                    self.writing = None;
                    self.publish(ended);
                }
                () = tokio::time::sleep_until(flush_at), if !self.batch.is_empty() && self.writing.is_none() => self.flush(),
                () = self.lane.poke.notified() => {}
                event = self.events.next(), if may_take => match event {
                    Some(event) => self.take(event, storing),
                    None => {
                        self.flush();
                        break;
                    }
                },
            }
        }
        if let Some(writing) = self.writing.take() {
            let ended = writing.await;
            self.publish(ended);
        }
        self.vacate(0);
    }

    fn batch_has_room(&self, storing: bool) -> bool {
        self.batch.bytes() < if storing { SEGMENT_BYTES } else { FLUSH_BYTES }
    }

    fn flush_at(&self, storing: bool) -> Instant {
        if !self.batch_has_room(storing) || self.lane.run.outstanding() == 0 || self.host.parts().draining.is_cancelled() {
            return Instant::now();
        }
        if storing {
            self.batch_since + SEGMENT_INTERVAL
        } else {
            // The first result after a pause is sent at once: only results that follow closely are merged.
            self.flushed + FLUSH_INTERVAL
        }
    }

    /// Handles an event and the events that are queued behind it.
    fn take(&mut self, event: Event, storing: bool) {
        if self.batch.is_empty() {
            self.batch_since = Instant::now();
        }
        let mut next = Some(event);
        while let Some(event) = next {
            self.handle(event);
            next = if self.batch_has_room(storing) {
                self.events.try_next()
            } else {
                None
            };
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Succeeded { range, outputs } => self.batch.succeed(range, outputs),
            Event::Failed { range, code, message } => self.batch.fail(range, code, message),
            Event::Returned { range } => {
                if let Some(burst) = self.burst.upgrade() {
                    let without_slices = self.withdrawn && !self.host.parts().draining.is_cancelled();
                    burst.give_back(&self.lane.device, range, without_slices);
                }
            }
            Event::Settled { concurrency } => self.settled(concurrency),
        }
    }

    /// Sets the executor's concurrency to what the ledger allows now.
    fn adjust(&mut self) {
        let outstanding = self.lane.run.outstanding();
        let draining = self.host.parts().draining.is_cancelled();
        let active = if draining {
            0
        } else {
            self.host.active_slices(&self.owner_uid, &self.lane.device)
        };
        if active == 0 && outstanding > 0 && !self.withdrawn && self.limits.len() < 2 {
            self.withdrawn = true;
            self.lane.run.withdraw();
            // Sent even when the limit is 0 already: the reply marks the end of the chunks that the withdrawal returns.
            self.send_limit(0);
            return;
        }
        let target = if outstanding == 0 { 0 } else { active };
        let latest = self.limits.back().copied().unwrap_or(self.occupied);
        if self.limits.len() >= 2 || target == latest || (self.withdrawn && active == 0) {
            return;
        }
        if target > self.occupied {
            let (uid, device) = (&self.owner_uid, &self.lane.device);
            let wanted = target - self.occupied;
            self.occupied += self.host.occupy(uid, device, wanted);
            self.lane.occupied.store(self.occupied, Ordering::Release);
        }
        let limit = target.min(self.occupied);
        if limit != latest {
            self.send_limit(limit);
        }
    }

    fn send_limit(&mut self, limit: u32) {
        self.lane.run.set_concurrency(limit);
        self.limits.push_back(limit);
    }

    /// Vacates slices: the executor holds at most `concurrency` slices, or the highest limit sent to it since.
    fn settled(&mut self, concurrency: u32) {
        if self.limits.back() == Some(&concurrency) {
            // The executor may answer several calls by its reply to the last one.
            self.limits.clear();
        } else {
            self.limits.pop_front();
        }
        if self.limits.is_empty() {
            self.withdrawn = false;
        }
        let still = self.limits.iter().copied().max().unwrap_or(0);
        self.vacate(concurrency.max(still));
    }

    fn vacate(&mut self, keep: u32) {
        let freed = self.occupied.saturating_sub(keep);
        if freed > 0 {
            self.occupied = keep;
            self.lane.occupied.store(keep, Ordering::Release);
            let (uid, device) = (&self.owner_uid, &self.lane.device);
            self.host.vacate(uid, device, freed);
        }
        if let Some(burst) = self.burst.upgrade() {
            burst.announce();
        }
    }

    fn publish(&self, ended: Ended) {
        if let Some(burst) = self.burst.upgrade() {
            burst.publish(self.host.as_ref(), &self.lane.device, ended);
        }
    }

    /// Reports the batch: at once without a store, otherwise once its segment has been written.
    fn flush(&mut self) {
        self.flushed = Instant::now();
        let Some(burst) = self.burst.upgrade() else { return };
        let (term, Outputs { store, reported }) = burst.outputs();
        let mut ended = self.batch.take_failures();
        let succeeded = self.batch.take_succeeded();
        let Some(store) = store else {
            ended.runs = joined(reported_outputs(succeeded, burst.program(), reported));
            return self.publish(ended);
        };
        if !ended.failures.is_empty() {
            self.publish(ended);
        }
        if succeeded.is_empty() {
            return;
        }
        let parts = self.host.parts();
        let name = SegmentName {
            term,
            attempt: succeeded.iter().map(|(range, _)| range.attempt).max().unwrap_or(1),
            boot_id: parts.boot_id.to_string(),
            counter: parts.segments.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let program = Arc::clone(burst.program());
        let policy = parts.store_policy.clone();
        self.writing = Some(Box::pin(async move {
            let segment = store::write_segment(&policy, &store, &name, &program, &succeeded).await;
            match segment {
                Ok(segment) => Ended {
                    runs: joined(reported_outputs(succeeded, &program, reported)),
                    failures: Vec::new(),
                    segment,
                },
                Err(error) => {
                    tracing::warn!(
                        segment = name.text(),
                        error = &error as &dyn std::error::Error,
                        "failed to write a segment"
                    );
                    let mut batch = Batch::default();
                    for (range, _) in succeeded {
                        batch.fail(range, FailureCode::StoreUnavailable, error.to_string());
                    }
                    batch.take_failures()
                }
            }
        }));
    }
}

/// Reduces the outputs of each chunk to those that the coordinator receives.
fn reported_outputs(succeeded: Vec<(AttemptRange, Bytes)>, program: &ProgramSpec, reported: Reported) -> Vec<(AttemptRange, Bytes)> {
    let chunk_bytes = program.output_bytes as usize;
    let place = match reported {
        Reported::Whole => return succeeded,
        Reported::Output(place) => place as usize,
        Reported::Nothing => usize::MAX,
    };
    let sizes = store::output_sizes(program);
    let start: u64 = sizes.iter().take(place).sum();
    let (start, size) = (start as usize, sizes.get(place).copied().unwrap_or_default() as usize);
    let pick = |outputs: Bytes| match size {
        0 => Bytes::new(),
        _ if size == chunk_bytes => outputs,
        _ => {
            let chunks = outputs.chunks_exact(chunk_bytes);
            let bytes: Vec<u8> = chunks.flat_map(|chunk| &chunk[start..start + size]).copied().collect();
            bytes.into()
        }
    };
    succeeded.into_iter().map(|(range, outputs)| (range, pick(outputs))).collect()
}
