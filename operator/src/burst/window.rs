//! Number of chunks that a device should have queued: enough to keep every slice busy until the next answer, and no more. Pure.

use std::time::Duration;

/// Target of the work queued on a device, at its last measured pace: longer than a round trip and the bookkeeping of a batch, short enough
/// that all devices finish at about the same time.
const QUEUED: Duration = Duration::from_millis(20);
/// Minimum number of queued chunks, up to 16 for each slice. The pace is not known at first, and chunks may be very short.
const INITIAL: u64 = 64;
/// Minimum period over which the pace is measured, because answers arrive in bunches.
const SHORTEST_PERIOD: Duration = Duration::from_micros(500);

#[derive(Clone, Debug)]
pub(crate) struct Window {
    slices: u64,
    /// Measured chunks per second.
    pace: f64,
    measured_from: Duration,
    answered: u64,
}

impl Window {
    /// Creates the window of a device that has held this number of slices since `now`.
    pub(crate) fn new(slices: u64, now: Duration) -> Self {
        Self {
            slices,
            pace: 0.0,
            measured_from: now,
            answered: 0,
        }
    }

    pub(crate) fn slices(&self) -> u64 {
        self.slices
    }

    pub(crate) fn resize(&mut self, slices: u64) {
        self.slices = slices;
    }

    /// Records that `chunks` were answered, and measures the pace.
    pub(crate) fn answered(&mut self, chunks: u64, now: Duration) {
        self.answered += chunks;
        let elapsed = now.saturating_sub(self.measured_from);
        if elapsed < SHORTEST_PERIOD {
            return;
        }
        let pace = self.answered as f64 / elapsed.as_secs_f64();
        // A higher pace is adopted at once, a lower one by at most half, because an idle moment is no measurement of the device.
        self.pace = pace.max(self.pace / 2.0);
        self.measured_from = now;
        self.answered = 0;
    }

    /// Number of chunks that should be queued.
    pub(crate) fn target(&self) -> u64 {
        if self.slices == 0 {
            return 0;
        }
        let queued = (self.pace * QUEUED.as_secs_f64()) as u64;
        (2 * self.slices).max(self.slices + queued).max(INITIAL.min(16 * self.slices))
    }

    /// Number of the `ready` chunks to assign now, when `outstanding` chunks are on the device, which has `slices` of the burst's
    /// `all_slices`. At most half of the device's fair share of the ready chunks, so that all devices finish at about the same time, unless
    /// more are needed to keep its slices busy.
    pub(crate) fn batch(&self, outstanding: u64, ready: u64, all_slices: u64) -> u64 {
        let room = self.target().saturating_sub(outstanding);
        let share = (u128::from(ready) * u128::from(self.slices)).div_ceil(2 * u128::from(all_slices.max(1)));
        let fair = u64::try_from(share)
            .unwrap_or(u64::MAX)
            .max(self.slices.saturating_sub(outstanding));
        room.min(fair).min(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_chunks_are_queued_twice_over_and_fast_ones_for_some_milliseconds() {
        let mut window = Window::new(64, Duration::ZERO);
        assert_eq!(window.target(), 128);
        window.answered(64, Duration::from_secs(1));
        assert_eq!(window.target(), 128);
        window.answered(50_000, Duration::from_secs(2));
        assert_eq!(window.target(), 64 + 1000);
    }

    #[test]
    fn the_rest_is_shared_by_slices() {
        let window = Window::new(10, Duration::ZERO);
        assert_eq!(window.batch(0, 1000, 20), 64);
        assert_eq!(window.batch(0, 40, 20), 10);
        // The last chunks go to devices with idle slices.
        assert_eq!(window.batch(0, 4, 20), 4);
        assert_eq!(window.batch(10, 1, 20), 1);
        assert_eq!(window.batch(64, 1000, 20), 0);
        assert_eq!(Window::new(0, Duration::ZERO).batch(0, 1000, 20), 0);
    }

    #[test]
    fn all_chunks_are_handed_out_in_the_end() {
        let window = Window::new(3, Duration::ZERO);
        let mut ready = 1000;
        for _ in 0..1000 {
            ready -= window.batch(0, ready, 7);
        }
        assert_eq!(ready, 0);
    }
}
