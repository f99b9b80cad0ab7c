//! Batches of results and failures on their way from an executor to the coordinator, merged into few runs.

use bytes::{Bytes, BytesMut};
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::{Failure, FailureCode, ResultRun};

/// Chunks that ended, in the form in which they are reported.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub runs: Vec<ResultRun>,
    pub failures: Vec<Failure>,
    /// Name of the object that holds the outputs; empty without a store.
    pub segment: String,
}

/// Chunks that ended and are not reported yet.
#[derive(Debug, Default)]
pub(super) struct Batch {
    succeeded: Vec<(AttemptRange, Bytes)>,
    failures: Vec<Failure>,
    bytes: usize,
}

/// Size that each run counts for in addition to its outputs.
const RUN_BYTES: usize = 32;

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.succeeded.is_empty() && self.failures.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn succeed(&mut self, range: AttemptRange, outputs: Bytes) {
        self.bytes += RUN_BYTES + outputs.len();
        self.succeeded.push((range, outputs));
    }

    /// Adds chunks that failed. Merges them with the last failure when they follow its chunks and have the same attempt, code and message.
    pub(crate) fn fail(&mut self, range: AttemptRange, code: FailureCode, message: String) {
        let extends = |last: &mut Failure| last.extend(range, code, &message);
        if !self.failures.last_mut().is_some_and(extends) {
            self.bytes += RUN_BYTES + message.len();
            self.failures.push(Failure::new(range, code, message));
        }
    }

    /// Removes the successes and returns them in the order of their indices.
    pub(crate) fn take_succeeded(&mut self) -> Vec<(AttemptRange, Bytes)> {
        self.bytes = self.failures.iter().map(|failure| RUN_BYTES + failure.message.len()).sum();
        let mut succeeded = std::mem::take(&mut self.succeeded);
        succeeded.sort_by_key(|(range, _)| range.first);
        succeeded
    }

    /// Removes the failures and returns them. The successes stay.
    pub(crate) fn take_failures(&mut self) -> Ended {
        let failures = std::mem::take(&mut self.failures);
        self.bytes = self.succeeded.iter().map(|(_, outputs)| RUN_BYTES + outputs.len()).sum();
        Ended {
            failures,
            ..Ended::default()
        }
    }
}

/// Merges adjacent runs of the same attempt. `succeeded` must be in the order of the indices.
pub(super) fn joined(succeeded: Vec<(AttemptRange, Bytes)>) -> Vec<ResultRun> {
    let mut runs: Vec<ResultRun> = Vec::new();
    let mut rest = succeeded.into_iter().peekable();
    while let Some((mut range, mut outputs)) = rest.next() {
        let mut longer: Option<BytesMut> = None;
        while let Some((_, next)) = rest.next_if(|(next, _)| range.extend(*next)) {
            let bytes = longer.get_or_insert_with(|| BytesMut::from(std::mem::take(&mut outputs)));
            bytes.extend_from_slice(&next);
        }
        runs.push(ResultRun::new(range, longer.map_or(outputs, BytesMut::freeze)));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, count: u64, attempt: u32) -> AttemptRange {
        AttemptRange { first, count, attempt }
    }

    #[test]
    fn neighbours_of_one_attempt_become_one_run() {
        let mut batch = Batch::default();
        batch.succeed(range(4, 1, 1), Bytes::from_static(b"e"));
        batch.succeed(range(0, 2, 1), Bytes::from_static(b"ab"));
        batch.succeed(range(3, 1, 2), Bytes::from_static(b"D"));
        batch.succeed(range(2, 1, 1), Bytes::from_static(b"c"));
        batch.fail(range(7, 1, 1), FailureCode::Trap, "trap".to_owned());
        batch.fail(range(8, 2, 1), FailureCode::Trap, "trap".to_owned());
        batch.fail(range(10, 1, 1), FailureCode::Trap, "another".to_owned());
        let ended = batch.take_failures();
        let runs = joined(batch.take_succeeded());
        let runs: Vec<(u64, u64, u32, &[u8])> = runs
            .iter()
            .map(|run| (run.first, run.count, run.attempt, &run.outputs[..]))
            .collect();
        assert_eq!(runs, [(0, 3, 1, &b"abc"[..]), (3, 1, 2, b"D"), (4, 1, 1, b"e")]);
        let failures: Vec<(u64, u64)> = ended.failures.iter().map(|failure| (failure.first, failure.count)).collect();
        assert_eq!(failures, [(7, 3), (10, 1)]);
        assert!(batch.is_empty() && batch.bytes() == 0);
    }
}
