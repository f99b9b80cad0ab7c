//! How many bytes a second a connection takes.

use std::time::{Duration, Instant};

/// What may go to memory on the way before a line shows: Linux gives a connection up to 10 MB, and a gateway has two.
const ABSORBED_BYTES: u64 = 16 << 20;
/// Writes of less say more about the machine than about the line.
const LEAST_BYTES: usize = 64 << 10;
/// Time of writing, or bytes, from which on a line is known.
const KNOWN: (f64, f64) = (0.02, 8e6);
/// What was so many seconds of writing ago counts for a third.
const MEMORY: f64 = 0.1;
/// The line is found out anew after such a time in which it never was what took the time; and again after twice as long each time.
const FORGOTTEN: Duration = Duration::from_secs(4);
const LONGEST_FORGOTTEN: Duration = Duration::from_secs(300);

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Line {
    /// Since when there is something to write, or was the last write.
    since: Option<Instant>,
    /// Bytes written without a pause.
    run_bytes: u64,
    /// What is counted: bytes, and seconds.
    bytes: f64,
    seconds: f64,
    /// Time in which the sender was slower than the line, and how much of it is enough.
    waiting: Duration,
    patience: Duration,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            since: None,
            run_bytes: 0,
            bytes: 0.0,
            seconds: 0.0,
            waiting: Duration::ZERO,
            patience: FORGOTTEN,
        }
    }
}

impl Line {
    pub(super) fn wakes(&mut self, now: Instant) {
        self.since = Some(now);
        self.run_bytes = 0;
    }

    pub(super) fn rate(&self) -> Option<f64> {
        let (seconds, bytes) = KNOWN;
        (self.seconds >= seconds || self.bytes >= bytes).then(|| self.bytes / self.seconds.max(1e-9))
    }

    /// The connection took so many bytes, which say so many, between these times.
    pub(super) fn wrote(&mut self, bytes: usize, decoded: usize, began: Instant, ended: Instant) {
        let since = self.since.replace(ended).unwrap_or(began);
        let (writing, all) = (ended - began, ended - since.min(began));
        self.run_bytes += bytes as u64;
        if bytes < LEAST_BYTES || writing * 4 < all {
            // Something else took the time: the line may be as fast as it likes.
            if decoded >= LEAST_BYTES {
                self.waiting += all;
            }
            if self.rate().is_some() && self.waiting >= self.patience {
                self.patience = (2 * self.patience).min(LONGEST_FORGOTTEN);
                (self.bytes, self.seconds, self.run_bytes, self.waiting) = (0.0, 0.0, 0, Duration::ZERO);
            }
            return;
        }
        let seconds = all.as_secs_f64().max(1e-9);
        // Memory is never so slow: what is was the line. What is faster may have been either.
        if self.run_bytes <= ABSORBED_BYTES && bytes as f64 > super::FASTEST_LINE * seconds {
            return;
        }
        // One that took very long, for whatever reason, counts for no more than the memory is long.
        let counted = seconds.min(MEMORY);
        let kept = (-counted / MEMORY).exp();
        self.bytes = self.bytes * kept + bytes as f64 * (counted / seconds);
        self.seconds = self.seconds * kept + counted;
    }
}
