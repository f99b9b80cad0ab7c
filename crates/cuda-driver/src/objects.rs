//! Objects of the program that graphs keep (`CUuserObject`): a function is called when the last reference is given back.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::boundary::HostPointer;
use crate::status::Status;

pub(crate) struct UserObject {
    /// Address of the function that ends it.
    pub(crate) destroy: usize,
    pub(crate) data: HostPointer,
    references: AtomicU64,
}

impl UserObject {
    pub(crate) fn new(destroy: usize, data: HostPointer, references: u32) -> Self {
        Self {
            destroy,
            data,
            references: AtomicU64::new(references.into()),
        }
    }

    /// Takes references.
    pub(crate) fn retain(&self, count: u32) {
        self.references.fetch_add(count.into(), Ordering::Relaxed);
    }

    /// Gives references back. Returns whether none is left.
    pub(crate) fn release(&self, count: u32) -> Result<bool, Status> {
        let count = u64::from(count);
        let before = self
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |references| references.checked_sub(count));
        before.map(|before| before == count).map_err(|_| Status::INVALID_VALUE)
    }
}
