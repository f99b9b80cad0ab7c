//! Register allocation: registers that are live across blocks have their own location; registers of a single block share locations.

use super::code::{CONSTANT, GROUP, Place, UNIFORM};
use super::flow::{Flow, reads};
use super::ir::{Lowered, RegisterId, Width};
use super::uniform::{Class, Uniform};

pub(crate) struct Places {
    pub(crate) of: Vec<Option<Place>>,
    pub(crate) constant_bytes: usize,
    pub(crate) uniform_bytes: usize,
    pub(crate) group_bytes: usize,
}

/// Size of a register in bytes: whole cache lines for vectors.
fn bytes(width: Width) -> usize {
    match width {
        Width::Predicate => 8,
        other => 64 * other.bytes(),
    }
}

#[derive(Default)]
struct Area {
    bytes: usize,
    /// Free slots for predicates, which are allocated eight to a cache line.
    predicates: Vec<usize>,
}

impl Area {
    fn take(&mut self, width: Width) -> usize {
        if width == Width::Predicate {
            if self.predicates.is_empty() {
                self.predicates = (0..8).rev().map(|slot| self.bytes + 8 * slot).collect();
                self.bytes += 64;
            }
            return self.predicates.pop().unwrap_or(0);
        }
        let start = self.bytes;
        self.bytes += bytes(width);
        start
    }
}

pub(crate) fn place(lowered: &Lowered, uniform: &Uniform, flow: &Flow) -> Places {
    let count = lowered.registers.len();
    let mut of: Vec<Option<Place>> = vec![None; count];
    let (mut constants, mut uniforms, mut group) = (Area::default(), Area::default(), Area::default());
    // Every area begins with 512 reserved bytes, the size of one 64-bit register, which unused operands may address.
    for area in [&mut constants, &mut uniforms, &mut group] {
        area.bytes = 512;
    }

    for (register, info) in lowered.registers.iter().enumerate() {
        if uniform.alias[register] != register as RegisterId {
            continue;
        }
        of[register] = match uniform.classes[register] {
            Class::Constant => Some(Place::new(CONSTANT, constants.take(info.width) as u32)),
            Class::Launch | Class::Block => Some(Place::new(UNIFORM, uniforms.take(info.width) as u32)),
            Class::Lane => Some(Place::new(GROUP, group.take(info.width) as u32)),
            Class::Varying if flow.crosses(register as RegisterId) => Some(Place::new(GROUP, group.take(info.width) as u32)),
            Class::Varying => None,
        };
    }

    let mut free: [Vec<usize>; 4] = Default::default();
    let slot = |width: Width| match width {
        Width::Predicate => 0,
        Width::W16 => 1,
        Width::W32 => 2,
        Width::W64 => 3,
    };
    let mut last_touch = vec![usize::MAX; count];
    for block in &flow.blocks {
        let kept = || (block.start..block.end).filter(|at| !uniform.removed[*at]);
        for at in kept() {
            for register in reads(lowered, uniform, at).chain(lowered.operations[at].targets.iter().copied()) {
                last_touch[register as usize] = at;
            }
        }
        for at in kept() {
            // Targets are allocated before sources are freed, because no target may share the location of a source that dies here.
            let targets = &lowered.operations[at].targets;
            for target in targets {
                let width = lowered.registers[*target as usize].width;
                of[*target as usize].get_or_insert_with(|| {
                    let offset = free[slot(width)].pop().unwrap_or_else(|| group.take(width));
                    Place::new(GROUP, offset as u32)
                });
            }
            let mut dying: Vec<RegisterId> = reads(lowered, uniform, at)
                .chain(targets.iter().copied())
                .filter(|register| !flow.crosses(*register) && last_touch[*register as usize] == at)
                .collect();
            dying.sort_unstable();
            dying.dedup();
            for register in dying {
                if let Some(place) = of[register as usize] {
                    free[slot(lowered.registers[register as usize].width)].push(place.offset());
                }
            }
        }
    }
    Places {
        of,
        constant_bytes: constants.bytes,
        uniform_bytes: uniforms.bytes,
        group_bytes: group.bytes,
    }
}
