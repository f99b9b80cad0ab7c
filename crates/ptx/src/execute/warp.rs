//! Operations of a warp of 32 lanes (PTX ISA §9.7.9.6, §9.7.13.9-14). A group holds two warps.

use super::worker::{Stop, Worker};
use crate::compile::code::{Place, WarpDetail, WarpKind};
use crate::compile::ir::{Reduction, Shuffle, Vote};
use crate::fault::FaultKind;
use crate::lanes::memory::for_each_lane;

impl Worker<'_> {
    fn word(&self, place: Place, lane: usize) -> u32 {
        // SAFETY: `place` is a register of 64 words.
        unsafe { *self.at(place).cast::<u32>().add(lane) }
    }

    /// Returns the lanes of `mask` whose member mask names live lanes that have not arrived. Lanes of a warp may wait at the operation with
    /// several disjoint member masks.
    pub(super) fn warp_incomplete(&self, detail: &WarpDetail, mask: u64, live: u64, pc: u32) -> Result<u64, Stop> {
        let mut incomplete = 0;
        for warp in [0, 32] {
            let mut left = (mask >> warp) as u32;
            while left != 0 {
                let (members, named) = self.members(detail, left, warp);
                let lanes = |bits: u32| u64::from(bits) << warp;
                let here = (mask >> warp) as u32;
                if members & named != members {
                    let text = "a thread is not in its own mask".to_owned();
                    return Err(self.stop(FaultKind::SyncMaskMismatch(text), pc, lanes(members & !named)));
                }
                if named & here & !members != 0 {
                    let text = format!("mask {named:#010x} names a thread with another mask");
                    return Err(self.stop(FaultKind::SyncMaskMismatch(text), pc, lanes(named & here & !members)));
                }
                if named & (live >> warp) as u32 & !here != 0 {
                    incomplete |= lanes(members);
                }
                left &= !members;
            }
        }
        Ok(incomplete)
    }

    /// Returns the lanes among `left` with the same member mask as the first of them, and this mask.
    fn members(&self, detail: &WarpDetail, left: u32, warp: usize) -> (u32, u32) {
        let named = self.word(detail.sources[0], warp + left.trailing_zeros() as usize);
        if named == u32::MAX && left == u32::MAX {
            let same = (0..32).all(|lane| self.word(detail.sources[0], warp + lane) == named);
            if same {
                return (left, named);
            }
        }
        let mut members = 0;
        for_each_lane(u64::from(left), |lane| {
            members |= u32::from(self.word(detail.sources[0], warp + lane) == named) << lane;
        });
        (members, named)
    }

    /// Performs the operation for each set of lanes in `mask` with a common member mask.
    pub(super) fn warp(&mut self, detail: &WarpDetail, mask: u64, pc: u32) -> Result<(), Stop> {
        for warp in [0, 32] {
            let mut left = (mask >> warp) as u32;
            while left != 0 {
                let (here, _) = self.members(detail, left, warp);
                left &= !here;
                match detail.kind {
                    WarpKind::Barrier => {}
                    WarpKind::Shuffle(mode) => self.shuffle(detail, mode, warp, here),
                    WarpKind::Vote(vote) => self.vote(detail, vote, warp, here),
                    WarpKind::Match { all, wide } => self.match_lanes(detail, all, wide, warp, here),
                    WarpKind::Reduce(reduction) => self.reduce(detail, reduction, warp, here),
                    WarpKind::Matrix(operation) => self.matrix(detail, operation, warp, pc)?,
                }
            }
        }
        Ok(())
    }

    pub(super) fn set_predicate(&mut self, place: Place, lanes: u64, value: u64) {
        let predicate = self.at(place).cast::<u64>();
        // SAFETY: a predicate is one u64.
        unsafe { *predicate = (*predicate & !lanes) | (value & lanes) }
    }

    fn shuffle(&mut self, detail: &WarpDetail, mode: Shuffle, warp: usize, here: u32) {
        let [_, value, distance, clamp] = detail.sources[..] else {
            return;
        };
        let mut results = [0u32; 32];
        let mut inside = 0u32;
        for_each_lane(u64::from(here), |lane| {
            let clamp = self.word(clamp, warp + lane);
            let distance = self.word(distance, warp + lane) & 31;
            let (bound, segment) = (clamp & 31, (clamp >> 8) & 31);
            let own = lane as u32;
            let highest = (own & segment) | (bound & !segment);
            let (from, valid) = match mode {
                // Signed, because the distance may lead below lane 0.
                Shuffle::Up => (own.wrapping_sub(distance), own as i32 - distance as i32 >= highest as i32),
                Shuffle::Down => (own + distance, own + distance <= highest),
                Shuffle::Butterfly => (own ^ distance, own ^ distance <= highest),
                Shuffle::Index => {
                    let from = (own & segment) | (distance & !segment);
                    (from, from <= highest)
                }
            };
            let from = if valid { from & 31 } else { own };
            results[lane] = self.word(value, warp + from as usize);
            inside |= u32::from(valid) << lane;
        });
        let lanes = u64::from(here) << warp;
        self.write_words(detail.targets[0], lanes, |lane| results[lane - warp]);
        if let Some(predicate) = detail.targets.get(1) {
            self.set_predicate(*predicate, lanes, u64::from(inside) << warp);
        }
    }

    fn vote(&mut self, detail: &WarpDetail, vote: Vote, warp: usize, here: u32) {
        // SAFETY: a predicate is one u64.
        let votes = unsafe { (*self.at(detail.sources[1]).cast::<u64>() >> warp) as u32 } & here;
        let lanes = u64::from(here) << warp;
        let holds = match vote {
            Vote::Ballot => return self.write_words(detail.targets[0], lanes, |_| votes),
            Vote::All => votes == here,
            Vote::Any => votes != 0,
            Vote::Uniform => votes == here || votes == 0,
        };
        self.set_predicate(detail.targets[0], lanes, if holds { u64::MAX } else { 0 });
    }

    fn match_lanes(&mut self, detail: &WarpDetail, all: bool, wide: bool, warp: usize, here: u32) {
        let at = self.at(detail.sources[1]);
        // SAFETY: the source is a register of 64 elements of its width.
        let value = |lane: usize| unsafe {
            if wide {
                *at.cast::<u64>().add(warp + lane)
            } else {
                u64::from(*at.cast::<u32>().add(warp + lane))
            }
        };
        let mut results = [0u32; 32];
        for_each_lane(u64::from(here), |lane| {
            for_each_lane(u64::from(here), |other| {
                if value(lane) == value(other) {
                    results[lane] |= 1 << other;
                }
            });
        });
        let lanes = u64::from(here) << warp;
        if all {
            let same = results[here.trailing_zeros() as usize] == here;
            self.write_words(detail.targets[0], lanes, |_| if same { here } else { 0 });
            if let Some(predicate) = detail.targets.get(1) {
                self.set_predicate(*predicate, lanes, if same { u64::MAX } else { 0 });
            }
        } else {
            self.write_words(detail.targets[0], lanes, |lane| results[lane - warp]);
        }
    }

    fn reduce(&mut self, detail: &WarpDetail, reduction: Reduction, warp: usize, here: u32) {
        let first = here.trailing_zeros() as usize;
        let mut total = self.word(detail.sources[1], warp + first);
        for_each_lane(u64::from(here & (here - 1)), |lane| {
            let value = self.word(detail.sources[1], warp + lane);
            total = match reduction {
                Reduction::Add => total.wrapping_add(value),
                Reduction::Minimum { signed: false } => total.min(value),
                Reduction::Minimum { signed: true } => (total as i32).min(value as i32) as u32,
                Reduction::Maximum { signed: false } => total.max(value),
                Reduction::Maximum { signed: true } => (total as i32).max(value as i32) as u32,
                Reduction::And => total & value,
                Reduction::Or => total | value,
                Reduction::Xor => total ^ value,
            };
        });
        self.write_words(detail.targets[0], u64::from(here) << warp, |_| total);
    }
}
