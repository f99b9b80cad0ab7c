//! Virtual memory as it comes and goes.

use std::sync::Arc;

use sahasra_cuda_device::{Extent, Operation, Region};

use crate::boundary::Handle;
use crate::context::Context;
use crate::ranges::Kind;
use crate::status::Status;
use crate::table::new_handle;
use crate::virtual_memory::{GRANULARITY, Physical, Place, VirtualMemory};

use super::Driver;

impl Driver {
    /// Creates memory without an address.
    pub(crate) fn create_memory(&self, bytes: u64) -> Result<Handle, Status> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(Status::INVALID_VALUE);
        }
        self.charge(bytes)?;
        let handle = new_handle();
        let memory = Physical {
            bytes,
            references: 1,
            mapped: None,
            place: None,
        };
        self.virtual_memory.lock().memories.insert(handle, memory);
        Ok(handle)
    }

    /// Releases a handle. The memory stays while it is mapped.
    pub(crate) fn release_memory(&self, handle: Handle) -> Result<(), Status> {
        let mut state = self.virtual_memory.lock();
        let memory = state.memories.get_mut(&handle).filter(|memory| memory.references > 0);
        memory.ok_or(Status::INVALID_VALUE)?.references -= 1;
        self.free_unused(&mut state, handle);
        Ok(())
    }

    /// Frees a memory that has neither handles nor mappings.
    fn free_unused(&self, state: &mut VirtualMemory, handle: Handle) {
        let is_used = |memory: &Physical| memory.references > 0 || memory.mapped.is_some();
        if state.memories.get(&handle).is_none_or(is_used) {
            return;
        }
        if let Some(memory) = state.memories.remove(&handle) {
            self.release(memory.bytes);
            if let Some(place) = memory.place {
                leave(state, &place);
            }
        }
    }

    /// Ends the mappings of which a range consists, after everything that was submitted.
    pub(crate) fn unmap(&self, start: u64, bytes: u64) -> Result<(), Status> {
        let mut state = self.virtual_memory.lock();
        for (address, mapping) in state.mappings_of(start, bytes)? {
            state.mappings.remove(&address);
            if let Some(memory) = state.memories.get_mut(&mapping.memory) {
                memory.mapped = None;
                if let Some(place) = &memory.place {
                    self.ranges.forget(address, place.context_id);
                }
            }
            self.free_unused(&mut state, mapping.memory);
        }
        Ok(())
    }

    /// Sets the access (`CUmemAccess_flags`) to the mappings of which a range consists. With the first, their memory is in a context.
    pub(crate) fn set_access(&self, context: &Arc<Context>, start: u64, bytes: u64, access: u32) -> Result<(), Status> {
        context.check()?;
        let mut state = self.virtual_memory.lock();
        for (address, mapping) in state.mappings_of(start, bytes)? {
            if access != 0 {
                self.settle(&mut state, context, address, mapping.memory, mapping.bytes)?;
            } else if let Some(place) = state.memories.get(&mapping.memory).and_then(|memory| memory.place.as_ref()) {
                self.ranges.forget(address, place.context_id);
            }
            if let Some(mapping) = state.mappings.get_mut(&address) {
                mapping.access = access;
            }
        }
        Ok(())
    }

    /// Lets a memory be where it is mapped.
    fn settle(&self, state: &mut VirtualMemory, context: &Arc<Context>, address: u64, handle: Handle, bytes: u64) -> Result<(), Status> {
        for stray in state.strays(address, bytes) {
            let length = state.memories.get(&stray).map_or(GRANULARITY, |memory| memory.bytes);
            let spare = state.reserve_spare(length)?;
            let moved = place(state, context, stray, spare);
            moved.inspect_err(|_| state.free_spare(spare))?;
        }
        let owner = place(state, context, handle, address)?;
        if self.ranges.find(address).is_none() {
            self.ranges.note(&owner, address, bytes, Kind::Virtual)?;
        }
        Ok(())
    }
}

/// Moves a memory to an address, or makes it there, with its contents. Returns the context that has it.
fn place(state: &mut VirtualMemory, context: &Arc<Context>, handle: Handle, address: u64) -> Result<Arc<Context>, Status> {
    let memory = state.memories.get(&handle).ok_or(Status::INVALID_VALUE)?;
    let bytes = memory.bytes;
    let before = memory.place.clone();
    // A context that is gone has taken the contents with it.
    let holder = before.as_ref().and_then(|before| before.context.upgrade());
    let owner = Arc::clone(holder.as_ref().unwrap_or(context));
    let is_there = before.as_ref().is_some_and(|before| before.address == address);
    if holder.is_some() && is_there {
        return Ok(owner);
    }
    let ticket = owner.submit(Operation::Map { address, bytes })?;
    owner.wait(ticket).inspect_err(|_| {
        // Refused only after a fault, when nothing is mapped any more.
        let _ = owner.submit(Operation::Unmap { address });
    })?;
    if let Some(before) = before.filter(|_| holder.is_some()) {
        let (from, to, extent) = (Region::linear(before.address), Region::linear(address), Extent::linear(bytes));
        owner.submit(Operation::Copy { from, to, extent })?;
        leave(state, &before);
    }
    if let Some(memory) = state.memories.get_mut(&handle) {
        memory.place = Some(Place {
            address,
            context: Arc::downgrade(&owner),
            context_id: owner.id,
        });
    }
    Ok(owner)
}

/// Frees what is at a place.
fn leave(state: &mut VirtualMemory, place: &Place) {
    let address = place.address;
    if let Some(context) = place.context.upgrade() {
        // A context that has failed frees everything when it ends.
        let _ = context.submit(Operation::Unmap { address });
    }
    state.free_spare(address);
}
