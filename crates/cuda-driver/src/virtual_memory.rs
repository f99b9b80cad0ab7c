//! Virtual memory management: addresses that programs reserve, memory that they create, and which memory is mapped where.
//!
//! The device has memory at addresses only. So a memory is made at the address at which it becomes accessible first, stays there after it is
//! unmapped, and moves when it becomes accessible elsewhere or its addresses are needed. It is freed when neither a handle nor a mapping
//! is left.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Weak;

use sahasra_cuda_device::KeptAddresses;

use crate::boundary::Handle;
use crate::context::Context;
use crate::status::Status;

/// Unit of reservations, memories and mappings in bytes, as on GPUs.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// End of the addresses that a process has (x86-64 Linux).
const OF_PROCESSES: u64 = 1 << 47;

/// Memory that a program created.
pub(crate) struct Physical {
    pub(crate) bytes: u64,
    /// Handles that were not released.
    pub(crate) references: u32,
    /// Where it is mapped.
    pub(crate) mapped: Option<u64>,
    /// Where it is in a context, once it was accessible.
    pub(crate) place: Option<Place>,
}

/// Memory of a queue.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) context: Weak<Context>,
    pub(crate) context_id: u64,
}

/// Memory at reserved addresses.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) memory: Handle,
    /// `CUmemAccess_flags`.
    pub(crate) access: u32,
}

/// What is reserved, created and mapped.
pub(crate) struct VirtualMemory {
    addresses: Range<u64>,
    /// Where the search for free addresses goes on, and the highest address that it has reached.
    next: u64,
    highest: u64,
    /// Lengths by first address: reservations, and addresses to which memory was moved out of the way.
    reservations: BTreeMap<u64, u64>,
    /// Those of `reservations` to which memory was moved.
    spares: HashSet<u64>,
    /// Reservations at addresses of this process, which has nothing there.
    elsewhere: HashMap<u64, KeptAddresses>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) memories: HashMap<Handle, Physical>,
}

/// Refuses what is not a range of whole units.
fn check(start: u64, bytes: u64) -> Result<u64, Status> {
    let end = start.checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
    let is_whole = start.is_multiple_of(GRANULARITY) && bytes.is_multiple_of(GRANULARITY);
    if is_whole && bytes > 0 {
        Ok(end)
    } else {
        Err(Status::INVALID_VALUE)
    }
}

impl VirtualMemory {
    pub(crate) fn new(addresses: Range<u64>) -> Self {
        Self {
            next: addresses.start,
            highest: addresses.start,
            addresses,
            reservations: BTreeMap::new(),
            spares: HashSet::new(),
            elsewhere: HashMap::new(),
            mappings: BTreeMap::new(),
            memories: HashMap::new(),
        }
    }

    /// Whether an address was ever reserved, or is one of this process that is.
    pub(crate) fn has_reserved(&self, address: u64) -> bool {
        (self.addresses.start..self.highest).contains(&address) || self.is_reserved(address)
    }

    /// Whether an address is reserved.
    pub(crate) fn is_reserved(&self, address: u64) -> bool {
        let below = self.reservations.range(..=address).next_back();
        below.is_some_and(|(start, bytes)| address - start < *bytes)
    }

    /// Reserves addresses, those that the caller wants if they are free.
    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64, wanted: u64) -> Result<u64, Status> {
        check(0, bytes)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(Status::INVALID_VALUE);
        }
        let alignment = alignment.max(GRANULARITY);
        if self.reserve_elsewhere(bytes, alignment, wanted) {
            return Ok(wanted);
        }
        let is_wanted = wanted.is_multiple_of(alignment) && wanted >= self.addresses.start;
        let found = is_wanted
            .then(|| self.free_from(wanted, alignment, bytes))
            .flatten()
            .filter(|start| *start == wanted);
        let start = found
            .or_else(|| self.free_from(self.next, alignment, bytes))
            .or_else(|| self.free_from(self.addresses.start, alignment, bytes))
            .ok_or(Status::OUT_OF_MEMORY)?;
        self.next = start + bytes;
        self.highest = self.highest.max(self.next);
        self.reservations.insert(start, bytes);
        Ok(start)
    }

    /// Reserves addresses below those of the device, if the caller wants them and this process has nothing there.
    fn reserve_elsewhere(&mut self, bytes: u64, alignment: u64, wanted: u64) -> bool {
        let end = wanted.checked_add(bytes);
        if wanted == 0 || !wanted.is_multiple_of(alignment) || end.is_none_or(|end| end > OF_PROCESSES.min(self.addresses.start)) {
            return false;
        }
        let Ok(kept) = KeptAddresses::keep(wanted, bytes) else {
            return false;
        };
        self.elsewhere.insert(wanted, kept);
        self.reservations.insert(wanted, bytes);
        true
    }

    /// First aligned address from `start` at which as many bytes are free.
    fn free_from(&self, start: u64, alignment: u64, bytes: u64) -> Option<u64> {
        let mut candidate = start.checked_next_multiple_of(alignment)?;
        let below = self.reservations.range(..start).next_back();
        for (at, length) in below.into_iter().chain(self.reservations.range(start..)) {
            if candidate.checked_add(bytes)? <= *at {
                break;
            }
            if at + length > candidate {
                candidate = (at + length).checked_next_multiple_of(alignment)?;
            }
        }
        (candidate.checked_add(bytes)? <= self.addresses.end).then_some(candidate)
    }

    /// Ends a reservation in which nothing is mapped.
    pub(crate) fn free(&mut self, start: u64, bytes: u64) -> Result<(), Status> {
        if self.reservations.get(&start) != Some(&bytes)
            || self.spares.contains(&start)
            || self.mappings.range(start..start + bytes).next().is_some()
        {
            return Err(Status::INVALID_VALUE);
        }
        self.reservations.remove(&start);
        self.elsewhere.remove(&start);
        Ok(())
    }

    /// Reserves addresses to which a memory is moved out of the way.
    pub(crate) fn reserve_spare(&mut self, bytes: u64) -> Result<u64, Status> {
        let start = self.reserve(bytes, 0, 0)?;
        self.spares.insert(start);
        Ok(start)
    }

    /// Frees such addresses, if these are some.
    pub(crate) fn free_spare(&mut self, start: u64) {
        if self.spares.remove(&start) {
            self.reservations.remove(&start);
        }
    }

    /// Maps a memory at reserved addresses that have none.
    pub(crate) fn map(&mut self, start: u64, bytes: u64, handle: Handle) -> Result<(), Status> {
        let end = check(start, bytes)?;
        let reservation = self.reservations.range(..=start).next_back();
        let is_reserved = reservation.is_some_and(|(at, length)| end <= at + length);
        let below = self.mappings.range(..end).next_back();
        let is_free = below.is_none_or(|(at, mapping)| at + mapping.bytes <= start);
        let memory = self.memories.get_mut(&handle).filter(|memory| memory.references > 0);
        let memory = memory.ok_or(Status::INVALID_VALUE)?;
        if !is_reserved || !is_free || memory.bytes != bytes || memory.mapped.is_some() {
            return Err(Status::INVALID_VALUE);
        }
        memory.mapped = Some(start);
        let mapping = Mapping {
            bytes,
            memory: handle,
            access: 0,
        };
        self.mappings.insert(start, mapping);
        Ok(())
    }

    /// The mappings of which a range consists, by their first addresses; [`Status::INVALID_VALUE`] unless they fill it.
    pub(crate) fn mappings_of(&self, start: u64, bytes: u64) -> Result<Vec<(u64, Mapping)>, Status> {
        let end = check(start, bytes)?;
        let found: Vec<(u64, Mapping)> = self.mappings.range(start..end).map(|(at, mapping)| (*at, *mapping)).collect();
        let mut next = start;
        for (at, mapping) in &found {
            if *at != next {
                return Err(Status::INVALID_VALUE);
            }
            next = at + mapping.bytes;
        }
        if next == end { Ok(found) } else { Err(Status::INVALID_VALUE) }
    }

    /// The mapping that contains an address.
    pub(crate) fn mapping_at(&self, address: u64) -> Result<Mapping, Status> {
        let below = self.mappings.range(..=address).next_back();
        let found = below.filter(|(at, mapping)| address - *at < mapping.bytes);
        found.map(|(_, mapping)| *mapping).ok_or(Status::INVALID_VALUE)
    }

    /// Notes that a context has taken its memory with it.
    pub(crate) fn forget_context(&mut self, id: u64) {
        for memory in self.memories.values_mut() {
            let Some(place) = memory.place.take_if(|place| place.context_id == id) else {
                continue;
            };
            if self.spares.remove(&place.address) {
                self.reservations.remove(&place.address);
            }
            if let Some(mapping) = memory.mapped.and_then(|mapped| self.mappings.get_mut(&mapped)) {
                mapping.access = 0;
            }
        }
    }

    /// Memories that are in a range of addresses without being mapped there.
    pub(crate) fn strays(&self, start: u64, bytes: u64) -> Vec<Handle> {
        let overlaps = |memory: &Physical| {
            let place = memory.place.as_ref()?;
            let is_there = place.address < start + bytes && start < place.address + memory.bytes;
            (is_there && memory.mapped != Some(place.address)).then_some(())
        };
        let found = self.memories.iter().filter(|(_, memory)| overlaps(memory).is_some());
        found.map(|(handle, _)| *handle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = GRANULARITY;

    #[test]
    fn reservations_are_aligned_apart_and_where_they_are_wanted() {
        let mut memory = VirtualMemory::new(UNIT * 8..UNIT * 64);
        let first = memory.reserve(UNIT * 3, 0, 0).unwrap();
        assert_eq!(first, UNIT * 8);
        assert_eq!(memory.reserve(UNIT, UNIT * 16, 0), Ok(UNIT * 16));
        assert_eq!(memory.reserve(UNIT * 2, 0, UNIT * 12), Ok(UNIT * 12));
        assert_eq!(memory.reserve(UNIT, 0, UNIT * 12), Ok(UNIT * 14), "taken, so the next");
        for (bytes, alignment) in [(0, 0), (UNIT - 1, 0), (UNIT, 3)] {
            assert_eq!(memory.reserve(bytes, alignment, 0), Err(Status::INVALID_VALUE));
        }
        assert_eq!(memory.reserve(UNIT * 60, 0, 0), Err(Status::OUT_OF_MEMORY));
        assert_eq!(memory.free(first, UNIT), Err(Status::INVALID_VALUE));
        assert_eq!(memory.free(first, UNIT * 3), Ok(()));
        assert_eq!(memory.reserve(UNIT * 47, 0, 0), Ok(UNIT * 17), "up to the end");
        assert_eq!(memory.reserve(UNIT * 3, 0, 0), Ok(first), "and again from the start");
        assert!(memory.has_reserved(first) && !memory.has_reserved(UNIT * 64));
    }

    #[test]
    fn mappings_are_whole_and_within_one_reservation() {
        let mut memory = VirtualMemory::new(0..UNIT * 64);
        let start = memory.reserve(UNIT * 4, 0, 0).unwrap();
        for handle in 1..=2 {
            let physical = Physical {
                bytes: UNIT * 2,
                references: 1,
                mapped: None,
                place: None,
            };
            memory.memories.insert(Handle(handle), physical);
        }
        assert_eq!(
            memory.map(start + UNIT * 3, UNIT * 2, Handle(1)),
            Err(Status::INVALID_VALUE),
            "beyond the end"
        );
        assert_eq!(memory.map(start, UNIT, Handle(1)), Err(Status::INVALID_VALUE), "a part");
        assert_eq!(memory.map(start, UNIT * 2, Handle(3)), Err(Status::INVALID_VALUE), "unknown");
        assert_eq!(memory.map(start, UNIT * 2, Handle(1)), Ok(()));
        assert_eq!(
            memory.map(start + UNIT * 2, UNIT * 2, Handle(1)),
            Err(Status::INVALID_VALUE),
            "mapped already"
        );
        assert_eq!(memory.map(start + UNIT, UNIT * 2, Handle(2)), Err(Status::INVALID_VALUE), "taken");
        assert_eq!(memory.map(start + UNIT * 2, UNIT * 2, Handle(2)), Ok(()));
        assert_eq!(memory.mappings_of(start, UNIT * 4).unwrap().len(), 2);
        assert_eq!(memory.mappings_of(start + UNIT * 2, UNIT * 2).unwrap().len(), 1);
        assert!(memory.mappings_of(start, UNIT * 3).is_err() && memory.mappings_of(start + UNIT, UNIT * 3).is_err());
        assert_eq!(memory.mapping_at(start + UNIT * 4 - 1).unwrap().memory, Handle(2));
        assert_eq!(memory.free(start, UNIT * 4), Err(Status::INVALID_VALUE), "mapped");
    }
}
