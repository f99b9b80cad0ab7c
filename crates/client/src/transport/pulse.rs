//! Time of the last sign of life on a connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Time at which bytes last arrived on a connection, be it data of the stream or only a pong.
#[derive(Debug)]
pub(crate) struct Pulse {
    start: Instant,
    /// Milliseconds between `start` and the last received bytes.
    last_received: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            last_received: AtomicU64::new(0),
        })
    }

    pub(super) fn beat(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_received.store(now, Ordering::Relaxed);
    }

    /// Returns the time of the last received bytes, or the creation time if none have been received.
    pub(crate) fn last_received(&self) -> Instant {
        self.start + Duration::from_millis(self.last_received.load(Ordering::Relaxed))
    }
}
