//! Monotonic time for decisions. A point of time is the duration since the creation of the clock.
//!
//! The time follows the clock of the Tokio runtime, so it stops when that clock is paused. In the simulation, where several parts share one
//! runtime, each part can have a clock that runs slightly fast or slow, like the clocks of different machines.

use std::time::Duration;

use tokio::time::Instant;

/// Divisor of the parts per million in [`Clock::drifting`].
const MILLION: i128 = 1_000_000;
/// A century: later times are as good as never, and instants cannot represent all of them.
const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Clock that counts from its creation. Copies share the origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    /// Deviation from the runtime's clock, in parts per million. A positive value is a fast clock.
    gain: i32,
}

impl Default for Clock {
    fn default() -> Self {
        Self::drifting(0)
    }
}

impl Clock {
    /// Creates a clock that gains `gain` parts per million on the runtime's clock, or loses them if `gain` is negative.
    pub fn drifting(gain: i32) -> Self {
        Self {
            origin: Instant::now(),
            gain,
        }
    }

    pub fn now(&self) -> Duration {
        scaled(self.origin.elapsed(), MILLION + i128::from(self.gain), MILLION)
    }

    /// The instant at which [`Clock::now`] reaches `time`, at most a century after the origin.
    pub fn instant(&self, time: Duration) -> Instant {
        let time = time.min(FAR);
        match self.gain {
            0 => self.origin + time,
            // Rounded up, so that the clock has reached `time` at that instant.
            gain => self.origin + scaled(time, MILLION, MILLION + i128::from(gain)) + Duration::from_nanos(2),
        }
    }
}

fn scaled(time: Duration, by: i128, of: i128) -> Duration {
    let nanoseconds = i128::try_from(time.as_nanos()).unwrap_or(i128::MAX / MILLION / 2) * by / of;
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drifting_clock_reaches_a_time_at_the_instant_that_it_computes() {
        for gain in [0, 200, -200, 50_000, -50_000] {
            let clock = Clock::drifting(gain);
            let time = Duration::from_millis(12_345);
            let instant = clock.instant(time);
            tokio::time::sleep_until(instant).await;
            assert!(clock.now() >= time, "{gain}: {:?}", clock.now());
            assert!(clock.now() < time + Duration::from_millis(3), "{gain}: {:?}", clock.now());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_gains_and_loses() {
        let (fast, slow) = (Clock::drifting(100_000), Clock::drifting(-100_000));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!((fast.now(), slow.now()), (Duration::from_secs(11), Duration::from_secs(9)));
    }
}
