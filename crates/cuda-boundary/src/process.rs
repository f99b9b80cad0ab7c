//! Processes that fork after a library's initialisation began, and threads that end.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ResultCode;

/// Whether this process is the child of a process in which the library's initialisation had begun: its threads exist in the parent only, and
/// its locks may have been held there.
static IS_FORKED_CHILD: AtomicBool = AtomicBool::new(false);

/// Runs when the process is forked, in the child.
extern "C" fn after_fork_in_child() {
    IS_FORKED_CHILD.store(true, Ordering::Relaxed);
}

/// Whether the system calls [`after_fork_in_child`].
static REFUSES_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Makes [`check`] refuse children that are forked from now on, also if the initialisation that follows fails. Called before a library takes a
/// lock or starts a thread. Returns false if the system cannot do that.
pub fn refuse_children() -> bool {
    if REFUSES_CHILDREN.load(Ordering::Acquire) {
        return true;
    }
    // Two threads may both register the function, which only sets the flag twice. A lock might be held in a child that is not refused.
    // SAFETY: the handler is a function without state that is safe to run in a child: it sets a flag.
    let is_registered = unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child as unsafe extern "C" fn())) == 0 };
    if is_registered {
        REFUSES_CHILDREN.store(true, Ordering::Release);
    }
    is_registered
}

/// Refuses a forked child. Whatever takes a lock calls this first: another thread may have held it when the process was forked.
///
/// # Errors
/// [`ResultCode::NOT_INITIALIZED`] in a forked child.
pub fn check<S: ResultCode>() -> Result<(), S> {
    if IS_FORKED_CHILD.load(Ordering::Relaxed) {
        return Err(S::NOT_INITIALIZED);
    }
    Ok(())
}

/// Thread-local value that calls a function when its thread ends. Does nothing on the process's first thread, because functions of `atexit` run
/// after that thread's values were dropped, and still use what it has.
#[derive(Debug)]
pub struct AtThreadEnd(pub fn());

impl Drop for AtThreadEnd {
    fn drop(&mut self) {
        // SAFETY: both only ask the system for a number.
        let is_first = unsafe { libc::gettid() == libc::getpid() };
        if !is_first {
            (self.0)();
        }
    }
}
