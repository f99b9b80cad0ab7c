//! Results of a lane that have not been sent: runs of consecutive chunks, so that many small results fit one frame.

use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_executor_protocol::burst::messages::{Ended, from_executor::Kind};
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::{Failure, ResultRun};

use super::program::Failed;
use super::report::Reporter;

/// Age of the oldest result at which a lane sends its results, checked after each chunk.
pub(crate) const REPORT_AGE: Duration = Duration::from_millis(2);
/// Size of the outputs, in bytes, at which a lane sends its results.
const REPORT_BYTES: usize = 256 << 10;

/// Unsent results of one run. They must be sent before results of another run are added.
#[derive(Default)]
pub(crate) struct Results {
    run: u64,
    /// Concatenated outputs of `succeeded`.
    outputs: Vec<u8>,
    /// Runs of consecutive indices, each with the number of its bytes in `outputs`.
    succeeded: Vec<(AttemptRange, usize)>,
    failed: Vec<Failure>,
    since: Option<Instant>,
}

impl Results {
    /// Adds a successful chunk. Takes its outputs and leaves an empty buffer that can be reused.
    pub(crate) fn succeeded(&mut self, run: u64, index: u64, attempt: u32, outputs: &mut Vec<u8>) {
        self.note(run);
        let bytes = outputs.len();
        if self.outputs.is_empty() {
            std::mem::swap(&mut self.outputs, outputs);
        } else {
            self.outputs.append(outputs);
        }
        let chunk = AttemptRange::new(index..index + 1, attempt);
        if let Some((last, length)) = self.succeeded.last_mut()
            && last.extend(chunk)
        {
            *length += bytes;
        } else {
            self.succeeded.push((chunk, bytes));
        }
    }

    pub(crate) fn failed(&mut self, run: u64, index: u64, attempt: u32, failed: Failed) {
        self.note(run);
        let chunk = AttemptRange::new(index..index + 1, attempt);
        let extends = |last: &mut Failure| last.extend(chunk, failed.code, &failed.message);
        if !self.failed.last_mut().is_some_and(extends) {
            self.failed.push(Failure::new(chunk, failed.code, failed.message));
        }
    }

    fn note(&mut self, run: u64) {
        debug_assert!(self.since.is_none() || self.run == run, "results of two runs in one message");
        self.run = run;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether the oldest result has reached [`REPORT_AGE`].
    pub(crate) fn is_old(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= REPORT_AGE)
    }

    /// Whether the results should be sent before the next chunk.
    pub(crate) fn is_due(&self) -> bool {
        self.outputs.len() >= REPORT_BYTES || self.is_old()
    }

    /// Sends the results if there are any.
    pub(crate) fn send(&mut self, reporter: &Reporter) {
        if self.since.take().is_none() {
            return;
        }
        let capacity = self.outputs.len();
        let mut outputs = Bytes::from(std::mem::replace(&mut self.outputs, Vec::with_capacity(capacity.min(REPORT_BYTES))));
        let succeeded = self.succeeded.drain(..);
        let succeeded = succeeded.map(|(chunks, bytes)| ResultRun::new(chunks, outputs.split_to(bytes)));
        let ended = Ended {
            run: self.run,
            succeeded: succeeded.collect(),
            failed: std::mem::take(&mut self.failed),
        };
        reporter.send_all([Kind::Ended(ended)]);
    }
}
