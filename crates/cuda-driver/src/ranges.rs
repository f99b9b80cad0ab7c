//! Ranges of device memory that the library knows: where they are and whose, so that pointers are checked and explained here.

use std::collections::BTreeMap;
use std::ops::Range as Addresses;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use sahasra_cuda_device::{Extent, Region};

use crate::boundary::Handle;
use crate::context::Context;
use crate::status::Status;
use crate::table::new_handle;

/// Alignment and unit of device memory in bytes.
const ALIGNMENT: u64 = 512;

/// What a range of device memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Allocated,
    /// Allocated from a memory pool.
    Pooled(Handle),
    /// Variable of a module.
    Variable,
    /// Host memory that kernels can access, at its host address.
    Mapped,
    /// Memory of the device that the host can access, at its host address.
    Managed,
    /// Memory that the program has mapped.
    Virtual,
    /// Memory of a graph, which launches map.
    Graph,
}

impl Kind {
    /// Whether the host can access it.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Mapped | Self::Managed)
    }

    /// Bytes of device memory that a range of `bytes` counts with.
    pub(crate) fn charge(self, bytes: u64) -> u64 {
        match self {
            // What is mapped counts where it was created, or while it is.
            Self::Mapped | Self::Virtual | Self::Graph => 0,
            _ => counted(bytes).unwrap_or(0),
        }
    }
}

/// A range of device memory.
#[derive(Clone)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    pub(crate) context: Weak<Context>,
    pub(crate) context_handle: Handle,
    pub(crate) context_id: u64,
    /// Number that no other range has or had.
    pub(crate) id: u64,
    /// Whether it is being freed, and its addresses are not free yet.
    is_freed: bool,
}

struct Table {
    ranges: BTreeMap<u64, Range>,
    /// Where the search for free addresses goes on.
    next: u64,
    /// End of all addresses that were ever placed.
    highest: u64,
}

/// Device memory by address.
pub(crate) struct Ranges {
    addresses: Addresses<u64>,
    table: RwLock<Table>,
}

/// Size with which an allocation counts, in bytes.
pub(crate) fn counted(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

impl Ranges {
    pub(crate) fn new(addresses: Addresses<u64>) -> Self {
        let next = addresses.start;
        Self {
            addresses,
            table: RwLock::new(Table {
                ranges: BTreeMap::new(),
                next,
                highest: next,
            }),
        }
    }

    /// Chooses free addresses for a range and notes it. Addresses are used again only after all others, so that pointers to freed memory
    /// are found out; a gap follows each range.
    pub(crate) fn place(&self, context: &Arc<Context>, bytes: u64, kind: Kind) -> Result<u64, Status> {
        let size = counted(bytes)
            .and_then(|size| size.checked_add(ALIGNMENT))
            .ok_or(Status::OUT_OF_MEMORY)?;
        let mut table = self.table.write();
        table.check(context)?;
        let start = free_from(&table.ranges, table.next, self.addresses.end, size)
            .or_else(|| free_from(&table.ranges, self.addresses.start, self.addresses.end, size))
            .ok_or(Status::OUT_OF_MEMORY)?;
        table.next = start + size;
        table.highest = table.highest.max(table.next);
        table.ranges.insert(start, Range::new(context, start, bytes, kind));
        Ok(start)
    }

    /// Notes a range whose address was chosen elsewhere.
    pub(crate) fn note(&self, context: &Arc<Context>, start: u64, bytes: u64, kind: Kind) -> Result<(), Status> {
        let range = Range::new(context, start, bytes, kind);
        let mut table = self.table.write();
        table.check(context)?;
        table.ranges.insert(start, range);
        Ok(())
    }

    /// Forgets a range of a context. Returns the bytes that it counted with: none if the context was destroyed meanwhile.
    pub(crate) fn forget(&self, start: u64, context_id: u64) -> u64 {
        let mut table = self.table.write();
        match table.ranges.get(&start) {
            Some(range) if range.context_id == context_id => {
                let bytes = range.kind.charge(range.bytes);
                table.ranges.remove(&start);
                bytes
            }
            _ => 0,
        }
    }

    /// Whether an address is one that a range had at some time.
    pub(crate) fn has_placed(&self, address: u64) -> bool {
        address >= self.addresses.start && address < self.table.read().highest
    }

    /// Takes a range out of use, of one of the kinds that `is_meant` accepts. Its addresses stay taken until it is forgotten.
    pub(crate) fn retire(&self, start: u64, is_meant: impl Fn(Kind) -> bool) -> Option<Range> {
        let mut table = self.table.write();
        let range = table
            .ranges
            .get_mut(&start)
            .filter(|range| !range.is_freed && is_meant(range.kind))?;
        range.is_freed = true;
        Some(range.clone())
    }

    /// The range that contains an address.
    pub(crate) fn find(&self, address: u64) -> Option<Range> {
        let table = self.table.read();
        let (_, range) = table.ranges.range(..=address).next_back()?;
        (!range.is_freed && address - range.start < range.bytes.max(1)).then(|| range.clone())
    }

    /// Whether an address is one of those among which ranges are placed.
    pub(crate) fn has_addresses(&self, address: u64) -> bool {
        self.addresses.contains(&address)
    }

    /// Bytes from an address to the end of its range.
    pub(crate) fn room(&self, address: u64) -> Result<u64, Status> {
        let range = self.find(address).ok_or(Status::INVALID_VALUE)?;
        Ok(range.bytes - (address - range.start))
    }

    /// The context whose memory contains the rows; [`Status::INVALID_VALUE`] if they are not in one range.
    pub(crate) fn owner(&self, region: &Region, extent: &Extent) -> Result<Arc<Context>, Status> {
        let span = extent.span(region).ok_or(Status::INVALID_VALUE)?;
        let range = self.find(region.address).ok_or(Status::INVALID_VALUE)?;
        if span > range.bytes - (region.address - range.start) {
            return Err(Status::INVALID_VALUE);
        }
        range.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)
    }

    /// Forgets all memory of a context, which gets none any more. Returns the kind of each range and the bytes that it counted with.
    pub(crate) fn remove_context(&self, context: &Context) -> Vec<(Kind, u64)> {
        let mut removed = Vec::new();
        let mut table = self.table.write();
        context.is_destroyed.store(true, Ordering::Relaxed);
        table.ranges.retain(|_, range| {
            let is_kept = range.context_id != context.id;
            if !is_kept {
                removed.push((range.kind, range.kind.charge(range.bytes)));
            }
            is_kept
        });
        removed
    }
}

impl Table {
    /// Refuses a context that was destroyed.
    fn check(&self, context: &Context) -> Result<(), Status> {
        match context.is_destroyed.load(Ordering::Relaxed) {
            true => Err(Status::CONTEXT_IS_DESTROYED),
            false => Ok(()),
        }
    }
}

impl Range {
    fn new(context: &Arc<Context>, start: u64, bytes: u64, kind: Kind) -> Self {
        Self {
            start,
            bytes,
            kind,
            context: Arc::downgrade(context),
            context_handle: context.handle,
            context_id: context.id,
            id: new_handle().0,
            is_freed: false,
        }
    }
}

/// First address from `start` at which `size` bytes are free.
fn free_from(ranges: &BTreeMap<u64, Range>, start: u64, end: u64, size: u64) -> Option<u64> {
    let occupied = |range: &Range| range.start + counted(range.bytes).unwrap_or(0) + ALIGNMENT;
    let mut candidate = start;
    if let Some((_, below)) = ranges.range(..start).next_back() {
        candidate = candidate.max(occupied(below));
    }
    for (at, range) in ranges.range(start..end) {
        if candidate.checked_add(size)? <= *at {
            break;
        }
        candidate = candidate.max(occupied(range));
    }
    (candidate.checked_add(size)? <= end).then_some(candidate)
}

/// A memory pool: it counts, and is otherwise part of the device's memory.
pub(crate) struct Pool {
    pub(crate) release_threshold: AtomicU64,
    /// Whether memory may be used again before it is known to be free (`CU_MEMPOOL_ATTR_REUSE_…`): kept, and without effect.
    pub(crate) reuse: [AtomicBool; 3],
    pub(crate) used: AtomicU64,
    pub(crate) most_used: AtomicU64,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            release_threshold: AtomicU64::new(0),
            reuse: [const { AtomicBool::new(true) }; 3],
            used: AtomicU64::new(0),
            most_used: AtomicU64::new(0),
        }
    }
}

impl Pool {
    pub(crate) fn add(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most_used.fetch_max(used, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, bytes: u64) -> (u64, Range) {
        let range = Range {
            start,
            bytes,
            kind: Kind::Allocated,
            context: Weak::new(),
            context_handle: Handle::NULL,
            context_id: 0,
            id: 0,
            is_freed: false,
        };
        (start, range)
    }

    #[test]
    fn free_addresses_keep_a_gap_to_every_range() {
        let none = BTreeMap::new();
        assert_eq!(free_from(&none, 1024, 4096, 3072), Some(1024));
        assert_eq!(free_from(&none, 1024, 4096, 3073), None);
        let ranges = BTreeMap::from([range(1024, 100), range(8192, 512)]);
        assert_eq!(free_from(&ranges, 1024, 16_384, 1024), Some(2048), "behind the first and its gap");
        assert_eq!(free_from(&ranges, 2048, 16_384, 6144), Some(2048), "up to the second");
        assert_eq!(free_from(&ranges, 2048, 16_384, 6145), Some(9216), "behind the second");
        assert_eq!(free_from(&ranges, 8700, 16_384, 512), Some(9216), "not within the second");
        assert_eq!(free_from(&ranges, 2048, 9216, 6145), None);
    }
}
