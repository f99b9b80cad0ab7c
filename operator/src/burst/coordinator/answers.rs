//! Records what agents report on the streams: results, failures, and chunks that are returned unstarted.

use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::{FailureCode, Failures, Results as ResultsFrame, Returned};

use super::{
    Coordinator,
    streams::{State, Stream},
};
use crate::burst::{account::DeviceKey, checkpoint::Results, results_store::Segment};

impl Stream {
    /// The parts of a reported failure that may concern adopted attempts. A repeated failure is of an earlier attempt than those that the
    /// agent had when the stream was opened, so it can only concern unsettled chunks.
    fn of_adopted(&self, reported_before: bool, first: u64, count: u64) -> Vec<(u64, u64)> {
        if !reported_before {
            return vec![(first, count)];
        }
        self.unsettled
            .as_ref()
            .map_or_else(Vec::new, |unsettled| unsettled.within(first, count))
    }
}

impl Coordinator {
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
                    "ignoring results of the wrong size"
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
        if failures.sequence <= stream.highest_sequence {
            self.seen(worker, failures.sequence);
            return self.settle(worker);
        }
        let reported_before = matches!(stream.state, State::Open { reported_before, .. } if failures.sequence <= reported_before);
        let key = DeviceKey::new(worker, &failures.device);
        let now = self.context.clock.now();
        let had_adopted = self.account.has_adopted();
        let mut answered = 0;
        for failure in &failures.failures {
            answered += failure.count;
            let code = failure.code();
            if code == FailureCode::GrantExpired && !reported_before {
                self.nothing_held(worker, &failures.device);
            }
            let batch = AttemptRange {
                count: failure.count.min(self.burst.total),
                ..failure.into()
            };
            let stream = self.streams.get_mut(worker);
            let adopted = stream
                .as_ref()
                .map(|stream| stream.of_adopted(reported_before, batch.first, batch.count));
            let adopted = adopted.unwrap_or_default();
            if !reported_before {
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

    pub(super) fn on_returned(&mut self, worker: &str, returned: &Returned) {
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

    pub(super) fn answered(&mut self, worker: &str, device: &str, chunks: u64) {
        let key = DeviceKey::new(worker, device);
        let now = self.context.clock.micros();
        if let Some(device) = self.devices.get_mut(&key) {
            device.window.answered(chunks, now);
        }
        self.recount(&key);
    }
}
