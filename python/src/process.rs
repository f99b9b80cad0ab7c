//! Detection of forked processes.
//!
//! A forked process has a copy of its parent's memory, but only the thread that forked: locks that another thread held at that moment stay
//! locked forever, and no thread serves the connections. So objects created before the fork cannot be used in the forked process, and are
//! not dropped there. Python forks in `os.fork`, and in `multiprocessing` with the start method "fork".

use std::{
    mem::ManuallyDrop,
    sync::atomic::{AtomicBool, Ordering},
};

use pyo3::prelude::*;

use crate::failure::raise_as;

/// Whether this process was forked from one that had called [`connects`].
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Must be called before anything that needs connections. Processes forked afterwards are detected: `ForkedProcessError`.
pub(crate) fn connects(py: Python<'_>) -> PyResult<()> {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    is_own(py)?;
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: The handler exists as long as the process, because Python does not unload native modules. It stores one atomic, which is
        // allowed between fork and exec. If memory for the registration is short, forks are not detected.
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

/// Value that only the process that created it may use and drop.
pub(crate) struct Own<T>(ManuallyDrop<T>);

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    /// Raises `ForkedProcessError` in a forked process.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        is_own(py)?;
        Ok(&self.0)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !FORKED.load(Ordering::Relaxed) {
            // SAFETY: The value is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}
