//! Numbers of contexts, and how many there are.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sahasra_cuda_device::{Failure, FailureKind};
use sahasra_wire::cuda::MAX_CONTEXTS;

/// Contexts of a session.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    /// Number of the last one.
    last: AtomicU64,
    /// How many there are.
    count: AtomicUsize,
}

impl Contexts {
    /// Counts a context. Returns its number, which no other has or had.
    ///
    /// # Errors
    /// [`FailureKind::OutOfMemory`] if there are as many as a session can have.
    pub(crate) fn add(&self) -> Result<u64, Failure> {
        let counted = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < MAX_CONTEXTS).then_some(count + 1)
        });
        match counted {
            Ok(_) => Ok(self.last.fetch_add(1, Ordering::Relaxed) + 1),
            Err(_) => {
                let message = format!("too many contexts: a session has at most {MAX_CONTEXTS}; destroy others");
                Err(Failure::new(FailureKind::OutOfMemory, message))
            }
        }
    }

    /// Counts a context as gone. The session was told before.
    pub(crate) fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
