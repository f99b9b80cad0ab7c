//! Ranges of device memory that the library knows: where they are and whose, so that pointers are checked and explained here.

use std::collections::{BTreeMap, HashMap};
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
    Array,
    /// Descriptor of a texture or surface object. Its address is the handle.
    Descriptor,
}

impl Kind {
    /// Whether the host can access it.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Mapped | Self::Managed)
    }

    /// Whether programs have pointers to it.
    pub(crate) fn has_pointers(self) -> bool {
        !matches!(self, Self::Array | Self::Descriptor)
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
    arenas: Arenas,
}

/// Addresses for allocations smaller than a page of the device. Contexts share no page, and memory is mapped in whole pages: those of one context
/// are kept close together, so that few pages are mapped.
struct Arenas {
    /// Addresses that no arena has.
    free: Addresses<u64>,
    /// Arenas of contexts that are gone.
    spare: Vec<u64>,
    of_contexts: HashMap<u64, Vec<u64>>,
}

/// Device memory by address.
pub(crate) struct Ranges {
    /// First address of arenas.
    first: u64,
    addresses: Addresses<u64>,
    /// Unit in which the device maps memory, in bytes.
    page: u64,
    table: RwLock<Table>,
}

/// Part of the addresses that arenas have.
const ARENAS_PART: u64 = 4;
/// Pages of an arena.
const ARENA_PAGES: u64 = 16;

/// Size with which an allocation counts, in bytes.
pub(crate) fn counted(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

impl Ranges {
    /// Ranges in these addresses, on a device that maps memory in pages of `page` bytes.
    pub(crate) fn new(addresses: Addresses<u64>, page: u64) -> Self {
        let end = match page > ALIGNMENT {
            true => addresses.start + (addresses.end - addresses.start) / ARENAS_PART / (page * ARENA_PAGES) * (page * ARENA_PAGES),
            false => addresses.start,
        };
        Self {
            first: addresses.start,
            table: RwLock::new(Table {
                ranges: BTreeMap::new(),
                next: end,
                highest: end,
                arenas: Arenas {
                    free: addresses.start..end,
                    spare: Vec::new(),
                    of_contexts: HashMap::new(),
                },
            }),
            addresses: end..addresses.end,
            page,
        }
    }

    /// Whether an allocation is placed in an arena, rather than in pages of its own.
    fn is_small(&self, bytes: u64) -> bool {
        self.page > ALIGNMENT && bytes < self.page
    }

    /// Chooses free addresses for a range and notes it. Addresses are used again only after all others, so that pointers to freed memory
    /// are found out; a gap follows each range. Only ranges smaller than a page of the device take the lowest free addresses.
    pub(crate) fn place(&self, context: &Arc<Context>, bytes: u64, kind: Kind) -> Result<u64, Status> {
        let unit = if self.is_small(bytes) {
            ALIGNMENT
        } else {
            self.page.max(ALIGNMENT)
        };
        let size = bytes
            .checked_next_multiple_of(unit)
            .and_then(|size| size.checked_add(unit))
            .ok_or(Status::OUT_OF_MEMORY)?;
        let mut table = self.table.write();
        table.check(context)?;
        if self.is_small(bytes) {
            let start = table.place_in_arena(context.id, self.page, size).ok_or(Status::OUT_OF_MEMORY)?;
            table.ranges.insert(start, Range::new(context, start, bytes, kind));
            return Ok(start);
        }
        let start = free_from(&table.ranges, &self.addresses, table.next, size, unit)
            .or_else(|| free_from(&table.ranges, &self.addresses, self.addresses.start, size, unit))
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
        let table = self.table.read();
        let first = self.addresses.start.min(table.arenas.free.start);
        self.has_addresses(address) && (address < first || (self.addresses.start..table.highest).contains(&address))
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
        (self.first..self.addresses.end).contains(&address)
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
        let arenas = table.arenas.of_contexts.remove(&context.id).unwrap_or_default();
        table.arenas.spare.extend(arenas);
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

impl Table {
    /// Lowest free addresses in the arenas of a context, or in a new one.
    fn place_in_arena(&mut self, context: u64, page: u64, size: u64) -> Option<u64> {
        let arena_bytes = page * ARENA_PAGES;
        let arenas = self.arenas.of_contexts.entry(context).or_default();
        let lowest = |arena: u64| free_from(&self.ranges, &(arena..arena + arena_bytes), arena, size, ALIGNMENT);
        let found = arenas.iter().find_map(|arena| lowest(*arena));
        if found.is_some() {
            return found;
        }
        let arena = self.arenas.spare.pop().or_else(|| {
            let arena = self.arenas.free.start;
            (self.arenas.free.end - arena >= arena_bytes).then(|| {
                self.arenas.free.start += arena_bytes;
                arena
            })
        })?;
        arenas.push(arena);
        lowest(arena)
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

/// First multiple of `unit` within addresses, from `start`, at which `size` bytes are free. Ranges there occupy whole units, and one behind
/// them.
fn free_from(ranges: &BTreeMap<u64, Range>, within: &Addresses<u64>, start: u64, size: u64, unit: u64) -> Option<u64> {
    let occupied = |range: &Range| range.start + range.bytes.next_multiple_of(unit) + unit;
    let mut candidate = start;
    if let Some((_, below)) = ranges.range(within.start..start).next_back() {
        candidate = candidate.max(occupied(below));
    }
    for (at, range) in ranges.range(start..within.end) {
        if candidate.checked_add(size)? <= *at {
            break;
        }
        candidate = candidate.max(occupied(range));
    }
    (candidate.checked_add(size)? <= within.end).then_some(candidate)
}

/// A memory pool: it counts, and is otherwise part of the device's memory.
pub(crate) struct Pool {
    pub(crate) release_threshold: AtomicU64,
    /// Whether memory may be used again before it is known to be free (`CU_MEMPOOL_ATTR_REUSE_…`): kept, and without effect.
    pub(crate) reuse: [AtomicBool; 3],
    pub(crate) used: AtomicU64,
    pub(crate) most_used: AtomicU64,
    /// Most bytes that it gives at a time.
    capacity: u64,
}

impl Pool {
    /// Pool of at most these bytes, or without a limit of its own for 0.
    pub(crate) fn of(most_bytes: u64) -> Self {
        Self {
            capacity: if most_bytes == 0 { u64::MAX } else { most_bytes },
            release_threshold: AtomicU64::new(0),
            reuse: [const { AtomicBool::new(true) }; 3],
            used: AtomicU64::new(0),
            most_used: AtomicU64::new(0),
        }
    }

    pub(crate) fn add(&self, bytes: u64) -> Result<(), Status> {
        let fitting = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.capacity);
        let before = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fitting);
        let before = before.map_err(|_| Status::OUT_OF_MEMORY)?;
        self.most_used.fetch_max(before + bytes, Ordering::Relaxed);
        Ok(())
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
        assert_eq!(free_from(&none, &(0..4096), 1024, 3072, ALIGNMENT), Some(1024));
        assert_eq!(free_from(&none, &(0..4096), 1024, 3073, ALIGNMENT), None);
        let ranges = BTreeMap::from([range(1024, 100), range(8192, 512)]);
        assert_eq!(
            free_from(&ranges, &(0..16_384), 1024, 1024, ALIGNMENT),
            Some(2048),
            "behind the first and its gap"
        );
        assert_eq!(
            free_from(&ranges, &(0..16_384), 2048, 6144, ALIGNMENT),
            Some(2048),
            "up to the second"
        );
        assert_eq!(
            free_from(&ranges, &(0..16_384), 2048, 6145, ALIGNMENT),
            Some(9216),
            "behind the second"
        );
        assert_eq!(
            free_from(&ranges, &(0..16_384), 8700, 512, ALIGNMENT),
            Some(9216),
            "not within the second"
        );
        assert_eq!(free_from(&ranges, &(0..9216), 2048, 6145, ALIGNMENT), None);
        let pages = BTreeMap::from([range(8192, 5000)]);
        assert_eq!(
            free_from(&pages, &(0..65_536), 8192, 8192, 4096),
            Some(8192 + 3 * 4096),
            "whole pages, and one between"
        );
    }

    #[test]
    fn small_ranges_of_a_context_share_pages_and_those_of_another_do_not() {
        let page = 1 << 12;
        let ranges = Ranges::new(0..1 << 24, page);
        let mut table = ranges.table.write();
        let mut place = |context: u64, bytes: u64| {
            let start = table.place_in_arena(context, page, bytes + ALIGNMENT).unwrap();
            table.ranges.insert(start, range(start, bytes).1);
            start
        };
        assert_eq!([place(1, 512), place(1, 1024), place(1, 512)], [0, 1024, 2560]);
        assert_eq!(place(2, 512), page * ARENA_PAGES, "an arena of its own");
        drop(table);
        let mut table = ranges.table.write();
        table.ranges.remove(&1024);
        assert_eq!(table.place_in_arena(1, page, 1024), Some(1024), "the lowest that are free");
        assert!(ranges.is_small(page - 1) && !ranges.is_small(page));
        assert!(!Ranges::new(0..1 << 24, ALIGNMENT).is_small(1), "on a device without pages");
    }
}
