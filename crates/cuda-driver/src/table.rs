//! Tables of objects by their handles.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::boundary::Handle;
use crate::status::Status;

/// Returns a handle that no other object of the process has or had. Handles start above the values that the API gives a meaning (streams 1
/// and 2) and are multiples of 16, as pointers are.
pub(crate) fn new_handle() -> Handle {
    static NEXT: AtomicU64 = AtomicU64::new(0x10_0000);
    Handle(NEXT.fetch_add(16, Ordering::Relaxed))
}

/// Handles are spread well already, except for their low bits.
#[derive(Default)]
pub(crate) struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (value >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Objects of one kind.
pub(crate) struct Table<T> {
    objects: RwLock<HashMap<Handle, Arc<T>, BuildHasherDefault<HandleHasher>>>,
    /// Code for a handle that has no object, or none any more.
    unknown: Status,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::refusing(Status::INVALID_HANDLE)
    }
}

impl<T> Table<T> {
    /// Empty table with the code for unknown handles.
    pub(crate) fn refusing(unknown: Status) -> Self {
        Self {
            objects: RwLock::default(),
            unknown,
        }
    }

    /// Adds an object under a handle. Returns the one whose place it takes.
    pub(crate) fn insert(&self, handle: Handle, object: Arc<T>) -> Option<Arc<T>> {
        self.objects.write().insert(handle, object)
    }

    /// Adds an object of a context under a handle; [`Status::CONTEXT_IS_DESTROYED`] if another thread has destroyed the context. A context
    /// is marked as destroyed before its objects are removed, so that none is left behind.
    pub(crate) fn insert_unless(&self, is_destroyed: &AtomicBool, handle: Handle, object: Arc<T>) -> Result<(), Status> {
        let mut objects = self.objects.write();
        if is_destroyed.load(Ordering::Relaxed) {
            return Err(Status::CONTEXT_IS_DESTROYED);
        }
        objects.insert(handle, object);
        Ok(())
    }

    /// The object of a handle.
    pub(crate) fn find(&self, handle: Handle) -> Option<Arc<T>> {
        self.objects.read().get(&handle).cloned()
    }

    /// The object of a handle, or the table's code if there is none, or none any more.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, Status> {
        self.find(handle).ok_or(self.unknown)
    }

    /// Removes an object. Returns the table's code if there is none, or none any more.
    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, Status> {
        self.objects.write().remove(&handle).ok_or(self.unknown)
    }

    /// Calls a function with each object.
    pub(crate) fn each(&self, mut function: impl FnMut(&T)) {
        self.objects.read().values().for_each(|object| function(object));
    }

    /// Removes all objects for which `is_kept` is false.
    pub(crate) fn retain(&self, mut is_kept: impl FnMut(&T) -> bool) {
        self.objects.write().retain(|_, object| is_kept(object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroyed_context_gets_no_objects() {
        let is_destroyed = AtomicBool::new(false);
        let table = Table::default();
        let (first, second) = (new_handle(), new_handle());
        assert_eq!(table.insert_unless(&is_destroyed, first, Arc::new(1)), Ok(()));
        is_destroyed.store(true, Ordering::Relaxed);
        assert_eq!(
            table.insert_unless(&is_destroyed, second, Arc::new(2)),
            Err(Status::CONTEXT_IS_DESTROYED)
        );
        assert_eq!((table.find(first), table.find(second)), (Some(Arc::new(1)), None));
    }
}
