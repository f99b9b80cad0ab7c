//! Memory that a session may use on its GPU.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sahasra_cuda_device::{Failure, FailureKind};

/// Time for which an allocation waits for memory of contexts that are ending.
const FREE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct State {
    used: u64,
    /// Number of contexts, with those that are ending.
    contexts: u64,
    /// Number of contexts that are ending.
    ending: usize,
}

/// Memory of all contexts, in bytes. It is counted before the driver is asked for it. One context is beside it.
#[derive(Debug)]
pub(super) struct Lease {
    capacity: u64,
    /// Memory of a context itself.
    context_bytes: u64,
    state: Mutex<State>,
    /// Signalled when memory is free, or a context has ended.
    freed: Condvar,
}

impl Lease {
    pub(super) fn new(capacity: u64, context_bytes: u64) -> Self {
        Self {
            capacity,
            context_bytes,
            state: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Counts bytes as used. Waits for those of contexts that are ending, if that may help.
    pub(super) fn take(&self, bytes: u64) -> Result<(), Failure> {
        self.take_for(0, |_| bytes)
    }

    /// Counts contexts, and the bytes that they take in a state.
    fn take_for(&self, contexts: u64, bytes: impl Fn(&State) -> u64) -> Result<(), Failure> {
        let end = Instant::now() + FREE_TIMEOUT;
        let mut state = self.state.lock();
        loop {
            let bytes = bytes(&state);
            if let Some(used) = state.used.checked_add(bytes).filter(|used| *used <= self.capacity) {
                state.used = used;
                state.contexts += contexts;
                return Ok(());
            }
            if state.ending == 0 || self.freed.wait_until(&mut state, end).timed_out() {
                let (used, capacity) = (state.used, self.capacity);
                let message = format!("{bytes} bytes requested, {used} of the session's {capacity} are in use");
                return Err(Failure::new(FailureKind::OutOfMemory, message));
            }
        }
    }

    /// Waits until memory of a context that is ending is free. Returns `false` if there is none, or time is over.
    pub(super) fn wait_for_ending(&self) -> bool {
        let mut state = self.state.lock();
        state.ending > 0 && !self.freed.wait_for(&mut state, FREE_TIMEOUT).timed_out()
    }

    /// Waits until no context is ending. Returns `false` if time is over.
    pub(super) fn wait_until_ended(&self) -> bool {
        let end = Instant::now() + FREE_TIMEOUT;
        let mut state = self.state.lock();
        while state.ending > 0 {
            if self.freed.wait_until(&mut state, end).timed_out() {
                return state.ending == 0;
            }
        }
        true
    }

    /// Counts a context. The first one takes no bytes.
    pub(super) fn take_context(&self) -> Result<(), Failure> {
        self.take_for(1, |state| if state.contexts == 0 { 0 } else { self.context_bytes })
    }

    /// Counts the memory of a context as free.
    pub(super) fn give_context(&self) {
        let mut state = self.state.lock();
        state.contexts -= 1;
        if state.contexts > 0 {
            state.used -= self.context_bytes;
        }
        self.freed.notify_all();
    }

    /// Counts bytes as free.
    pub(super) fn give(&self, bytes: u64) {
        self.state.lock().used -= bytes;
        self.freed.notify_all();
    }

    /// Notes that a context is ending, whose memory will be free.
    pub(super) fn begin_end(&self) {
        self.state.lock().ending += 1;
    }

    /// Notes that it has ended.
    pub(super) fn end(&self) {
        self.state.lock().ending -= 1;
        self.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_context_that_is_ending_is_waited_for() {
        let lease = Lease::new(100, 0);
        lease.take(60).unwrap();
        assert_eq!(lease.take(41).unwrap_err().kind, FailureKind::OutOfMemory);
        assert_eq!(lease.take(u64::MAX).unwrap_err().kind, FailureKind::OutOfMemory);
        lease.begin_end();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lease.give(60);
                lease.end();
            });
            lease.take(100).unwrap();
        });
        assert_eq!(lease.used(), 100);
    }

    #[test]
    fn each_context_but_one_takes_memory() {
        let lease = Lease::new(100, 40);
        for used in [0, 40, 80] {
            lease.take_context().unwrap();
            assert_eq!(lease.used(), used);
        }
        assert_eq!(lease.take_context().unwrap_err().kind, FailureKind::OutOfMemory);
        for used in [40, 0, 0] {
            lease.give_context();
            assert_eq!(lease.used(), used);
        }
        lease.take_context().unwrap();
        assert_eq!(lease.used(), 0);
    }
}
