//! Counts of operations and of calls that waited for an answer, and how long a round trip takes.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sahasra_client::{Error, Pending};

/// Counts since the device was opened.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    operations: AtomicU64,
    frames: AtomicU64,
    /// Bytes copied through shared memory.
    shared_bytes: AtomicU64,
    waits: AtomicU64,
    waited_nanoseconds: AtomicU64,
    /// Number of threads that wait for an answer.
    waiting: AtomicUsize,
    /// Upper bound of the duration of a round trip, `None` before the first answer.
    round_trip: Mutex<Option<Duration>>,
}

/// Requests that were sent together, and their answers, which arrive in one round trip.
pub(crate) struct Asked<T> {
    pub sent: Instant,
    pub answers: Vec<Pending<T>>,
}

impl Statistics {
    pub(crate) fn add_operation(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_frame(&self) {
        self.frames.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_shared(&self, bytes: usize) {
        self.shared_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn shared_bytes(&self) -> u64 {
        self.shared_bytes.load(Ordering::Relaxed)
    }

    /// Waits for an answer.
    pub(crate) fn wait<T>(&self, (sent, answer): (Instant, Pending<T>)) -> Result<T, Error> {
        let mut taken = None;
        let answers = vec![answer];
        self.wait_for_all(Asked { sent, answers }, |_, answer| taken = Some(answer))?;
        Ok(taken.expect("the only answer was taken"))
    }

    /// Passes each answer to `take`. Answers that have not arrived yet cost one round trip, which is counted.
    pub(crate) fn wait_for_all<T>(&self, asked: Asked<T>, mut take: impl FnMut(usize, T)) -> Result<(), Error> {
        let waits = asked.answers.iter().any(|answer| !answer.is_there());
        let mut answers = asked.answers.into_iter().enumerate();
        self.wait_by(asked.sent, waits, || {
            answers.try_for_each(|(index, answer)| {
                take(index, answer.wait()?);
                Ok(())
            })
        })
    }

    /// Calls `wait`, which waits for the answers to requests that were sent at `sent`. Counts a round trip if `waits`.
    pub(crate) fn wait_by(&self, sent: Instant, waits: bool, wait: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let start = Instant::now();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let taken = wait();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if waits {
            self.waits.fetch_add(1, Ordering::Relaxed);
            let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.waited_nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        }
        if taken.is_ok() {
            self.measure(sent.elapsed());
        }
        taken
    }

    /// Learns from the time between a request and its answer. The bound follows a longer one slowly, because most answers wait for kernels.
    fn measure(&self, time: Duration) {
        let mut bound = self.round_trip.lock();
        *bound = Some(bound.map_or(time, |bound| time.min(bound + bound / 8)));
    }

    /// Whether a round trip takes at most this time, and no other thread waits for an answer before which the session takes nothing.
    pub(crate) fn answers_within(&self, time: Duration) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0 && self.round_trip.lock().is_some_and(|bound| bound <= time)
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        write!(
            formatter,
            "{} operations in {} frames, {} round trips that a call waited for ({:.3} s)",
            count(&self.operations),
            count(&self.frames),
            count(&self.waits),
            Duration::from_nanos(count(&self.waited_nanoseconds)).as_secs_f64(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_a_round_trip_falls_at_once_and_rises_slowly() {
        let statistics = Statistics::default();
        let limit = Duration::from_micros(200);
        assert!(!statistics.answers_within(limit));
        statistics.measure(Duration::from_secs(10));
        assert!(!statistics.answers_within(limit));
        statistics.measure(Duration::from_micros(50));
        assert!(statistics.answers_within(limit));
        statistics.measure(Duration::from_secs(10));
        assert!(statistics.answers_within(limit));
        (0..20).for_each(|_| statistics.measure(Duration::from_millis(30)));
        assert!(!statistics.answers_within(limit), "the link has become slower");
    }
}
