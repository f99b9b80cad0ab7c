//! One thread, and the execution of its next instruction.

use super::Block;
use super::memory::{GlobalMemory, LOCAL, SHARED};
use super::program::{Argument, Instruction, Operation, Program, Space, Special};
use super::warp::Wait;
use crate::kind::{Class, Kind, mask};
use crate::model::Model;
use crate::single::extended;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Waiting(Wait),
    Ended,
}

#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) function: usize,
    pub(super) pc: usize,
    pub(super) registers: Vec<u64>,
    pub(super) parameters: Vec<u8>,
    /// Start of the frame's variables in local memory.
    pub(super) local: u64,
}

pub(super) struct Thread {
    pub(super) index: [u32; 3],
    /// Index in the block; each 32 consecutive threads are a warp.
    pub(super) linear: u32,
    pub(super) state: State,
    pub(super) frames: Vec<Frame>,
    carry: bool,
    pub(super) local: Vec<u8>,
}

impl Frame {
    pub(super) fn new(program: &Program, function: usize, local: u64) -> Self {
        let code = &program.functions[function];
        Self {
            function,
            pc: 0,
            registers: vec![0; code.widths.len()],
            parameters: vec![0; code.parameter_bytes as usize],
            local,
        }
    }
}

impl Thread {
    pub(super) fn new(program: &Program, function: usize, index: [u32; 3], linear: u32, arguments: &[u8]) -> Self {
        let mut frame = Frame::new(program, function, 0);
        let length = arguments.len().min(frame.parameters.len());
        frame.parameters[..length].copy_from_slice(&arguments[..length]);
        Self {
            index,
            linear,
            state: State::Running,
            frames: vec![frame],
            carry: false,
            local: vec![0; program.functions[function].local_bytes as usize],
        }
    }

    pub(super) fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("a thread that has not ended is in a function")
    }

    /// Returns the instruction that the thread executes or waits at, which precedes its program counter.
    pub(super) fn instruction<'p>(&self, program: &'p Program) -> Option<&'p Instruction> {
        let frame = self.frames.last()?;
        program.functions[frame.function].code.get(frame.pc.checked_sub(1)?)
    }

    pub(super) fn place(&self, program: &Program) -> String {
        self.frames.last().map_or_else(String::new, |frame| {
            let line = self.instruction(program).map_or(0, |instruction| instruction.line);
            format!("{} line {line}", program.functions[frame.function].name)
        })
    }

    /// Writes a register of the function, truncated to its width.
    pub(super) fn set(&mut self, program: &Program, target: &Argument, bits: u64) -> Result<(), String> {
        match target {
            Argument::Register(register) => {
                let frame = self.frame();
                let width = program.functions[frame.function].widths[*register];
                frame.registers[*register] = bits & mask(width);
                Ok(())
            }
            Argument::Nothing => Ok(()),
            other => Err(format!("{other:?} as a target")),
        }
    }
}

impl Block<'_> {
    /// Returns the bits of an operand, interpreted as the type.
    pub(super) fn get(&self, thread: &Thread, argument: &Argument, kind: Kind) -> Result<u64, String> {
        let frame = thread.frames.last().ok_or("a thread without a function")?;
        let bits = match argument {
            Argument::Register(register) => frame.registers[*register],
            Argument::Negated(register) => frame.registers[*register] ^ 1,
            Argument::Integer(value) => *value,
            Argument::Single(bits) => *bits,
            Argument::Double(bits) if kind.width() == 32 => u64::from((f64::from_bits(*bits) as f32).to_bits()),
            Argument::Double(bits) => *bits,
            Argument::Special(special) => self.special(thread, *special),
            Argument::Symbol(variable, place) => self.symbols[*variable] + place,
            Argument::Variable(Space::Local, place) => frame.local + place,
            Argument::Variable(_, place) => *place,
            other => return Err(format!("{other:?} as a value")),
        };
        Ok(bits & mask(kind.width()))
    }

    fn special(&self, thread: &Thread, special: Special) -> u64 {
        let lane = thread.linear % 32;
        match special {
            Special::Thread(axis) => thread.index[axis].into(),
            Special::BlockExtent(axis) => self.shape.block[axis].into(),
            Special::Block(axis) => self.index[axis].into(),
            Special::GridExtent(axis) => self.shape.grid[axis].into(),
            Special::Lane => lane.into(),
            Special::Warp => u64::from(thread.linear / 32),
            Special::MaskEqual => 1 << lane,
            Special::MaskBelow => (1 << lane) - 1,
            Special::MaskUpTo => (2 << lane) - 1,
            Special::MaskAbove => mask(32) & !((2 << lane) - 1),
            Special::MaskFrom => mask(32) & !((1 << lane) - 1),
        }
    }

    /// Executes the thread's next instruction.
    pub(super) fn step(&mut self, thread: &mut Thread, memory: &mut GlobalMemory) -> Result<(), String> {
        let program = self.program;
        let frame = thread.frame();
        let function = &program.functions[frame.function];
        let Some(instruction) = function.code.get(frame.pc) else {
            return self.leave(thread);
        };
        frame.pc += 1;
        if let Some((register, negated)) = instruction.guard
            && (frame.registers[register] == 1) == negated
        {
            return Ok(());
        }
        self.execute(thread, instruction, memory)
            .map_err(|reason| format!("{} line {}: {reason}", function.name, instruction.line))
    }

    fn execute(&mut self, thread: &mut Thread, instruction: &Instruction, memory: &mut GlobalMemory) -> Result<(), String> {
        match (&instruction.operation, instruction.arguments.as_slice()) {
            (Operation::Compute(model), [target, sources @ ..]) => self.compute(thread, model, target, sources),
            (Operation::Move(kind), [target, source]) => self.mov(thread, *kind, target, source),
            (Operation::Load(access), [target, Argument::Memory(base, offset), ..]) => {
                self.load(thread, *access, target, (base, *offset), memory)
            }
            (Operation::Store(access), [Argument::Memory(base, offset), source, ..]) => {
                self.store(thread, *access, (base, *offset), source, memory)
            }
            (Operation::Atomic(access, update, true), [target, Argument::Memory(base, offset), operands @ ..]) => {
                self.atomic(thread, (*access, update), target, (base, *offset), operands, memory)
            }
            (Operation::Atomic(access, update, false), [Argument::Memory(base, offset), operands @ ..]) => {
                self.atomic(thread, (*access, update), &Argument::Nothing, (base, *offset), operands, memory)
            }
            (Operation::Convert(shift), [target, source]) => {
                let address = self.get(thread, source, U64)?;
                thread.set(self.program, target, address.wrapping_add(*shift))
            }
            (Operation::IsSpace(asked), [target, source]) => {
                let space = match self.get(thread, source, U64)? {
                    LOCAL.. => Space::Local,
                    SHARED.. => Space::Shared,
                    _ => Space::Global,
                };
                thread.set(self.program, target, u64::from(*asked == space))
            }
            (Operation::Jump(to), _) => {
                thread.frame().pc = *to;
                Ok(())
            }
            (Operation::JumpTable(targets), [index, ..]) => {
                let index = self.get(thread, index, Kind::B32)? as usize;
                thread.frame().pc = *targets.get(index).ok_or("branch index out of range")?;
                Ok(())
            }
            (Operation::Call, arguments) => self.call(thread, arguments),
            (Operation::Return, _) => self.leave(thread),
            (Operation::Exit, _) => {
                thread.state = State::Ended;
                Ok(())
            }
            (Operation::Trap, _) => Err("trap".to_owned()),
            (Operation::Nothing, _) => Ok(()),
            (Operation::Meet(meeting), arguments) => self.meet(thread, *meeting, arguments),
            (Operation::Unknown(form), _) => Err(format!("unknown instruction {form}")),
            (_, arguments) => Err(format!("operands {arguments:?}")),
        }
    }

    fn compute(&mut self, thread: &mut Thread, model: &Model, target: &Argument, sources: &[Argument]) -> Result<(), String> {
        if sources.len() != model.sources.len() {
            return Err(format!("{} operands instead of {}", sources.len(), model.sources.len()));
        }
        let mut inputs = [0; 5];
        for ((input, argument), kind) in inputs.iter_mut().zip(sources).zip(&model.sources) {
            *input = self.get(thread, argument, *kind)?;
        }
        let outcome = model.apply(&inputs[..sources.len()], thread.carry);
        if let Some(carry) = outcome.carry {
            thread.carry = carry;
        }
        let write = |thread: &mut Thread, target: &Argument, kind: Kind, bits: u64| {
            let wide = if kind.class == Class::Signed && kind.lanes == 1 {
                kind.integer(bits) as u64
            } else {
                extended(kind, bits)
            };
            thread.set(self.program, target, wide)
        };
        match (target, model.targets.get(1)) {
            (Argument::Pair(first, second), Some(kind)) => {
                write(thread, first, model.targets[0], outcome.values[0])?;
                write(thread, second, *kind, outcome.values[1])
            }
            (target, _) => write(thread, target, model.targets[0], outcome.values[0]),
        }
    }

    fn mov(&mut self, thread: &mut Thread, kind: Kind, target: &Argument, source: &Argument) -> Result<(), String> {
        match (target, source) {
            (Argument::Vector(targets), source) => {
                let bits = self.get(thread, source, kind)?;
                let part = kind.width() / targets.len() as u32;
                for (index, target) in targets.iter().enumerate() {
                    thread.set(self.program, target, bits >> (part * index as u32) & mask(part))?;
                }
                Ok(())
            }
            (target, Argument::Vector(sources)) => {
                let part = kind.width() / sources.len() as u32;
                let mut bits = 0;
                for (index, source) in sources.iter().enumerate() {
                    bits |= (self.get(thread, source, U64)? & mask(part)) << (part * index as u32);
                }
                thread.set(self.program, target, bits)
            }
            (target, source) => {
                let bits = self.get(thread, source, kind)?;
                thread.set(self.program, target, bits)
            }
        }
    }
}

/// Type of a 64-bit address.
pub(super) const U64: Kind = Kind {
    class: Class::Unsigned,
    bits: 64,
    lanes: 1,
};
