//! Basic blocks and liveness of registers.
//!
//! A block starts wherever lanes may wait or may join others: at branch targets, after branches, calls and barriers, and at warp
//! operations. Lanes that wait are therefore always at the start of a block, and the registers that they still need are the registers live
//! at this start.
//!
//! Work and memory are bounded. If a program has too many blocks and registers for a set of registers per block, or if computing the sets
//! takes more than a fixed amount of work per operation, every register that more than one block touches counts as live everywhere. This
//! costs speed, not correctness.

use super::ir::{Action, Callee, Lowered, RegisterId};
use super::uniform::{Class, Uniform};

pub(crate) struct Block {
    /// Operations `start..end`.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

pub(crate) struct Flow {
    pub(crate) blocks: Vec<Block>,
    /// Block of each operation.
    pub(crate) block_of: Vec<usize>,
    /// Number of each register that crosses blocks.
    crossing: Vec<Option<u32>>,
    /// For each crossing register, the last block at whose start it is live; `usize::MAX` for any block, 0 for none.
    needed_before: Vec<usize>,
    /// Registers live at the start of each block. Empty if every register counts as live.
    live: Vec<Bits>,
}

/// Maximum total size of the sets of registers, in 64-bit words (32 MiB).
const SET_LIMIT: usize = 4 << 20;
/// Words of sets that liveness may process per operation, but at least [`WORK_AT_LEAST`] for a kernel, before it is abandoned. Compilers'
/// kernels take fewer than ten words per operation. Because the number of operations is bounded, so is the time: 1024 words take about 0.2
/// µs.
const WORK_PER_OPERATION: usize = 1024;
const WORK_AT_LEAST: usize = 1 << 20;

/// Set of small numbers, one bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)])
    }

    fn contains(&self, index: u32) -> bool {
        (self.0[index as usize / 64] >> (index % 64)) & 1 != 0
    }

    fn insert(&mut self, index: u32) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    fn remove(&mut self, index: u32) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    /// Adds the elements of another set. Returns whether this set changed.
    fn unite(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            changed |= *theirs & !*mine != 0;
            *mine |= theirs;
        }
        changed
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(index as u32 * 64 + bit)
            })
        })
    }
}

impl Flow {
    /// Whether more than one block touches the register, or the register may be read before it is written.
    pub(crate) fn crosses(&self, register: RegisterId) -> bool {
        self.crossing[register as usize].is_some()
    }

    /// Whether lanes at other blocks may need a register while `block` runs. The lowest block runs first.
    pub(crate) fn needed_elsewhere(&self, block: usize, register: RegisterId) -> bool {
        self.crossing[register as usize].is_some_and(|number| self.needed_before[number as usize] > block)
    }

    /// Whether a register may be read after the start of a block, before it is written.
    pub(crate) fn is_live(&self, block: usize, register: RegisterId) -> bool {
        self.crossing[register as usize].is_some_and(|number| self.live.get(block).is_none_or(|live| live.contains(number)))
    }
}

/// Varying registers that an operation reads, with aliases resolved.
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
    analyse_within(lowered, uniform, WORK_AT_LEAST.max(WORK_PER_OPERATION * lowered.operations.len()))
}

fn analyse_within(lowered: &Lowered, uniform: &Uniform, work_limit: usize) -> Flow {
    let operations = &lowered.operations;
    let mut starts = vec![false; operations.len() + 1];
    starts[0] = true;
    for label in &lowered.labels {
        starts[*label] = true;
    }
    for (index, operation) in operations.iter().enumerate() {
        match operation.action {
            _ if operation.action.ends_block() => starts[index + 1] = true,
            _ if operation.action.synchronises_warp() => starts[index] = true,
            _ => {}
        }
    }
    let mut blocks = Vec::new();
    let mut block_of = vec![0; operations.len()];
    let mut start = 0;
    for end in 1..=operations.len() {
        if end == operations.len() || starts[end] {
            block_of[start..end].fill(blocks.len());
            blocks.push(Block { start, end });
            start = end;
        }
    }
    let crossing = crossing(lowered, uniform, &blocks);
    let graph = Graph::new(lowered, &blocks, &block_of);
    let (live, _) = liveness(lowered, uniform, &blocks, &graph, &crossing, work_limit);
    let live = live.unwrap_or_default();
    let mut needed_before = vec![if live.is_empty() { usize::MAX } else { 0 }; crossing.iter().flatten().count()];
    for (index, live) in live.iter().enumerate() {
        // Lanes at barriers and warp operations may wait at any block, all others only at later blocks, because the lowest block runs
        // first.
        let behind_barrier = index > 0 && matches!(operations[blocks[index - 1].end - 1].action, Action::Barrier { .. });
        let anywhere = behind_barrier || operations[blocks[index].start].action.synchronises_warp();
        for number in live.iter() {
            let last = &mut needed_before[number as usize];
            *last = (*last).max(if anywhere { usize::MAX } else { index });
        }
    }
    Flow {
        blocks,
        block_of,
        crossing,
        needed_before,
        live,
    }
}

/// Numbers the registers that more than one block touches, or that a block may read before it writes them.
fn crossing(lowered: &Lowered, uniform: &Uniform, blocks: &[Block]) -> Vec<Option<u32>> {
    let count = lowered.registers.len();
    let mut touched_in = vec![usize::MAX; count];
    let mut crosses = vec![false; count];
    for (index, block) in blocks.iter().enumerate() {
        for at in (block.start..block.end).filter(|at| !uniform.removed[*at]) {
            for register in reads(lowered, uniform, at) {
                // The first access in this block is a read, so the value comes from another block.
                crosses[register as usize] |= touched_in[register as usize] != index;
                touched_in[register as usize] = index;
            }
            let operation = &lowered.operations[at];
            for target in &operation.targets {
                let first = &mut touched_in[*target as usize];
                crosses[*target as usize] |= if *first == usize::MAX {
                    operation.guard.is_some()
                } else {
                    *first != index
                };
                *first = index;
            }
        }
    }
    let mut next = 0;
    crosses
        .into_iter()
        .map(|crosses| {
            crosses.then(|| {
                next += 1;
                next - 1
            })
        })
        .collect()
}

/// Successors in the control flow of each block. Further nodes follow the blocks: one per function for the targets of its `ret`, one for
/// all functions that a call through a pointer may reach, and one for the blocks after these calls.
fn successors(lowered: &Lowered, blocks: &[Block], block_of: &[usize]) -> Vec<Vec<usize>> {
    let label = |label: u32| block_of[lowered.labels[label as usize]];
    let functions = &lowered.functions;
    let pointers = blocks.len() + functions.len();
    let mut found = vec![Vec::new(); pointers + 1];
    for (number, function) in functions.iter().enumerate() {
        if function.address_taken {
            found[pointers].push(label(function.label));
            // `ret` of a function called through a pointer may return to the block after any such call.
            found[blocks.len() + number].push(pointers + 1);
        }
    }
    let mut behind_pointers = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let last = &lowered.operations[block.end - 1];
        match &last.action {
            Action::Branch(target) => found[index].push(label(*target)),
            Action::BranchTable(targets) => found[index].extend(targets.iter().map(|target| label(*target))),
            Action::Call(Callee::Function(number)) => {
                found[index].push(label(functions[*number].label));
                found[blocks.len() + *number].push(index + 1);
            }
            Action::Call(Callee::Pointer) => {
                found[index].push(pointers);
                behind_pointers.push(index + 1);
            }
            Action::Return(number) => found[index].push(blocks.len() + *number),
            _ => {}
        }
        let leaves = match last.action {
            Action::Branch(_) | Action::Exit | Action::Trap => last.guard.is_none(),
            Action::BranchTable(_) | Action::Return(_) => true,
            _ => false,
        };
        if !leaves && index + 1 < blocks.len() {
            found[index].push(index + 1);
        }
    }
    found.push(behind_pointers);
    found
}

/// Control flow graph, and the order in which the liveness analysis visits its nodes.
struct Graph {
    successors: Vec<Vec<usize>>,
    predecessors: Vec<Vec<usize>>,
    /// Post-order of the depth-first search: every node after its successors, except along the back-edges of loops. The analysis then takes
    /// about as many rounds as loops nest, in whatever order the text lists the blocks.
    order: Vec<usize>,
}

impl Graph {
    fn new(lowered: &Lowered, blocks: &[Block], block_of: &[usize]) -> Self {
        let successors = successors(lowered, blocks, block_of);
        let mut predecessors = vec![Vec::new(); successors.len()];
        for (index, successors) in successors.iter().enumerate() {
            for successor in successors {
                predecessors[*successor].push(index);
            }
        }
        let mut order = Vec::with_capacity(successors.len());
        let mut seen = vec![false; successors.len()];
        // Starts at the entry of the kernel. Unreachable nodes come last.
        let entry = block_of[lowered.labels[lowered.entry as usize]];
        for root in std::iter::once(entry).chain(0..successors.len()) {
            if std::mem::replace(&mut seen[root], true) {
                continue;
            }
            let mut stack = vec![(root, 0)];
            while let Some((node, at)) = stack.last_mut() {
                match successors[*node].get(*at).copied() {
                    Some(next) => {
                        *at += 1;
                        if !std::mem::replace(&mut seen[next], true) {
                            stack.push((next, 0));
                        }
                    }
                    None => {
                        order.push(*node);
                        stack.pop();
                    }
                }
            }
        }
        Self {
            successors,
            predecessors,
            order,
        }
    }
}

/// Returns the registers live at the start of each block, or `None` if that takes more work than `limit`; and the work done, in processed
/// operations and words of sets.
fn liveness(
    lowered: &Lowered,
    uniform: &Uniform,
    blocks: &[Block],
    graph: &Graph,
    crossing: &[Option<u32>],
    limit: usize,
) -> (Option<Vec<Bits>>, usize) {
    let count = crossing.iter().flatten().count();
    let nodes = graph.successors.len();
    let words = count.div_ceil(64).max(1);
    if nodes.saturating_mul(words) > SET_LIMIT {
        return (None, 0);
    }
    let mut live = vec![Bits::new(count); nodes];
    let mut waiting: Vec<bool> = vec![true; nodes];
    let mut work = 0;
    let mut again = true;
    let mut next = Bits::new(count);
    while again {
        again = false;
        work += nodes;
        for index in graph.order.iter().copied() {
            if !std::mem::replace(&mut waiting[index], false) {
                continue;
            }
            work += words * (2 + graph.successors[index].len());
            if work > limit {
                return (None, work);
            }
            next.0.fill(0);
            for successor in &graph.successors[index] {
                next.unite(&live[*successor]);
            }
            if let Some(block) = blocks.get(index) {
                for at in (block.start..block.end).rev().filter(|at| !uniform.removed[*at]) {
                    let operation = &lowered.operations[at];
                    if operation.guard.is_none() {
                        for number in operation.targets.iter().filter_map(|target| crossing[*target as usize]) {
                            next.remove(number);
                        }
                    }
                    for number in reads(lowered, uniform, at).filter_map(|register| crossing[register as usize]) {
                        next.insert(number);
                    }
                }
                work += block.end - block.start;
            }
            if live[index].unite(&next) {
                for predecessor in &graph.predecessors[index] {
                    waiting[*predecessor] = true;
                }
                again = true;
            }
        }
    }
    live.truncate(blocks.len());
    (Some(live), work)
}

#[cfg(test)]
mod tests;
