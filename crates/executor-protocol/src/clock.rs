//! The machine's monotonic clock, which all processes of the machine share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time of the machine's monotonic clock, from its unspecified start.
#[inline]
pub fn monotonic_now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Time as a word of shared memory, in nanoseconds. [`Duration::from_nanos`] is the inverse.
#[inline]
pub(crate) fn to_word(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
