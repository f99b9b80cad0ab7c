//! Memory of tensors on their way between a socket and an engine or a caller.
//!
//! ```text
//!  socket ──read──► Filling ──split──► Region, Region …  ──join──► Region ──► engine, numpy
//!                   (one writer)       (readers, any thread)          │ dropped
//!                      ▲                                              ▼
//!                      └───────────────── pool ◄──────────────── its block
//! ```
//!
//! A tensor's bytes are read from the socket to where they stay: a [`Filling`] is memory for the whole of it, and gives what
//! is there as [`Region`]s, which join to one again without a copy. On a machine that moves gigabytes a second what is left is the
//! first touch of fresh memory, which costs as much as the copy itself: so large blocks come in huge pages, and go to a
//! pool when the last region of them is dropped. What lies in the pool is the system's to take whenever it needs memory.

mod block;
mod pool;

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::Arc;

use bytes::{BufMut, Bytes, buf::UninitSlice};

use self::block::Block;
pub use self::block::{ALIGNMENT, OutOfMemory};

#[cfg(test)]
mod tests;

/// Memory that is being filled from its beginning.
#[derive(Debug)]
pub struct Filling {
    block: Arc<Block>,
    bytes: usize,
    filled: usize,
    /// Bytes from the beginning that are in regions: they are never written again.
    given: usize,
}

impl Filling {
    /// Empty memory for so many bytes, aligned to [`ALIGNMENT`].
    ///
    /// # Errors
    /// When the system gives none.
    pub fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        Ok(Self {
            block: Arc::new(Block::new(bytes)?),
            bytes,
            filled: 0,
            given: 0,
        })
    }

    /// Bytes that are there.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that are not.
    pub fn missing(&self) -> usize {
        self.bytes - self.filled
    }

    /// Where the next bytes go: as many as are missing. [`Filling::advance`] says how many are there.
    pub fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: within the block. What was given away lies before it, and there is no other writer.
        unsafe { std::slice::from_raw_parts_mut(self.block.start().add(self.filled).cast(), self.missing()) }
    }

    /// So many more bytes are there.
    ///
    /// # Safety
    /// They were written to [`Filling::spare`].
    pub unsafe fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.missing(), "more bytes than there is room for");
        self.filled += bytes;
    }

    /// Appends a copy.
    ///
    /// # Panics
    /// When it is more than what is missing.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.spare()[..bytes.len()].write_copy_of_slice(bytes);
        // SAFETY: they were just written.
        unsafe { self.advance(bytes.len()) };
    }

    /// Appends so many zeros and gives them to be written to.
    ///
    /// # Panics
    /// When they are more than what is missing.
    pub fn extend_zeroed(&mut self, bytes: usize) -> &mut [u8] {
        let zeroed = &mut self.spare()[..bytes];
        zeroed.fill(MaybeUninit::new(0));
        let start = zeroed.as_mut_ptr().cast::<u8>();
        // SAFETY: they were just written.
        unsafe { self.advance(bytes) };
        // SAFETY: within the block, written to, and not given away.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Forgets what came behind so many bytes.
    ///
    /// # Panics
    /// When they were given away.
    pub fn truncate(&mut self, bytes: usize) {
        assert!(bytes >= self.given, "they were given away");
        self.filled = self.filled.min(bytes);
    }

    /// What came since the last time.
    pub fn split(&mut self) -> Region {
        let region = Region {
            block: Arc::clone(&self.block),
            start: self.given,
            end: self.filled,
        };
        self.given = self.filled;
        region
    }

    /// Everything that is there.
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

// SAFETY: `chunk_mut` is what `advance_mut` counts in, and nothing else moves it.
unsafe impl BufMut for Filling {
    fn remaining_mut(&self) -> usize {
        self.missing()
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.advance(count) };
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        UninitSlice::uninit(self.spare())
    }
}

/// Immutable, initialised bytes. Clones share the memory.
#[derive(Clone)]
pub struct Region {
    block: Arc<Block>,
    start: usize,
    end: usize,
}

impl Region {
    /// None.
    pub fn empty() -> Self {
        Self {
            block: Arc::new(Block::empty()),
            start: 0,
            end: 0,
        }
    }

    /// Takes the bytes that follow in the same memory.
    ///
    /// # Errors
    /// Gives them back where they do not.
    pub fn join(&mut self, next: Region) -> Result<(), Region> {
        if !Arc::ptr_eq(&self.block, &next.block) || next.start != self.end {
            return Err(next);
        }
        self.end = next.end;
        Ok(())
    }

    /// Whether these are the first bytes of memory that was made for so many.
    pub fn begins(&self, bytes: usize) -> bool {
        self.start == 0 && self.block.bytes() == bytes
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the block, initialised before the region was made, and never written since.
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
