//! Functions and calls (PTX ISA §7.1, §9.7.12.5 call, §9.7.12.6 ret), `brx.idx` (§9.7.12.4), and the functions of
//! CUDA's device runtime.

use super::names::Place;
use super::{At, Lowering};
use crate::compile::calls::{Slot, frame_layout};
use crate::compile::ir::{Access, Action, Callee, RegisterId, SystemCall, Width};
use crate::error::{LoadError, LoadErrorKind};
use crate::lanes::binary;
use crate::lanes::integer as int;
use crate::syntax::{Function, Operand, Variable};
use crate::types::{ScalarType as T, Space};

/// The function whose body is being lowered.
pub(super) struct Context {
    /// Its number among the lowered functions; none for the kernel.
    pub(super) number: Option<usize>,
    /// Holds where the frame begins, where it has one.
    pub(super) frame: Option<RegisterId>,
    pub(super) frame_bytes: u64,
    /// Results declared as registers, and where they go.
    results: Vec<(RegisterId, Slot, T)>,
}

impl Context {
    pub(super) fn kernel() -> Self {
        Self {
            number: None,
            frame: None,
            frame_bytes: 0,
            results: Vec::new(),
        }
    }
}

/// Where a frame begins: at a fixed place or at the stack pointer.
#[derive(Clone, Copy)]
enum Base {
    Fixed(u64),
    Register(RegisterId),
}

fn access(bytes: u64, offset: i64) -> Access {
    Access {
        space: Space::Local,
        element: bytes as u8,
        count: 1,
        signed: false,
        offset,
        ordered: false,
    }
}

/// Bytes moved at a time: as many as are aligned.
fn pieces(slot: Slot) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = slot.bytes.checked_sub(at).filter(|left| *left > 0)?;
        let mut size = slot.alignment.clamp(1, 8);
        while size > left {
            size /= 2;
        }
        at += size;
        Some((at - size, size))
    })
}

fn width_of(bytes: u64) -> Width {
    Width::of_bytes(bytes as usize).unwrap_or(Width::W64)
}

impl<'a> Lowering<'a> {
    /// The register that holds where the next frame begins.
    fn stack_pointer(&mut self) -> RegisterId {
        match self.result.stack_pointer {
            Some(register) => register,
            None => {
                let register = self.new_register(Width::W64);
                self.result.stack_pointer = Some(register);
                register
            }
        }
    }

    fn base_address(&mut self, base: Base) -> (RegisterId, i64) {
        match base {
            Base::Fixed(offset) => (self.constant(Width::W64, offset), 0),
            Base::Register(register) => (register, 0),
        }
    }

    fn load_piece(&mut self, base: Base, offset: u64, bytes: u64) -> RegisterId {
        let target = self.new_register(width_of(bytes));
        let (register, _) = self.base_address(base);
        self.emit(Action::Load(access(bytes, offset as i64)), vec![target], vec![register]);
        target
    }

    fn store_piece(&mut self, base: Base, offset: u64, bytes: u64, value: RegisterId) {
        let (register, _) = self.base_address(base);
        self.emit(Action::Store(access(bytes, offset as i64)), vec![], vec![register, value]);
    }

    /// Lowers a device function: its operations become those behind `label`.
    pub(super) fn device_function(&mut self, index: usize, number: usize) -> Result<(), LoadError> {
        let source = self.source;
        let function = &source.functions[index];
        let Some(body) = &function.body else { return Ok(()) };
        let (results, parameters, frame_bytes) = frame_layout(&function.results, &function.parameters);
        let fixed = self.fixed_frames.get(&index).copied();
        self.context = Context {
            number: Some(number),
            frame: None,
            frame_bytes,
            results: Vec::new(),
        };
        self.carry = None;
        self.location = None;
        self.begin_statement(format!(".func {}", function.name), function.position);
        let label = self.result.functions[number].label;
        self.place_label(label);
        let base = match fixed {
            Some(offset) => Base::Fixed(offset),
            None => {
                let pointer = self.stack_pointer();
                let frame = self.new_register(Width::W64);
                self.context.frame = Some(frame);
                self.emit(Action::Copy, vec![frame], vec![pointer]);
                // The size is known at the end: this constant is set then.
                let size = self.new_register(Width::W64);
                self.frame_sizes.push((number, size));
                self.lane(binary::<int::Add<u64>>(), pointer, &[pointer, size]);
                Base::Register(frame)
            }
        };
        let mut scope = super::Scope::default();
        for (variables, slots) in [(&function.results, &results), (&function.parameters, &parameters)] {
            for (variable, slot) in variables.iter().zip(slots) {
                let place = match base {
                    Base::Fixed(offset) => Place::Local(offset + slot.offset),
                    Base::Register(_) => Place::Frame(slot.offset),
                };
                if !variable.is_register {
                    scope.variables.insert(variable.name, place);
                    continue;
                }
                let Some(width) = Width::of_bytes(variable.scalar.bytes()).filter(|width| *width != Width::Predicate) else {
                    return Err(self.refused(function, "a register parameter of this type"));
                };
                let register = self.new_register(width);
                scope.registers.insert(variable.name, register);
                if std::ptr::eq(variables, &function.results) {
                    self.context.results.push((register, *slot, variable.scalar));
                } else {
                    let (address, _) = self.base_address(base);
                    let load = access(variable.scalar.bytes() as u64, slot.offset as i64);
                    self.emit(Action::Load(load), vec![register], vec![address]);
                }
            }
        }
        self.scopes.push(scope);
        self.scope(body)?;
        self.begin_statement("}".to_owned(), function.position);
        self.return_from_function();
        self.scopes.pop();
        self.result.functions[number].frame_bytes = if fixed.is_some() {
            0
        } else {
            self.context.frame_bytes.next_multiple_of(16).max(16)
        };
        self.context = Context::kernel();
        Ok(())
    }

    fn refused(&self, function: &Function<'_>, what: &str) -> LoadError {
        LoadError::new(
            function.position,
            format!(".func {}", function.name),
            LoadErrorKind::Unsupported(what.to_owned()),
        )
    }

    /// `ret` of a device function, under no guard.
    fn return_from_function(&mut self) {
        let Some(number) = self.context.number else { return };
        let base = match (self.context.frame, self.result.functions[number].address) {
            (Some(frame), _) => Base::Register(frame),
            (None, _) => Base::Fixed(self.fixed_frames.get(&self.function_indices[number]).copied().unwrap_or(0)),
        };
        for (register, slot, scalar) in std::mem::take(&mut self.context.results) {
            self.store_piece(base, slot.offset, scalar.bytes() as u64, register);
            self.context.results.push((register, slot, scalar));
        }
        if let Some(frame) = self.context.frame {
            let pointer = self.stack_pointer();
            self.emit(Action::Copy, vec![pointer], vec![frame]);
        }
        self.emit(Action::Return(number), vec![], vec![]);
    }

    /// Runs `body` with no guard, behind a branch around it where the guard fails.
    pub(super) fn skippable(&mut self, body: impl FnOnce(&mut Self) -> Result<(), LoadError>) -> Result<(), LoadError> {
        let Some((register, negated)) = self.guard.take() else {
            return body(self);
        };
        let behind = self.new_label();
        self.guard = Some((register, !negated));
        self.emit(Action::Branch(behind), vec![], vec![]);
        self.guard = None;
        body(self)?;
        self.place_label(behind);
        Ok(())
    }

    /// `ret`: the end of a kernel's thread, the way back from a function.
    pub(super) fn ret(&mut self) -> Result<(), LoadError> {
        if self.context.number.is_none() {
            self.emit(Action::Exit, vec![], vec![]);
            return Ok(());
        }
        self.skippable(|lowering| {
            lowering.return_from_function();
            Ok(())
        })
    }

    /// `brx.idx index, targets`.
    pub(super) fn branch_indexed(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        if !matches!(at.modifiers(), ["idx"] | ["idx", "uni"]) {
            return Err(at.form());
        }
        let [index, list] = at.operands()?;
        let Operand::Name(list, 0) = list else {
            return Err(at.invalid("expected a list of branch targets"));
        };
        let names = self
            .scopes
            .iter()
            .rev()
            .find_map(|scope| scope.branch_targets.get(list))
            .cloned()
            .ok_or_else(|| at.undeclared(list))?;
        let labels = names
            .iter()
            .map(|name| self.label(name).ok_or_else(|| at.undeclared(name)))
            .collect::<Result<Vec<_>, _>>()?;
        let index = self.source(at, index, T::U32)?;
        self.emit_skippable(Action::BranchTable(labels), vec![], vec![index]);
        Ok(())
    }

    /// `call (results), function, (arguments)[, prototype];`
    pub(super) fn call(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        if !matches!(at.modifiers(), [] | ["uni"]) {
            return Err(at.form());
        }
        let operands = at.all_operands();
        let (results, rest) = match operands {
            [Operand::List(results), rest @ ..] => (results.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let Some((callee @ Operand::Name(name, 0), rest)) = rest.split_first() else {
            return Err(at.invalid("expected a function"));
        };
        let (arguments, rest) = match rest {
            [Operand::List(arguments), rest @ ..] => (arguments.as_slice(), rest),
            rest => (&[][..], rest),
        };
        if let Some(Err(_)) | Some(Ok(_)) = self.register(name) {
            let prototype = match rest {
                [Operand::Name(prototype, 0)] => prototype,
                _ => return Err(at.invalid("a call through a register needs a prototype or a list of targets")),
            };
            let pointer = self.source(at, callee, T::U64)?;
            return self.skippable(|lowering| lowering.call_through_pointer(at, pointer, prototype, results, arguments));
        }
        if let Some(system) = match *name {
            "vprintf" => Some((SystemCall::Print, &[T::U64, T::U64][..])),
            "__assertfail" | "__assert_fail" => Some((SystemCall::AssertFail, &[T::U64, T::U64, T::U32, T::U64][..])),
            "malloc" => Some((SystemCall::Allocate, &[T::U64][..])),
            "free" => Some((SystemCall::Free, &[T::U64][..])),
            _ => None,
        }
        .filter(|_| !self.graph.defined.contains_key(name))
        {
            return self.skippable(|lowering| lowering.system_call(at, system.0, system.1, results, arguments));
        }
        let Some(index) = self.graph.defined.get(name).copied() else {
            return Err(if self.source.functions.iter().any(|function| function.name == *name) {
                at.unsupported(format!("external function {name}"))
            } else {
                at.undeclared(name)
            });
        };
        let number = self
            .function_indices
            .iter()
            .position(|other| *other == index)
            .ok_or_else(|| at.undeclared(name))?;
        self.skippable(|lowering| {
            let function = &lowering.source.functions[index];
            let layout = (function.results.as_slice(), function.parameters.as_slice());
            let base = match lowering.fixed_frames.get(&index) {
                Some(offset) => Base::Fixed(*offset),
                None => Base::Register(lowering.stack_pointer()),
            };
            lowering.call_with_layout(at, base, layout, results, arguments, |lowering| {
                lowering.emit(Action::Call(Callee::Function(number)), vec![], vec![]);
            })
        })
    }

    fn call_through_pointer(
        &mut self,
        at: At<'a, '_>,
        pointer: RegisterId,
        prototype: &'a str,
        results: &[Operand<'a>],
        arguments: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let layout = self.scopes.iter().rev().find_map(|scope| scope.prototypes.get(prototype)).copied();
        // `.calltargets`: the first function's own declaration serves as prototype.
        let named = self
            .scopes
            .iter()
            .rev()
            .find_map(|scope| scope.call_targets.get(prototype))
            .copied();
        let source = self.source;
        let listed = named.and_then(|names| names.first()).and_then(|name| self.graph.defined.get(name));
        let layout = layout
            .or_else(|| {
                let function = &source.functions[*listed?];
                Some((function.results.as_slice(), function.parameters.as_slice()))
            })
            .ok_or_else(|| at.undeclared(prototype))?;
        let base = Base::Register(self.stack_pointer());
        self.call_with_layout(at, base, layout, results, arguments, |lowering| {
            lowering.emit(Action::Call(Callee::Pointer), vec![], vec![pointer]);
        })
    }

    /// Arguments into the callee's frame, the call, results out of it.
    fn call_with_layout(
        &mut self,
        at: At<'a, '_>,
        base: Base,
        (declared_results, declared): (&[Variable<'a>], &[Variable<'a>]),
        results: &[Operand<'a>],
        arguments: &[Operand<'a>],
        call: impl FnOnce(&mut Self),
    ) -> Result<(), LoadError> {
        let (result_slots, slots, _) = frame_layout(declared_results, declared);
        if results.len() != declared_results.len() || arguments.len() != declared.len() {
            return Err(at.invalid("the call does not have the function's parameters"));
        }
        for ((argument, slot), variable) in arguments.iter().zip(&slots).zip(declared) {
            match self.parameter_variable(argument) {
                Some((from, bytes)) => {
                    if bytes < slot.bytes {
                        return Err(at.invalid("an argument is smaller than the parameter"));
                    }
                    for (offset, size) in pieces(*slot) {
                        let value = self.load_piece(from.0, from.1 + offset, size);
                        self.store_piece(base, slot.offset + offset, size, value);
                    }
                }
                None => {
                    let value = self.any_source(at, argument, variable.scalar)?;
                    if self.width(value) != width_of(slot.bytes) || slot.bytes > 8 {
                        return Err(at.invalid("an argument does not have the parameter's size"));
                    }
                    self.store_piece(base, slot.offset, slot.bytes, value);
                }
            }
        }
        call(self);
        self.emit(Action::Restore, vec![], vec![]);
        for (result, slot) in results.iter().zip(&result_slots) {
            match self.parameter_variable(result) {
                Some((to, bytes)) => {
                    if bytes < slot.bytes {
                        return Err(at.invalid("a result does not fit"));
                    }
                    for (offset, size) in pieces(*slot) {
                        let value = self.load_piece(base, slot.offset + offset, size);
                        self.store_piece(to.0, to.1 + offset, size, value);
                    }
                }
                None => {
                    let target = self.any_target(at, result, width_of(slot.bytes))?;
                    if self.width(target) != width_of(slot.bytes) || slot.bytes > 8 {
                        return Err(at.invalid("a result does not have the register's size"));
                    }
                    let (register, _) = self.base_address(base);
                    self.emit(Action::Load(access(slot.bytes, slot.offset as i64)), vec![target], vec![register]);
                }
            }
        }
        Ok(())
    }

    /// A `.param` variable of a body named in a call: where it lies, and its bytes.
    fn parameter_variable(&self, operand: &Operand<'a>) -> Option<((Base, u64), u64)> {
        let Operand::Name(name, 0) = operand else { return None };
        let place = self.scopes.iter().rev().find_map(|scope| scope.variables.get(name)).copied()?;
        let bytes = self
            .scopes
            .iter()
            .rev()
            .find_map(|scope| scope.parameter_bytes.get(name))
            .copied()?;
        match place {
            Place::Local(offset) => Some(((Base::Fixed(0), offset), bytes)),
            Place::Frame(offset) => Some(((Base::Register(self.context.frame?), offset), bytes)),
            _ => None,
        }
    }

    fn system_call(
        &mut self,
        at: At<'a, '_>,
        system: SystemCall,
        types: &[T],
        results: &[Operand<'a>],
        arguments: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        if arguments.len() < types.len() || results.len() > 1 {
            return Err(at.invalid("the call does not have the function's parameters"));
        }
        let mut sources = Vec::new();
        for (argument, scalar) in arguments.iter().zip(types) {
            sources.push(match self.parameter_variable(argument) {
                Some((from, bytes)) if bytes >= scalar.bytes() as u64 => self.load_piece(from.0, from.1, scalar.bytes() as u64),
                Some(_) => return Err(at.invalid("an argument is smaller than the parameter")),
                None => self.source(at, argument, *scalar)?,
            });
        }
        let width = match system {
            SystemCall::Print => Some(Width::W32),
            SystemCall::Allocate => Some(Width::W64),
            _ => None,
        };
        let Some(width) = width else {
            self.emit(Action::System(system), vec![], sources);
            return Ok(());
        };
        let value = self.new_register(width);
        self.emit(Action::System(system), vec![value], sources);
        if let Some(result) = results.first() {
            match self.parameter_variable(result) {
                Some((to, bytes)) if bytes >= width.bytes() as u64 => self.store_piece(to.0, to.1, width.bytes() as u64, value),
                Some(_) => return Err(at.invalid("a result does not fit")),
                None => {
                    let target = self.target(at, result, width)?;
                    self.emit(Action::Copy, vec![target], vec![value]);
                }
            }
        }
        Ok(())
    }
}
