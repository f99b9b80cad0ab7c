//! Blocks of host memory, in which allocations lie.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

/// A block of host memory. The host accesses it through its [`pointer`](Self::pointer), and kernels do once a
/// [`Memory`](super::Memory::share) has it, under the rules for races of this module.
pub struct HostBlock {
    pointer: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

/// Owner of a block's memory.
enum Owner {
    /// The block: where it was allocated, and how.
    Block(NonNull<u8>, Layout),
    /// A value that frees the memory when it is dropped.
    Value { _value: Box<dyn Any + Send + Sync> },
    /// Somebody who keeps the memory for longer than the block.
    Other,
}

// SAFETY: the bytes are accessed through raw pointers only, under the rules in the module documentation.
unsafe impl Send for HostBlock {}
// SAFETY: the bytes are accessed through raw pointers only, under the rules in the module documentation.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// Allocates zeroed bytes at a multiple of `alignment`, a power of two. `None` if the host has no room. Pages are used only as they
    /// are touched.
    pub fn new(bytes: usize, alignment: usize) -> Option<Self> {
        // `alloc_zeroed` with a small alignment is `calloc`, which returns fresh pages that are zeroed and untouched.
        let size = bytes.max(1).checked_add(alignment)?;
        let layout = Layout::from_size_align(size, 16).ok()?;
        // SAFETY: the size is not zero.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = raw.as_ptr().align_offset(alignment);
        // SAFETY: `skip` is below the alignment, which was added to the size.
        let pointer = unsafe { raw.add(skip) };
        Some(Self {
            pointer,
            bytes,
            owner: Owner::Block(raw, layout),
        })
    }

    /// Block of memory that belongs to somebody else.
    ///
    /// # Safety
    /// The bytes must stay readable and writable until the block is dropped, and nobody may hold Rust references to them meanwhile.
    pub unsafe fn borrowed(pointer: NonNull<u8>, bytes: usize) -> Self {
        Self {
            pointer,
            bytes,
            owner: Owner::Other,
        }
    }

    /// Block of memory that `value` owns, which is dropped with the block.
    ///
    /// # Safety
    /// The bytes must stay readable and writable until the value is dropped, and no Rust reference to them may exist meanwhile.
    pub unsafe fn owned_by(pointer: NonNull<u8>, bytes: usize, value: impl Any + Send + Sync) -> Self {
        Self {
            pointer,
            bytes,
            owner: Owner::Value { _value: Box::new(value) },
        }
    }

    /// Address of the first byte.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.bytes);
        // SAFETY: the block has these bytes, and the vector has room for them. Races are as the module documentation says.
        unsafe {
            std::ptr::copy_nonoverlapping(self.pointer(), copy.as_mut_ptr(), self.bytes);
            copy.set_len(self.bytes);
        }
        copy
    }

    /// Overwrites the first bytes.
    ///
    /// # Panics
    /// If there are more than the block has.
    pub fn overwrite(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes, "more bytes than the block has");
        // SAFETY: the block has these bytes, and a Rust slice cannot overlap it. Races are as the module documentation says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer(), bytes.len()) }
    }
}

impl fmt::Debug for HostBlock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "HostBlock({:p}, {} bytes)", self.pointer, self.bytes)
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if let Owner::Block(raw, layout) = self.owner {
            // SAFETY: allocated in `new` with this layout; no other owner remains.
            unsafe { dealloc(raw.as_ptr(), layout) }
        }
    }
}
