//! Warp operations (PTX ISA §9.7.9.6 shfl, §9.7.13.9-14 vote, match, activemask, redux).

use super::{At, Lowering};
use crate::compile::ir::{Action, Origin, Reduction, RegisterId, Shuffle, Special, Vote, Width};
use crate::lanes::integer as int;
use crate::lanes::{relation, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::ScalarType as T;

/// Returns whether an operation has `.sync`, and its other modifiers.
fn synchronised<'a, 'b>(at: At<'a, 'b>) -> (bool, &'b [&'a str]) {
    match at.instruction.modifiers.as_slice() {
        ["sync", rest @ ..] => (true, rest),
        rest => (false, rest),
    }
}

impl<'a> Lowering<'a> {
    pub(super) fn warp(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        match at.instruction.opcode {
            "shfl" => self.shuffle(at),
            "vote" => self.vote(at),
            "match" => self.match_lanes(at),
            "redux" => self.reduce(at),
            "elect" => self.elect(at),
            _ => {
                if at.modifiers() != ["b32"] {
                    return Err(at.form());
                }
                let [target] = at.operands()?;
                let target = self.target(at, target, Width::W32)?;
                self.emit(Action::ActiveMask, vec![target], vec![]);
                Ok(())
            }
        }
    }

    fn shuffle(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (synchronised, words) = synchronised(at);
        let mode = match words {
            ["up", "b32"] => Shuffle::Up,
            ["down", "b32"] => Shuffle::Down,
            ["bfly", "b32"] => Shuffle::Butterfly,
            ["idx", "b32"] => Shuffle::Index,
            _ => return Err(at.form()),
        };
        let ([target, value, lane, clamp], mask) = if synchronised {
            let [target, value, lane, clamp, mask] = at.operands()?;
            ([target, value, lane, clamp], Some(mask))
        } else {
            let [target, value, lane, clamp] = at.operands()?;
            ([target, value, lane, clamp], None)
        };
        let (first, second) = match target {
            Operand::Pair(first, second) => (&**first, Some(&**second)),
            single => (single, None),
        };
        let mut targets = vec![self.target(at, first, Width::W32)?];
        if let Some(second) = second {
            targets.push(self.target(at, second, Width::Predicate)?);
        }
        let mut sources = Vec::new();
        for operand in [value, lane, clamp] {
            sources.push(self.source(at, operand, T::B32)?);
        }
        self.emit_with_mask(at, Action::Shuffle(mode), targets, mask, sources)
    }

    /// Emits a warp operation. Without a member mask, the lanes that execute it together take part.
    fn emit_with_mask(
        &mut self,
        at: At<'a, '_>,
        action: Action,
        targets: Vec<RegisterId>,
        mask: Option<&Operand<'a>>,
        mut sources: Vec<RegisterId>,
    ) -> Result<(), LoadError> {
        let Some(mask) = mask else {
            self.skippable(|lowering| {
                let here = lowering.new_register(Width::W32);
                lowering.emit(Action::ActiveMask, vec![here], vec![]);
                sources.insert(0, here);
                lowering.emit(action, targets, sources);
            });
            return Ok(());
        };
        sources.insert(0, self.source(at, mask, T::B32)?);
        self.emit_skippable(action, targets, sources);
        Ok(())
    }

    fn vote(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (synchronised, words) = synchronised(at);
        let (vote, width) = match words {
            ["all", "pred"] => (Vote::All, Width::Predicate),
            ["any", "pred"] => (Vote::Any, Width::Predicate),
            ["uni", "pred"] => (Vote::Uniform, Width::Predicate),
            ["ballot", "b32"] => (Vote::Ballot, Width::W32),
            _ => return Err(at.form()),
        };
        let (target, predicate, mask) = if synchronised {
            let [target, predicate, mask] = at.operands()?;
            (target, predicate, Some(mask))
        } else {
            let [target, predicate] = at.operands()?;
            (target, predicate, None)
        };
        let predicate = self.source(at, predicate, T::Pred)?;
        let target = self.target(at, target, width)?;
        self.emit_with_mask(at, Action::Vote(vote), vec![target], mask, vec![predicate])
    }

    /// `elect.sync` (PTX ISA §9.7.13.12): the lowest of the participating threads is the leader.
    fn elect(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let [target, mask] = at.operands()?;
        let Operand::Pair(leader, elected) = target else {
            return Err(at.invalid("expected two destinations"));
        };
        let mask = self.source(at, mask, T::B32)?;
        let (leader, elected) = (self.target(at, leader, Width::W32)?, self.target(at, elected, Width::Predicate)?);
        let guard = self.guard;
        let (here, always) = (self.new_register(Width::W32), self.constant(Width::Predicate, 1));
        self.emit_skippable(Action::Vote(Vote::Ballot), vec![here], vec![mask, always]);
        // Index of the lowest set bit.
        let [reversed, lowest] = [(); 2].map(|()| self.new_register(Width::W32));
        let own = self.fixed(Width::W32, Origin::Special(Special::Lane));
        self.lane(unary::<int::Reverse<u32>>(), reversed, &[here]);
        self.lane(unary::<int::LeadingZeros<u32>>(), lowest, &[reversed]);
        self.guard = guard;
        self.lane(relation::<int::Equal<u32>>(), elected, &[own, lowest]);
        self.emit(Action::Copy, vec![leader], vec![lowest]);
        Ok(())
    }

    fn match_lanes(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (all, scalar) = match at.modifiers() {
            ["any", "sync", "b32"] => (false, T::B32),
            ["any", "sync", "b64"] => (false, T::B64),
            ["all", "sync", "b32"] => (true, T::B32),
            ["all", "sync", "b64"] => (true, T::B64),
            _ => return Err(at.form()),
        };
        let [target, value, mask] = at.operands()?;
        let (first, second) = match target {
            Operand::Pair(first, second) if all => (&**first, Some(&**second)),
            single => (single, None),
        };
        let sources = vec![self.source(at, mask, T::B32)?, self.source(at, value, scalar)?];
        let mut targets = vec![self.target(at, first, Width::W32)?];
        if let Some(second) = second {
            targets.push(self.target(at, second, Width::Predicate)?);
        }
        self.emit_skippable(Action::Match { all }, targets, sources);
        Ok(())
    }

    fn reduce(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let reduction = match at.modifiers() {
            ["sync", "add", "u32" | "s32"] => Reduction::Add,
            ["sync", "min", "u32"] => Reduction::Minimum { signed: false },
            ["sync", "min", "s32"] => Reduction::Minimum { signed: true },
            ["sync", "max", "u32"] => Reduction::Maximum { signed: false },
            ["sync", "max", "s32"] => Reduction::Maximum { signed: true },
            ["sync", "and", "b32"] => Reduction::And,
            ["sync", "or", "b32"] => Reduction::Or,
            ["sync", "xor", "b32"] => Reduction::Xor,
            _ => return Err(at.form()),
        };
        let [target, value, mask] = at.operands()?;
        let sources = vec![self.source(at, mask, T::B32)?, self.source(at, value, T::B32)?];
        let target = self.target(at, target, Width::W32)?;
        self.emit_skippable(Action::Reduce(reduction), vec![target], sources);
        Ok(())
    }
}
