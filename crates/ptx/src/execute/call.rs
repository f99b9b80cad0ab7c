//! Calls and returns. Each lane has its own stack of return addresses and saved registers.

use super::group::Path;
use super::worker::{Stop, Worker};
use crate::compile::code::{CallDetail, CallTarget, Function, Place};
use crate::compile::ir::Width;
use crate::fault::FaultKind;
use crate::lanes::LANES;
use crate::lanes::memory::for_each_lane;

/// Stack words of each lane, and the number of words in use.
#[derive(Debug, Default)]
pub(super) struct CallStack {
    words: Vec<[u64; LANES]>,
    used: Vec<usize>,
}

impl CallStack {
    pub(super) fn clear(&mut self) {
        self.used.clear();
    }

    fn push(&mut self, lane: usize, word: u64) {
        if self.used.is_empty() {
            self.used.resize(LANES, 0);
        }
        let at = self.used[lane];
        if self.words.len() <= at {
            self.words.push([0; LANES]);
        }
        self.words[at][lane] = word;
        self.used[lane] = at + 1;
    }

    fn pop(&mut self, lane: usize) -> Option<u64> {
        let at = self.used.get(lane)?.checked_sub(1)?;
        self.used[lane] = at;
        Some(self.words[at][lane])
    }
}

impl Worker<'_> {
    /// Returns an element of a register as 64 bits.
    pub(super) fn element(&self, place: Place, width: Width, lane: usize) -> u64 {
        let at = self.at(place);
        // SAFETY: `place` is a register of this width.
        unsafe {
            match width {
                Width::Predicate => *at.cast::<u64>() >> lane & 1,
                Width::W16 => u64::from(*at.cast::<u16>().add(lane)),
                Width::W32 => u64::from(*at.cast::<u32>().add(lane)),
                Width::W64 => *at.cast::<u64>().add(lane),
            }
        }
    }

    pub(super) fn set_element(&mut self, place: Place, width: Width, lane: usize, value: u64) {
        let at = self.at(place);
        // SAFETY: `place` is a register of this width in a writable area.
        unsafe {
            match width {
                Width::Predicate => {
                    let bits = at.cast::<u64>();
                    *bits = *bits & !(1 << lane) | (value & 1) << lane;
                }
                Width::W16 => *at.cast::<u16>().add(lane) = value as u16,
                Width::W32 => *at.cast::<u32>().add(lane) = value as u32,
                Width::W64 => *at.cast::<u64>().add(lane) = value,
            }
        }
    }

    /// Performs a call. Returns the common target of the lanes, or `None` if they diverged and were added to the ready paths.
    pub(super) fn call(&mut self, detail: &CallDetail, mask: u64, pc: u32) -> Result<Option<u32>, Stop> {
        let group = self.running;
        for_each_lane(mask, |lane| {
            for (place, width) in detail.saves.iter() {
                let word = self.element(*place, *width, lane);
                self.groups[group].stack.push(lane, word);
            }
            self.groups[group].stack.push(lane, u64::from(pc) + 1);
        });
        match detail.callee {
            CallTarget::Function(function) => {
                self.check_stack(function, mask, pc)?;
                Ok(Some(function.pc))
            }
            CallTarget::Pointer(place) => {
                let mut left = mask;
                while left != 0 {
                    let first = left.trailing_zeros() as usize;
                    let target = self.element(place, Width::W64, first);
                    let Ok(at) = self.code.functions.binary_search_by_key(&target, |(address, _)| *address) else {
                        return Err(self.stop(FaultKind::InvalidCall { target }, pc, left));
                    };
                    let mut lanes = 0;
                    for_each_lane(left, |lane| {
                        lanes |= u64::from(self.element(place, Width::W64, lane) == target) << lane
                    });
                    let function = self.code.functions[at].1;
                    self.check_stack(function, lanes, pc)?;
                    left &= !lanes;
                    self.groups[group].ready.push(Path {
                        pc: function.pc,
                        mask: lanes,
                    });
                }
                Ok(None)
            }
        }
    }

    /// Checks that the callee's frame fits each lane's stack.
    fn check_stack(&self, function: Function, mask: u64, pc: u32) -> Result<(), Stop> {
        let Some(pointer) = self.code.stack_pointer.filter(|_| function.frame_bytes > 0) else {
            return Ok(());
        };
        let limit = u64::from(self.session.launch.stack_bytes);
        let mut over = 0;
        for_each_lane(mask, |lane| {
            let end = self.element(pointer, Width::W64, lane).saturating_add(function.frame_bytes);
            over |= u64::from(end > self.code.local_bytes + limit) << lane;
        });
        if over == 0 {
            return Ok(());
        }
        Err(self.stop(FaultKind::StackOverflow { limit }, pc, over))
    }

    /// Restores the registers that a call saved.
    pub(super) fn restore(&mut self, detail: &CallDetail, mask: u64) {
        let group = self.running;
        for_each_lane(mask, |lane| {
            for (place, width) in detail.saves.iter().rev() {
                if let Some(word) = self.groups[group].stack.pop(lane) {
                    self.set_element(*place, *width, lane, word);
                }
            }
        });
        // Restored registers may hold addresses whose patterns are remembered.
        if !detail.saves.is_empty() {
            self.forget_patterns();
        }
    }

    /// Performs a return. Returns the common target of the lanes, or `None` if they diverged and were added to the ready paths.
    pub(super) fn return_lanes(&mut self, mask: u64) -> Option<u32> {
        let group = self.running;
        let mut paths: Vec<Path> = Vec::new();
        for_each_lane(mask, |lane| {
            // Never empty, because every function is entered through a call.
            let pc = self.groups[group].stack.pop(lane).unwrap_or_default() as u32;
            match paths.iter_mut().find(|path| path.pc == pc) {
                Some(path) => path.mask |= 1 << lane,
                None => paths.push(Path { pc, mask: 1 << lane }),
            }
        });
        if let [only] = paths[..] {
            return Some(only.pc);
        }
        self.groups[group].ready.append(&mut paths);
        None
    }

    /// `brx.idx`: sends each lane to the target that its index selects.
    pub(super) fn branch_table(&mut self, table: usize, mask: u64, pc: u32) -> Result<(), Stop> {
        let code = self.code;
        let (place, targets) = &code.tables[table];
        let group = self.running;
        let mut left = mask;
        while left != 0 {
            let index = self.element(*place, Width::W32, left.trailing_zeros() as usize) as u32;
            let Some(target) = targets.get(index as usize) else {
                let targets = targets.len() as u32;
                return Err(self.stop(FaultKind::InvalidBranch { index, targets }, pc, left));
            };
            let mut lanes = 0;
            for_each_lane(left, |lane| {
                lanes |= u64::from(self.element(*place, Width::W32, lane) as u32 == index) << lane
            });
            left &= !lanes;
            self.groups[group].ready.push(Path { pc: *target, mask: lanes });
        }
        Ok(())
    }
}
