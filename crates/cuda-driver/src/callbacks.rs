//! Functions of the program that run after work of a context, on a thread for that alone: the caller of `cuLaunchHostFunc` goes on, and may
//! hold a lock that the function takes.
//!
//! The queue has operations only. So work that follows a function in its stream is submitted once the function has run, for which its caller
//! waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use parking_lot::{Condvar, Mutex};
use sahasra_cuda_device::{Failure, Queue, Ticket, with_signals_blocked};

use crate::status::Status;

/// A function of the program, which gets the failure of the work before it.
type Function = Box<dyn FnOnce(Option<&Failure>) + Send>;

struct State {
    waiting: VecDeque<(Ticket, Function)>,
    thread: Option<ThreadId>,
    is_closed: bool,
    /// A failure that the queue reports once, and that is for a call of the program.
    failure: Option<Failure>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    submitted: AtomicU64,
    done: AtomicU64,
}

/// Functions of a context, which run one after another.
pub(crate) struct Callbacks {
    shared: Arc<Shared>,
    queue: Arc<dyn Queue>,
}

impl Callbacks {
    pub(crate) fn new(queue: Arc<dyn Queue>) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            thread: None,
            is_closed: false,
            failure: None,
        };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            submitted: AtomicU64::new(0),
            done: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
            queue,
        }
    }

    /// Appends a function, to be called after an operation. Returns its number.
    pub(crate) fn submit(&self, ticket: Ticket, function: Function) -> Result<u64, Status> {
        let mut state = self.shared.state.lock();
        if state.thread.is_none() {
            let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
            let builder = thread::Builder::new().name("sahasra-callback".to_owned());
            let thread = with_signals_blocked(|| builder.spawn(move || shared.work(&*queue))).map_err(|_| Status::OPERATING_SYSTEM)?;
            state.thread = Some(thread.thread().id());
        }
        state.waiting.push_back((ticket, function));
        self.shared.changed.notify_all();
        Ok(self.shared.submitted.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Number of the last function.
    pub(crate) fn last(&self) -> u64 {
        self.shared.submitted.load(Ordering::Relaxed)
    }

    /// Whether a function has run, by its number.
    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.shared.done.load(Ordering::Acquire) >= number
    }

    /// Waits until a function has run, by its number. [`Status::NOT_PERMITTED`] in such a function.
    pub(crate) fn wait(&self, number: u64) -> Result<(), Status> {
        if self.is_done(number) {
            return Ok(());
        }
        let mut state = self.shared.state.lock();
        if state.thread == Some(thread::current().id()) {
            return Err(Status::NOT_PERMITTED);
        }
        while !self.is_done(number) {
            self.shared.changed.wait(&mut state);
        }
        Ok(())
    }

    /// Removes and returns a failure that a function has met, and that no call has reported yet.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        if self.last() == 0 {
            return None;
        }
        self.shared.state.lock().failure.take()
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        // Not joined: a function may be what drops the context.
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn work(&self, queue: &dyn Queue) {
        let mut state = self.state.lock();
        loop {
            let Some((ticket, function)) = state.waiting.pop_front() else {
                if state.is_closed {
                    return;
                }
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            let failure = queue.wait(ticket).err();
            function(failure.as_ref());
            state = self.state.lock();
            if let Some(failure) = failure.filter(|failure| !failure.is_sticky()) {
                state.failure = Some(failure);
            }
            self.done.fetch_add(1, Ordering::Release);
            self.changed.notify_all();
        }
    }
}
