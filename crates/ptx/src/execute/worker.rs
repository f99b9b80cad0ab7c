//! Execution of one host thread's share of a launch.

use std::sync::atomic::Ordering;

use super::Session;
use super::address::{Kept, Known};
use super::barrier::BlockBarrier;
use super::group::{Group, Waiting};
use super::scratch::{self, Scratch};
use crate::compile::code::{Code, Instruction, LaunchValue, Place};
use crate::compile::encode::splat;
use crate::compile::ir::{Special, Width};
use crate::fault::{Fault, FaultKind, FaultReport};
use crate::lanes::LANES;
use crate::lanes::memory::Resolved;
use crate::lanes::select::{BlendFunction, blend};

/// Allocation that a memory instruction last accessed: its device addresses and the host address of its first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) host: *mut u8,
}

impl Site {
    /// Contains no address.
    pub(super) const EMPTY: Self = Self {
        start: 1,
        end: 0,
        host: std::ptr::null_mut(),
    };
}

/// Reason why a worker stopped inside a block.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) kind: FaultKind,
    /// Program counter of the faulting instruction, if any.
    pub(super) pc: Option<u32>,
    /// Index of the faulting thread in the block.
    pub(super) thread: Option<usize>,
    pub(super) address: Option<u64>,
}

pub(super) struct Worker<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) code: &'a Code,
    /// Base addresses of the register areas: the running group's, the uniform area, the constants.
    pub(super) bases: [*mut u8; 4],
    pub(super) registers: *mut u8,
    pub(super) group_bytes: usize,
    pub(super) side: *mut u8,
    pub(super) words: *mut [i32; LANES],
    pub(super) words_of: u64,
    pub(super) wide: *mut [u64; LANES],
    pub(super) resolved: &'a mut Resolved,
    pub(super) pointers: &'a mut [*mut u8; LANES],
    pub(super) sites: &'a mut Vec<Site>,
    pub(super) kept: &'a mut Vec<Kept>,
    /// Remembered patterns of address registers, group by group.
    pub(super) known: &'a mut Vec<Known>,
    pub(super) groups: &'a mut Vec<Group>,
    pub(super) shared: *mut u8,
    pub(super) shared_bytes: u64,
    pub(super) local: *mut u8,
    pub(super) local_bytes: u64,
    pub(super) barriers: [BlockBarrier; 16],
    pub(super) live_threads: u32,
    /// Steps left until the next check of the limits; negative if overdrawn.
    pub(super) fuel: i64,
    pub(super) fuelled: u64,
    pub(super) block_index: [u32; 3],
    pub(super) running: usize,
    pub(super) blends: [BlendFunction; 3],
}

/// Runs blocks until none is left or the launch ends.
pub(super) fn work(session: &Session<'_>, number: u64) {
    let mut scratch = scratch::take();
    let steps = {
        let mut worker = Worker::new(session, &mut scratch);
        if session.cooperative {
            worker.cooperate(number);
        } else {
            worker.blocks();
        }
        session.give_back(u64::try_from(worker.fuel).unwrap_or(0));
        worker.fuelled.saturating_add_signed(-worker.fuel)
    };
    session.steps.fetch_add(steps, Ordering::Relaxed);
    scratch::give_back(scratch);
}

impl<'a> Worker<'a> {
    fn new(session: &'a Session<'a>, scratch: &'a mut Scratch) -> Self {
        let code = session.program.code;
        let threads = session.launch.block.iter().product::<u32>() as usize;
        let groups = threads.div_ceil(LANES);
        // The padding makes the registers of different groups start in different cache sets.
        let group_bytes = code.group_bytes + 64;
        let shared_bytes =
            code.static_shared_bytes.next_multiple_of(code.shared_alignment.max(1)) + u64::from(session.launch.dynamic_shared_bytes);
        let local_bytes = session.local_bytes;
        scratch.uniform.grow(code.uniform_bytes);
        // Storage that is read before it is written must be zero, whatever an earlier launch left in it.
        scratch.registers.clear(group_bytes * groups);
        scratch.shared.grow(shared_bytes as usize + 64);
        scratch.local.clear(local_bytes as usize * LANES * groups);
        scratch.known.clear();
        scratch.known.resize(code.patterns * groups, Known::default());
        scratch.sites.clear();
        scratch.sites.resize(code.memory.len(), Site::EMPTY);
        scratch.groups.resize_with(groups, Group::default);
        scratch.resolved.pointers = &raw const *scratch.pointers;
        let registers = scratch.registers.pointer();
        let side = scratch.side.pointer();
        Self {
            session,
            code,
            // Constants are never written through this pointer, because no operation targets them.
            bases: [
                registers,
                scratch.uniform.pointer(),
                code.constants.0.as_ptr().cast_mut().cast(),
                registers,
            ],
            registers,
            group_bytes,
            side,
            // SAFETY: the side buffer has 2048 bytes: 512 for a register, then 256 for the words, and 512 for addresses from byte 1024 on.
            words: unsafe { side.add(512) }.cast(),
            words_of: 0,
            // SAFETY: the side buffer has 2048 bytes, and the 512 bytes of addresses start at byte 1024.
            wide: unsafe { side.add(1024) }.cast(),
            resolved: &mut scratch.resolved,
            pointers: &mut scratch.pointers,
            sites: &mut scratch.sites,
            kept: &mut scratch.kept,
            known: &mut scratch.known,
            groups: &mut scratch.groups,
            shared: scratch.shared.pointer(),
            shared_bytes,
            local: scratch.local.pointer(),
            local_bytes,
            barriers: [BlockBarrier::default(); 16],
            live_threads: 0,
            fuel: 0,
            fuelled: 0,
            block_index: [0; 3],
            running: 0,
            blends: [blend::<u16>(), blend::<u32>(), blend::<u64>()],
        }
    }

    #[inline(always)]
    pub(super) fn at(&self, place: Place) -> *mut u8 {
        // SAFETY: locations are inside the areas, whose sizes include them.
        unsafe { self.bases.get_unchecked(place.area() as usize).add(place.offset()) }
    }

    fn blocks(&mut self) {
        self.uniform_values();
        self.lane_values();
        let [columns, rows, _] = self.session.launch.grid.map(u64::from);
        let session = self.session;
        for block in std::iter::from_fn(|| session.next_blocks()).flatten() {
            if session.is_stopped_before(block) {
                return;
            }
            self.block_index = [
                (block % columns) as u32,
                (block / columns % rows) as u32,
                (block / columns / rows) as u32,
            ];
            if let Err(stop) = self.block() {
                // A worker that stopped because of another worker's fault has no fault of its own to report.
                if !(matches!(stop.kind, FaultKind::Cancelled) && self.session.is_stopped() && !self.session.cancel.is_cancelled()) {
                    let fault = self.describe(stop);
                    self.session.report(block, fault);
                }
                return;
            }
        }
    }

    /// Writes all values that are the same for all lanes of the launch.
    pub(super) fn uniform_values(&mut self) {
        let launch = self.session.launch;
        for (place, width, value) in &self.code.launch_values {
            let dynamic = self.code.static_shared_bytes.next_multiple_of(self.code.shared_alignment.max(1));
            let bits = match *value {
                LaunchValue::Parameter { offset, bytes, signed } => {
                    parameter(self.session.parameters, offset as usize, usize::from(bytes), signed)
                }
                LaunchValue::Symbol { index, addend } => {
                    let address = self.session.program.symbols.get(index as usize).copied().unwrap_or(0);
                    address.wrapping_add_signed(addend)
                }
                LaunchValue::DynamicShared { addend } => dynamic.wrapping_add_signed(addend),
                LaunchValue::Special(special) => u64::from(match special {
                    Special::BlockExtent(axis) => launch.block[usize::from(axis)],
                    Special::GridExtent(axis) => launch.grid[usize::from(axis)],
                    Special::WarpCount => launch.block.iter().product::<u32>().div_ceil(32),
                    Special::DynamicSharedBytes => launch.dynamic_shared_bytes,
                    Special::TotalSharedBytes => self.shared_bytes as u32,
                    Special::GridWorkspace { high: true } => (self.session.workspace >> 32) as u32,
                    Special::GridWorkspace { high: false } => self.session.workspace as u32,
                    _ => 0,
                }),
            };
            // SAFETY: `place` is a register of this width in the uniform area.
            unsafe { splat(self.at(*place), *width, bits) }
        }
        self.prologue(&self.code.launch_prologue);
    }

    /// Writes the values that depend on the position of a lane in its block, for all lanes of the block.
    pub(super) fn lane_values(&mut self) {
        let [columns, rows, _] = self.session.launch.block.map(|extent| extent as usize);
        for group in 0..self.groups.len() {
            self.select(group);
            for (place, width, special) in &self.code.lane_values {
                for lane in 0..LANES {
                    let thread = group * LANES + lane;
                    let value = match *special {
                        Special::Thread(0) => (thread % columns) as u32,
                        Special::Thread(1) => (thread / columns % rows) as u32,
                        Special::Thread(_) => (thread / columns / rows) as u32,
                        Special::Lane => (thread % 32) as u32,
                        Special::Warp => (thread / 32) as u32,
                        Special::LaneMask(mask) => mask.of((thread % 32) as u32),
                        _ => 0,
                    };
                    let at = self.at(*place);
                    // SAFETY: `place` is a register of 64 elements of this width in the group's area.
                    unsafe {
                        match width {
                            Width::W16 => *at.cast::<u16>().add(lane) = value as u16,
                            Width::W64 => *at.cast::<u64>().add(lane) = u64::from(value),
                            _ => *at.cast::<u32>().add(lane) = value,
                        }
                    }
                }
            }
        }
    }

    fn prologue(&self, instructions: &[Instruction]) {
        for instruction in instructions {
            // SAFETY: locations are inside their areas, aligned, and do not overlap.
            unsafe {
                (instruction.run)(
                    self.at(instruction.d),
                    self.at(instruction.a),
                    self.at(instruction.b),
                    self.at(instruction.c),
                )
            }
        }
    }

    /// Selects the group whose registers are addressed.
    pub(super) fn select(&mut self, group: usize) {
        self.running = group;
        // SAFETY: the register storage contains the area of every group.
        self.bases[0] = unsafe { self.registers.add(group * self.group_bytes) };
    }

    /// Runs the block `block_index` to its end.
    fn block(&mut self) -> Result<(), Stop> {
        if self.fuel <= 0 {
            self.refuel(None)?;
        }
        self.block_values();
        if self.shared_bytes > 0 {
            // SAFETY: the shared storage holds this many bytes.
            unsafe { std::ptr::write_bytes(self.shared, 0, self.shared_bytes as usize) }
        }
        self.start_groups();
        loop {
            let mut ran = false;
            for group in 0..self.groups.len() {
                if self.groups[group].has_ready() {
                    ran = true;
                    self.select(group);
                    self.run_group()?;
                }
            }
            if self.live_threads == 0 {
                return Ok(());
            }
            if !ran && !self.groups.iter().any(Group::has_ready) {
                return Err(self.deadlock());
            }
        }
    }

    /// Writes all values that are the same for all lanes of the block.
    pub(super) fn block_values(&mut self) {
        for (place, width, axis) in &self.code.block_values {
            // SAFETY: `place` is a register of this width in the uniform area.
            unsafe { splat(self.at(*place), *width, u64::from(self.block_index[usize::from(*axis)])) }
        }
        self.prologue(&self.code.block_prologue);
    }

    /// Starts all threads of the block at the kernel's entry.
    pub(super) fn start_groups(&mut self) {
        let threads = self.session.launch.block.iter().product::<u32>();
        self.live_threads = threads;
        self.barriers = [BlockBarrier::default(); 16];
        for (index, group) in self.groups.iter_mut().enumerate() {
            let lanes = (threads as usize - index * LANES).min(LANES);
            group.start(u64::MAX >> (LANES - lanes), self.code.entry);
        }
    }

    /// Takes more steps, or stops if the launch is over.
    #[cold]
    pub(super) fn refuel(&mut self, pc: Option<u32>) -> Result<(), Stop> {
        let stop = |kind| Stop {
            kind,
            pc,
            thread: None,
            address: None,
        };
        if self.session.is_stopped() {
            return Err(stop(FaultKind::Cancelled));
        }
        loop {
            let fuel = self.session.refuel().map_err(stop)?;
            self.fuel += fuel as i64;
            self.fuelled += fuel;
            if self.fuel >= 0 {
                return Ok(());
            }
        }
    }

    /// Returns the stop for a block in which no lane can continue, and some lanes have not ended.
    pub(super) fn deadlock(&self) -> Stop {
        let mut at_barriers: Vec<(u8, u32)> = Vec::new();
        let (mut at_warps, mut at_clusters) = (0, 0);
        let mut first = None;
        for (index, group) in self.groups.iter().enumerate() {
            for path in &group.waiting {
                let lanes = path.mask.count_ones();
                let thread = index * LANES + path.mask.trailing_zeros() as usize;
                match path.on {
                    Waiting::Barrier(number) => match at_barriers.iter_mut().find(|(other, _)| *other == number) {
                        Some((_, count)) => *count += lanes,
                        None => at_barriers.push((number, lanes)),
                    },
                    Waiting::Cluster => at_clusters += lanes,
                    Waiting::Warp => at_warps += lanes,
                }
                first.get_or_insert((path.at, thread));
            }
        }
        let described = at_barriers
            .iter()
            .map(|(number, count)| format!("{count} at barrier {number}"))
            .chain((at_clusters > 0).then(|| format!("{at_clusters} at the barrier of the cluster")))
            .collect::<Vec<_>>();
        let places = described.len();
        let described = described.join(", ");
        let kind = if at_warps == 0 && places > 1 {
            FaultKind::DivergentBarrier(described)
        } else if at_warps == 0 {
            FaultKind::Deadlock(format!("of {} threads left, {described}", self.live_threads))
        } else {
            let barriers = if described.is_empty() {
                described
            } else {
                format!(", {described}")
            };
            FaultKind::Deadlock(format!("{at_warps} threads wait for others of their warp{barriers}"))
        };
        Stop {
            kind,
            pc: first.map(|(pc, _)| pc),
            thread: first.map(|(_, thread)| thread),
            address: None,
        }
    }

    pub(super) fn describe(&self, stop: Stop) -> Fault {
        let statement = stop
            .pc
            .and_then(|pc| self.code.origins.get(pc as usize))
            .map(|index| &self.code.statements[*index as usize]);
        let [columns, rows, _] = self.session.launch.block.map(|extent| extent as usize);
        FaultReport {
            kind: stop.kind,
            kernel: self.session.program.name.to_owned(),
            instruction: statement.map(|statement| statement.text.clone()).unwrap_or_default(),
            line: statement.map_or(0, |statement| statement.line),
            source: statement.and_then(|statement| statement.source).map(|(file, line)| {
                let name = self.session.program.files.iter().find(|(index, _)| *index == file);
                (name.map_or_else(|| format!("file {file}"), |(_, name)| name.clone()), line)
            }),
            block: Some(self.block_index),
            thread: stop.thread.map(|thread| {
                [
                    (thread % columns) as u32,
                    (thread / columns % rows) as u32,
                    (thread / columns / rows) as u32,
                ]
            }),
            address: stop.address,
        }
        .into()
    }
}

/// Reads a value of `bytes` bytes from the parameter buffer, extended to 64 bits.
fn parameter(parameters: &[u8], offset: usize, bytes: usize, signed: bool) -> u64 {
    let mut raw = [0u8; 8];
    if let Some(found) = parameters.get(offset..offset + bytes) {
        raw[..bytes].copy_from_slice(found);
    }
    let value = u64::from_le_bytes(raw);
    let spare = 64 - 8 * bytes as u32;
    if signed { ((value << spare) as i64 >> spare) as u64 } else { value }
}
