//! The process that has the connections.
//!
//! A process that is forked gets a copy of the memory, but of the threads only the one that forked: locks that another thread held at that
//! moment stay locked in it for ever, and nobody works on its connections. What was made before the fork is therefore out of reach there,
//! its end included. Python forks: `os.fork`, `multiprocessing` where it is told to.

use std::{
    mem::ManuallyDrop,
    sync::atomic::{AtomicBool, Ordering},
};

use pyo3::prelude::*;

use crate::failure::raise_as;

/// This process was forked from one that had connections.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// To be called before anything that needs connections. From then on what is forked from this process is told apart from it.
///
/// # Errors
/// `ForkedProcessError` in a process that was forked from one that has called it.
pub(crate) fn connects(py: Python<'_>) -> PyResult<()> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    is_own(py)?;
    if !TOLD.swap(true, Ordering::Relaxed) {
        // SAFETY: the function is there for as long as the process: modules of Python are not unloaded. It stores one atomic, which may
        // be done between fork and exec. When memory for it is short, the process is as it would be without it.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
    Ok(())
}

fn is_own(py: Python<'_>) -> PyResult<()> {
    if FORKED.load(Ordering::Relaxed) {
        let message = "this process was forked from one that uses sahasra, whose connections it does not have: start it with \
                       multiprocessing's \"spawn\" or \"forkserver\", or let it fork before sahasra is used";
        return Err(raise_as(py, "ForkedProcessError", message));
    }
    Ok(())
}

/// What only the process that made it may use, and end.
pub(crate) struct Own<T>(ManuallyDrop<T>);

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    /// # Errors
    /// `ForkedProcessError` in another process.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        is_own(py)?;
        Ok(&self.0)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !FORKED.load(Ordering::Relaxed) {
            // SAFETY: nothing looks at it after this.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}
