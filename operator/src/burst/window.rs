//! How many chunks a device should have at hand: enough to keep every slice busy until the next answer, no more. Pure.

/// Work to keep queued at a device, in microseconds at the pace it last showed: longer than a round trip and a batch's
/// bookkeeping, short enough that devices finish together.
const QUEUED_MICROSECONDS: f64 = 20_000.0;
/// Fewest chunks at hand however few slices: the pace is not yet known, and chunks may be very short.
const INITIAL: u64 = 64;
/// Below so many microseconds a pace is not measured: answers come in bunches.
const SHORTEST_PERIOD: u64 = 500;

/// One device's share of a burst.
#[derive(Clone, Debug)]
pub struct Window {
    slices: u64,
    /// Chunks a microsecond.
    pace: f64,
    measured_from: u64,
    answered: u64,
}

impl Window {
    /// A device with so many slices, from `now` in microseconds on.
    pub fn new(slices: u64, now: u64) -> Self {
        Self {
            slices,
            pace: 0.0,
            measured_from: now,
            answered: 0,
        }
    }

    /// Slices held there.
    pub fn slices(&self) -> u64 {
        self.slices
    }

    /// It holds so many from now on.
    pub fn resize(&mut self, slices: u64) {
        self.slices = slices;
    }

    /// So many chunks came back.
    pub fn answered(&mut self, chunks: u64, now: u64) {
        self.answered += chunks;
        let elapsed = now.saturating_sub(self.measured_from);
        if elapsed < SHORTEST_PERIOD {
            return;
        }
        let pace = self.answered as f64 / elapsed as f64;
        // Up at once, down by half: an idle moment says nothing about what the device can do.
        self.pace = pace.max(self.pace / 2.0);
        self.measured_from = now;
        self.answered = 0;
    }

    /// Chunks that should be at hand.
    pub fn target(&self) -> u64 {
        if self.slices == 0 {
            return 0;
        }
        let queued = (self.pace * QUEUED_MICROSECONDS) as u64;
        (2 * self.slices).max(self.slices + queued).max(INITIAL.min(16 * self.slices))
    }

    /// How many of the `ready` chunks to hand out now, when `outstanding` are there already and this device has `slices` of
    /// the burst's `all_slices`: never more than half of its fair share of what is left, so that devices finish together.
    pub fn batch(&self, outstanding: u64, ready: u64, all_slices: u64) -> u64 {
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
        let mut window = Window::new(64, 0);
        assert_eq!(window.target(), 128);
        window.answered(64, 1_000_000);
        assert_eq!(window.target(), 128);
        window.answered(50_000, 2_000_000);
        assert_eq!(window.target(), 64 + 1000);
    }

    #[test]
    fn the_rest_is_shared_by_slices() {
        let window = Window::new(10, 0);
        assert_eq!(window.batch(0, 1000, 20), 64);
        assert_eq!(window.batch(0, 40, 20), 10);
        // The last chunks go where slices are idle.
        assert_eq!(window.batch(0, 4, 20), 4);
        assert_eq!(window.batch(10, 1, 20), 1);
        assert_eq!(window.batch(64, 1000, 20), 0);
        assert_eq!(Window::new(0, 0).batch(0, 1000, 20), 0);
    }

    #[test]
    fn all_chunks_are_handed_out_in_the_end() {
        let window = Window::new(3, 0);
        let mut ready = 1000;
        for _ in 0..1000 {
            ready -= window.batch(0, ready, 7);
        }
        assert_eq!(ready, 0);
    }
}
