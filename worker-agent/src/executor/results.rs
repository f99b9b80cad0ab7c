//! What a lane has ended and not sent yet: runs of consecutive chunks, so that many small results make one frame.

use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_wire::burst::{Failure, ResultRun};

use super::program::Failed;
use super::protocol::{Ended, from_executor::Kind};
use super::queue::{Batch, message};
use super::report::Reporter;

/// Results are sent when the first of them is this old and the lane looks,
pub const REPORT_AGE: Duration = Duration::from_millis(2);
/// or when there are so many bytes of them.
const REPORT_BYTES: usize = 256 << 10;

/// Results of one run; another's begin when these are sent.
#[derive(Default)]
pub struct Results {
    run: u64,
    /// Outputs of `succeeded`, one after the other.
    outputs: Vec<u8>,
    /// Runs of consecutive indices, with how many bytes of `outputs` are theirs.
    succeeded: Vec<(Batch, usize)>,
    failed: Vec<Failure>,
    since: Option<Instant>,
}

impl Results {
    /// A chunk succeeded. Takes its outputs and leaves an empty buffer to use again.
    pub fn succeeded(&mut self, run: u64, index: u64, attempt: u32, outputs: &mut Vec<u8>) {
        self.note(run);
        let bytes = outputs.len();
        if self.outputs.is_empty() {
            std::mem::swap(&mut self.outputs, outputs);
        } else {
            self.outputs.append(outputs);
        }
        if let Some((last, length)) = self.succeeded.last_mut()
            && last.first + last.count == index
            && last.attempt == attempt
        {
            last.count += 1;
            *length += bytes;
            return;
        }
        let batch = Batch {
            first: index,
            count: 1,
            attempt,
        };
        self.succeeded.push((batch, bytes));
    }

    /// A chunk failed.
    pub fn failed(&mut self, run: u64, index: u64, attempt: u32, failed: Failed) {
        self.note(run);
        if let Some(last) = self.failed.last_mut()
            && last.first + last.count == index
            && last.attempt == attempt
            && last.code == i32::from(failed.code)
            && last.message == failed.message
        {
            last.count += 1;
            return;
        }
        self.failed.push(Failure {
            first: index,
            count: 1,
            attempt,
            code: failed.code.into(),
            message: failed.message,
        });
    }

    fn note(&mut self, run: u64) {
        debug_assert!(self.since.is_none() || self.run == run, "results of two runs in one message");
        self.run = run;
        self.since.get_or_insert_with(Instant::now);
    }

    /// They have waited for long enough.
    pub fn is_old(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= REPORT_AGE)
    }

    /// They should be sent before the next chunk.
    pub fn is_due(&self) -> bool {
        self.outputs.len() >= REPORT_BYTES || self.is_old()
    }

    /// Sends them, if there are any.
    pub fn send(&mut self, reporter: &Reporter) {
        if self.since.take().is_none() {
            return;
        }
        let capacity = self.outputs.len();
        let mut outputs = Bytes::from(std::mem::replace(&mut self.outputs, Vec::with_capacity(capacity.min(REPORT_BYTES))));
        let succeeded = self.succeeded.drain(..).map(|(batch, bytes)| ResultRun {
            first: batch.first,
            count: batch.count,
            attempt: batch.attempt,
            outputs: outputs.split_to(bytes),
        });
        let ended = Ended {
            run: self.run,
            succeeded: succeeded.collect(),
            failed: std::mem::take(&mut self.failed),
        };
        reporter.send_all(Some(message(Kind::Ended(ended))));
    }
}
