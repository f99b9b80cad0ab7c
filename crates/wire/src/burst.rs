//! The burst stream: frames of a coordinator and of an agent. `proto/burst.proto` has the messages and the order in which they are sent.

use std::time::Duration;

use bytes::Bytes;
use sahasra_ranges::AttemptRange;

include!(concat!(env!("OUT_DIR"), "/sahasra.burst.rs"));

/// Time within which the whole [`Open`] frame must arrive; otherwise the agent ends the stream. The frame has up to 57 MiB and shares the
/// coordinator's network link with the streams of other agents.
pub const OPEN_WITHIN: Duration = Duration::from_secs(10);

impl From<client_frame::Kind> for ClientFrame {
    fn from(kind: client_frame::Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

impl From<server_frame::Kind> for ServerFrame {
    fn from(kind: server_frame::Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

impl ChunkRange {
    pub fn new(device: impl Into<String>, chunks: AttemptRange) -> Self {
        let (device, AttemptRange { first, count, attempt }) = (device.into(), chunks);
        Self {
            device,
            first,
            count,
            attempt,
        }
    }
}

impl ResultRun {
    pub fn new(chunks: AttemptRange, outputs: Bytes) -> Self {
        let AttemptRange { first, count, attempt } = chunks;
        Self {
            first,
            count,
            attempt,
            outputs,
        }
    }
}

impl Failure {
    pub fn new(chunks: AttemptRange, code: FailureCode, message: impl Into<String>) -> Self {
        let AttemptRange { first, count, attempt } = chunks;
        Self {
            first,
            count,
            attempt,
            code: code.into(),
            message: message.into(),
        }
    }

    /// Adds chunks that follow these and failed in the same attempt for the same reason. Returns `false`, and changes nothing, for others.
    pub fn extend(&mut self, chunks: AttemptRange, code: FailureCode, message: &str) -> bool {
        let mut all = AttemptRange::from(&*self);
        let extends = self.code() == code && self.message == message && all.extend(chunks);
        self.count = all.count;
        extends
    }
}

macro_rules! attempt_ranges {
    ($($message:ident)*) => {$(
        impl From<&$message> for AttemptRange {
            fn from(range: &$message) -> Self {
                let &$message { first, count, attempt, .. } = range;
                Self { first, count, attempt }
            }
        }
    )*};
}

attempt_ranges!(ChunkRange ResultRun Failure);

impl FailureCode {
    /// Returns whether another attempt may succeed. Codes below 20 are transient: a lost grant, agent or executor does not mean that the
    /// kernel is faulty.
    pub const fn is_transient(self) -> bool {
        (self as i32) < 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_codes_of_failures_are_all() {
        let known = (0..1000).filter_map(|code| FailureCode::try_from(code).ok());
        assert!(FailureCode::all().eq(known));
    }
}
