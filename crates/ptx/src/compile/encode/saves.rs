//! What a call keeps of its caller: registers that are needed behind it and that a further activation of the caller,
//! which the call may lead to, writes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::compile::code::Place;
use crate::compile::flow::Flow;
use crate::compile::ir::{Action, Callee, FunctionBody, Lowered, RegisterId, Width};
use crate::compile::place::Places;
use crate::compile::uniform::{Class, Uniform};

/// Registers and where they are, shared by calls that keep the same.
pub(crate) type Saved = Arc<[(Place, Width)]>;

/// Registers looked at, in all calls of a kernel together, before calls keep all registers of their function: calls times
/// registers is the square of a text's length.
const LOOK_LIMIT: usize = 4 << 20;

pub(super) struct Saves<'a> {
    lowered: &'a Lowered,
    uniform: &'a Uniform,
    flow: &'a Flow,
    places: &'a Places,
    looks_left: usize,
    /// All registers of a function, for calls behind the limit.
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

    /// Those of the call that is operation `at`; the block behind it is `behind`.
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

    /// The registers of a function: they were made one behind the other.
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
