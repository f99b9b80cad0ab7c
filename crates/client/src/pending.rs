//! An answer that is still to come: to be awaited, or waited for by a thread.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use crate::Error;

#[derive(Debug)]
struct Cell<T> {
    state: Mutex<State<T>>,
    came: Condvar,
}

#[derive(Debug)]
struct State<T> {
    answer: Option<Result<T, Error>>,
    waker: Option<Waker>,
}

impl<T> Cell<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing that could panic happens under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer that is still to come. Dropping it lets go of the answer, not of what was asked for.
#[derive(Debug)]
#[must_use = "the answer is lost when nobody waits for it"]
pub struct Pending<T>(Arc<Cell<T>>);

/// Whoever has the answer.
#[derive(Debug)]
pub(crate) struct Promise<T>(Arc<Cell<T>>);

pub(crate) fn pending<T>() -> (Promise<T>, Pending<T>) {
    let cell = Arc::new(Cell {
        state: Mutex::new(State { answer: None, waker: None }),
        came: Condvar::new(),
    });
    (Promise(cell.clone()), Pending(cell))
}

impl<T> Promise<T> {
    pub(crate) fn keep(self, answer: Result<T, Error>) {
        let waker = {
            let mut state = self.0.lock();
            state.answer = Some(answer);
            state.waker.take()
        };
        self.0.came.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Pending<T> {
    /// Blocks the thread until the answer is there.
    ///
    /// # Errors
    /// The answer's.
    pub fn wait(self) -> Result<T, Error> {
        let mut state = self.0.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                return answer;
            }
            state = self.0.came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks the thread until the answer is there or the time is over: then `None`, and the answer may be waited for again.
    pub fn wait_for(&self, time: Duration) -> Option<Result<T, Error>> {
        let end = Instant::now() + time;
        let mut state = self.0.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                return Some(answer);
            }
            let left = end.checked_duration_since(Instant::now())?;
            (state, _) = self.0.came.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether waiting would return at once.
    pub fn is_there(&self) -> bool {
        self.0.lock().answer.is_some()
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        match state.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
