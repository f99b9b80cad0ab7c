//! One piece of memory, from the allocator when it is small and from the system when it is not.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::pool::{self, Mapping};

/// Where each begins: XLA takes memory over as it is where it is aligned so.
pub const ALIGNMENT: usize = 64;
/// From here on the system is asked: a page costs a fault only the first time, and these come again.
const LARGE_BYTES: usize = 128 << 10;

/// The system gives no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for {bytes} bytes")]
pub struct OutOfMemory {
    /// That were asked for.
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
    /// `None` only while it is dropped.
    Large(Option<Mapping>),
}

// SAFETY: memory that this owns alone.
unsafe impl Send for Block {}
// SAFETY: a block gives its address and nothing else; who writes where is `Filling`'s affair.
unsafe impl Sync for Block {}

impl Block {
    pub(crate) fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        let kind = match bytes {
            0 => Kind::Empty,
            _ if bytes >= LARGE_BYTES => Kind::Large(Some(pool::take(bytes).ok_or(OutOfMemory { bytes })?)),
            _ => {
                // SAFETY: the layout is not of zero bytes.
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

    /// Bytes that it was made for.
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
            // SAFETY: allocated with this layout, once.
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
