//! Memory that a client and a session's executor share, in slots of equal size.
//!
//! ```text
//!  client                                   executor
//!  SlotPool ── take, fill, lend ──► slot ──► SlotLoan ──► device
//!     ▲                                         │ dropped
//!     └───── serial number in its word ◄────────┘
//! ```
//!
//! The client gives each use of a slot a serial number. A slot that was lent is free once the executor has stored that number in the
//! slot's word. Messages between the two name slots; nothing else in the memory is interpreted. Either side can write anything
//! at any time, which changes the bytes that are copied and which slots the client takes for free, and nothing else.

mod transfer;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

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
/// Unit of a slot's size in bytes.
const GRAIN_BYTES: u64 = 4096;

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
    /// A bit for each slot that has a [`SlotLoan`].
    loaned: AtomicU64,
}

// SAFETY: the mapping lives as long as the value. Words are accessed through atomics, and slots by copies through raw pointers.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// Size of the file in bytes.
///
/// # Errors
/// Numbers that are out of range.
fn file_bytes(slots: u32, slot_bytes: u64) -> io::Result<usize> {
    let is_valid = (1..=MAX_SLOTS).contains(&slots) && (1..=MAX_SLOT_BYTES).contains(&slot_bytes) && slot_bytes.is_multiple_of(GRAIN_BYTES);
    let bytes = is_valid.then(|| HEAD_BYTES as u64 + u64::from(slots) * slot_bytes);
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| io::Error::other(format!("invalid shared memory: {slots} slots of {slot_bytes} bytes")))
}

impl SharedMemory {
    /// Creates zeroed memory with up to [`MAX_SLOTS`] slots of a multiple of 4096 bytes each. Returns its mapping and its file.
    ///
    /// # Errors
    /// Errors of the system calls, or invalid numbers.
    pub fn create(slots: u32, slot_bytes: u64) -> io::Result<(Self, OwnedFd)> {
        let bytes = file_bytes(slots, slot_bytes)?;
        let file = rustix::fs::memfd_create("sahasra-shared-memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&file, slots, slot_bytes)?, file))
    }

    /// Maps the memory in a file that the peer made by [`SharedMemory::create`] with these numbers.
    ///
    /// # Errors
    /// Errors of the system calls, invalid numbers, a file of another size, or one that can be shrunk: an access to it could end this process.
    pub fn map(file: impl AsFd, slots: u32, slot_bytes: u64) -> io::Result<Self> {
        let bytes = file_bytes(slots, slot_bytes)?;
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
            slots: slots as usize,
            slot_bytes: slot_bytes as usize,
            loaned: AtomicU64::new(0),
        })
    }

    pub fn slots(&self) -> u32 {
        self.slots as u32
    }

    /// Size of a slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
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

    /// Uses the first `bytes` bytes of a slot for the peer, as its message asks. Returns `None` if there is no such slot, if it is smaller, or
    /// if it has a [`SlotLoan`].
    pub fn loan(self: &Arc<Self>, slot: u32, serial: u64, bytes: u64) -> Option<SlotLoan> {
        let (slot, bytes) = (usize::try_from(slot).ok()?, usize::try_from(bytes).ok()?);
        let exists = slot < self.slots && bytes <= self.slot_bytes;
        let is_new = exists && (self.loaned.fetch_or(1 << slot, Ordering::Acquire) >> slot).is_multiple_of(2);
        is_new.then(|| SlotLoan {
            memory: Arc::clone(self),
            slot,
            serial,
            bytes,
        })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let bytes = HEAD_BYTES + self.slots * self.slot_bytes;
        // SAFETY: mapped in `map` with this length; no reference outlives self.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) };
    }
}

/// First bytes of a slot that the peer has lent. Dropping it frees the slot.
#[derive(Debug)]
pub struct SlotLoan {
    memory: Arc<SharedMemory>,
    slot: usize,
    serial: u64,
    bytes: usize,
}

impl SlotLoan {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes as the target of a copy. The peer may change them at any time.
    pub fn target(&mut self) -> &mut [u8] {
        // SAFETY: the slice lies within the mapping, which lives as long as self. The peer can write it too: callers copy bytes to it, and
        // draw no conclusions from what it has.
        unsafe { std::slice::from_raw_parts_mut(self.memory.slot(self.slot, self.bytes).as_ptr(), self.bytes) }
    }
}

/// The bytes as the source of a copy. The peer may change them at any time.
impl AsRef<[u8]> for SlotLoan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `target`: callers copy the bytes, and interpret at most the copy.
        unsafe { std::slice::from_raw_parts(self.memory.slot(self.slot, self.bytes).as_ptr(), self.bytes) }
    }
}

impl Drop for SlotLoan {
    fn drop(&mut self) {
        self.memory.loaned.fetch_and(!(1 << self.slot), Ordering::Release);
        self.memory.word(self.slot).store(self.serial, Ordering::Release);
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

/// The slots of shared memory, on the side that decides about them.
#[derive(Debug)]
pub struct SlotPool {
    memory: SharedMemory,
    state: Mutex<State>,
}

impl SlotPool {
    /// The slots of memory, all of them free.
    pub fn new(memory: SharedMemory) -> Arc<Self> {
        let state = State {
            uses: vec![Use::Free; memory.slots],
            serials: 0,
        };
        Arc::new(Self {
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
