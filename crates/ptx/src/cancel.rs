//! Cancellation of a launch by another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Flag that ends launches. Clones share the flag, and once set it stays set. The engine polls it at least once every 65,536 steps of a
/// worker, at loop back-edges and block starts alike, hence within about a millisecond.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Returns a flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every launch that was given this flag with [`FaultKind::Cancelled`](crate::FaultKind::Cancelled).
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
