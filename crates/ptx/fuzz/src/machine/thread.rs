//! One thread and one instruction of it.

use super::Block;
use super::memory::{GlobalMemory, LOCAL, SHARED, value, within};
use super::parse::{Argument, Instruction, Program, Space};
use super::warp::Wait;
use crate::kind::{Class, Kind, mask};
use crate::model::Model;
use crate::single::extended;

#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Start of its variables in local memory.
    local: u64,
}

pub(super) struct Thread {
    pub(super) index: [u32; 3],
    /// Number in the block: warps are 32 of these each.
    pub(super) linear: u32,
    pub(super) state: State,
    pub(super) frames: Vec<Frame>,
    carry: bool,
    /// Of a completed barrier: threads with a true operand, and all.
    pub(super) reduction: Option<(u64, u64)>,
    local: Vec<u8>,
}

impl Frame {
    fn new(program: &Program, function: usize, local: u64) -> Self {
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
            reduction: None,
            local: vec![0; program.functions[function].local_bytes as usize],
        }
    }

    pub(super) fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("a thread that has not ended is in a function")
    }

    pub(super) fn place(&self, program: &Program) -> String {
        self.frames.last().map_or_else(String::new, |frame| {
            let function = &program.functions[frame.function];
            let line = function
                .code
                .get(frame.pc.saturating_sub(1))
                .map_or(0, |instruction| instruction.line);
            format!("{} line {line}", function.name)
        })
    }

    /// Writes a register of the function, cut to its width.
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
    /// The bits of an operand, read as the type.
    pub(super) fn get(&self, thread: &Thread, argument: &Argument, kind: Kind) -> Result<u64, String> {
        let frame = thread.frames.last().ok_or("a thread without a function")?;
        let bits = match argument {
            Argument::Register(register) => frame.registers[*register],
            Argument::Negated(register) => frame.registers[*register] ^ 1,
            Argument::Integer(value) => *value,
            Argument::Single(bits) => *bits,
            Argument::Double(bits) if kind.width() == 32 => u64::from((f64::from_bits(*bits) as f32).to_bits()),
            Argument::Double(bits) => *bits,
            Argument::Special(name) => self.special(thread, name)?,
            Argument::Variable(Space::Global, place) => self.symbols[(place >> 40) as usize] + (place & ((1 << 40) - 1)),
            Argument::Variable(Space::Local, place) => frame.local + place,
            Argument::Variable(_, place) => *place,
            other => return Err(format!("{other:?} as a value")),
        };
        Ok(bits & mask(kind.width()))
    }

    fn special(&self, thread: &Thread, name: &str) -> Result<u64, String> {
        let lane = thread.linear % 32;
        let of = |values: [u32; 3]| match name.rsplit('.').next() {
            Some("x") => Ok(u64::from(values[0])),
            Some("y") => Ok(u64::from(values[1])),
            Some("z") => Ok(u64::from(values[2])),
            _ => Err(format!("unknown register {name}")),
        };
        match name.split('.').next().unwrap_or_default() {
            "%tid" => of(thread.index),
            "%ntid" => of(self.shape.block),
            "%ctaid" => of(self.index),
            "%nctaid" => of(self.shape.grid),
            "%laneid" => Ok(u64::from(lane)),
            "%warpid" => Ok(u64::from(thread.linear / 32)),
            "%lanemask_eq" => Ok(1 << lane),
            "%lanemask_lt" => Ok((1 << lane) - 1),
            "%lanemask_le" => Ok((2 << lane) - 1),
            "%lanemask_gt" => Ok(mask(32) & !((2 << lane) - 1)),
            "%lanemask_ge" => Ok(mask(32) & !((1 << lane) - 1)),
            _ => Err(format!("unknown register {name}")),
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
        let result = match &instruction.model {
            Some(model) => self.apply(thread, instruction, model),
            None => self.other(thread, instruction, memory),
        };
        result.map_err(|reason| format!("{} line {}: {reason}", function.name, instruction.line))
    }

    fn apply(&mut self, thread: &mut Thread, instruction: &Instruction, model: &Model) -> Result<(), String> {
        let (target, sources) = instruction.arguments.split_first().ok_or("no operands")?;
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

    fn other(&mut self, thread: &mut Thread, instruction: &Instruction, memory: &mut GlobalMemory) -> Result<(), String> {
        let words: Vec<&str> = instruction.words.iter().map(String::as_str).collect();
        let arguments = &instruction.arguments;
        match (instruction.opcode.as_str(), arguments.as_slice()) {
            ("mov", [target, source]) => self.mov(thread, &words, target, source),
            ("ld" | "ldu", [target, Argument::Memory(base, offset), ..]) => self.load(thread, &words, target, (base, *offset), memory),
            ("st", [Argument::Memory(base, offset), source, ..]) => self.store(thread, &words, (base, *offset), source, memory),
            ("atom", [target, Argument::Memory(base, offset), operands @ ..]) => {
                self.atomic(thread, &words, Some(target), (base, *offset), operands, memory)
            }
            ("red", [Argument::Memory(base, offset), operands @ ..]) => {
                self.atomic(thread, &words, None, (base, *offset), operands, memory)
            }
            ("cvta", [target, source]) => {
                let base = match words.iter().find_map(|word| Space::from_word(word)) {
                    Some(Space::Shared) => SHARED,
                    Some(Space::Local) => LOCAL,
                    _ => 0,
                };
                let address = self.get(thread, source, U64)?;
                let converted = if words.contains(&"to") {
                    address.wrapping_sub(base)
                } else {
                    address.wrapping_add(base)
                };
                thread.set(self.program, target, converted)
            }
            ("isspacep", [target, source]) => {
                let address = self.get(thread, source, U64)?;
                let space = match address {
                    LOCAL.. => Space::Local,
                    SHARED.. => Space::Shared,
                    _ => Space::Global,
                };
                let asked = words.first().and_then(|word| Space::from_word(word));
                thread.set(self.program, target, u64::from(asked == Some(space)))
            }
            ("bra", [Argument::Name(label)]) => self.jump(thread, label),
            ("brx", [index, Argument::Name(list)]) => {
                let index = self.get(thread, index, Kind::B32)? as usize;
                let function = thread.frame().function;
                let label = self.program.functions[function]
                    .targets
                    .get(list)
                    .and_then(|labels| labels.get(index))
                    .ok_or("branch index out of range")?;
                self.jump(thread, label)
            }
            ("call", arguments) => self.call(thread, arguments),
            ("ret", _) => self.leave(thread),
            ("exit", _) => {
                thread.state = State::Ended;
                Ok(())
            }
            ("trap" | "brkpt", _) => Err("trap".to_owned()),
            ("membar" | "fence" | "nanosleep" | "prefetch" | "prefetchu" | "pmevent" | "discard", _) => Ok(()),
            ("bar" | "barrier" | "shfl" | "vote" | "match" | "redux" | "activemask", _) => self.wait(thread, instruction, &words),
            (opcode, _) => Err(format!("unknown instruction {opcode}.{}", words.join("."))),
        }
    }

    fn jump(&self, thread: &mut Thread, label: &str) -> Result<(), String> {
        let frame = thread.frame();
        frame.pc = *self.program.functions[frame.function]
            .labels
            .get(label)
            .ok_or_else(|| format!("no label {label}"))?;
        Ok(())
    }

    fn leave(&mut self, thread: &mut Thread) -> Result<(), String> {
        let program = self.program;
        let Some(mut left) = thread.frames.pop() else { return Ok(()) };
        let Some(caller) = thread.frames.last_mut() else {
            thread.frames.push(left);
            thread.state = State::Ended;
            return Ok(());
        };
        thread.local.truncate(left.local as usize);
        // The call stands before the caller's next instruction.
        let call = &program.functions[caller.function].code[caller.pc - 1];
        if let Some(Argument::List(targets)) = call.arguments.first()
            && call.arguments.len() > 1
            && !program.functions[left.function].returns.is_empty()
        {
            for (target, slot) in targets.iter().zip(&program.functions[left.function].returns) {
                let bytes = within(&mut left.parameters, slot.0, slot.1 as usize)?.to_vec();
                match target {
                    Argument::Parameter(start, size) if *size == slot.1 => {
                        within(&mut caller.parameters, *start, bytes.len())?.copy_from_slice(&bytes)
                    }
                    other => return Err(format!("{other:?} takes a result")),
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, thread: &mut Thread, arguments: &[Argument]) -> Result<(), String> {
        let program = self.program;
        let lists: Vec<&Vec<Argument>> = arguments
            .iter()
            .filter_map(|argument| match argument {
                Argument::List(list) => Some(list),
                _ => None,
            })
            .collect();
        let Some(Argument::Name(name)) = arguments.iter().find(|argument| matches!(argument, Argument::Name(_))) else {
            return Err("an indirect call".to_owned());
        };
        let callee = program
            .functions
            .iter()
            .position(|function| function.name == *name)
            .ok_or_else(|| format!("no function {name}"))?;
        let local = (thread.local.len() as u64).next_multiple_of(16);
        thread.local.resize((local + program.functions[callee].local_bytes) as usize, 0);
        let mut frame = Frame::new(program, callee, local);
        let has_results = matches!(arguments.first(), Some(Argument::List(_)));
        let passed = lists.get(usize::from(has_results)).copied();
        for (argument, (start, size)) in passed.into_iter().flatten().zip(&program.functions[callee].parameters) {
            let bytes = match argument {
                Argument::Parameter(from, length) if length == size => {
                    within(&mut thread.frame().parameters, *from, *length as usize)?.to_vec()
                }
                other => return Err(format!("{other:?} as an argument")),
            };
            within(&mut frame.parameters, *start, bytes.len())?.copy_from_slice(&bytes);
        }
        if thread.frames.len() > 200 {
            return Err("calls nest too deep".to_owned());
        }
        thread.frames.push(frame);
        Ok(())
    }

    fn mov(&mut self, thread: &mut Thread, words: &[&str], target: &Argument, source: &Argument) -> Result<(), String> {
        let kind = words
            .last()
            .and_then(|word| Kind::from_name(word))
            .ok_or("mov of an unknown type")?;
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

    /// The bytes that an address operand stands for.
    fn bytes<'b>(
        &'b mut self,
        thread: &'b mut Thread,
        words: &[&str],
        (base, offset): (&Argument, u64),
        length: usize,
        memory: &'b mut GlobalMemory,
    ) -> Result<&'b mut [u8], String> {
        let named = words.iter().find_map(|word| Space::from_word(word));
        let (space, address) = match base {
            Argument::Parameter(start, _) => (Space::Parameter, start.wrapping_add(offset)),
            Argument::Variable(space, _) => (*space, self.get(thread, base, U64)?.wrapping_add(offset)),
            _ => (named.unwrap_or(Space::Generic), self.get(thread, base, U64)?.wrapping_add(offset)),
        };
        if !address.is_multiple_of(length as u64) {
            return Err(format!("{length} bytes at {address:#x} are not aligned"));
        }
        let space = match space {
            Space::Generic if address >= LOCAL => return within(&mut thread.local, address - LOCAL, length),
            Space::Generic if address >= SHARED => return within(&mut self.shared, address - SHARED, length),
            other => other,
        };
        match space {
            Space::Shared => within(&mut self.shared, address, length),
            Space::Local => within(&mut thread.local, address, length),
            Space::Parameter => within(&mut thread.frame().parameters, address, length),
            _ => memory.at(address, length),
        }
    }

    fn load(
        &mut self,
        thread: &mut Thread,
        words: &[&str],
        target: &Argument,
        address: (&Argument, u64),
        memory: &mut GlobalMemory,
    ) -> Result<(), String> {
        let kind = words.last().and_then(|word| Kind::from_name(word)).ok_or("ld of an unknown type")?;
        let size = (kind.width() / 8) as usize;
        let targets = match target {
            Argument::Vector(targets) => targets.as_slice(),
            single => std::slice::from_ref(single),
        };
        let bytes = self.bytes(thread, words, address, size * targets.len(), memory)?.to_vec();
        for (target, bytes) in targets.iter().zip(bytes.chunks_exact(size)) {
            let bits = value(bytes);
            let wide = if kind.class == Class::Signed {
                kind.integer(bits) as u64
            } else {
                bits
            };
            thread.set(self.program, target, wide)?;
        }
        Ok(())
    }

    fn store(
        &mut self,
        thread: &mut Thread,
        words: &[&str],
        address: (&Argument, u64),
        source: &Argument,
        memory: &mut GlobalMemory,
    ) -> Result<(), String> {
        let kind = words.last().and_then(|word| Kind::from_name(word)).ok_or("st of an unknown type")?;
        let size = (kind.width() / 8) as usize;
        let sources = match source {
            Argument::Vector(sources) => sources.as_slice(),
            single => std::slice::from_ref(single),
        };
        let mut stored = Vec::new();
        for source in sources {
            stored.extend_from_slice(&self.get(thread, source, kind)?.to_le_bytes()[..size]);
        }
        self.bytes(thread, words, address, stored.len(), memory)?.copy_from_slice(&stored);
        Ok(())
    }

    /// `atom` and `red` (PTX ISA §9.7.13.5, §9.7.13.6).
    fn atomic(
        &mut self,
        thread: &mut Thread,
        words: &[&str],
        target: Option<&Argument>,
        address: (&Argument, u64),
        operands: &[Argument],
        memory: &mut GlobalMemory,
    ) -> Result<(), String> {
        let kind = words
            .last()
            .and_then(|word| Kind::from_name(word))
            .ok_or("atom of an unknown type")?;
        let names = ["add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec"];
        let operation = words
            .iter()
            .find(|word| names.contains(word))
            .ok_or("an unknown atomic operation")?;
        let b = self.get(thread, operands.first().ok_or("no operand")?, kind)?;
        let c = match operands.get(1) {
            Some(argument) => self.get(thread, argument, kind)?,
            None => 0,
        };
        let place = self.bytes(thread, words, address, (kind.width() / 8) as usize, memory)?;
        let old = value(place);
        let new = match *operation {
            "add" if kind.format().is_some() => {
                let form = if kind.bits == 16 {
                    format!("add.rn.{}", words.last().unwrap_or(&""))
                } else {
                    format!("add.rn.f{}", kind.bits)
                };
                Model::of(&form).ok_or("no addition of the type")?.apply(&[old, b], false).values[0]
            }
            "add" => kind.wrap(kind.integer(old) + kind.integer(b)),
            "and" => old & b,
            "or" => old | b,
            "xor" => old ^ b,
            "exch" => b,
            "cas" if old == b => c,
            "cas" => old,
            "min" => kind.wrap(kind.integer(old).min(kind.integer(b))),
            "max" => kind.wrap(kind.integer(old).max(kind.integer(b))),
            "inc" if old >= b => 0,
            "inc" => old + 1,
            _ if old == 0 || old > b => b,
            _ => old - 1,
        };
        let length = place.len();
        place.copy_from_slice(&new.to_le_bytes()[..length]);
        match target {
            Some(target) => thread.set(self.program, target, old),
            None => Ok(()),
        }
    }
}

/// A 64-bit address.
pub(super) const U64: Kind = Kind {
    class: Class::Unsigned,
    bits: 64,
    lanes: 1,
};
