//! Barriers of a block (PTX ISA §9.7.13.1). Arrivals are counted by thread, or by warp at a barrier with a thread count. Waiting lanes are
//! parked.

use super::group::{Group, Parked, Waiting};
use super::worker::{Stop, Worker};
use crate::compile::ir::BarrierReduction;
use crate::fault::FaultKind;

/// One of a block's 16 barriers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockBarrier {
    arrived: u32,
    /// Number of threads required by the instruction; all live threads if `None`.
    expected: Option<u32>,
    /// Number of threads whose predicate held.
    holds: u32,
}

impl BlockBarrier {
    pub(super) fn has_arrivals(self) -> bool {
        self.arrived > 0
    }
}

impl Worker<'_> {
    /// Records the arrival of lanes at the barrier of the cluster (PTX ISA §9.7.13.3), which consists of this block.
    pub(super) fn arrive_at_cluster(&mut self, mask: u64) {
        self.groups[self.running].cluster_arrived |= mask;
        self.complete_cluster();
    }

    /// Parks the lanes whose phase is not complete. Returns the other lanes.
    pub(super) fn wait_for_cluster(&mut self, mask: u64, pc: u32) -> u64 {
        let group = &mut self.groups[self.running];
        let waiting = mask & group.cluster_arrived;
        if waiting != 0 {
            group.waiting.push(Parked {
                pc: pc + 1,
                at: pc,
                mask: waiting,
                on: Waiting::Cluster,
            });
        }
        mask & !waiting
    }

    /// Begins the next phase of the cluster's barrier if every thread that has not ended has arrived.
    pub(super) fn complete_cluster(&mut self) {
        let missing = |group: &Group| group.live & !group.cluster_arrived != 0;
        if self.groups.iter().all(|group| group.cluster_arrived == 0) || self.groups.iter().any(missing) {
            return;
        }
        for group in self.groups.iter_mut() {
            group.cluster_arrived = 0;
            group.wake(Waiting::Cluster);
        }
    }

    /// Records the arrival of lanes at a barrier (PTX ISA §9.7.13.1). Returns `true` if they stop running here: they wait, or the barrier
    /// has completed and they are ready.
    pub(super) fn arrive(&mut self, detail: u32, mask: u64, pc: u32) -> Result<bool, Stop> {
        let detail = self.code.barriers[detail as usize];
        let lane = mask.trailing_zeros() as usize;
        // SAFETY: both locations are registers of 64 words.
        let (number, count) = unsafe {
            let number = *self.at(detail.number).cast::<u32>().add(lane);
            (number, detail.count.map(|place| *self.at(place).cast::<u32>().add(lane)))
        };
        if number >= 16 {
            return Err(self.stop(FaultKind::DivergentBarrier(format!("barrier {number} does not exist")), pc, mask));
        }
        if count.is_some_and(|count| count == 0 || count % 32 != 0) {
            return Err(self.stop(
                FaultKind::DivergentBarrier("a barrier's thread count is not a multiple of 32".into()),
                pc,
                mask,
            ));
        }
        let holds = match detail.reduction {
            // SAFETY: a predicate is one u64.
            Some((_, predicate, _)) => unsafe { *self.at(predicate).cast::<u64>() & mask }.count_ones(),
            None => 0,
        };
        let barrier = &mut self.barriers[number as usize];
        barrier.arrived += mask.count_ones();
        barrier.holds += holds;
        barrier.expected = count;
        if count.is_some() {
            self.groups[self.running].arrived[number as usize] |= mask;
        }
        if detail.waits {
            self.groups[self.running].waiting.push(Parked {
                pc: pc + 1,
                at: pc,
                mask,
                on: Waiting::Barrier(number as u8),
            });
        }
        self.complete(number as usize);
        Ok(detail.waits)
    }

    /// Makes the waiting lanes of a barrier ready once all required threads have arrived.
    pub(super) fn complete(&mut self, number: usize) {
        let barrier = self.barriers[number];
        let is_complete = match barrier.expected {
            Some(count) => self.groups.iter().map(|group| group.counted_arrivals(number)).sum::<u32>() >= count,
            None => barrier.arrived >= self.live_threads,
        };
        if !is_complete {
            return;
        }
        self.barriers[number] = BlockBarrier::default();
        for group in self.groups.iter_mut() {
            group.arrived[number] = 0;
        }
        let on = Waiting::Barrier(number as u8);
        self.reduce_barrier(barrier, on);
        for group in self.groups.iter_mut() {
            group.wake(on);
        }
    }

    /// Writes the result of a `barrier.red` for the lanes that waited at it.
    fn reduce_barrier(&mut self, barrier: BlockBarrier, on: Waiting) {
        let (code, running) = (self.code, self.running);
        if code.barriers.iter().all(|detail| detail.reduction.is_none()) {
            return;
        }
        for group in 0..self.groups.len() {
            for index in 0..self.groups[group].waiting.len() {
                let parked = self.groups[group].waiting[index];
                if parked.on != on {
                    continue;
                }
                let detail = code.barriers[code.instructions[parked.at as usize].detail as usize];
                let Some((reduction, _, target)) = detail.reduction else { continue };
                let holds = match reduction {
                    BarrierReduction::All => barrier.holds == barrier.arrived,
                    BarrierReduction::Any => barrier.holds > 0,
                    BarrierReduction::Count => false,
                };
                self.select(group);
                if reduction == BarrierReduction::Count {
                    self.write_words(target, parked.mask, |_| barrier.holds);
                } else {
                    self.set_predicate(target, parked.mask, if holds { u64::MAX } else { 0 });
                }
            }
        }
        self.select(running);
    }
}
