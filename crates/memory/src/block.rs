//! A block of memory, from the allocator if it is small and from the system if it is large.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::pool::{self, Mapping};

/// Alignment of every block in bytes. XLA uses memory with this alignment without copying it.
pub const ALIGNMENT: usize = 64;
/// Size in bytes from which a block comes from the system. Only the first access to a page costs a page fault, and the pool reuses the
/// pages.
const LARGE_BYTES: usize = 128 << 10;

/// Error: the system provides no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to allocate {bytes} bytes")]
pub struct OutOfMemory {
    pub bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Block {
    bytes: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Empty,
    Small(NonNull<u8>),
    /// The mapping; `None` only while the block is being dropped.
    Large(Option<Mapping>),
}

// SAFETY: The block is the only owner of its memory.
unsafe impl Send for Block {}
// SAFETY: A shared block only returns its address. `Filling` is responsible for accesses to the memory.
unsafe impl Sync for Block {}

impl Block {
    pub(crate) fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        let kind = match bytes {
            0 => Kind::Empty,
            _ if bytes >= LARGE_BYTES => Kind::Large(Some(pool::take(bytes).ok_or(OutOfMemory { bytes })?)),
            _ => {
                // SAFETY: The layout has a nonzero size.
                let start = unsafe { alloc(layout(bytes)) };
                Kind::Small(NonNull::new(start).ok_or(OutOfMemory { bytes })?)
            }
        };
        Ok(Self { bytes, kind })
    }

    pub(crate) fn empty() -> Self {
        Self {
            bytes: 0,
            kind: Kind::Empty,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn start(&self) -> *mut u8 {
        match &self.kind {
            Kind::Small(start) => start.as_ptr(),
            Kind::Large(Some(mapping)) => mapping.start(),
            Kind::Empty | Kind::Large(None) => std::ptr::dangling_mut(),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match &mut self.kind {
            Kind::Empty => {}
            // SAFETY: The memory was allocated with this layout and is freed once.
            Kind::Small(start) => unsafe { dealloc(start.as_ptr(), layout(self.bytes)) },
            Kind::Large(mapping) => {
                if let Some(mapping) = mapping.take() {
                    pool::give(mapping);
                }
            }
        }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGNMENT).expect("blocks from the allocator are small")
}
