//! Control flow, barriers and fences (PTX ISA §9.7.12, §9.7.13.1-4, §9.7.19).

use super::{At, Lowering};
use crate::compile::ir::{Action, BarrierReduction, Width};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::ScalarType as T;

impl<'a> Lowering<'a> {
    pub(super) fn control(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        match at.instruction.opcode {
            "bra" => {
                let [target] = at.operands()?;
                let Operand::Name(name, 0) = target else {
                    return Err(at.invalid("expected a label"));
                };
                let label = self.label(name).ok_or_else(|| at.undeclared(name))?;
                self.emit(Action::Branch(label), vec![], vec![]);
                Ok(())
            }
            "exit" => {
                self.emit(Action::Exit, vec![], vec![]);
                Ok(())
            }
            // Without a debugger, a breakpoint ends the kernel.
            "trap" | "brkpt" => {
                self.emit(Action::Trap, vec![], vec![]);
                Ok(())
            }
            // `nanosleep` is only a hint, and `pmevent` marks events for a profiler.
            "nanosleep" | "pmevent" => Ok(()),
            _ => Err(at.form()),
        }
    }

    /// `bar`, `barrier` (PTX ISA §9.7.13.1) and `bar.warp.sync` (§9.7.13.2).
    pub(super) fn barrier(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let words: Vec<&str> = at
            .modifiers()
            .iter()
            .copied()
            .filter(|word| !matches!(*word, "cta" | "aligned"))
            .collect();
        match words.as_slice() {
            ["warp", "sync"] => {
                let [mask] = at.operands()?;
                let mask = self.source(at, mask, T::B32)?;
                self.emit_skippable(Action::WarpBarrier, vec![], vec![mask]);
                Ok(())
            }
            ["sync" | "arrive"] => {
                let waits = words[0] == "sync";
                let operands = at.all_operands();
                if operands.is_empty() || operands.len() > 2 || (!waits && operands.len() != 2) {
                    return Err(at.invalid("wrong number of operands"));
                }
                let sources = operands
                    .iter()
                    .map(|operand| self.source(at, operand, T::U32))
                    .collect::<Result<Vec<_>, _>>()?;
                self.emit_skippable(
                    Action::Barrier {
                        waits,
                        counted: sources.len() == 2,
                        reduction: None,
                    },
                    vec![],
                    sources,
                );
                Ok(())
            }
            ["red", kind, scalar] => {
                let (reduction, width) = match (*kind, *scalar) {
                    ("popc", "u32") => (BarrierReduction::Count, Width::W32),
                    ("and", "pred") => (BarrierReduction::All, Width::Predicate),
                    ("or", "pred") => (BarrierReduction::Any, Width::Predicate),
                    _ => return Err(at.form()),
                };
                let [target, numbers @ .., predicate] = at.all_operands() else {
                    return Err(at.invalid("wrong number of operands"));
                };
                if numbers.is_empty() || numbers.len() > 2 {
                    return Err(at.invalid("wrong number of operands"));
                }
                let mut sources = numbers
                    .iter()
                    .map(|operand| self.source(at, operand, T::U32))
                    .collect::<Result<Vec<_>, _>>()?;
                sources.push(self.source(at, predicate, T::Pred)?);
                let target = self.target(at, target, width)?;
                self.emit_skippable(
                    Action::Barrier {
                        waits: true,
                        counted: numbers.len() == 2,
                        reduction: Some(reduction),
                    },
                    vec![target],
                    sources,
                );
                Ok(())
            }
            _ => Err(at.form()),
        }
    }

    /// `membar`, `fence` (PTX ISA §9.7.13.4): one strong fence implements all scopes and orders.
    pub(super) fn fence(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let known = [
            "cta",
            "gl",
            "sys",
            "gpu",
            "sc",
            "acq_rel",
            "acquire",
            "release",
            "proxy",
            "alias",
            "async",
            "global",
            "shared::cta",
            "mbarrier_init",
            "async::generic",
            "sync_restrict::shared::cta",
            "sync_restrict::shared::cluster",
        ];
        if at.modifiers().iter().all(|word| known.contains(word)) && at.all_operands().is_empty() {
            self.emit(Action::Fence, vec![], vec![]);
            Ok(())
        } else {
            Err(at.form())
        }
    }

    /// `brx.idx index, targets`.
    pub(super) fn branch_indexed(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        if !matches!(at.modifiers(), ["idx"] | ["idx", "uni"]) {
            return Err(at.form());
        }
        let [index, list] = at.operands()?;
        let Operand::Name(list, 0) = list else {
            return Err(at.invalid("expected a list of branch targets"));
        };
        let names = self
            .scopes
            .iter()
            .rev()
            .find_map(|scope| scope.branch_targets.get(list))
            .cloned()
            .ok_or_else(|| at.undeclared(list))?;
        let labels = names
            .iter()
            .map(|name| self.label(name).ok_or_else(|| at.undeclared(name)))
            .collect::<Result<Vec<_>, _>>()?;
        let index = self.source(at, index, T::U32)?;
        self.emit_skippable(Action::BranchTable(labels), vec![], vec![index]);
        Ok(())
    }
}
