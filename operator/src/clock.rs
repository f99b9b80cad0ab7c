//! Monotonic milliseconds since this process began: the only time that decisions see.

use std::time::{Duration, Instant};

/// Counts milliseconds from its making. Copies share the origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Clock {
    /// Milliseconds since the origin.
    pub fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Microseconds since the origin.
    pub fn micros(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The instant at which [`Clock::now`] reaches `milliseconds`.
    pub fn instant(&self, milliseconds: u64) -> tokio::time::Instant {
        (self.origin + Duration::from_millis(milliseconds)).into()
    }
}

/// The wall clock, for what people read. Nothing is decided by it.
pub fn timestamp() -> k8s_openapi::jiff::Timestamp {
    k8s_openapi::jiff::Timestamp::now()
}
