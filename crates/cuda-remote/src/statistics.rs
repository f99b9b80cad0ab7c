//! Counts of operations and of calls that waited for an answer.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sahasra_client::{Error, Pending};

/// Counts since the device was opened.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    operations: AtomicU64,
    frames: AtomicU64,
    waits: AtomicU64,
    waited_nanoseconds: AtomicU64,
    /// Shortest wait, of which the time of a round trip is at most.
    shortest_nanoseconds: Shortest,
}

/// A minimum.
#[derive(Debug)]
struct Shortest(AtomicU64);

impl Default for Shortest {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Statistics {
    pub(crate) fn add_operation(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_frame(&self) {
        self.frames.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for an answer. One that has not arrived costs a round trip, which is counted.
    pub(crate) fn wait<T>(&self, answer: Pending<T>) -> Result<T, Error> {
        if answer.is_there() {
            return answer.wait();
        }
        let start = Instant::now();
        let answered = answer.wait();
        self.add_wait(start.elapsed());
        answered
    }

    /// Waits for answers to requests that were sent together, which cost one round trip.
    pub(crate) fn wait_for_all<T>(&self, answers: Vec<Pending<T>>, mut take: impl FnMut(usize, T)) -> Result<(), Error> {
        let start = Instant::now();
        let waits = answers.iter().any(|answer| !answer.is_there());
        let mut answers = answers.into_iter().enumerate();
        let taken = answers.try_for_each(|(index, answer)| {
            take(index, answer.wait()?);
            Ok(())
        });
        if waits {
            self.add_wait(start.elapsed());
        }
        taken
    }

    fn add_wait(&self, time: Duration) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.waited_nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        self.shortest_nanoseconds.0.fetch_min(nanoseconds, Ordering::Relaxed);
    }

    /// Whether a round trip has taken at most this time.
    pub(crate) fn has_round_trips_of(&self, time: Duration) -> bool {
        u128::from(self.shortest_nanoseconds.0.load(Ordering::Relaxed)) <= time.as_nanos()
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
