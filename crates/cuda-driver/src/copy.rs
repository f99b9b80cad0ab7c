//! Copies between host and device, of one row or of boxes of rows.

mod rows;
mod volume;

use std::sync::Arc;

use sahasra_cuda_device::{Extent, Operation, Region};

use crate::boundary::HostPointer;
use crate::context::Context;
use crate::driver;
use crate::graph::Work;
use crate::lane::Lane;
use crate::parameters::{ARRAY, Copy3d, FillParameters};
use crate::ranges::Kind;
use crate::status::Status;

pub(crate) use rows::{Bytes, copy_bytes};
pub(crate) use volume::sides;

/// One side of a copy. The rows of a side in host memory have a host address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Host(Region),
    Device(Region),
}

impl Side {
    /// One row in host memory.
    pub(crate) fn host(pointer: HostPointer) -> Self {
        Self::Host(Region::linear(pointer.address() as u64))
    }

    /// One row in device memory.
    pub(crate) fn device(address: u64) -> Self {
        Self::Device(Region::linear(address))
    }

    /// The side in device memory, if it is in memory that host and device share; and whether it is.
    fn shared(self, context: &Context, extent: &Extent) -> Result<(Self, bool), Status> {
        let (Self::Host(region) | Self::Device(region)) = self;
        let ranges = &driver::get()?.ranges;
        if !ranges.find(region.address).is_some_and(|range| range.kind.is_shared()) {
            return Ok((self, false));
        }
        match (self, ranges.owner(&region, extent)) {
            (Self::Device(_), _) => Ok((self, true)),
            (Self::Host(region), Ok(owner)) if owner.id == context.id => Ok((Self::Device(region), true)),
            // Not all of it is shared, or not with this context.
            (Self::Host(_), _) => Ok((self, false)),
        }
    }

    /// One row wherever the address is: in device memory if the library knows it as such.
    pub(crate) fn anywhere(address: u64) -> Result<Self, Status> {
        let driver = driver::get()?;
        match driver.ranges.find(address) {
            Some(_) => Ok(Self::device(address)),
            // Freed, or in a gap between ranges: no address of the host.
            None if driver.ranges.has_placed(address)
                || driver.virtual_memory.lock().has_reserved(address)
                || address >= driver.device.properties().placed_from =>
            {
                Err(Status::INVALID_VALUE)
            }
            None => Ok(Self::Host(Region::linear(address))),
        }
    }
}

/// Whether a copy is done when the call returns, where the host can tell the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    Now,
    Later,
}

/// Copies rows as the next work of a lane. Data from pageable host memory is taken before this returns, and data to it is there. Memory that
/// host and device share, and allocated host memory that the device can read, is copied in the lane's order.
pub(crate) fn copy(lane: &Lane, to: Side, from: Side, extent: Extent, completion: Completion) -> Result<(), Status> {
    copy_as(lane, to, from, extent, completion, || volume::parameters(to, from, &extent))
}

/// Copies what programs describe, as [`copy`].
pub(crate) fn copy_box(lane: &Lane, copy: &Copy3d, completion: Completion) -> Result<(), Status> {
    let (to, from, extent) = sides(copy)?;
    let has_arrays = [copy.to.kind, copy.from.kind].contains(&ARRAY);
    copy_as(lane, to, from, extent, completion, || match has_arrays {
        true => Ok(*copy),
        false => volume::parameters(to, from, &extent),
    })
}

/// Copies rows, which a node of a graph describes with what `parameters` returns.
fn copy_as(
    lane: &Lane,
    to: Side,
    from: Side,
    extent: Extent,
    completion: Completion,
    parameters: impl FnOnce() -> Result<Copy3d, Status>,
) -> Result<(), Status> {
    if completion == Completion::Now {
        driver::get()?.captures.check_call()?;
    }
    let captured = || {
        let copy = parameters()?;
        plan(&lane.context, to, from, extent)?;
        Ok(Work::Copy(Box::new(copy)))
    };
    if lane.add(captured)? {
        return Ok(());
    }
    lane.begin()?;
    let total = extent.bytes().ok_or(Status::INVALID_VALUE)?;
    if total == 0 {
        return Ok(());
    }
    let (from, from_shared) = from.shared(&lane.context, &extent)?;
    let (to, to_shared) = to.shared(&lane.context, &extent)?;
    let mut is_read_later = false;
    match pieces(&[to, from], &extent)? {
        None => is_read_later |= transfer(lane, to, from, extent, total)?,
        Some(pieces) => {
            for piece in pieces {
                is_read_later |= transfer(lane, piece.of(to)?, piece.of(from)?, Extent::linear(piece.bytes), piece.bytes)?;
            }
        }
    }
    // Programs look at memory that host and device share after a copy that waits for the work before it.
    let is_awaited = from_shared || to_shared || is_read_later || lane.context.queue.has_host_memory();
    if completion == Completion::Now && is_awaited {
        return lane.wait();
    }
    Ok(())
}

/// A piece of a row.
struct Piece {
    row: u64,
    slice: u64,
    offset: u64,
    bytes: u64,
}

impl Piece {
    /// The piece on a side.
    fn of(&self, side: Side) -> Result<Side, Status> {
        Ok(match side {
            Side::Host(region) => Side::Host(self.within(&region)?),
            Side::Device(region) => Side::Device(self.within(&region)?),
        })
    }

    fn within(&self, region: &Region) -> Result<Region, Status> {
        let start = region.row(self.row, self.slice).and_then(|start| start.checked_add(self.offset));
        start.map(Region::linear).ok_or(Status::INVALID_VALUE)
    }
}

/// Pieces that are in one range on each side, if the sides are not in one range each: a program may have mapped several memories behind each
/// other.
fn pieces(sides: &[Side], extent: &Extent) -> Result<Option<Vec<Piece>>, Status> {
    let ranges = &driver::get()?.ranges;
    let on_device = || {
        sides.iter().filter_map(|side| match side {
            Side::Device(region) => Some(region),
            Side::Host(_) => None,
        })
    };
    let mut is_split = false;
    for region in on_device().filter(|region| !ranges.has_addresses(region.address)) {
        let span = extent.span(region).ok_or(Status::INVALID_VALUE)?;
        let range = ranges.find(region.address).filter(|range| range.kind == Kind::Virtual);
        is_split |= range.is_some_and(|range| span > range.bytes - (region.address - range.start));
    }
    if !is_split {
        return Ok(None);
    }
    let mut pieces = Vec::new();
    for (row, slice) in extent.rows() {
        let mut offset = 0;
        while offset < extent.width {
            let mut piece = Piece {
                row,
                slice,
                offset,
                bytes: extent.width - offset,
            };
            for region in on_device() {
                piece.bytes = piece.bytes.min(ranges.room(piece.within(region)?.address)?);
            }
            offset += piece.bytes;
            pieces.push(piece);
        }
    }
    Ok(Some(pieces))
}

/// Copies rows. Returns whether the device reads the host's memory only when it executes the copy.
fn transfer(lane: &Lane, to: Side, from: Side, extent: Extent, total: u64) -> Result<bool, Status> {
    let length = usize::try_from(total).map_err(|_| Status::INVALID_VALUE)?;
    let driver = driver::get()?;
    match (from, to) {
        (Side::Host(from), Side::Device(to)) => {
            let owner = driver.owner(&to, &extent)?;
            return write(lane, &owner, to, from, extent, length);
        }
        (Side::Device(from), Side::Host(to)) => {
            let owner = driver.owner(&from, &extent)?;
            read(lane, &owner, from, to, extent, length)?;
        }
        (Side::Device(from), Side::Device(to)) => {
            let (source, target) = (driver.owner(&from, &extent)?, driver.owner(&to, &extent)?);
            if source.id == target.id {
                submit(lane, &source, Operation::Copy { from, to, extent })?;
                return Ok(false);
            }
            settle(lane, &source)?;
            let mut bytes = vec![0; length];
            source.read(from, extent, &mut bytes)?;
            target.check()?;
            target.queue.write(to, extent, &bytes);
        }
        (Side::Host(from), Side::Host(to)) => {
            // The source may be the target of work before.
            lane.wait()?;
            for (row, slice) in extent.rows() {
                host_row(&from, row, slice)?.copy_to(host_row(&to, row, slice)?, extent.width as usize)?;
            }
        }
    }
    Ok(false)
}

/// Fills rows as the next work of a lane.
pub(crate) fn fill(lane: &Lane, to: Region, extent: Extent, value: u32, element_bytes: u8) -> Result<(), Status> {
    let captured = || {
        plan_fill(&lane.context, to, extent, value, element_bytes)?;
        Ok(Work::Fill(FillParameters {
            to: to.address,
            pitch: to.row_pitch as usize,
            value,
            element_bytes: element_bytes.into(),
            width: (extent.width / u64::from(element_bytes)) as usize,
            height: extent.height as usize,
        }))
    };
    if lane.add(captured)? {
        return Ok(());
    }
    lane.begin()?;
    check_fill(&to, element_bytes)?;
    if extent.bytes().ok_or(Status::INVALID_VALUE)? == 0 {
        return Ok(());
    }
    let fill = |to: Region, extent: Extent| {
        let owner = driver::get()?.owner(&to, &extent)?;
        let operation = Operation::Fill {
            to,
            extent,
            value,
            element_bytes,
        };
        submit(lane, &owner, operation)?;
        let driver = driver::get()?;
        let is_shared = driver.ranges.find(to.address).is_some_and(|range| range.kind.is_shared());
        // Programs look at such memory without a wait. A copy of it is brought back by one.
        if is_shared && !driver.device.properties().shares_host_memory {
            lane.wait()?;
        }
        Ok(())
    };
    match pieces(&[Side::Device(to)], &extent)? {
        None => fill(to, extent),
        Some(pieces) => pieces
            .iter()
            .try_for_each(|piece| fill(piece.within(&to)?, Extent::linear(piece.bytes))),
    }
}

/// Refuses rows that are not aligned to their elements.
fn check_fill(to: &Region, element_bytes: u8) -> Result<(), Status> {
    let element_bytes = u64::from(element_bytes);
    if to.address.is_multiple_of(element_bytes) && to.row_pitch.is_multiple_of(element_bytes) {
        return Ok(());
    }
    Err(Status::INVALID_VALUE)
}

/// Operations of a copy that a context does on the device alone; `None` if memory of the host or of another context is part of it.
pub(crate) fn plan(context: &Arc<Context>, to: Side, from: Side, extent: Extent) -> Result<Option<Vec<Operation>>, Status> {
    if extent.bytes().ok_or(Status::INVALID_VALUE)? == 0 {
        return Ok(Some(Vec::new()));
    }
    let (from, _) = from.shared(context, &extent)?;
    let (to, _) = to.shared(context, &extent)?;
    let one = |to, from, extent| -> Result<Option<Operation>, Status> {
        let driver = driver::get()?;
        let is_own = |side| match side {
            Side::Host(_) => Ok(false),
            Side::Device(region) => driver.owner(&region, &extent).map(|owner| owner.id == context.id),
        };
        let is_own = is_own(from)? & is_own(to)?;
        Ok(match (from, to) {
            (Side::Device(from), Side::Device(to)) if is_own => Some(Operation::Copy { from, to, extent }),
            _ => None,
        })
    };
    let Some(pieces) = pieces(&[to, from], &extent)? else {
        return Ok(one(to, from, extent)?.map(|operation| vec![operation]));
    };
    let operations = pieces
        .iter()
        .map(|piece| one(piece.of(to)?, piece.of(from)?, Extent::linear(piece.bytes)));
    operations.collect()
}

/// Operations of a fill in a context; [`Status::INVALID_VALUE`] if the memory is not the context's.
pub(crate) fn plan_fill(
    context: &Arc<Context>,
    to: Region,
    extent: Extent,
    value: u32,
    element_bytes: u8,
) -> Result<Vec<Operation>, Status> {
    check_fill(&to, element_bytes)?;
    if extent.bytes().ok_or(Status::INVALID_VALUE)? == 0 {
        return Ok(Vec::new());
    }
    let one = |to: Region, extent: Extent| {
        if driver::get()?.owner(&to, &extent)?.id != context.id {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Operation::Fill {
            to,
            extent,
            value,
            element_bytes,
        })
    };
    match pieces(&[Side::Device(to)], &extent)? {
        None => Ok(vec![one(to, extent)?]),
        Some(pieces) => pieces
            .iter()
            .map(|piece| one(piece.within(&to)?, Extent::linear(piece.bytes)))
            .collect(),
    }
}

/// Lets work of a lane's context end before work of another context that follows it.
fn settle(lane: &Lane, owner: &Context) -> Result<(), Status> {
    if lane.context.id == owner.id { Ok(()) } else { lane.wait() }
}

fn submit(lane: &Lane, owner: &Arc<Context>, operation: Operation) -> Result<(), Status> {
    if lane.context.id == owner.id {
        lane.submit(operation)?;
        return Ok(());
    }
    lane.wait()?;
    let ticket = owner.submit(operation)?;
    owner.wait(ticket)
}

/// Writes rows of the host to the device. Returns whether the device reads them only when it executes the write.
fn write(lane: &Lane, owner: &Arc<Context>, to: Region, from: Region, extent: Extent, length: usize) -> Result<bool, Status> {
    settle(lane, owner)?;
    owner.check()?;
    let is_row = extent.height == 1 && extent.depth == 1;
    let is_own = lane.context.id == owner.id;
    if is_row
        && is_own
        && let Some((block, offset)) = driver::get()?.allocated_host(host_row(&from, 0, 0)?.address(), length)
        && let Some(ticket) = owner.queue.write_in_place(to.address, &block, offset, length)
    {
        lane.note(ticket);
        return Ok(true);
    }
    let ticket = if is_row {
        host_row(&from, 0, 0)?.with_bytes(length, |bytes| owner.queue.write(to, extent, bytes))?
    } else {
        let mut packed = Vec::with_capacity(length);
        for (row, slice) in extent.rows() {
            host_row(&from, row, slice)?.with_bytes(extent.width as usize, |bytes| packed.extend_from_slice(bytes))?;
        }
        owner.submit(Operation::Write {
            to,
            extent,
            bytes: packed.into(),
        })?
    };
    if is_own {
        lane.note(ticket);
    }
    Ok(false)
}

fn read(lane: &Lane, owner: &Arc<Context>, from: Region, to: Region, extent: Extent, length: usize) -> Result<(), Status> {
    settle(lane, owner)?;
    if extent.height == 1 && extent.depth == 1 {
        return host_row(&to, 0, 0)?.with_bytes_mut(length, |bytes| owner.read(from, extent, bytes))?;
    }
    let mut packed = vec![0; length];
    owner.read(from, extent, &mut packed)?;
    for ((row, slice), bytes) in extent.rows().zip(packed.chunks_exact(extent.width as usize)) {
        host_row(&to, row, slice)?.with_bytes_mut(bytes.len(), |target| target.copy_from_slice(bytes))?;
    }
    Ok(())
}

/// Address of a row in host memory.
fn host_row(region: &Region, row: u64, slice: u64) -> Result<HostPointer, Status> {
    let address = region.row(row, slice).and_then(|address| usize::try_from(address).ok());
    address.map(HostPointer::of_address).ok_or(Status::INVALID_VALUE)
}
