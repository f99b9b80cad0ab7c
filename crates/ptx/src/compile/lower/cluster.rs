//! Clusters of one block: `barrier.cluster` (PTX ISA §9.7.13.3), `mapa` (§9.7.9.23), `getctarank` (§9.7.9.24), and the stores and
//! reductions that complete at an `mbarrier`, `st.async` (§9.7.9.12) and `red.async` (§9.7.13.7).

use super::{At, Lowering};
use crate::compile::ir::{Access, Action, SystemCall, Width};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::{Constant, Instruction, Operand};
use sahasra_ptx_syntax::types::{ScalarType as T, Space};

/// Size of the response of `clusterlaunchcontrol.try_cancel`.
const RESPONSE_BYTES: u64 = 16;

impl<'a> Lowering<'a> {
    pub(super) fn cluster_barrier(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        at.operands::<0>()?;
        let waits = at.modifiers().contains(&"wait");
        self.emit_skippable(Action::Cluster { waits }, vec![], vec![]);
        Ok(())
    }

    /// `mapa target, address, rank`: the same address, since the only block has rank 0. Any other rank is a fault.
    pub(super) fn map_address(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let scalar = at.one_type(at.split(&["shared::cta"]).1.as_slice())?;
        let [target, source, rank] = at.operands()?;
        let width = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.form())?;
        let source = self.source(at, source, scalar)?;
        if !matches!(rank, Operand::Constant(Constant::Integer(0))) {
            let rank = self.source(at, rank, T::U32)?;
            self.emit(Action::System(SystemCall::CheckRank), vec![], vec![rank]);
        }
        let target = self.target(at, target, width)?;
        self.emit(Action::Copy, vec![target], vec![source]);
        Ok(())
    }

    /// `getctarank target, address`: the rank of the only block.
    pub(super) fn block_rank(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let scalar = at.one_type(at.split(&["shared::cta"]).1.as_slice())?;
        let [target, source] = at.operands()?;
        self.source(at, source, scalar)?;
        let (target, zero) = (self.target(at, target, Width::W32)?, self.zero(Width::W32));
        self.emit(Action::Copy, vec![target], vec![zero]);
        Ok(())
    }

    /// `clusterlaunchcontrol.try_cancel` and `query_cancel` (§9.7.13.17): no launch of another block is ever cancelled, so that every block of
    /// the grid runs by itself. The response is zero.
    pub(super) fn launch_control(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        if at.modifiers().first() == Some(&"try_cancel") {
            let [response, barrier] = at.operands()?;
            let place = self.address(at, response)?;
            let space = if at.modifiers().contains(&"shared::cta") {
                Space::Shared
            } else {
                place.space.unwrap_or(Space::Generic)
            };
            let access = Access {
                space,
                element: 8,
                count: 2,
                signed: false,
                offset: place.offset,
                ordered: false,
            };
            let zero = self.zero(Width::W64);
            self.emit(Action::Store(access), vec![], vec![place.register, zero, zero]);
            return self.complete_bytes(at, barrier, &Operand::Constant(Constant::Integer(RESPONSE_BYTES)));
        }
        let [target, response] = at.operands()?;
        match response {
            // A register of 128 bits is a pair of 64.
            Operand::Vector(halves) if halves.len() == 2 => {
                for half in halves {
                    self.source(at, half, T::B64)?;
                }
            }
            _ => return Err(at.invalid("the response is not a register of 128 bits")),
        }
        let (targets, width) = match target {
            Operand::Vector(targets) if at.modifiers().contains(&"v4") => (targets.as_slice(), Width::W32),
            target if at.modifiers().contains(&"pred") => (std::slice::from_ref(target), Width::Predicate),
            target => (std::slice::from_ref(target), Width::W32),
        };
        if at.modifiers().contains(&"v4") && targets.len() != 4 {
            return Err(at.invalid("the vector does not have the instruction's width"));
        }
        for target in targets {
            let (target, zero) = (self.target(at, target, width)?, self.constant(width, 0));
            self.emit(Action::Copy, vec![target], vec![zero]);
        }
        Ok(())
    }

    /// `st.async [to], values, [barrier]`, `red.async [to], value, [barrier]`: an access that is complete when it is issued, and then
    /// completes its bytes at the barrier.
    pub(super) fn access_async(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let [address, value, barrier] = at.operands()?;
        let access = |word: &&str| !matches!(*word, "async" | "weak" | "relaxed" | "mbarrier::complete_tx::bytes");
        let modifiers: Vec<&str> = at.modifiers().iter().copied().filter(access).collect();
        let scalar = modifiers.last().and_then(|word| T::from_name(word)).ok_or_else(|| at.form())?;
        let plain = Instruction {
            modifiers,
            operands: vec![address.clone(), value.clone()],
            ..at.instruction.clone()
        };
        let count = match value {
            Operand::Vector(elements) => elements.len(),
            _ => 1,
        };
        if at.instruction.opcode == "red" {
            self.atomic(At { instruction: &plain })?;
        } else {
            self.store(At { instruction: &plain })?;
        }
        let bytes = Operand::Constant(Constant::Integer((count * scalar.bytes()) as u64));
        self.complete_bytes(at, barrier, &bytes)
    }
}
