//! Basic blocks and liveness.
//!
//! A block begins wherever lanes may be found waiting or may join others: at branch targets, behind branches and
//! barriers, at warp operations. Lanes that wait are therefore always at the start of a block, and the registers they
//! still need are those live there.

use super::ir::{Action, Lowered, RegisterId};
use super::uniform::{Class, Uniform};

pub(crate) struct Block {
    /// Operations `start..end`.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Registers read here, or on any path from here, before they are written.
    pub(crate) live: Bits,
    /// Registers that lanes elsewhere may need while this block runs, lowest block first.
    pub(crate) needed_elsewhere: Bits,
}

pub(crate) struct Flow {
    pub(crate) blocks: Vec<Block>,
    /// Block of each operation.
    pub(crate) block_of: Vec<usize>,
}

/// A set of registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn new(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)])
    }

    pub(crate) fn contains(&self, index: RegisterId) -> bool {
        (self.0[index as usize / 64] >> (index % 64)) & 1 != 0
    }

    fn insert(&mut self, index: RegisterId) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    fn remove(&mut self, index: RegisterId) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    /// Adds the other set; whether that changed this one.
    fn unite(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            changed |= *theirs & !*mine != 0;
            *mine |= theirs;
        }
        changed
    }
}

/// Reads of an operation that stayed in the code, aliases resolved, varying registers only.
pub(crate) fn reads<'a>(lowered: &'a Lowered, uniform: &'a Uniform, index: usize) -> impl Iterator<Item = RegisterId> + 'a {
    let operation = &lowered.operations[index];
    let guard = operation.guard.map(|(register, _)| register);
    operation
        .sources
        .iter()
        .copied()
        .chain(guard)
        .map(|register| uniform.alias[register as usize])
        .filter(|register| uniform.classes[*register as usize] == Class::Varying)
}

pub(crate) fn analyse(lowered: &Lowered, uniform: &Uniform) -> Flow {
    let operations = &lowered.operations;
    let mut starts = vec![false; operations.len() + 1];
    starts[0] = true;
    for label in &lowered.labels {
        starts[*label] = true;
    }
    for (index, operation) in operations.iter().enumerate() {
        match operation.action {
            Action::Branch(_) | Action::Exit | Action::Barrier { .. } | Action::Trap => starts[index + 1] = true,
            _ if operation.action.synchronises_warp() => starts[index] = true,
            _ => {}
        }
    }
    let registers = lowered.registers.len();
    let mut blocks = Vec::new();
    let mut block_of = vec![0; operations.len()];
    let mut start = 0;
    for end in 1..=operations.len() {
        if end == operations.len() || starts[end] {
            block_of[start..end].fill(blocks.len());
            blocks.push(Block {
                start,
                end,
                live: Bits::new(registers),
                needed_elsewhere: Bits::new(registers),
            });
            start = end;
        }
    }
    liveness(lowered, uniform, &mut blocks, &block_of);

    // Lanes at barriers and warp operations may wait anywhere, others at later blocks only (lowest runs first).
    let mut anywhere = Bits::new(registers);
    for index in 0..blocks.len() {
        let behind_barrier = index > 0 && matches!(operations[blocks[index - 1].end - 1].action, Action::Barrier { .. });
        if behind_barrier || operations[blocks[index].start].action.synchronises_warp() {
            anywhere.unite(&blocks[index].live);
        }
    }
    let mut later = anywhere;
    for index in (0..blocks.len()).rev() {
        blocks[index].needed_elsewhere = later.clone();
        later.unite(&blocks[index].live);
    }
    Flow { blocks, block_of }
}

fn liveness(lowered: &Lowered, uniform: &Uniform, blocks: &mut [Block], block_of: &[usize]) {
    let operations = &lowered.operations;
    loop {
        let mut changed = false;
        for index in (0..blocks.len()).rev() {
            let (start, end) = (blocks[index].start, blocks[index].end);
            let mut live = Bits::new(lowered.registers.len());
            let last = &operations[end - 1];
            if let Action::Branch(label) = last.action {
                live.unite(&blocks[block_of[lowered.labels[label as usize]]].live);
            }
            let leaves = matches!(last.action, Action::Branch(_) | Action::Exit | Action::Trap) && last.guard.is_none();
            if !leaves && index + 1 < blocks.len() {
                live.unite(&blocks[index + 1].live);
            }
            for at in (start..end).rev().filter(|at| !uniform.removed[*at]) {
                if operations[at].guard.is_none() {
                    for target in &operations[at].targets {
                        live.remove(*target);
                    }
                }
                for register in reads(lowered, uniform, at) {
                    live.insert(register);
                }
            }
            changed |= blocks[index].live.unite(&live);
        }
        if !changed {
            return;
        }
    }
}
