//! The state of every chunk of a burst: pending, in flight on a device, waiting for a retry, succeeded, or permanently failed.
//!
//! Pure: points of time are durations since the clock's origin, and jitter is derived from the seed. Each index is counted exactly once,
//! regardless of the order and repetition of the messages.

mod adoption;
mod flights;
mod retries;

use std::{collections::BTreeMap, ops::Range, time::Duration};

use sahasra_crds::burst_job::status::{ChunkFailure, MAX_FAILURES};
use sahasra_names::{DeviceId, WorkerName};
use sahasra_ranges::{AttemptRange, RangeMap};
use sahasra_service::backoff::Backoff;
use sahasra_wire::burst::FailureCode;

pub(crate) use self::flights::DeviceNumber;
use self::flights::{Flight, Flights};
use self::retries::Retries;
use super::index_set::IndexSet;
use crate::objects::integer;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum number of retries of one chunk after its first attempt.
    pub max_retries: u32,
    pub backoff: Backoff,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FailureOutcome {
    pub retried: u64,
    pub failed: u64,
}

impl std::ops::AddAssign for FailureOutcome {
    fn add_assign(&mut self, other: Self) {
        self.retried += other.retried;
        self.failed += other.failed;
    }
}

/// Numbers of chunks by state. Pending, running, succeeded and failed chunks add up to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub total: u64,
    /// Waiting for a first attempt or a retry.
    pub pending: u64,
    pub running: u64,
    pub succeeded: u64,
    pub failed: u64,
    /// Attempts after the first that were scheduled.
    pub retried: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    total: u64,
    policy: RetryPolicy,
    seed: u64,
    /// Chunks that were never tried, or were returned unstarted on their first attempt.
    fresh: IndexSet,
    retries: Retries,
    in_flight: Flights,
    /// Chunks that the agent of each worker has although they are in flight on another worker, or have ended.
    elsewhere: BTreeMap<WorkerName, RangeMap<Flight>>,
    completed: IndexSet,
    failed: IndexSet,
    causes: BTreeMap<FailureCode, IndexSet>,
    failures: Vec<ChunkFailure>,
    retried: u64,
}

impl Account {
    /// Creates the account of a burst of `total` chunks, none of which has been tried. `seed` makes the jitter of the backoff differ
    /// between bursts.
    pub(crate) fn new(total: u64, policy: RetryPolicy, seed: u64) -> Self {
        Self {
            total,
            policy,
            seed,
            fresh: IndexSet::full(total),
            ..Self::default()
        }
    }

    /// Restores the state of a checkpoint. All other chunks count as not attempted.
    pub(crate) fn restore(
        &mut self,
        completed: IndexSet,
        causes: BTreeMap<FailureCode, IndexSet>,
        failures: Vec<ChunkFailure>,
        retried: u64,
    ) {
        *self = Self::new(self.total, self.policy, self.seed);
        causes.values().for_each(|failed| self.failed.unite(failed));
        self.fresh.subtract(&completed);
        self.fresh.subtract(&self.failed);
        (self.completed, self.causes, self.failures, self.retried) = (completed, causes, failures, retried);
    }

    /// Assigns up to `at_most` chunks to `device`: first retries that are due, then chunks that were never tried.
    pub(crate) fn take(&mut self, device: &DeviceId, at_most: u64, now: Duration) -> Vec<AttemptRange> {
        let mut left = at_most;
        let mut batches = Vec::new();
        while left > 0 {
            let Some(batch) = self.retries.take_front(left, now) else { break };
            batches.push(batch);
            left -= batch.count;
        }
        while left > 0 {
            let Some((first, count)) = self.fresh.take_front(left) else { break };
            batches.push(AttemptRange { first, count, attempt: 1 });
            left -= count;
        }
        let device = self.in_flight.register(device);
        for batch in &batches {
            self.in_flight.insert(batch.indices(), Flight::new(batch.attempt, device));
        }
        batches
    }

    /// Counts results. Returns the ranges (first, count) that had not been counted yet. Only these enter the aggregate.
    pub(crate) fn succeeded(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let count = count.min(self.total.saturating_sub(first));
        // A result counts even if its attempt was given up in the meantime, but a permanent failure stands.
        self.in_flight.cut(first..first + count);
        self.fresh.remove(first, count);
        self.retries.cut(first..first + count);
        let mut counted = Vec::new();
        for (first, count) in self.failed.missing(first, count) {
            counted.extend(self.completed.insert(first, count));
        }
        counted
    }

    /// Counts failed attempts. Ignores chunks that are not in flight on `device` with this attempt, because a failure of an older attempt
    /// was counted before.
    pub(crate) fn failed(
        &mut self,
        device: &DeviceId,
        chunks: AttemptRange,
        code: FailureCode,
        message: &str,
        now: Duration,
    ) -> FailureOutcome {
        let chunks = self.in_flight_on([device], chunks);
        self.end_attempts(chunks, code, message, now)
    }

    /// Makes chunks that came back unstarted wait again, at no cost. Ignores chunks that are not in flight on `device` with this attempt.
    pub(crate) fn returned(&mut self, device: &DeviceId, chunks: AttemptRange) {
        let chunks = self.in_flight_on([device], chunks);
        self.return_attempts(chunks);
    }

    /// Counts all chunks in flight on these devices as lost, with a cause that a retry may overcome.
    pub(crate) fn lost<'a>(
        &mut self,
        devices: impl IntoIterator<Item = &'a DeviceId>,
        code: FailureCode,
        message: &str,
        now: Duration,
    ) -> FailureOutcome {
        let numbers = self.numbers(devices);
        self.end_attempts(self.in_flight.on(&numbers), code, message, now)
    }

    /// Makes chunks that never reached these devices wait again, at no cost: those that are still in flight there with the attempt in
    /// `chunks`.
    pub(crate) fn undelivered<'a>(&mut self, devices: impl IntoIterator<Item = &'a DeviceId> + Clone, chunks: &RangeMap<u32>) {
        for (range, attempt) in chunks.iter() {
            let chunks = self.in_flight_on(devices.clone(), AttemptRange::new(range, *attempt));
            self.return_attempts(chunks);
        }
    }

    /// Number of the device, which is assigned on first use. [`Account::restore`] invalidates all numbers.
    pub(crate) fn register(&mut self, device: &DeviceId) -> DeviceNumber {
        self.in_flight.register(device)
    }

    pub(crate) fn running_on(&self, device: DeviceNumber) -> u64 {
        self.in_flight.chunks_on(device)
    }

    /// Number of chunks that can be assigned at `now`.
    pub(crate) fn ready(&mut self, now: Duration) -> u64 {
        self.fresh.len() + self.retries.ready(now)
    }

    pub(crate) fn next_retry_at(&self) -> Option<Duration> {
        self.retries.next_at()
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            total: self.total,
            pending: self.fresh.len() + self.retries.chunks(),
            running: self.in_flight.chunks(),
            succeeded: self.completed.len(),
            failed: self.failed.len(),
            retried: self.retried,
        }
    }

    /// Whether every chunk has succeeded or permanently failed.
    pub(crate) fn is_finished(&self) -> bool {
        self.completed.len() + self.failed.len() == self.total
    }

    pub(crate) fn completed(&self) -> &IndexSet {
        &self.completed
    }

    pub(crate) fn failed_set(&self) -> &IndexSet {
        &self.failed
    }

    pub(crate) fn causes(&self) -> &BTreeMap<FailureCode, IndexSet> {
        &self.causes
    }

    /// The first failures, at most [`MAX_FAILURES`].
    pub(crate) fn failures(&self) -> &[ChunkFailure] {
        &self.failures
    }

    /// Numbers of these devices, without devices that no chunk was ever assigned to.
    fn numbers<'a>(&self, devices: impl IntoIterator<Item = &'a DeviceId>) -> Vec<DeviceNumber> {
        devices.into_iter().filter_map(|device| self.in_flight.number(device)).collect()
    }

    /// The parts of `chunks` that are in flight on these devices with this attempt.
    fn in_flight_on<'a>(&self, devices: impl IntoIterator<Item = &'a DeviceId>, chunks: AttemptRange) -> Vec<(Range<u64>, Flight)> {
        let numbers = self.numbers(devices);
        let is_same = |flight: Flight| flight.attempt == chunks.attempt && numbers.contains(&flight.device);
        self.in_flight.matching(chunks.indices(), is_same)
    }

    fn end_attempts(&mut self, attempts: Vec<(Range<u64>, Flight)>, code: FailureCode, message: &str, now: Duration) -> FailureOutcome {
        let mut outcome = FailureOutcome::default();
        for (range, flight) in attempts {
            self.in_flight.cut(range.clone());
            outcome += self.attempt_failed(AttemptRange::new(range, flight.made), code, message, now);
        }
        outcome
    }

    /// Makes attempts in flight that were not started wait again.
    fn return_attempts(&mut self, attempts: Vec<(Range<u64>, Flight)>) {
        for (range, flight) in attempts {
            self.in_flight.cut(range.clone());
            self.wait_again(AttemptRange::new(range, flight.made), Duration::ZERO);
        }
    }

    fn attempt_failed(&mut self, chunks: AttemptRange, code: FailureCode, message: &str, now: Duration) -> FailureOutcome {
        let AttemptRange { first, count, attempt } = chunks;
        if !code.is_transient() {
            self.fail_permanently(chunks, code, message);
            return FailureOutcome { retried: 0, failed: count };
        }
        self.retried += count;
        let next = AttemptRange {
            attempt: attempt.saturating_add(1),
            ..chunks
        };
        if attempt <= self.policy.max_retries {
            self.wait_again(next, now + self.backoff(first, attempt));
            return FailureOutcome { retried: count, failed: 0 };
        }
        // No retry is left, but chunks that another agent still has continue there, as this attempt.
        let mut failed = 0;
        for rest in self.go_on_elsewhere(next) {
            self.retried -= rest.count;
            failed += rest.count;
            self.fail_permanently(AttemptRange { attempt, ..rest }, code, message);
        }
        FailureOutcome { retried: 0, failed }
    }

    fn fail_permanently(&mut self, chunks: AttemptRange, code: FailureCode, message: &str) {
        let AttemptRange { first, count, attempt } = chunks;
        self.failed.insert(first, count);
        self.causes.entry(code).or_default().insert(first, count);
        for index in chunks.indices().take(MAX_FAILURES.saturating_sub(self.failures.len())) {
            self.failures.push(ChunkFailure {
                index: integer(index),
                attempts: attempt.into(),
                code: code.label().to_owned(),
                message: if code.is_transient() {
                    format!(
                        "failed after {attempt} {}: {message}",
                        if attempt == 1 { "attempt" } else { "attempts" }
                    )
                } else {
                    message.to_owned()
                },
            });
        }
    }

    fn wait_again(&mut self, chunks: AttemptRange, ready_at: Duration) {
        for rest in self.go_on_elsewhere(chunks) {
            if rest.attempt == 1 {
                self.fresh.insert(rest.first, rest.count);
            } else {
                self.retries.insert(ready_at, rest);
            }
        }
    }

    /// Wait before the next attempt. Doubles with each attempt up to the maximum; half of it is fixed and half is jitter.
    fn backoff(&self, first: u64, attempt: u32) -> Duration {
        let half = self.policy.backoff.after(attempt) / 2;
        let mut random = fastrand::Rng::with_seed(self.seed ^ first.rotate_left(32) ^ u64::from(attempt));
        half + half.mul_f64(random.f64())
    }
}

#[cfg(test)]
mod tests;
