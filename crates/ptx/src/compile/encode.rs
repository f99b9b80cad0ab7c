//! Encoding of operations as instructions, once all registers have locations.

mod access;
mod saves;
mod values;

use std::sync::Arc;

use access::{address_patterns, local_granule};
use saves::Saves;
pub(crate) use values::splat;

use super::code::{
    BarrierDetail, CONSTANT, CallDetail, CallTarget, Code, Function, GROUP, Instruction, Kind, Lines, Place, SystemDetail, WarpDetail,
    WarpKind,
};
use super::flow::Flow;
use super::ir::{Action, BarrierReduction, Callee, Lowered, Operation, Origin, RegisterId, Special, Width};
use super::place::Places;
use super::uniform::Uniform;
use crate::lanes::{LaneFunction, logic, select, unary};

struct Encoder<'a> {
    lowered: &'a Lowered,
    uniform: &'a Uniform,
    places: &'a Places,
    /// Index of the address pattern of each register, 0 for none.
    patterns: Vec<u16>,
    code: Code,
}

fn copy(width: Width) -> LaneFunction {
    match width {
        Width::Predicate => logic::<select::PredicateCopy>(),
        Width::W16 => unary::<select::Copy1<u16>>(),
        Width::W32 => unary::<select::Copy1<u32>>(),
        Width::W64 => unary::<select::Copy1<u64>>(),
    }
}

/// Returns the code of a kernel without its instructions.
fn without_instructions(lowered: &Lowered, places: &Places) -> Code {
    Code {
        instructions: Vec::new(),
        launch_prologue: Vec::new(),
        block_prologue: Vec::new(),
        launch_values: Vec::new(),
        block_values: Vec::new(),
        lane_values: Vec::new(),
        constants: Lines::of_bytes(places.constant_bytes),
        uniform_bytes: places.uniform_bytes,
        group_bytes: places.group_bytes,
        memory: Vec::new(),
        warps: Vec::new(),
        barriers: Vec::new(),
        calls: Vec::new(),
        systems: Vec::new(),
        tables: Vec::new(),
        functions: Vec::new(),
        entry: 0,
        largest_frame: lowered.functions.iter().map(|function| function.frame_bytes).max().unwrap_or(0),
        stack_pointer: lowered.stack_pointer.and_then(|register| places.of[register as usize]),
        origins: Vec::new(),
        statements: Vec::new(),
        static_shared_bytes: lowered.static_shared_bytes,
        shared_alignment: lowered.shared_alignment,
        local_bytes: lowered.local_bytes.next_multiple_of(32),
        local_granule: local_granule(lowered),
        patterns: 1,
        uses_symbols: lowered.uses_symbols,
        uses_grid_workspace: lowered
            .registers
            .iter()
            .any(|register| matches!(register.origin, Origin::Special(Special::GridWorkspace { .. }))),
    }
}

pub(crate) fn encode(lowered: Lowered, uniform: &Uniform, flow: &Flow, places: &Places) -> Code {
    let mut encoder = Encoder {
        lowered: &lowered,
        uniform,
        patterns: address_patterns(&lowered, uniform),
        places,
        code: without_instructions(&lowered, places),
    };
    encoder.code.patterns = 1 + usize::from(encoder.patterns.iter().copied().max().unwrap_or(0));
    encoder.values();
    for index in &uniform.launch {
        let instruction = encoder.lane(&lowered.operations[*index], false);
        encoder.code.launch_prologue.push(instruction);
    }
    for index in &uniform.block {
        let instruction = encoder.lane(&lowered.operations[*index], false);
        encoder.code.block_prologue.push(instruction);
    }
    let mut saves = Saves::new(&lowered, uniform, flow, places);
    let mut starts = vec![0u32; flow.blocks.len()];
    for (index, block) in flow.blocks.iter().enumerate() {
        starts[index] = encoder.code.instructions.len() as u32;
        for at in (block.start..block.end).filter(|at| !uniform.removed[*at]) {
            let operation = &lowered.operations[at];
            let keeps = operation.targets.iter().any(|target| flow.needed_elsewhere(index, *target));
            encoder.operation(operation, keeps);
            if let Action::Call(_) = operation.action
                && let Some(call) = encoder.code.calls.last_mut()
            {
                call.saves = saves.of(at, index + 1);
            }
        }
        let ends = encoder.code.instructions[starts[index] as usize..].last().is_some_and(|last| {
            matches!(
                last.kind,
                Kind::Jump
                    | Kind::Branch
                    | Kind::BranchTable
                    | Kind::Call
                    | Kind::Return
                    | Kind::Barrier
                    | Kind::Cluster
                    | Kind::Trap
                    | Kind::Exit
            )
        });
        if !ends && index + 1 < flow.blocks.len() {
            let statement = lowered.operations[block.end - 1].statement;
            let fall = encoder.blank(Kind::Fall);
            encoder.push(fall, statement);
        }
    }
    let block_of = |label: u32| starts[flow.block_of[lowered.labels[label as usize]]];
    for instruction in &mut encoder.code.instructions {
        if matches!(instruction.kind, Kind::Jump | Kind::Branch) {
            instruction.detail = block_of(instruction.detail);
        }
    }
    encoder.code.entry = block_of(lowered.entry);
    for (_, targets) in &mut encoder.code.tables {
        for target in targets {
            *target = block_of(*target);
        }
    }
    let functions: Vec<Function> = lowered
        .functions
        .iter()
        .map(|function| Function {
            pc: block_of(function.label),
            frame_bytes: function.frame_bytes,
        })
        .collect();
    for call in &mut encoder.code.calls {
        // Up to here, `pc` holds the index of the function.
        if let CallTarget::Function(function) = &mut call.callee {
            *function = functions[function.pc as usize];
        }
    }
    encoder.code.functions = lowered
        .functions
        .iter()
        .zip(&functions)
        .filter(|(body, _)| body.address_taken)
        .map(|(body, function)| (body.address, *function))
        .collect();
    // Calls through pointers search this table by address. Up to here, the functions are sorted by their order of calls.
    encoder.code.functions.sort_unstable_by_key(|(address, _)| *address);
    let mut code = encoder.code;
    code.statements = lowered.statements;
    code
}

impl Encoder<'_> {
    fn place(&self, register: RegisterId) -> Place {
        let read = self.uniform.alias[register as usize];
        // A register that is read but never written has no location, and its value is undefined.
        self.places.of[read as usize].unwrap_or(Place::new(CONSTANT, 0))
    }

    fn blank(&self, kind: Kind) -> Instruction {
        let unused = Place::new(GROUP, 0);
        Instruction {
            kind,
            keeps: false,
            overlaps: false,
            width: Width::W32,
            forgets: 0,
            guarded: false,
            guard_negated: false,
            guard: unused,
            d: unused,
            a: unused,
            b: unused,
            c: unused,
            detail: 0,
            run: logic::<select::PredicateCopy>(),
        }
    }

    fn push(&mut self, instruction: Instruction, statement: u32) {
        self.code.instructions.push(instruction);
        self.code.origins.push(statement);
    }

    fn lane(&self, operation: &Operation, keeps: bool) -> Instruction {
        let target = operation.targets[0];
        let d = self.place(target);
        let width = self.lowered.registers[target as usize].width;
        let run = match operation.action {
            Action::Lane(function) => function,
            _ => copy(width),
        };
        let source = |index: usize| {
            operation
                .sources
                .get(index)
                .map_or(Place::new(GROUP, 0), |register| self.place(*register))
        };
        let sources = [source(0), source(1), source(2)];
        // Predicates may overlap, because a lane function reads them completely before it writes one.
        let overlaps = width != Width::Predicate && operation.sources.iter().any(|register| self.place(*register) == d);
        Instruction {
            keeps,
            overlaps,
            width,
            forgets: self.patterns[target as usize],
            d,
            a: sources[0],
            b: sources[1],
            c: sources[2],
            run,
            ..self.blank(Kind::Lane)
        }
    }

    fn operation(&mut self, operation: &Operation, keeps: bool) {
        let mut instruction = match &operation.action {
            Action::Lane(_) | Action::Copy => self.lane(operation, keeps),
            Action::Load(access) => self.memory(operation, access, Kind::Load),
            Action::Store(access) => self.memory(operation, access, Kind::Store),
            Action::Atomic(access, _) => self.memory(operation, access, Kind::Atomic),
            Action::Branch(label) => {
                let kind = if operation.guard.is_some() { Kind::Branch } else { Kind::Jump };
                Instruction {
                    detail: *label,
                    ..self.blank(kind)
                }
            }
            Action::Exit => self.blank(Kind::Exit),
            Action::Trap => self.blank(Kind::Trap),
            Action::Restore => Instruction {
                detail: self.code.calls.len() as u32 - 1,
                ..self.blank(Kind::Restore)
            },
            Action::Return(_) => self.blank(Kind::Return),
            Action::BranchTable(labels) => {
                self.code.tables.push((self.place(operation.sources[0]), labels.clone()));
                Instruction {
                    detail: self.code.tables.len() as u32 - 1,
                    ..self.blank(Kind::BranchTable)
                }
            }
            Action::Call(callee) => {
                let callee = match callee {
                    Callee::Function(number) => CallTarget::Function(Function {
                        pc: *number as u32,
                        frame_bytes: 0,
                    }),
                    Callee::Pointer => CallTarget::Pointer(self.place(operation.sources[0])),
                };
                self.code.calls.push(CallDetail {
                    callee,
                    saves: Arc::new([]),
                });
                Instruction {
                    detail: self.code.calls.len() as u32 - 1,
                    ..self.blank(Kind::Call)
                }
            }
            Action::System(call) => {
                self.code.systems.push(SystemDetail {
                    call: *call,
                    sources: operation.sources.iter().map(|register| self.place(*register)).collect(),
                    targets: operation.targets.iter().map(|register| self.place(*register)).collect(),
                });
                Instruction {
                    detail: self.code.systems.len() as u32 - 1,
                    ..self.blank(Kind::System)
                }
            }
            Action::Fence => self.blank(Kind::Fence),
            Action::ActiveMask | Action::Clock => {
                let kind = if matches!(operation.action, Action::Clock) {
                    Kind::Clock
                } else {
                    Kind::ActiveMask
                };
                let target = operation.targets[0];
                Instruction {
                    d: self.place(target),
                    width: self.lowered.registers[target as usize].width,
                    ..self.blank(kind)
                }
            }
            Action::Barrier { waits, counted, reduction } => self.barrier(operation, *waits, *counted, *reduction),
            Action::Cluster { waits } => Instruction {
                detail: u32::from(*waits),
                ..self.blank(Kind::Cluster)
            },
            Action::WarpBarrier => self.warp(operation, WarpKind::Barrier),
            Action::Shuffle(mode) => self.warp(operation, WarpKind::Shuffle(*mode)),
            Action::Vote(vote) => self.warp(operation, WarpKind::Vote(*vote)),
            Action::Match { all } => {
                let wide = self.lowered.registers[operation.sources[1] as usize].width == Width::W64;
                self.warp(operation, WarpKind::Match { all: *all, wide })
            }
            Action::Reduce(reduction) => self.warp(operation, WarpKind::Reduce(*reduction)),
            Action::Matrix(matrix) => self.warp(operation, WarpKind::Matrix(*matrix)),
        };
        if let Some((register, negated)) = operation.guard {
            instruction.guarded = true;
            instruction.guard_negated = negated;
            instruction.guard = self.place(register);
        }
        self.push(instruction, operation.statement);
    }

    fn barrier(&mut self, operation: &Operation, waits: bool, counted: bool, reduction: Option<BarrierReduction>) -> Instruction {
        let predicate = operation.sources.last().copied().unwrap_or_default();
        let detail = BarrierDetail {
            waits,
            number: self.place(operation.sources[0]),
            count: counted.then(|| self.place(operation.sources[1])),
            reduction: reduction.map(|reduction| (reduction, self.place(predicate), self.place(operation.targets[0]))),
        };
        self.code.barriers.push(detail);
        Instruction {
            detail: self.code.barriers.len() as u32 - 1,
            ..self.blank(Kind::Barrier)
        }
    }

    fn warp(&mut self, operation: &Operation, kind: WarpKind) -> Instruction {
        let detail = WarpDetail {
            kind,
            targets: operation.targets.iter().map(|register| self.place(*register)).collect(),
            sources: operation.sources.iter().map(|register| self.place(*register)).collect(),
        };
        self.code.warps.push(detail);
        Instruction {
            detail: self.code.warps.len() as u32 - 1,
            ..self.blank(Kind::Warp)
        }
    }
}
