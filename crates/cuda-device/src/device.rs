//! Devices and their queues, as a driver library sees them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Extent, Failure, HostBlock, LoadFailure, ModuleDescription, ModuleId, Operation, Region};

/// What a device is. Known before any queue is opened, so that questions about it need no answer from afar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Display name.
    pub name: String,
    /// Identifier that no other device has.
    pub uuid: [u8; 16],
    /// Memory for mapped memory and variables of all queues, in bytes.
    pub memory_bytes: u64,
    /// Addresses of which the client chooses those of mapped memory.
    pub addresses: Range<u64>,
    /// Lowest address that the device chooses itself, for variables and what kernels allocate. No two queues have the same.
    pub placed_from: u64,
    /// Blocks that run at the same time.
    pub multiprocessors: u32,
    /// Whether kernels access this process's memory itself. Otherwise [`Queue::share`] copies: what the host wrote is there for the next
    /// operation, and what kernels wrote is here when a wait has returned.
    pub shares_host_memory: bool,
    /// Values of device attributes by their numbers (`CUdevice_attribute`), as the driver of a GPU gives them. Empty for the PTX engine.
    pub attributes: BTreeMap<u32, i32>,
    /// Whether the device loads cubins and fat binaries, besides PTX.
    pub takes_machine_code: bool,
    /// Whether kernels take the address of a [`Texture`](crate::Texture)'s descriptor in memory as a texture or surface.
    pub reads_descriptors: bool,
    /// Unit in which memory is mapped, in bytes. Memory of different queues must not be in one unit.
    pub page_bytes: u64,
    /// Call stack of a thread in bytes, unless a launch asks for another.
    pub stack_bytes: u64,
}

/// Position of an operation in its queue. Later operations have higher tickets; the ticket 0 is done from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Device on which contexts of CUDA programs run, in this process or on another machine.
pub trait Device: Send + Sync {
    /// What the device is.
    fn properties(&self) -> &Properties;

    /// Allocates zeroed memory of this process at a multiple of `alignment`, a power of two, where copies are fastest. `None` if there is no
    /// room.
    fn allocate_host(&self, bytes: usize, alignment: usize) -> Option<HostBlock>;

    /// Counts of what the device did, for users who look for the calls that wait; `None` if no call waits for another machine.
    fn summary(&self) -> Option<String> {
        None
    }

    /// Frees everything and ends the use of the device, before the process ends. Nothing may be called afterwards.
    fn close(&self) {}

    /// Opens a queue with memory of its own. [Closing](Queue::close) or dropping it frees everything.
    ///
    /// # Errors
    /// [`FailureKind::Lost`] if the device cannot be reached, [`FailureKind::OutOfMemory`] if it has no addresses left.
    fn open(&self) -> Result<Arc<dyn Queue>, Failure>;
}

/// Called with an operation and its ticket when the operation has been executed, or when its queue was dropped before that.
pub type Ended = Arc<dyn Fn(&Operation, Ticket) + Send + Sync>;

/// Called when memory is free.
pub type Freed = Box<dyn Fn() + Send + Sync>;

/// Called with the reason when a device cannot be used any more.
pub type Lost = Box<dyn Fn(&str) + Send + Sync>;

/// A device as the executor of a session uses it: its queues report what has been executed, so that the executor's thread does not wait for them.
pub trait WatchedDevice: Device {
    /// Bytes of the device's memory that are in use in all queues.
    fn used_bytes(&self) -> u64;

    /// Opens a queue like [`Device::open`]. After each operation, a thread calls `ended`, in the order of the operations.
    ///
    /// # Errors
    /// As [`Device::open`].
    fn open_watched(&self, ended: Ended) -> Result<Arc<dyn Queue>, Failure>;

    /// Sets what is called when memory of a queue that was dropped before is free. The PTX engine frees it at once.
    fn when_freed(&self, _freed: Freed) {}

    /// Sets what is called when only a new process can use the device again. The PTX engine is never lost.
    fn when_lost(&self, _lost: Lost) {}
}

/// Queue of operations, with everything that they make. All methods may be called by many threads at once.
///
/// After a [sticky](Failure::is_sticky) failure nothing is executed any more, and every call that can fail returns that failure. Other failures
/// are returned once.
pub trait Queue: Send + Sync {
    /// Appends an operation, and returns before it is executed. Waits only while the queue is full.
    fn submit(&self, operation: Operation) -> Ticket;

    /// Whether [`submit`](Self::submit) would not wait.
    fn has_room(&self) -> bool {
        true
    }

    /// Appends a write of rows, which follow each other in `bytes` without gaps. `bytes` may be reused when this returns.
    fn write(&self, to: Region, extent: Extent, bytes: &[u8]) -> Ticket {
        self.submit(Operation::Write {
            to,
            extent,
            bytes: Bytes::copy_from_slice(bytes),
        })
    }

    /// Appends a write to `to` of `bytes` bytes from `offset` on in a block of [`Device::allocate_host`], if the device can read them there when it
    /// executes the write: they must not change before. Returns `None` if it cannot, or if [`write`](Self::write) is faster.
    fn write_in_place(&self, _to: u64, _block: &Arc<HostBlock>, _offset: usize, _bytes: usize) -> Option<Ticket> {
        None
    }

    /// Makes memory of this process accessible to kernels at its own address, until that address is unmapped, in order with everything else.
    ///
    /// # Errors
    /// [`FailureKind::Protocol`] if the device has that address already, [`FailureKind::OutOfMemory`] if it has no room for a copy.
    fn share(&self, block: &Arc<HostBlock>) -> Result<(), Failure>;

    /// Whether [shared](Self::share) memory is with the device until a call waits, which copies it back.
    fn has_host_memory(&self) -> bool {
        false
    }

    /// Reads rows, after everything that was submitted before, into `into`, without gaps. Counts as a wait for that.
    ///
    /// # Errors
    /// A failure of an operation before, or of the read.
    fn read(&self, from: Region, extent: Extent, into: &mut [u8]) -> Result<(), Failure>;

    /// Loads images, linked, after everything that was submitted before: PTX texts, or cubins and fat binaries where the device
    /// [takes](Properties::takes_machine_code) them.
    ///
    /// # Errors
    /// Errors of the images, or a failure of an operation before.
    fn load(&self, module: ModuleId, images: &[&[u8]]) -> Result<ModuleDescription, LoadFailure>;

    /// Waits until the operation of a ticket has been executed.
    ///
    /// # Errors
    /// A failure of this operation or one before.
    fn wait(&self, ticket: Ticket) -> Result<(), Failure>;

    /// Ticket of the last operation that has been executed, without waiting for it.
    ///
    /// # Errors
    /// The sticky failure.
    fn executed(&self) -> Result<Ticket, Failure>;

    /// Whether the operation of a ticket has been executed.
    ///
    /// # Errors
    /// The sticky failure.
    fn is_done(&self, ticket: Ticket) -> Result<bool, Failure> {
        Ok(self.executed()? >= ticket)
    }

    /// Ticket of the last operation that was submitted.
    fn last(&self) -> Ticket;

    /// The sticky failure, if it is known here already.
    fn failure(&self) -> Option<Failure>;

    /// Time that [`Operation::Mark`] noted last under this name, since the queue was opened; `None` before it was executed.
    fn marked(&self, mark: u64) -> Option<Duration>;

    /// Forgets a mark, after everything that was submitted.
    fn forget(&self, mark: u64);

    /// Frees everything of the queue, before what is submitted to other queues from now on, though there may be further references to it. Nothing is
    /// executed any more then, and every call that can fail returns [`FailureKind::Lost`](crate::FailureKind::Lost), unless the queue had failed
    /// before. Closing it again has no effect.
    fn close(&self);

    /// Removes and returns what kernels printed, as far as it has arrived. It arrives before the answer of a call that waits for the kernel.
    fn printed(&self) -> Vec<u8>;
}
