//! Cooperative launches: all blocks of a worker are resident at the same time and run in turns, so that they may wait for each other (grid
//! synchronisation of cooperative groups; CUDA C++ Programming Guide §8.7).

use super::address::Known;
use super::barrier::BlockBarrier;
use super::group::Group;
use super::worker::{Stop, Worker};
use crate::compile::code::Lines;
use crate::fault::FaultKind;
use crate::lanes::LANES;

/// State of a block between two of its turns.
struct Resident {
    block: u64,
    registers: Lines,
    shared: Lines,
    local: Lines,
    groups: Vec<Group>,
    known: Vec<Known>,
    barriers: [BlockBarrier; 16],
    live_threads: u32,
}

/// Memory of a resident block in bytes.
pub(super) fn resident_bytes(group_bytes: usize, groups: usize, local_bytes: u64, shared_bytes: u64) -> u64 {
    (group_bytes as u64 + 64 + local_bytes * LANES as u64) * groups as u64 + shared_bytes
}

impl Worker<'_> {
    /// Runs all blocks of this worker until all have ended.
    pub(super) fn cooperate(&mut self, worker: u64) {
        let outcome = self.turns(worker);
        if let Err((block, stop)) = outcome
            && !(matches!(stop.kind, FaultKind::Cancelled) && self.session.is_stopped() && !self.session.cancel.is_cancelled())
        {
            let fault = self.describe(stop);
            self.session.report(block, fault);
        }
    }

    fn turns(&mut self, worker: u64) -> Result<(), (u64, Stop)> {
        self.uniform_values();
        let groups = self.groups.len();
        let mut residents: Vec<Resident> = (worker..self.session.blocks)
            .step_by(self.session.workers as usize)
            .map(|block| Resident {
                block,
                registers: Lines::of_bytes(self.group_bytes * groups),
                shared: Lines::of_bytes(self.shared_bytes as usize + 64),
                local: Lines::of_bytes(self.local_bytes as usize * LANES * groups),
                groups: (0..groups).map(|_| Group::default()).collect(),
                known: vec![Known::default(); self.code.patterns * groups],
                barriers: [BlockBarrier::default(); 16],
                live_threads: 0,
            })
            .collect();
        for resident in &mut residents {
            self.enter(resident);
            self.lane_values();
            self.start_groups();
            self.leave(resident);
        }
        while !residents.is_empty() {
            let mut ran = false;
            let mut at = 0;
            while at < residents.len() {
                let resident = &mut residents[at];
                let block = resident.block;
                self.enter(resident);
                let turn = self.turn();
                self.leave(resident);
                ran |= turn.map_err(|stop| (block, stop))?;
                if residents[at].live_threads == 0 {
                    residents.swap_remove(at);
                } else {
                    at += 1;
                }
            }
            if !ran && let Some(resident) = residents.first_mut() {
                let block = resident.block;
                self.enter(resident);
                let stop = self.deadlock();
                self.leave(resident);
                return Err((block, stop));
            }
        }
        Ok(())
    }

    /// Runs each ready group of the block once. Returns whether any group ran.
    fn turn(&mut self) -> Result<bool, Stop> {
        if self.fuel <= 0 {
            self.refuel(None)?;
        }
        self.block_values();
        let mut ran = false;
        for group in 0..self.groups.len() {
            if self.groups[group].has_ready() {
                ran = true;
                self.select(group);
                self.run_group()?;
            }
        }
        Ok(ran)
    }

    fn enter(&mut self, resident: &mut Resident) {
        let [columns, rows, _] = self.session.launch.grid.map(u64::from);
        let block = resident.block;
        self.block_index = [
            (block % columns) as u32,
            (block / columns % rows) as u32,
            (block / columns / rows) as u32,
        ];
        self.registers = resident.registers.pointer();
        self.shared = resident.shared.pointer();
        self.local = resident.local.pointer();
        self.barriers = resident.barriers;
        self.live_threads = resident.live_threads;
        self.exchange(resident);
        self.select(0);
    }

    fn leave(&mut self, resident: &mut Resident) {
        resident.barriers = self.barriers;
        resident.live_threads = self.live_threads;
        self.exchange(resident);
    }

    fn exchange(&mut self, resident: &mut Resident) {
        std::mem::swap(self.groups, &mut resident.groups);
        std::mem::swap(self.known, &mut resident.known);
    }
}
