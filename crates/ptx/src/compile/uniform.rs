//! Analysis of uniform registers, which hold one value for a whole launch or block and are therefore computed once instead of by every
//! group.
//!
//! A register is uniform if exactly one unguarded pure operation writes it and all sources of the operation are uniform: the result is the
//! same whichever lanes run the operation, and however often. Copies of values that never change are replaced by the copied register.

use super::ir::{Action, Lowered, Origin, RegisterId, Special};

/// Scope in which a register's value is constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Constant,
    Launch,
    Block,
    /// Fixed for a lane during a launch, such as thread indices.
    Lane,
    /// Computed by the code for each lane.
    Varying,
}

pub(crate) struct Uniform {
    pub(crate) classes: Vec<Class>,
    /// Register to read instead of each register.
    pub(crate) alias: Vec<RegisterId>,
    /// Operations moved from the code to the launch prologue, sources before their uses.
    pub(crate) launch: Vec<usize>,
    pub(crate) block: Vec<usize>,
    /// For each operation, whether it is removed from the code.
    pub(crate) removed: Vec<bool>,
}

fn class_of(origin: Origin) -> Class {
    match origin {
        Origin::Code => Class::Varying,
        Origin::Constant(_) => Class::Constant,
        Origin::Parameter { .. } | Origin::Symbol { .. } | Origin::DynamicShared { .. } => Class::Launch,
        Origin::Special(special) => match special {
            Special::Zero => Class::Constant,
            Special::BlockExtent(_)
            | Special::GridExtent(_)
            | Special::WarpCount
            | Special::DynamicSharedBytes
            | Special::GridWorkspace { .. }
            | Special::TotalSharedBytes => Class::Launch,
            Special::Block(_) => Class::Block,
            Special::Thread(_) | Special::Lane | Special::Warp | Special::LaneMask(_) => Class::Lane,
        },
    }
}

pub(crate) fn analyse(lowered: &Lowered) -> Uniform {
    let registers = lowered.registers.len();
    let mut definitions = vec![0u32; registers];
    for operation in &lowered.operations {
        for target in &operation.targets {
            definitions[*target as usize] += 1;
        }
    }
    let mut found = Uniform {
        classes: lowered.registers.iter().map(|register| class_of(register.origin)).collect(),
        alias: (0..registers as RegisterId).collect(),
        launch: Vec::new(),
        block: Vec::new(),
        removed: vec![false; lowered.operations.len()],
    };
    // Operations that read each register, which are revisited when the register turns out to be uniform.
    let mut readers: Vec<Vec<u32>> = vec![Vec::new(); registers];
    for (index, operation) in lowered.operations.iter().enumerate() {
        for source in &operation.sources {
            readers[*source as usize].push(index as u32);
        }
    }
    let mut waiting: std::collections::VecDeque<u32> = (0..lowered.operations.len() as u32).collect();
    while let Some(index) = waiting.pop_front() {
        let operation = &lowered.operations[index as usize];
        let [target] = operation.targets[..] else {
            continue;
        };
        if found.removed[index as usize] || operation.guard.is_some() || definitions[target as usize] != 1 {
            continue;
        }
        let class = operation
            .sources
            .iter()
            .map(|source| found.classes[*source as usize])
            .max()
            .unwrap_or(Class::Constant);
        match operation.action {
            Action::Copy if class < Class::Varying => {
                found.alias[target as usize] = found.alias[operation.sources[0] as usize];
                found.classes[target as usize] = class;
            }
            Action::Lane(_) if class <= Class::Block => {
                // The launch prologue also computes constant results, which saves a separate class for them.
                found.classes[target as usize] = class.max(Class::Launch);
                if class == Class::Block {
                    found.block.push(index as usize)
                } else {
                    found.launch.push(index as usize)
                }
            }
            _ => continue,
        }
        found.removed[index as usize] = true;
        waiting.extend(readers[target as usize].iter().copied());
    }
    found
}
