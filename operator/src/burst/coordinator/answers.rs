//! Records what agents report on the streams: results, failures, and chunks that are returned unstarted.

use sahasra_names::{DeviceId, WorkerName};
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::{FailureCode, Failures, Results as ResultsFrame, Returned};

use super::{Coordinator, streams::Stream};
use crate::burst::{account::FailureOutcome, checkpoint::Results, results_store::Segment};

impl Stream {
    /// The chunks of a repeated failure that it may concern: those that the agent no longer had when the stream was opened. The agent
    /// may run the others again in the same attempt, because a coordinator that had not received the failure submitted them again.
    fn ended_before(&self, chunks: AttemptRange) -> Vec<AttemptRange> {
        let unsettled = self.unsettled.iter();
        let parts = unsettled.flat_map(|unsettled| unsettled.chunks.within(chunks.indices()));
        parts.map(|(part, _)| AttemptRange::new(part, chunks.attempt)).collect()
    }
}

impl Coordinator {
    pub(super) fn on_results(&mut self, worker: &WorkerName, results: &ResultsFrame) {
        self.seen(worker, results.sequence);
        let bytes = self.burst.layout.record_bytes();
        let mut answered = 0;
        let mut done = 0;
        let mut counted = Vec::new();
        for run in &results.runs {
            let expected = usize::try_from(run.count).ok().and_then(|count| count.checked_mul(bytes));
            if Some(run.outputs.len()) != expected || run.first.saturating_add(run.count) > self.burst.total {
                tracing::error!(
                    %worker,
                    first = run.first,
                    count = run.count,
                    bytes = run.outputs.len(),
                    "ignoring results of the wrong size"
                );
                continue;
            }
            answered += run.count;
            self.account.answered(worker, AttemptRange::from(run).indices());
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
        self.settle(worker);
    }

    pub(super) fn on_failures(&mut self, worker: &WorkerName, failures: &Failures) {
        let Some(stream) = self.streams.get(worker) else { return };
        if failures.sequence <= stream.highest_sequence {
            self.seen(worker, failures.sequence);
            return self.settle(worker);
        }
        let reported_before = stream.open().is_some_and(|open| failures.sequence <= open.reported_before);
        let key = DeviceId::new(worker.clone(), failures.device.as_str());
        let now = self.now();
        let mut answered = 0;
        for failure in &failures.failures {
            answered += failure.count;
            let (code, chunks) = (failure.code(), AttemptRange::from(failure));
            let Some(stream) = self.streams.get_mut(worker) else { return };
            // The chunk is not at fault, so this costs no attempt. But it must not be submitted to this agent again.
            let is_returned = code == FailureCode::ShuttingDown;
            stream.ending |= is_returned;
            let concerned = if reported_before {
                stream.ended_before(chunks)
            } else {
                vec![chunks]
            };
            if !reported_before {
                self.account.answered(worker, chunks.indices());
                if code == FailureCode::GrantExpired {
                    self.nothing_held(worker, &failures.device);
                }
            }
            let mut outcome = FailureOutcome::default();
            for chunks in concerned {
                if is_returned {
                    self.account.returned(&key, chunks);
                } else {
                    outcome += self.account.failed(&key, chunks, code, &failure.message, now);
                }
            }
            tracing::debug!(%worker, device = failures.device, first = failure.first, count = failure.count, %code, message = failure.message, "attempts failed");
            self.count_failed(failure.count, code, outcome);
        }
        self.seen(worker, failures.sequence);
        self.answered(worker, &failures.device, answered);
        self.settle(worker);
    }

    pub(super) fn on_returned(&mut self, worker: &WorkerName, returned: &Returned) {
        for range in &returned.ranges {
            if returned.without_slices {
                self.nothing_held(worker, &range.device);
            }
            self.account.answered(worker, AttemptRange::from(range).indices());
        }
        self.take_back(worker, &returned.ranges);
    }

    /// Handles a report of the agent that no slice is held on a device, which the pool does not know yet.
    fn nothing_held(&mut self, worker: &WorkerName, device: &str) {
        let key = DeviceId::new(worker.clone(), device);
        // Slices that the pool released itself are expected to be missing.
        if self.devices.get(&key).is_some_and(|device| device.window.slices() > 0) {
            self.pause(&key, self.now());
            self.context.pool.suspect(worker);
        }
    }

    pub(super) fn answered(&mut self, worker: &WorkerName, device: &str, chunks: u64) {
        let now = self.now();
        if let Some(device) = self.devices.get_mut(&DeviceId::new(worker.clone(), device)) {
            device.window.answered(chunks, now);
        }
    }
}
