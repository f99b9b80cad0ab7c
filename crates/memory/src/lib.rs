//! Memory for tensors in transit between a socket and an engine or a caller.
//!
//! ```text
//!  socket ──read──► Filling ──split──► Region, Region …  ──join──► Region ──► engine, numpy
//!                   (one writer)       (readers, any thread)          │ dropped
//!                      ▲                                              ▼
//!                      └───────────────── pool ◄──────────────── its block
//! ```
//!
//! The bytes of a tensor are read from the socket directly into their final memory. A [`Filling`] is memory for the whole tensor; it hands
//! out the bytes that have arrived as [`Region`]s, which can be joined without a copy. The remaining cost at gigabytes per second is the
//! first access to fresh memory, which costs as much as the copy itself. So large blocks consist of huge pages, and return to a pool when
//! their last region is dropped. The system may reclaim the memory in the pool at any time.

mod block;
mod pool;
pub mod shared;
pub mod streaming;

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::Arc;

use bytes::{BufMut, Bytes, buf::UninitSlice};

use self::block::Block;
pub use self::block::{ALIGNMENT, OutOfMemory};

#[cfg(test)]
mod tests;

/// Memory that is filled from its beginning.
#[derive(Debug)]
pub struct Filling {
    block: Arc<Block>,
    bytes: usize,
    filled: usize,
    /// Number of bytes, from the beginning, that were handed out as regions. They are never written again.
    given: usize,
}

impl Filling {
    /// Allocates empty memory for `bytes` bytes, aligned to [`ALIGNMENT`].
    pub fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        Ok(Self {
            block: Arc::new(Block::new(bytes)?),
            bytes,
            filled: 0,
            given: 0,
        })
    }

    /// Returns the number of bytes that have been filled.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Returns the number of bytes that have not been filled yet.
    pub fn missing(&self) -> usize {
        self.bytes - self.filled
    }

    /// Returns the unfilled memory. After writing to its beginning, call [`Filling::advance`].
    pub fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: The slice lies within the block, behind all regions that were handed out, and there is no other writer.
        unsafe { std::slice::from_raw_parts_mut(self.block.start().add(self.filled).cast(), self.missing()) }
    }

    /// Marks `bytes` more bytes as filled.
    ///
    /// # Safety
    /// The bytes must have been written to [`Filling::spare`].
    pub unsafe fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.missing(), "more bytes than there is room for");
        self.filled += bytes;
    }

    /// Appends a copy of the bytes.
    ///
    /// # Panics
    /// When `bytes` is longer than the unfilled memory.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.spare()[..bytes.len()].write_copy_of_slice(bytes);
        // SAFETY: The bytes were just written.
        unsafe { self.advance(bytes.len()) };
    }

    /// Appends zeros, and returns them for writing.
    ///
    /// # Panics
    /// When `bytes` is more than the unfilled memory.
    pub fn extend_zeroed(&mut self, bytes: usize) -> &mut [u8] {
        let zeroed = &mut self.spare()[..bytes];
        zeroed.fill(MaybeUninit::new(0));
        let start = zeroed.as_mut_ptr().cast::<u8>();
        // SAFETY: The bytes were just written.
        unsafe { self.advance(bytes) };
        // SAFETY: The bytes lie within the block, are initialized, and were not handed out.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Discards all bytes after the first `bytes`.
    ///
    /// # Panics
    /// When some of the discarded bytes were handed out as a region.
    pub fn truncate(&mut self, bytes: usize) {
        assert!(bytes >= self.given, "they were given away");
        self.filled = self.filled.min(bytes);
    }

    /// Returns the bytes filled since the last call.
    pub fn split(&mut self) -> Region {
        let region = Region {
            block: Arc::clone(&self.block),
            start: self.given,
            end: self.filled,
        };
        self.given = self.filled;
        region
    }

    /// Returns all filled bytes.
    pub fn finish(self) -> Region {
        Region {
            block: self.block,
            start: 0,
            end: self.filled,
        }
    }
}

impl PartialEq for Filling {
    fn eq(&self, other: &Self) -> bool {
        let there = |filling: &Self| Region {
            block: Arc::clone(&filling.block),
            start: 0,
            end: filling.filled,
        };
        self.bytes == other.bytes && there(self) == there(other)
    }
}

// SAFETY: `chunk_mut` returns the memory that `advance_mut` counts, and nothing else changes the position in between.
unsafe impl BufMut for Filling {
    fn remaining_mut(&self) -> usize {
        self.missing()
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: Guaranteed by the caller.
        unsafe { self.advance(count) };
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        UninitSlice::uninit(self.spare())
    }
}

/// Immutable, initialized bytes. Clones share the memory.
#[derive(Clone)]
pub struct Region {
    block: Arc<Block>,
    start: usize,
    end: usize,
}

impl Region {
    pub fn empty() -> Self {
        Self {
            block: Arc::new(Block::empty()),
            start: 0,
            end: 0,
        }
    }

    /// Appends the region that follows directly in the same memory.
    ///
    /// # Errors
    /// Returns `next` unchanged when it does not follow directly in the same memory.
    pub fn join(&mut self, next: Region) -> Result<(), Region> {
        if !Arc::ptr_eq(&self.block, &next.block) || next.start != self.end {
            return Err(next);
        }
        self.end = next.end;
        Ok(())
    }

    /// Returns whether this region starts at the beginning of memory that was allocated for `bytes` bytes.
    pub fn begins(&self, bytes: usize) -> bool {
        self.start == 0 && self.block.bytes() == bytes
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: The slice lies within the block, was initialized before the region was created, and is never written again.
        unsafe { std::slice::from_raw_parts(self.block.start().add(self.start), self.end - self.start) }
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Region {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.len())
    }
}

impl From<Region> for Bytes {
    fn from(region: Region) -> Self {
        Self::from_owner(region)
    }
}
