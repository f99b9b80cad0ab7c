//! Measurement of the rate at which a connection accepts bytes.

use std::time::{Duration, Instant};

/// Number of bytes that buffers may absorb before the rate of the connection shows. Linux gives a TCP connection up to 10 MB, and a path
/// through a gateway has two connections.
const ABSORBED_BYTES: u64 = 16 << 20;
/// Size in bytes below which a write says more about the machine than about the connection.
const LEAST_BYTES: usize = 64 << 10;
/// Writing time in seconds and number of bytes, one of which must be reached for the rate to count as known.
const KNOWN: (f64, f64) = (0.02, 8e6);
/// Writing time in seconds after which the weight of a measurement has dropped to 1/e, about a third.
const MEMORY: f64 = 0.1;
/// Time after which the rate is measured afresh, if the connection never was the bottleneck meanwhile. Doubles each time, up to
/// `MAX_FORGOTTEN`.
const FORGOTTEN: Duration = Duration::from_secs(4);
const MAX_FORGOTTEN: Duration = Duration::from_secs(300);

/// Measurement of one direction of a connection.
#[derive(Debug)]
pub(super) struct Link {
    /// Start of the current write phase, or end of the last write.
    since: Option<Instant>,
    /// Number of bytes written since the last pause.
    run_bytes: u64,
    /// Exponentially decayed sums of bytes written and seconds of writing.
    bytes: f64,
    seconds: f64,
    /// Time in which the sender was slower than the connection (`waiting`), and the value at which the rate is measured afresh
    /// (`remeasure_after`).
    waiting: Duration,
    remeasure_after: Duration,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            since: None,
            run_bytes: 0,
            bytes: 0.0,
            seconds: 0.0,
            waiting: Duration::ZERO,
            remeasure_after: FORGOTTEN,
        }
    }
}

impl Link {
    pub(super) fn wakes(&mut self, now: Instant) {
        self.since = Some(now);
        self.run_bytes = 0;
    }

    pub(super) fn rate(&self) -> Option<f64> {
        let (seconds, bytes) = KNOWN;
        (self.seconds >= seconds || self.bytes >= bytes).then(|| self.bytes / self.seconds.max(1e-9))
    }

    /// Records that the connection accepted `bytes` bytes between `began` and `ended`. `decoded` is their size before compression.
    pub(super) fn wrote(&mut self, bytes: usize, decoded: usize, began: Instant, ended: Instant) {
        let since = self.since.replace(ended).unwrap_or(began);
        let (writing, all) = (ended - began, ended - since.min(began));
        self.run_bytes += bytes as u64;
        if bytes < LEAST_BYTES || writing * 4 < all {
            // Something other than the connection took the time, so the write says nothing about the connection's rate.
            if decoded >= LEAST_BYTES {
                self.waiting += all;
            }
            if self.rate().is_some() && self.waiting >= self.remeasure_after {
                self.remeasure_after = (2 * self.remeasure_after).min(MAX_FORGOTTEN);
                (self.bytes, self.seconds, self.run_bytes, self.waiting) = (0.0, 0.0, 0, Duration::ZERO);
            }
            return;
        }
        let seconds = all.as_secs_f64().max(1e-9);
        // A copy into buffers is never that slow, so a slow write measures the connection. A fast one may measure either.
        if self.run_bytes <= ABSORBED_BYTES && bytes as f64 > super::FASTEST_LINK * seconds {
            return;
        }
        // A very long write, for whatever reason, counts for at most the length of the memory.
        let counted = seconds.min(MEMORY);
        let kept = (-counted / MEMORY).exp();
        self.bytes = self.bytes * kept + bytes as f64 * (counted / seconds);
        self.seconds = self.seconds * kept + counted;
    }
}
