//! Devices and their queues, as a driver library sees them.

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
}

/// Position of an operation in its queue. Later operations have higher tickets; the ticket 0 is done from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A device.
pub trait Device: Send + Sync {
    /// What the device is.
    fn properties(&self) -> &Properties;

    /// Counts of what the device did, for users who look for the calls that wait; `None` if no call waits for another machine.
    fn summary(&self) -> Option<String> {
        None
    }

    /// Frees everything and ends the use of the device, before the process ends. Nothing may be called afterwards.
    fn close(&self) {}

    /// Opens a queue with memory of its own. Dropping it frees everything.
    ///
    /// # Errors
    /// [`FailureKind::Lost`] if the device cannot be reached, [`FailureKind::OutOfMemory`] if it has no addresses left.
    fn open(&self) -> Result<Arc<dyn Queue>, Failure>;
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

    /// Makes memory of this process accessible to kernels at its own address, until that address is unmapped, in order with everything else.
    ///
    /// # Errors
    /// [`FailureKind::Protocol`] if the device has that address already, [`FailureKind::OutOfMemory`] if it has no room for a copy.
    fn share(&self, block: &Arc<HostBlock>) -> Result<(), Failure>;

    /// Reads rows, after everything that was submitted before, into `into`, without gaps.
    ///
    /// # Errors
    /// A failure of an operation before, or of the read.
    fn read(&self, from: Region, extent: Extent, into: &mut [u8]) -> Result<(), Failure>;

    /// Loads PTX texts, linked, after everything that was submitted before.
    ///
    /// # Errors
    /// Errors of the texts, or a failure of an operation before.
    fn load(&self, module: ModuleId, texts: &[&str]) -> Result<ModuleDescription, LoadFailure>;

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

    /// Removes and returns what kernels printed, as far as it has arrived. It arrives before the answer of a call that waits for the kernel.
    fn printed(&self) -> Vec<u8>;
}
