//! Memory that a client and a session's executor share: slots of equal size, and pinned memory behind them.
//!
//! ```text
//!  client                                   executor
//!  SlotPool ── take, fill, lend ──► slot ──► Loan ──► device
//!     ▲                                       │ dropped
//!     └───── serial number in its word ◄──────┘
//!  PinnedMemory ──── place in messages ──────► Loan ──► device
//! ```
//!
//! The client gives each use of a slot a serial number. A slot that was lent is free once the executor has stored that number in the
//! slot's word. Pinned memory is what the client's program allocates for fast copies: the executor copies from there to the device, and back, without
//! a slot between. Messages between the two name slots and places; nothing else in the memory is interpreted. Either side can write anything
//! at any time, which changes the bytes that are copied and which slots the client takes for free, and nothing else.

mod pinned;
mod transfer;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use range_alloc::RangeAllocator;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

pub use self::pinned::PinnedMemory;
pub use self::transfer::{receive, send, unread_bytes};
use crate::streaming;

/// Size of the slots' words in bytes.
const HEAD_BYTES: usize = 4096;
/// Distance between two words in bytes: one cache line, because different threads write them.
const WORD_DISTANCE: usize = 64;
/// Maximum number of slots.
pub const MAX_SLOTS: u32 = (HEAD_BYTES / WORD_DISTANCE) as u32;
/// Maximum size of a slot in bytes.
pub const MAX_SLOT_BYTES: u64 = 64 << 20;
/// Type of the file system that ordinary memfds are in: linux/magic.h.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
/// Unit of the sizes of slots and of pinned memory, in bytes.
const GRAIN_BYTES: u64 = 4096;
/// Maximum size of pinned memory in bytes.
pub const MAX_PINNED_BYTES: u64 = 1 << 40;

/// Boot id of this machine's kernel, a UUID that is new at each boot: processes with the same one are on one machine.
///
/// # Errors
/// Errors of reading `/proc/sys/kernel/random/boot_id`.
pub fn kernel_boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

/// Mapping of the memory.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    slots: usize,
    slot_bytes: usize,
    pinned_bytes: usize,
    /// A bit for each slot that has a [`Loan`].
    loaned: AtomicU64,
}

// SAFETY: the mapping lives as long as the value. Words are accessed through atomics, and the rest by copies through raw pointers.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// Sizes of the memory's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of slots, up to [`MAX_SLOTS`].
    pub slots: u32,
    /// Size of a slot in bytes, a multiple of 4096, up to [`MAX_SLOT_BYTES`].
    pub slot_bytes: u64,
    /// Size of the pinned memory in bytes, a multiple of 4096, up to [`MAX_PINNED_BYTES`]. Its pages take memory once they are touched.
    pub pinned_bytes: u64,
}

impl Layout {
    /// Size of the file in bytes.
    ///
    /// # Errors
    /// Numbers that are out of range.
    fn file_bytes(self) -> io::Result<usize> {
        let Self {
            slots,
            slot_bytes,
            pinned_bytes,
        } = self;
        let is_valid = (1..=MAX_SLOTS).contains(&slots)
            && (1..=MAX_SLOT_BYTES).contains(&slot_bytes)
            && slot_bytes.is_multiple_of(GRAIN_BYTES)
            && pinned_bytes <= MAX_PINNED_BYTES
            && pinned_bytes.is_multiple_of(GRAIN_BYTES);
        let bytes = is_valid.then(|| HEAD_BYTES as u64 + u64::from(slots) * slot_bytes + pinned_bytes);
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let invalid = || {
            io::Error::other(format!(
                "invalid shared memory: {slots} slots of {slot_bytes} bytes, {pinned_bytes} pinned bytes"
            ))
        };
        bytes.ok_or_else(invalid)
    }
}

impl SharedMemory {
    /// Creates zeroed memory. Returns its mapping and its file.
    ///
    /// # Errors
    /// Errors of the system calls, or invalid numbers.
    pub fn create(layout: Layout) -> io::Result<(Self, OwnedFd)> {
        let bytes = layout.file_bytes()?;
        let file = rustix::fs::memfd_create("sahasra-shared-memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&file, layout)?, file))
    }

    /// Maps the memory in a file that the peer made by [`SharedMemory::create`] with this layout.
    ///
    /// # Errors
    /// Errors of the system calls, invalid numbers, a file of another size, or one that can be shrunk: an access to it could end this process.
    pub fn map(file: impl AsFd, layout: Layout) -> io::Result<Self> {
        let bytes = layout.file_bytes()?;
        // Files of huge pages have seals too, and their pages can disappear.
        let is_tmpfs = rustix::fs::fstatfs(&file)?.f_type == TMPFS_MAGIC;
        let is_sealed = is_tmpfs && rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if rustix::fs::fstat(&file)?.st_size != bytes as i64 || !is_sealed {
            return Err(io::Error::other("shared memory has another size than announced, or can shrink"));
        }
        // SAFETY: a new mapping at an address that the kernel chooses. The file is a memfd (others have no seals) that cannot shrink, so its
        // pages cannot disappear.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("shared memory was mapped at the null address"))?;
        Ok(Self {
            start,
            slots: layout.slots as usize,
            slot_bytes: layout.slot_bytes as usize,
            pinned_bytes: layout.pinned_bytes as usize,
            loaned: AtomicU64::new(0),
        })
    }

    pub fn layout(&self) -> Layout {
        Layout {
            slots: self.slots as u32,
            slot_bytes: self.slot_bytes as u64,
            pinned_bytes: self.pinned_bytes as u64,
        }
    }

    fn word(&self, slot: usize) -> &AtomicU64 {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        // SAFETY: the word is within the first page of the mapping, aligned, and accessed only through atomics.
        unsafe { self.start.add(slot * WORD_DISTANCE).cast().as_ref() }
    }

    /// Address of the first `bytes` bytes of a slot.
    fn slot(&self, slot: usize, bytes: usize) -> NonNull<u8> {
        assert!(slot < self.slots && bytes <= self.slot_bytes, "{bytes} bytes of slot {slot}");
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.start.add(HEAD_BYTES + slot * self.slot_bytes) }
    }

    /// Address of bytes of the pinned memory.
    fn pinned(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.pinned_bytes);
        assert!(is_inside, "{bytes} bytes at {offset} of {} pinned", self.pinned_bytes);
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.start.add(HEAD_BYTES + self.slots * self.slot_bytes + offset) }
    }

    /// Uses the first `bytes` bytes of a slot for the peer, as its message asks. Returns `None` if there is no such slot, if it is smaller, or
    /// if it has a [`Loan`].
    pub fn loan_slot(self: &Arc<Self>, slot: u32, serial: u64, bytes: u64) -> Option<Loan> {
        let (slot, bytes) = (usize::try_from(slot).ok()?, usize::try_from(bytes).ok()?);
        let exists = slot < self.slots && bytes <= self.slot_bytes;
        let is_new = exists && (self.loaned.fetch_or(1 << slot, Ordering::Acquire) >> slot).is_multiple_of(2);
        is_new.then(|| Loan {
            memory: Arc::clone(self),
            place: Place::Slot { slot, serial },
            bytes,
        })
    }

    /// Uses bytes of the pinned memory for the peer, as its message asks. Returns `None` if they are not within it. Loans may overlap, as may
    /// the copies of a program: each byte is then one of those that were written.
    pub fn loan_pinned(self: &Arc<Self>, offset: u64, bytes: u64) -> Option<Loan> {
        let (offset, bytes) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.pinned_bytes);
        is_inside.then(|| Loan {
            memory: Arc::clone(self),
            place: Place::Pinned { offset },
            bytes,
        })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let bytes = HEAD_BYTES + self.slots * self.slot_bytes + self.pinned_bytes;
        // SAFETY: mapped in `map` with this length; no reference outlives self.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) };
    }
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Slot { slot: usize, serial: u64 },
    Pinned { offset: usize },
}

/// Bytes that the peer has lent: the first ones of a slot, or some of the pinned memory. Dropping it frees the slot.
#[derive(Debug)]
pub struct Loan {
    memory: Arc<SharedMemory>,
    place: Place,
    bytes: usize,
}

impl Loan {
    fn start(&self) -> NonNull<u8> {
        match self.place {
            Place::Slot { slot, .. } => self.memory.slot(slot, self.bytes),
            Place::Pinned { offset } => self.memory.pinned(offset, self.bytes),
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes as the target of a copy. The peer may change them at any time.
    pub fn target(&mut self) -> &mut [u8] {
        // SAFETY: the slice lies within the mapping, which lives as long as self. The peer can write it too: callers copy bytes to it, and
        // draw no conclusions from what it has.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.bytes) }
    }
}

/// The bytes as the source of a copy. The peer may change them at any time.
impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `target`: callers copy the bytes, and interpret at most the copy.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.bytes) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Place::Slot { slot, serial } = self.place {
            self.memory.loaned.fetch_and(!(1 << slot), Ordering::Release);
            self.memory.word(slot).store(serial, Ordering::Release);
        }
    }
}

/// How the client uses a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// A [`Slot`] has it.
    Held,
    /// The peer has it until the slot's word has this serial number.
    Lent(u64),
}

#[derive(Debug)]
struct State {
    uses: Vec<Use>,
    serials: u64,
}

/// Shared memory on the side that decides about it: its slots, and its pinned memory.
#[derive(Debug)]
pub struct SlotPool {
    memory: SharedMemory,
    state: Mutex<State>,
    pinned: Mutex<RangeAllocator<usize>>,
}

impl SlotPool {
    /// Memory that is all free.
    pub fn new(memory: SharedMemory) -> Arc<Self> {
        let state = State {
            uses: vec![Use::Free; memory.slots],
            serials: 0,
        };
        Arc::new(Self {
            pinned: Mutex::new(RangeAllocator::new(0..memory.pinned_bytes)),
            memory,
            state: Mutex::new(state),
        })
    }

    pub fn slots(&self) -> usize {
        self.memory.slots
    }

    /// Size of a slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.memory.slot_bytes
    }

    /// Takes the first free slot, which is the most likely to be in a cache. Returns `None` if there is none.
    pub fn take(self: &Arc<Self>) -> Option<Slot> {
        self.take_leaving(0)
    }

    /// Takes a free slot like [`take`](Self::take), if at least `rest` others are free.
    pub fn take_leaving(self: &Arc<Self>, rest: usize) -> Option<Slot> {
        let mut state = self.state.lock();
        let mut free = (0..self.memory.slots).filter(|slot| match state.uses[*slot] {
            Use::Free => true,
            Use::Held => false,
            Use::Lent(serial) => self.memory.word(*slot).load(Ordering::Acquire) == serial,
        });
        let index = free.next()?;
        if free.take(rest).count() < rest {
            return None;
        }
        state.uses[index] = Use::Held;
        state.serials += 1;
        Some(Slot {
            serial: state.serials,
            pool: Arc::clone(self),
            index,
        })
    }
}

/// A slot that the client uses. Dropping it frees the slot, which the peer must not use any more then.
#[derive(Debug)]
pub struct Slot {
    pool: Arc<SlotPool>,
    index: usize,
    serial: u64,
}

impl Slot {
    /// Index of the slot.
    pub fn index(&self) -> u32 {
        self.index as u32
    }

    /// Number of this use of the slot.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Copies bytes to the beginning of the slot.
    ///
    /// # Panics
    /// If they are more than a slot has.
    pub fn fill(&mut self, bytes: &[u8]) {
        let target = self.pool.memory.slot(self.index, bytes.len());
        // SAFETY: the target is within the mapping, which is none of this process's other memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
    }

    /// Copies bytes from the beginning of the slot.
    ///
    /// # Panics
    /// If they are more than a slot has.
    pub fn copy_to(&self, into: &mut [u8]) {
        let source = self.pool.memory.slot(self.index, into.len());
        // SAFETY: as in `fill`.
        unsafe { streaming::copy(source.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Lends the slot to the peer, who frees it.
    pub fn lend(self) {
        self.pool.state.lock().uses[self.index] = Use::Lent(self.serial);
    }

    /// Keeps the slot from being used again: the peer may use it for ever.
    pub fn forget(self) {
        // No peer stores the serial number that no use has.
        self.pool.state.lock().uses[self.index] = Use::Lent(u64::MAX);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let held = &mut self.pool.state.lock().uses[self.index];
        if *held == Use::Held {
            *held = Use::Free;
        }
    }
}

#[cfg(test)]
mod tests;
