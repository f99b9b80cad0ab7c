//! Call graph of a module, and the layout of call frames.
//!
//! A function that is called by name and cannot reach itself has at most one activation per thread: its variables and parameters have fixed
//! addresses in local memory. Every other function (recursive, or called through a pointer) takes a frame from a stack in local memory.
//! Results and parameters are at the start of the frame, so that a caller can locate them without knowing the callee.

use hashbrown::HashSet;

use super::texts::Texts;
use sahasra_ptx_syntax::syntax::{InitialValue, Instruction, Operand, Statement, Variable};
use sahasra_ptx_syntax::types::ScalarType;

/// Base of the addresses of functions as values, above every generic address of memory.
pub(crate) const FUNCTION_ADDRESSES: u64 = 0xf << 60;

/// Returns the address, as a value, of the function at `index` in the module.
pub(crate) fn function_address(index: usize) -> u64 {
    FUNCTION_ADDRESSES | (index as u64) << 4
}

/// Location of a parameter or result: its offset in bytes from the start of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) alignment: u64,
    /// Number of registers that pass the value: more than one for a vector.
    count: u64,
}

impl Slot {
    /// Returns the slot of each element.
    pub(crate) fn elements(self) -> impl Iterator<Item = Self> {
        let bytes = self.bytes / self.count;
        (0..self.count).map(move |index| Self {
            offset: self.offset + index * bytes,
            bytes,
            alignment: self.alignment.min(bytes),
            count: 1,
        })
    }
}

/// Lays out a frame: results, then parameters, each at its own alignment (PTX ISA §7.1). Returns their slots and the size in bytes.
pub(crate) fn frame_layout(results: &[Variable<'_>], parameters: &[Variable<'_>]) -> (Vec<Slot>, Vec<Slot>, u64) {
    let mut end = 0u64;
    let mut place = |variables: &[Variable<'_>]| {
        variables
            .iter()
            .map(|variable| {
                let bytes = variable.bytes().unwrap_or(0).clamp(1, 1 << 32);
                let alignment = variable.alignment.clamp(1, 16);
                let offset = end.next_multiple_of(alignment);
                end = offset + bytes;
                let count = match variable.elements {
                    // A register of 128 bits is a pair of 64.
                    Some(elements) if variable.is_register => elements * (1 + u64::from(variable.scalar == ScalarType::B128)),
                    _ => 1,
                };
                Slot {
                    offset,
                    bytes,
                    alignment,
                    count: count.max(1),
                }
            })
            .collect::<Vec<_>>()
    };
    let results = place(results);
    let parameters = place(parameters);
    (results, parameters, end.next_multiple_of(16))
}

/// Properties of a module's functions that are known before any function is compiled.
pub(crate) struct CallGraph {
    callees: Vec<Vec<usize>>,
    calls_indirectly: Vec<bool>,
    pub(crate) address_taken: Vec<bool>,
    /// Functions that can reach themselves through calls.
    pub(crate) recursive: Vec<bool>,
}

/// Index of the callee among the operands of a `call`.
pub(crate) fn callee_at(instruction: &Instruction<'_>) -> usize {
    usize::from(matches!(instruction.operands.first(), Some(Operand::List(_))))
}

impl CallGraph {
    pub(crate) fn new(texts: &Texts<'_>) -> Self {
        let count = texts.functions.len();
        let mut graph = Self {
            callees: vec![Vec::new(); count],
            calls_indirectly: vec![false; count],
            address_taken: vec![false; count],
            recursive: vec![false; count],
        };
        for (variable, text) in &texts.variables {
            for initial in &variable.initial {
                if let InitialValue::Address { name, .. } = initial.value
                    && let Some(index) = texts.function(*text, name)
                {
                    graph.address_taken[index] = true;
                }
            }
        }
        for (index, (function, text)) in texts.functions.iter().enumerate() {
            if let Some(body) = &function.body {
                graph.walk(texts, *text, index, body, &mut HashSet::new());
            }
        }
        graph.find_recursive();
        graph
    }

    /// Records the calls of a function. The recursion is bounded, because the parser limits how deep scopes nest.
    fn walk(&mut self, texts: &Texts<'_>, text: usize, index: usize, statements: &[Statement<'_>], seen: &mut HashSet<usize>) {
        for statement in statements {
            match statement {
                Statement::Scope(inner) => self.walk(texts, text, index, inner, seen),
                Statement::Instruction(instruction) => self.instruction(texts, text, index, instruction, seen),
                _ => {}
            }
        }
    }

    fn instruction(&mut self, texts: &Texts<'_>, text: usize, index: usize, instruction: &Instruction<'_>, seen: &mut HashSet<usize>) {
        let callee_at = (instruction.opcode == "call").then(|| callee_at(instruction));
        if let Some(Operand::Name(name, 0)) = callee_at.and_then(|at| instruction.operands.get(at)) {
            // A prototype or a list of targets, which is the last operand, makes it a call through a register, whatever its name.
            let prototype =
                instruction.operands.len() > 1 && matches!(instruction.operands.last(), Some(Operand::Name(last, _)) if last != name);
            match texts.function(text, name) {
                Some(callee) if !prototype => {
                    if seen.insert(callee) {
                        self.callees[index].push(callee);
                    }
                }
                _ => self.calls_indirectly[index] |= prototype || !texts.declares(text, name),
            }
        }
        for (at, operand) in instruction.operands.iter().enumerate() {
            if Some(at) != callee_at
                && let Operand::Name(name, _) = operand
                && let Some(taken) = texts.function(text, name)
            {
                self.address_taken[taken] = true;
            }
        }
    }

    /// Successors of a node in the call graph. The node after the last function represents all calls through a pointer.
    fn successors(&self, node: usize) -> Vec<usize> {
        let count = self.callees.len();
        if node == count {
            return (0..count).filter(|index| self.address_taken[*index]).collect();
        }
        let mut found = self.callees[node].clone();
        if self.calls_indirectly[node] {
            found.push(count);
        }
        found
    }

    /// Appends the nodes reachable from `from` to `order` in post-order: callees before callers, except in recursion.
    fn post_order(&self, from: usize, seen: &mut [bool], order: &mut Vec<usize>) {
        if std::mem::replace(&mut seen[from], true) {
            return;
        }
        let mut stack = vec![(from, self.successors(from), 0)];
        while let Some((node, successors, at)) = stack.last_mut() {
            match successors.get(*at).copied() {
                Some(next) => {
                    *at += 1;
                    if !std::mem::replace(&mut seen[next], true) {
                        let successors = self.successors(next);
                        stack.push((next, successors, 0));
                    }
                }
                None => {
                    order.push(*node);
                    stack.pop();
                }
            }
        }
    }

    /// Marks the functions of strongly connected components (Kosaraju's algorithm) with several nodes, and those that call themselves.
    fn find_recursive(&mut self) {
        let count = self.callees.len() + 1;
        let (mut seen, mut order) = (vec![false; count], Vec::new());
        for node in 0..count {
            self.post_order(node, &mut seen, &mut order);
        }
        let mut callers = vec![Vec::new(); count];
        let mut calls_itself = vec![false; count];
        for (node, calls_itself) in calls_itself.iter_mut().enumerate() {
            for next in self.successors(node) {
                callers[next].push(node);
                *calls_itself |= next == node;
            }
        }
        let mut component_of = vec![usize::MAX; count];
        for root in order.into_iter().rev() {
            if component_of[root] != usize::MAX {
                continue;
            }
            let (mut members, mut stack) = (Vec::new(), vec![root]);
            component_of[root] = root;
            while let Some(node) = stack.pop() {
                members.push(node);
                for caller in &callers[node] {
                    if component_of[*caller] == usize::MAX {
                        component_of[*caller] = root;
                        stack.push(*caller);
                    }
                }
            }
            for member in &members {
                if let Some(recursive) = self.recursive.get_mut(*member) {
                    *recursive = members.len() > 1 || calls_itself[*member];
                }
            }
        }
    }

    /// Returns the functions that a kernel may call, callees before callers except in recursion.
    pub(crate) fn reachable(&self, entry: usize) -> Vec<usize> {
        let count = self.callees.len();
        let mut order = Vec::new();
        self.post_order(entry, &mut vec![false; count + 1], &mut order);
        order.retain(|node| *node != count && *node != entry);
        order
    }

    /// Whether each activation of the function has its own frame on the stack.
    pub(crate) fn has_frame(&self, function: usize) -> bool {
        self.recursive[function] || self.address_taken[function]
    }
}
