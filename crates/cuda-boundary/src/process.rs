//! Processes that fork after a library was initialised.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ResultCode;

/// Whether this process is the child of a process that had initialised the library: the library's threads exist in the parent only.
static IS_FORKED_CHILD: AtomicBool = AtomicBool::new(false);

/// Runs when the process is forked, in the child.
extern "C" fn after_fork_in_child() {
    IS_FORKED_CHILD.store(true, Ordering::Relaxed);
}

/// Makes [`check`] refuse children that are forked from now on. Returns false if the system cannot do that.
pub fn refuse_children() -> bool {
    // SAFETY: the handler is a function without state that is safe to run in a child: it sets a flag.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child as unsafe extern "C" fn())) == 0 }
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
