//! Calls (PTX ISA §7.1, §9.7.12.5): by name, through pointers, and of CUDA's device runtime. Arguments are copied to the callee's frame,
//! and results out of it.

use super::names::Place;
use super::{At, Lowering};
use crate::compile::calls::{Slot, frame_layout};
use crate::compile::ir::{Access, Action, Callee, RegisterId, SystemCall, Width};
use crate::lanes::integer as int;
use crate::lanes::select::Select;
use crate::lanes::{relation, select};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::{Operand, Variable};
use sahasra_ptx_syntax::types::{ScalarType as T, Space};

/// Maximum sum of the bytes that the calls in a kernel copy. Each byte may take two operations, so a short text would fill the memory
/// otherwise.
const COPY_LIMIT: u64 = 1 << 20;

/// Start of a frame: a fixed address or the stack pointer.
#[derive(Clone, Copy)]
pub(super) enum Base {
    Fixed(u64),
    Register(RegisterId),
}

/// Access to `bytes` bytes of local memory, `offset` bytes after the address.
pub(super) fn access(bytes: u64, offset: i64) -> Access {
    Access {
        space: Space::Local,
        element: bytes as u8,
        count: 1,
        signed: false,
        offset,
        ordered: false,
    }
}

/// Divides a slot into pieces, each as large as its alignment allows, of at most 8 bytes. Returns the offset and size of each piece.
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

/// Width of the register in which a value is passed.
fn passed(variable: &Variable<'_>, slot: Slot) -> Width {
    if variable.scalar == T::Pred {
        Width::Predicate
    } else {
        width_of(slot.bytes)
    }
}

/// Type of an element of a value that is passed in registers.
fn scalar(variable: &Variable<'_>) -> T {
    if variable.scalar == T::B128 { T::B64 } else { variable.scalar }
}

/// Returns the registers that pass an argument or result: the elements of a vector, or one.
fn elements<'o, 'a>(at: At<'a, '_>, operand: &'o Operand<'a>, slot: Slot) -> Result<&'o [Operand<'a>], LoadError> {
    let (found, count) = (
        match operand {
            Operand::Vector(elements) => elements.as_slice(),
            single => std::slice::from_ref(single),
        },
        slot.elements().count(),
    );
    if found.len() == count {
        Ok(found)
    } else {
        Err(at.invalid(format!("the parameter is passed in {count} registers, not in {}", found.len())))
    }
}

impl<'a> Lowering<'a> {
    pub(super) fn base_address(&mut self, base: Base) -> RegisterId {
        match base {
            Base::Fixed(offset) => self.constant(Width::W64, offset),
            Base::Register(register) => register,
        }
    }

    fn load_piece(&mut self, base: Base, offset: u64, bytes: u64) -> RegisterId {
        let target = self.new_register(width_of(bytes));
        let register = self.base_address(base);
        self.emit(Action::Load(access(bytes, offset as i64)), vec![target], vec![register]);
        target
    }

    pub(super) fn store_piece(&mut self, base: Base, offset: u64, bytes: u64, value: RegisterId) {
        let register = self.base_address(base);
        self.emit(Action::Store(access(bytes, offset as i64)), vec![], vec![register, value]);
    }

    /// Loads a value that is passed in a register. A predicate is passed as a byte, 0 or 1.
    pub(super) fn load_value(&mut self, base: Base, slot: Slot, target: RegisterId) {
        if self.width(target) == Width::Predicate {
            let byte = self.load_piece(base, slot.offset, slot.bytes);
            let zero = self.zero(Width::W16);
            self.lane(relation::<int::NotEqual<u16>>(), target, &[byte, zero]);
            return;
        }
        let register = self.base_address(base);
        self.emit(Action::Load(access(slot.bytes, slot.offset as i64)), vec![target], vec![register]);
    }

    /// Stores a value that is passed in a register.
    pub(super) fn store_value(&mut self, base: Base, slot: Slot, value: RegisterId) {
        let mut stored = value;
        if self.width(value) == Width::Predicate {
            stored = self.new_register(Width::W16);
            let (one, zero) = (self.constant(Width::W16, 1), self.zero(Width::W16));
            self.lane(select::<Select<u16>>(), stored, &[one, zero, value]);
        }
        self.store_piece(base, slot.offset, slot.bytes, stored);
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
        .filter(|_| self.texts.function(self.text, name).is_none())
        {
            return self.skippable(|lowering| lowering.system_call(at, system.0, system.1, results, arguments));
        }
        let Some(index) = self.texts.function(self.text, name) else {
            return Err(if self.texts.declares(self.text, name) {
                at.unsupported(format!("external function {name}, which no text of the module defines"))
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
            let (function, _) = lowering.texts.functions[index];
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
        // With `.calltargets`, the declaration of the first function is the prototype.
        let named = self
            .scopes
            .iter()
            .rev()
            .find_map(|scope| scope.call_targets.get(prototype))
            .copied();
        let texts = self.texts;
        let listed = named
            .and_then(|names| names.first())
            .and_then(|name| texts.function(self.text, name));
        let layout = layout
            .or_else(|| {
                let (function, _) = texts.functions[listed?];
                Some((function.results.as_slice(), function.parameters.as_slice()))
            })
            .ok_or_else(|| at.undeclared(prototype))?;
        let base = Base::Register(self.stack_pointer());
        self.call_with_layout(at, base, layout, results, arguments, |lowering| {
            lowering.emit(Action::Call(Callee::Pointer), vec![], vec![pointer]);
        })
    }

    /// Copies the arguments to the callee's frame, emits the call, and copies the results out of the frame.
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
        let bytes = slots.iter().chain(&result_slots).map(|slot| slot.bytes);
        self.copied_bytes = bytes.fold(self.copied_bytes, u64::saturating_add);
        if self.copied_bytes > COPY_LIMIT {
            return Err(at.unsupported("calls of one kernel with more than 1 MiB of parameters and results in all"));
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
                    for (element, part) in elements(at, argument, *slot)?.iter().zip(slot.elements()) {
                        let value = self.any_source(at, element, scalar(variable))?;
                        if self.width(value) != passed(variable, part) || part.bytes > 8 {
                            return Err(at.invalid("an argument does not have the parameter's size"));
                        }
                        self.store_value(base, part, value);
                    }
                }
            }
        }
        call(self);
        self.emit(Action::Restore, vec![], vec![]);
        for ((result, slot), variable) in results.iter().zip(&result_slots).zip(declared_results) {
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
                    for (element, part) in elements(at, result, *slot)?.iter().zip(slot.elements()) {
                        let target = self.any_target(at, element, passed(variable, part))?;
                        if self.width(target) != passed(variable, part) || part.bytes > 8 {
                            return Err(at.invalid("a result does not have the register's size"));
                        }
                        self.load_value(base, part, target);
                    }
                }
            }
        }
        Ok(())
    }

    /// Location, and size in bytes, of a `.param` variable of the body that a call names.
    fn parameter_variable(&mut self, operand: &Operand<'a>) -> Option<((Base, u64), u64)> {
        let Operand::Name(name, 0) = operand else { return None };
        if self.register(name).is_some() {
            return None;
        }
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
