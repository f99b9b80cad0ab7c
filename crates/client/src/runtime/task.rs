//! [`Task`], which either the runtime polls or a thread that waits for an answer.

use std::{
    cell::Cell,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

/// A task of the runtime. A thread that waits for an answer can poll it instead of the runtime.
pub(super) struct Task(Mutex<Inner>);

struct Inner {
    /// `None` once it is ready.
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Waker with which the runtime polled it last.
    waker: Option<Waker>,
}

impl Task {
    pub(super) fn new(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Mutex::new(Inner {
            future: Some(Box::pin(future)),
            waker: None,
        }))
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.lock();
        if !inner.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            inner.waker = Some(context.waker().clone());
        }
        let is_ready = inner.future.as_mut().is_none_or(|future| future.as_mut().poll(context).is_ready());
        if is_ready {
            inner.future = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Polls the task on a thread that is within the runtime, for the runtime: what wakes the task wakes it there.
    pub(super) fn poll_here(&self) {
        let Some(mut inner) = self.0.try_lock() else {
            return;
        };
        let Inner { future, waker } = &mut *inner;
        let (Some(running), Some(waker)) = (future.as_mut(), waker.as_ref()) else {
            return;
        };
        let poll = || running.as_mut().poll(&mut Context::from_waker(waker));
        match polling(|| catch_unwind(AssertUnwindSafe(poll))) {
            Ok(Poll::Pending) => return,
            // The panic hook has reported a panic.
            Ok(Poll::Ready(())) | Err(_) => *future = None,
        }
        waker.wake_by_ref();
    }
}

thread_local! {
    static IS_POLLING: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function that does not panic as a thread that polls.
pub(crate) fn polling<T>(call: impl FnOnce() -> T) -> T {
    IS_POLLING.set(true);
    let outcome = call();
    IS_POLLING.set(false);
    outcome
}

/// Whether this thread polls a task until an answer comes. A socket is read then without regard to whether the runtime found it readable,
/// and the task need not be woken when it becomes readable: its waker is set already.
pub(crate) fn is_polling() -> bool {
    IS_POLLING.get()
}
