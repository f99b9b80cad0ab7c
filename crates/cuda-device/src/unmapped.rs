//! Addresses whose mapping failed, until the client unmaps them like other memory.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::{Failure, FailureKind};

/// Maximum number of allocations of a queue that failed and were not unmapped.
pub const MAX_UNMAPPED: usize = 65_536;

/// [Addresses](self) of a queue.
#[derive(Debug, Default)]
pub struct Unmapped(Mutex<HashSet<u64>>);

impl Unmapped {
    /// Adds an address, and returns the failure for the client: that of the mapping, or [`FailureKind::Protocol`] beyond
    /// [`MAX_UNMAPPED`].
    pub fn add(&self, address: u64, failure: Failure) -> Failure {
        let mut addresses = self.0.lock();
        if addresses.len() >= MAX_UNMAPPED && !addresses.contains(&address) {
            let message = format!("more than {MAX_UNMAPPED} allocations that failed were not unmapped: {failure}");
            return Failure::new(FailureKind::Protocol, message);
        }
        addresses.insert(address);
        failure
    }

    /// Removes an address. Returns whether its mapping had failed.
    pub fn remove(&self, address: u64) -> bool {
        self.0.lock().remove(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_allocations_that_are_not_unmapped_are_limited() {
        let unmapped = Unmapped::default();
        let add = |address| unmapped.add(address, Failure::new(FailureKind::OutOfMemory, "full")).kind;
        for address in 0..MAX_UNMAPPED as u64 {
            assert_eq!(add(address), FailureKind::OutOfMemory);
        }
        assert_eq!((add(7), add(1 << 40)), (FailureKind::OutOfMemory, FailureKind::Protocol));
        assert!(unmapped.remove(7) && !unmapped.remove(7));
        assert_eq!(add(1 << 40), FailureKind::OutOfMemory);
    }
}
