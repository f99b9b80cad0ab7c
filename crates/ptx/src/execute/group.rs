//! A group of 64 lanes, and the interpreter's loop that runs it.

use super::call::CallStack;
use super::worker::{Stop, Worker};
use crate::compile::code::{Instruction, Kind};
use crate::compile::ir::Width;
use crate::fault::FaultKind;
use crate::lanes::LANES;
use crate::lanes::select::expand;

/// Loop iterations after which another path, or another group, runs.
const TURN: u32 = 1024;

/// Lanes with a common program counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) pc: u32,
    pub(super) mask: u64,
}

/// Condition that parked lanes wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    Barrier(u8),
    /// Completion of the phase of the cluster's barrier.
    Cluster,
    /// Arrival of the other lanes at the same warp operation.
    Warp,
}

/// Lanes that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    /// Program counter at which the lanes continue.
    pub(super) pc: u32,
    /// Program counter of the instruction at which the lanes wait.
    pub(super) at: u32,
    pub(super) mask: u64,
    pub(super) on: Waiting,
}

#[derive(Debug, Default)]
pub(super) struct Group {
    /// Lanes that have not ended.
    pub(super) live: u64,
    pub(super) ready: Vec<Path>,
    pub(super) waiting: Vec<Parked>,
    /// For each barrier of the block, the lanes that arrived with a thread count since the barrier last completed.
    pub(super) arrived: [u64; 16],
    /// Lanes that have arrived in the current phase of the cluster's barrier.
    pub(super) cluster_arrived: u64,
    /// Program counter of a preempted path. The next path above it runs first.
    rotate_above: Option<u32>,
    pub(super) stack: CallStack,
}

impl Group {
    pub(super) fn start(&mut self, lanes: u64, entry: u32) {
        self.live = lanes;
        self.ready.clear();
        self.waiting.clear();
        self.arrived = [0; 16];
        self.cluster_arrived = 0;
        self.rotate_above = None;
        self.stack.clear();
        self.ready.push(Path { pc: entry, mask: lanes });
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Removes and returns the path to run, and whether it runs ahead of a path with a lower program counter.
    fn pick(&mut self) -> Option<(Path, bool)> {
        if let [only] = self.ready[..] {
            self.ready.clear();
            self.rotate_above = None;
            return Some((only, false));
        }
        let lowest = self.ready.iter().map(|path| path.pc).min()?;
        let above = self
            .rotate_above
            .take()
            .and_then(|bound| self.ready.iter().map(|path| path.pc).filter(|pc| *pc > bound).min());
        let pc = above.unwrap_or(lowest);
        let mut mask = 0;
        self.ready.retain(|path| {
            if path.pc == pc {
                mask |= path.mask;
            }
            path.pc != pc
        });
        Some((Path { pc, mask }, pc != lowest))
    }

    /// Number of threads that count as arrived at a barrier with a thread count. Warps arrive as a whole, so lanes that have ended or never
    /// existed count together with the other lanes of their warp.
    pub(super) fn counted_arrivals(&self, barrier: usize) -> u32 {
        let arrived = self.arrived[barrier];
        [0, 32]
            .into_iter()
            .filter(|shift| (arrived >> shift) as u32 != 0)
            .map(|shift| 32 - ((self.live & !arrived) >> shift & u64::from(u32::MAX)).count_ones())
            .sum()
    }

    /// Makes the lanes that wait for this condition ready.
    pub(super) fn wake(&mut self, on: Waiting) {
        let ready = &mut self.ready;
        self.waiting.retain(|parked| {
            if parked.on == on {
                ready.push(Path {
                    pc: parked.pc,
                    mask: parked.mask,
                });
            }
            parked.on != on
        });
    }

    fn lowest_ready(&self) -> u32 {
        self.ready.iter().map(|path| path.pc).min().unwrap_or(u32::MAX)
    }
}

impl Worker<'_> {
    /// Charges the steps of the instructions from `began` to `pc`.
    #[inline(always)]
    fn spend(&mut self, began: u32, pc: u32) -> Result<(), Stop> {
        self.fuel -= i64::from(pc - began) + 1;
        if self.fuel < 0 { self.refuel(Some(pc)) } else { Ok(()) }
    }

    /// Returns the lanes of `mask` for which the guard of an instruction holds.
    #[inline(always)]
    fn guarded(&self, instruction: &Instruction, mask: u64) -> u64 {
        if !instruction.guarded {
            return mask;
        }
        // SAFETY: a predicate is one u64.
        let predicate = unsafe { *self.at(instruction.guard).cast::<u64>() };
        mask & if instruction.guard_negated { !predicate } else { predicate }
    }

    /// Runs the selected group until none of its lanes can continue, or its turn ends.
    #[expect(
        clippy::too_many_lines,
        reason = "the loop of the interpreter keeps its state in registers, not in arguments of functions"
    )]
    pub(super) fn run_group(&mut self) -> Result<(), Stop> {
        let code = self.code;
        let instructions = code.instructions.as_slice();
        let group = self.running;
        let mut turns = 0u32;
        'pick: while let Some((path, ahead)) = self.groups[group].pick() {
            let Path { mut pc, mut mask } = path;
            let mut live = self.groups[group].live;
            let mut next_ready = self.groups[group].lowest_ready();
            let mut began = pc;
            // Ends a run of consecutive instructions. Execution continues at the program counter `$next`.
            macro_rules! go {
                ($next:expr) => {{
                    let next: u32 = $next;
                    self.spend(began, pc)?;
                    let back = next <= pc;
                    pc = next;
                    began = next;
                    if back {
                        turns += 1;
                        if turns >= TURN {
                            turns = 0;
                            if next_ready != u32::MAX {
                                self.groups[group].rotate_above = Some(pc);
                                self.groups[group].ready.push(Path { pc, mask });
                                continue 'pick;
                            }
                            if self.groups.len() > 1 || self.session.cooperative {
                                self.groups[group].ready.push(Path { pc, mask });
                                return Ok(());
                            }
                        }
                    }
                    if pc >= next_ready && (!ahead || self.groups[group].ready.iter().any(|path| path.pc == pc)) {
                        self.groups[group].ready.push(Path { pc, mask });
                        continue 'pick;
                    }
                    continue;
                }};
            }
            loop {
                // SAFETY: branch targets are starts of blocks and the last block ends in `exit`, so `pc` stays inside.
                let instruction = unsafe { instructions.get_unchecked(pc as usize) };
                match instruction.kind {
                    Kind::Lane => {
                        let active = self.guarded(instruction, mask);
                        if active != 0 {
                            self.pattern_at(usize::from(instruction.forgets)).mask = 0;
                            let whole = active == live || !(instruction.keeps || ahead || instruction.guarded);
                            let (d, a, b, c) = (
                                self.at(instruction.d),
                                self.at(instruction.a),
                                self.at(instruction.b),
                                self.at(instruction.c),
                            );
                            // SAFETY: locations are inside their areas and aligned; overlapping results are computed in the side buffer.
                            unsafe {
                                if whole && !instruction.overlaps {
                                    (instruction.run)(d, a, b, c);
                                } else {
                                    (instruction.run)(self.side, a, b, c);
                                    self.put(d, instruction.width, if whole { u64::MAX } else { active });
                                }
                            }
                        }
                        pc += 1;
                    }
                    Kind::Load | Kind::Store | Kind::Atomic => {
                        let active = self.guarded(instruction, mask);
                        if active != 0 {
                            let detail = &code.memory[instruction.detail as usize];
                            match instruction.kind {
                                Kind::Load => self.load(detail, active, pc)?,
                                Kind::Store => self.store(detail, active, pc)?,
                                _ => self.atomic(detail, active, pc)?,
                            }
                        }
                        pc += 1;
                    }
                    Kind::Jump => go!(instruction.detail),
                    Kind::Fall => {
                        // The instruction is not in the text, so it takes no step.
                        self.fuel += 1;
                        go!(pc + 1)
                    }
                    Kind::Branch => {
                        let taken = self.guarded(instruction, mask);
                        if taken == mask {
                            go!(instruction.detail)
                        }
                        if taken == 0 {
                            go!(pc + 1)
                        }
                        let (target, behind) = (instruction.detail, pc + 1);
                        let (first, other) = if target < behind {
                            (
                                Path { pc: target, mask: taken },
                                Path {
                                    pc: behind,
                                    mask: mask & !taken,
                                },
                            )
                        } else {
                            (
                                Path {
                                    pc: behind,
                                    mask: mask & !taken,
                                },
                                Path { pc: target, mask: taken },
                            )
                        };
                        self.groups[group].ready.push(other);
                        next_ready = next_ready.min(other.pc);
                        mask = first.mask;
                        go!(first.pc)
                    }
                    Kind::Exit => {
                        let ending = self.guarded(instruction, mask);
                        if ending != 0 {
                            live &= !ending;
                            mask &= !ending;
                            self.end(ending);
                            next_ready = self.groups[group].lowest_ready();
                        }
                        if mask == 0 {
                            self.spend(began, pc)?;
                            continue 'pick;
                        }
                        go!(pc + 1)
                    }
                    Kind::Call => {
                        let next = self.call(&code.calls[instruction.detail as usize], mask, pc)?;
                        match next {
                            Some(next) => go!(next),
                            None => {
                                self.spend(began, pc)?;
                                continue 'pick;
                            }
                        }
                    }
                    Kind::Restore => {
                        // The instruction is not in the text, so it takes no step.
                        self.fuel += 1;
                        self.restore(&code.calls[instruction.detail as usize], mask);
                        pc += 1;
                    }
                    Kind::Return => match self.return_lanes(mask) {
                        Some(next) => go!(next),
                        None => {
                            self.spend(began, pc)?;
                            continue 'pick;
                        }
                    },
                    Kind::BranchTable => {
                        self.branch_table(instruction.detail as usize, mask, pc)?;
                        self.spend(began, pc)?;
                        turns += 1;
                        if turns >= TURN {
                            turns = 0;
                            if self.groups.len() > 1 || self.session.cooperative {
                                return Ok(());
                            }
                        }
                        continue 'pick;
                    }
                    Kind::System => {
                        let active = self.guarded(instruction, mask);
                        if active != 0 {
                            self.system(&code.systems[instruction.detail as usize], active, pc)?;
                        }
                        pc += 1;
                    }
                    Kind::Trap => {
                        let active = self.guarded(instruction, mask);
                        if active != 0 {
                            return Err(self.stop(FaultKind::Trap, pc, active));
                        }
                        go!(pc + 1)
                    }
                    Kind::Barrier => {
                        let waits = self.arrive(instruction.detail, mask, pc)?;
                        next_ready = self.groups[group].lowest_ready();
                        if waits {
                            self.spend(began, pc)?;
                            continue 'pick;
                        }
                        go!(pc + 1)
                    }
                    Kind::Cluster => {
                        mask = if instruction.detail == 0 {
                            self.arrive_at_cluster(mask);
                            mask
                        } else {
                            self.wait_for_cluster(mask, pc)
                        };
                        next_ready = self.groups[group].lowest_ready();
                        if mask == 0 {
                            self.spend(began, pc)?;
                            continue 'pick;
                        }
                        go!(pc + 1)
                    }
                    Kind::Warp => {
                        let detail = &code.warps[instruction.detail as usize];
                        mask |= self.take_waiting(pc);
                        let missing = self.warp_incomplete(detail, mask, live, pc)?;
                        if missing != 0 {
                            self.groups[group].waiting.push(Parked {
                                pc,
                                at: pc,
                                mask: missing,
                                on: Waiting::Warp,
                            });
                            mask &= !missing;
                            if mask == 0 {
                                self.spend(began, pc)?;
                                continue 'pick;
                            }
                        }
                        self.warp(detail, mask, pc)?;
                        pc += 1;
                    }
                    Kind::ActiveMask => {
                        let active = self.guarded(instruction, mask);
                        self.write_words(instruction.d, active, |lane| (mask >> (lane & 32)) as u32);
                        pc += 1;
                    }
                    Kind::Fence => {
                        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
                        pc += 1;
                    }
                    Kind::Clock => {
                        let active = self.guarded(instruction, mask);
                        let steps = self.fuelled.saturating_add_signed(-self.fuel) + u64::from(pc - began);
                        crate::lanes::memory::for_each_lane(active, |lane| {
                            let d = self.at(instruction.d);
                            // SAFETY: the target is a register of 64 elements of its width.
                            unsafe {
                                match instruction.width {
                                    Width::W64 => *d.cast::<u64>().add(lane) = steps,
                                    _ => *d.cast::<u32>().add(lane) = steps as u32,
                                }
                            }
                        });
                        pc += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies the result in the side buffer to a register, for the lanes of the mask.
    ///
    /// # Safety
    /// `d` must be a register of this width.
    #[inline]
    unsafe fn put(&mut self, d: *mut u8, width: Width, mask: u64) {
        // SAFETY: guaranteed by the caller; the side buffer holds a register and the mask words.
        unsafe {
            if width == Width::Predicate {
                let (d, s) = (d.cast::<u64>(), self.side.cast::<u64>());
                *d = (*d & !mask) | (*s & mask);
                return;
            }
            if mask == u64::MAX {
                std::ptr::copy_nonoverlapping(self.side, d, LANES * width.bytes());
                return;
            }
            if self.words_of != mask {
                self.words_of = mask;
                expand(mask, &mut *self.words);
            }
            let blend = match width {
                Width::W16 => self.blends[0],
                Width::W32 => self.blends[1],
                _ => self.blends[2],
            };
            blend(d, self.side, self.words);
        }
    }

    /// Writes 32-bit elements of a register for the lanes of the mask.
    pub(super) fn write_words(&mut self, place: crate::compile::code::Place, mask: u64, value: impl Fn(usize) -> u32) {
        let d = self.at(place).cast::<u32>();
        // SAFETY: `place` is a register of 64 words.
        crate::lanes::memory::for_each_lane(mask, |lane| unsafe { *d.add(lane) = value(lane) });
    }

    pub(super) fn stop(&self, kind: FaultKind, pc: u32, mask: u64) -> Stop {
        Stop {
            kind,
            pc: Some(pc),
            thread: Some(self.running * LANES + mask.trailing_zeros() as usize),
            address: None,
        }
    }

    /// Ends lanes of the running group.
    fn end(&mut self, lanes: u64) {
        let group = &mut self.groups[self.running];
        group.live &= !lanes;
        self.live_threads -= lanes.count_ones();
        // Warp operations do not wait for ended lanes.
        group.wake(Waiting::Warp);
        for number in 0..self.barriers.len() {
            if self.barriers[number].has_arrivals() {
                self.complete(number);
            }
        }
        self.complete_cluster();
    }

    /// Removes and returns the lanes that wait at the warp operation at `pc`.
    fn take_waiting(&mut self, pc: u32) -> u64 {
        let mut mask = 0;
        let waiting = &mut self.groups[self.running].waiting;
        if waiting.is_empty() {
            return 0;
        }
        waiting.retain(|parked| {
            let joins = parked.on == Waiting::Warp && parked.pc == pc;
            if joins {
                mask |= parked.mask;
            }
            !joins
        });
        mask
    }
}
