//! Registers that a call saves for its caller: those that are live after the call, and that another activation of the caller, which the
//! call may lead to, writes.

use hashbrown::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::compile::code::Place;
use crate::compile::flow::Flow;
use crate::compile::ir::{Action, Callee, FunctionBody, Lowered, RegisterId, Width};
use crate::compile::place::Places;
use crate::compile::uniform::{Class, Uniform};

/// Saved registers and their locations, shared by calls that save the same registers.
pub(crate) type Saved = Arc<[(Place, Width)]>;

/// Maximum number of registers examined for all calls of a kernel together. Beyond the limit, calls save all registers of their function,
/// because calls times registers grows with the square of the length of the text.
const LOOK_LIMIT: usize = 4 << 20;

pub(super) struct Saves<'a> {
    lowered: &'a Lowered,
    uniform: &'a Uniform,
    flow: &'a Flow,
    places: &'a Places,
    looks_left: usize,
    /// List of all registers of each function, which calls beyond the limit save.
    whole: HashMap<usize, Saved>,
}

impl<'a> Saves<'a> {
    pub(super) fn new(lowered: &'a Lowered, uniform: &'a Uniform, flow: &'a Flow, places: &'a Places) -> Self {
        Self {
            lowered,
            uniform,
            flow,
            places,
            looks_left: LOOK_LIMIT,
            whole: HashMap::new(),
        }
    }

    /// Returns the registers to save at the call with index `at`; `behind` is the block after the call.
    pub(super) fn of(&mut self, at: usize, behind: usize) -> Saved {
        let lowered = self.lowered;
        let starts = |function: &FunctionBody| lowered.labels[function.label as usize] <= at;
        let kernel_start = lowered.labels[lowered.entry as usize];
        let caller = lowered.functions.partition_point(starts).wrapping_sub(1);
        let Some(function) = lowered.functions.get(caller).filter(|_| at < kernel_start) else {
            return Arc::new([]);
        };
        let returns_here = match lowered.operations[at].action {
            Action::Call(Callee::Function(callee)) => lowered.functions[callee].recursive,
            _ => true,
        };
        if !function.recursive || !returns_here {
            return Arc::new([]);
        }
        let registers = self.registers(caller);
        match self.looks_left.checked_sub(registers.len()) {
            Some(left) => {
                self.looks_left = left;
                let live = registers.filter(|register| self.flow.is_live(behind, *register));
                self.saved(live)
            }
            None => {
                if let Some(saved) = self.whole.get(&caller) {
                    return Arc::clone(saved);
                }
                let saved = self.saved(registers);
                self.whole.insert(caller, Arc::clone(&saved));
                saved
            }
        }
    }

    /// Registers of a function. They have consecutive numbers.
    fn registers(&self, function: usize) -> Range<RegisterId> {
        let owners = &self.lowered.owners;
        let start = owners.partition_point(|owner| (*owner as usize) < function);
        let end = owners.partition_point(|owner| *owner as usize <= function);
        start as RegisterId..end as RegisterId
    }

    fn saved(&self, registers: impl Iterator<Item = RegisterId>) -> Saved {
        registers
            .filter(|register| self.lowered.stack_pointer != Some(*register))
            .filter(|register| self.uniform.alias[*register as usize] == *register)
            .filter(|register| self.uniform.classes[*register as usize] == Class::Varying && self.flow.crosses(*register))
            .filter_map(|register| {
                let width = self.lowered.registers[register as usize].width;
                Some((self.places.of[register as usize]?, width))
            })
            .collect()
    }
}
