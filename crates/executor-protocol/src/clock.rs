//! The machine's monotonic clock, which all processes of the machine share.

use rustix::time::{ClockId, clock_gettime};

/// Time of the machine's monotonic clock in nanoseconds.
#[inline]
pub fn monotonic_nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
