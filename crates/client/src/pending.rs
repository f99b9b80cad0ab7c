//! Answers that have not arrived yet. A task can await them, a thread can block on them.

use std::{
    future::{self, Future},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    Error,
    runtime::{self, Wait},
};

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
    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<T, Error>> {
        let mut state = self.state.lock();
        match state.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Blocks the thread until the answer arrives or `end` is reached, while another thread runs the connections.
    fn sleep(&self, end: Option<Instant>) -> Option<Result<T, Error>> {
        let mut state = self.state.lock();
        let is_missing = |state: &mut State<T>| state.answer.is_none();
        match end {
            Some(end) => {
                self.came.wait_while_until(&mut state, is_missing, end);
            }
            None => self.came.wait_while(&mut state, is_missing),
        }
        state.answer.take()
    }
}

/// An answer that has not arrived yet. Dropping it discards the answer; the operation still takes effect.
#[derive(Debug)]
#[must_use = "the answer is lost when nobody waits for it"]
pub struct Pending<T>(Arc<Cell<T>>);

#[derive(Debug)]
pub(crate) struct Promise<T>(Arc<Cell<T>>);

pub(crate) fn pending<T>() -> (Promise<T>, Pending<T>) {
    let cell = Arc::new(Cell {
        state: Mutex::new(State { answer: None, waker: None }),
        came: Condvar::new(),
    });
    (Promise(cell.clone()), Pending(cell))
}

/// Runs a request to completion, whether or not its answer is awaited. Fails if the system provides no thread.
pub fn spawn<T: Send + 'static>(request: impl Future<Output = Result<T, Error>> + Send + 'static) -> Result<Pending<T>, Error> {
    let (promise, answer) = pending();
    runtime::start(async move {
        let outcome = tokio::spawn(request).await;
        promise.keep(outcome.unwrap_or_else(|error| Err(Error::Configuration(format!("the request ended without a response: {error}")))));
    })?;
    Ok(answer)
}

impl<T> Promise<T> {
    pub(crate) fn keep(self, answer: Result<T, Error>) {
        let waker = {
            let mut state = self.0.state.lock();
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
    /// An answer without a request.
    pub fn ready(answer: Result<T, Error>) -> Self {
        let (promise, pending) = pending();
        promise.keep(answer);
        pending
    }

    pub fn wait(self) -> Result<T, Error> {
        match self.block(None) {
            Some(answer) => answer,
            None => unreachable!("without an end it waits for the answer"),
        }
    }

    /// Blocks the thread until the answer arrives or `time` has elapsed. Returns `None` in the latter case; the caller may wait again.
    pub fn wait_for(&self, time: Duration) -> Option<Result<T, Error>> {
        self.block(Some(time))
    }

    fn block(&self, time: Option<Duration>) -> Option<Result<T, Error>> {
        if let Some(answer) = self.0.state.lock().answer.take() {
            return Some(answer);
        }
        if time.is_some_and(|time| time.is_zero()) {
            return None;
        }
        let end = time.map(|time| Instant::now() + time);
        let answer = future::poll_fn(|context| self.0.poll(context));
        let wait = Wait::begin();
        let driven = match (&wait, end) {
            (Some(wait), Some(end)) => wait.drive(async { tokio::time::timeout_at(end.into(), answer).await.ok() }).ok(),
            (Some(wait), None) => wait.drive(async { Some(answer.await) }).ok(),
            (None, _) => None,
        };
        driven.unwrap_or_else(|| self.0.sleep(end))
    }

    /// Returns whether the answer has arrived, so that [`Self::wait`] would return at once.
    pub fn is_there(&self) -> bool {
        self.0.state.lock().answer.is_some()
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.0.poll(context);
        if polled.is_pending() {
            runtime::call();
        }
        polled
    }
}
