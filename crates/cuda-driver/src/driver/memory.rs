//! Device memory as it comes and goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sahasra_cuda_device::Operation;

use crate::context::Context;
use crate::ranges::{Kind, counted};
use crate::status::Status;

use super::Driver;

/// Bytes from which an allocation waits for the device. Below, the host has them, or nothing goes on in it.
const AWAITED_BYTES: u64 = 1 << 20;

impl Driver {
    pub(crate) fn allocate(&self, context: &Arc<Context>, bytes: u64, kind: Kind) -> Result<u64, Status> {
        if bytes == 0 {
            return Err(Status::INVALID_VALUE);
        }
        context.check()?;
        let size = counted(bytes).ok_or(Status::OUT_OF_MEMORY)?;
        self.count(kind, size)?;
        let address = self.ranges.place(context, bytes, kind).inspect_err(|_| self.discount(kind, size))?;
        // Whole units, as on a GPU: programs that read a little beyond an array run there.
        let mapped = context.submit(Operation::Map { address, bytes: size }).and_then(|ticket| {
            // The host may lack what the device's size promises.
            if size >= AWAITED_BYTES { context.wait(ticket) } else { Ok(()) }
        });
        if let Err(status) = mapped {
            // Refused only after a fault, when nothing is mapped any more.
            let _ = context.submit(Operation::Unmap { address });
            self.discount(kind, self.ranges.forget(address, context.id));
            return Err(status);
        }
        Ok(address)
    }

    /// Frees device memory, after everything that was submitted.
    pub(crate) fn free_memory(&self, address: u64) -> Result<(), Status> {
        if self.ranges.find(address).is_some_and(|range| range.kind == Kind::Graph) {
            return self.free_graph_memory(address);
        }
        self.free_range(address, |kind| matches!(kind, Kind::Allocated | Kind::Pooled(_) | Kind::Managed))
    }

    /// Frees device memory of one of the kinds that `is_meant` accepts, after everything that was submitted.
    pub(super) fn free_range(&self, address: u64, is_meant: impl Fn(Kind) -> bool) -> Result<(), Status> {
        let found = self.ranges.retire(address, is_meant).ok_or(Status::INVALID_VALUE)?;
        let outcome = match found.context.upgrade() {
            Some(context) => context.submit(Operation::Unmap { address }).map(|_| ()),
            None => Ok(()),
        };
        self.discount(found.kind, self.ranges.forget(address, found.context_id));
        if found.kind == Kind::Managed {
            self.host.write().remove(&(address as usize));
        }
        outcome
    }

    /// Counts memory as used, by the device and by its pool.
    fn count(&self, kind: Kind, size: u64) -> Result<(), Status> {
        self.charge(size)?;
        if let Kind::Pooled(pool) = kind
            && let Some(pool) = self.pools.find(pool)
        {
            pool.add(size).inspect_err(|_| self.release(size))?;
        }
        Ok(())
    }

    /// Counts memory as free.
    pub(crate) fn discount(&self, kind: Kind, size: u64) {
        self.release(size);
        if let Kind::Pooled(pool) = kind
            && let Some(pool) = self.pools.find(pool)
        {
            pool.used.fetch_sub(size, Ordering::Relaxed);
        }
    }

    /// Counts the variables of a module.
    pub(crate) fn charge_variables(&self, sizes: impl Iterator<Item = u64>) -> Result<(), Status> {
        let mut charged = 0;
        for bytes in sizes {
            let size = counted(bytes).ok_or(Status::OUT_OF_MEMORY)?;
            self.charge(size).inspect_err(|_| self.release(charged))?;
            charged += size;
        }
        Ok(())
    }

    /// Counts the variables of a module as free.
    pub(crate) fn release_variables(&self, sizes: impl Iterator<Item = u64>) {
        self.release(sizes.filter_map(counted).sum());
    }
}
