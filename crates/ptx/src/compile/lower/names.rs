//! Resolution of names to registers and variables, and of operands to registers of a required width.

use super::{At, Lowering};
use crate::compile::calls::function_address;
use crate::compile::ir::{Origin, RegisterId, Width};
use sahasra_ptx_syntax::error::{LoadError, LoadErrorKind};
use sahasra_ptx_syntax::syntax::{Constant, Operand, Variable};
use sahasra_ptx_syntax::types::{ScalarType, Space};

/// Location of a variable of the function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Shared(u64),
    DynamicShared,
    Local(u64),
    /// Offset in bytes from the start of this activation's frame.
    Frame(u64),
    /// Index of a variable with static storage.
    Static(usize),
}

/// Resolved operand in brackets.
pub(crate) struct Address {
    pub(crate) register: RegisterId,
    pub(crate) offset: i64,
    /// State space of the variable, if the operand names one.
    pub(crate) space: Option<Space>,
    /// If the operand names a kernel parameter: byte offset in the parameter buffer, and remaining bytes of the parameter.
    pub(crate) parameter: Option<(u32, u32)>,
}

impl<'a> Lowering<'a> {
    pub(super) fn declare_variable(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        let refused = |reason: &str| LoadError::new(variable.position, variable.name, LoadErrorKind::Unsupported(reason.to_owned()));
        let place = match variable.space {
            Space::Shared => match variable.elements {
                None => {
                    self.result.uses_dynamic_shared = true;
                    self.result.shared_alignment = self.result.shared_alignment.max(variable.alignment);
                    Place::DynamicShared
                }
                Some(_) => Place::Shared(self.reserve_shared(variable)?),
            },
            Space::Local | Space::Parameter => {
                let bytes = variable
                    .bytes()
                    .filter(|bytes| *bytes < super::SPACE_LIMIT)
                    .ok_or_else(|| refused("local variable beyond 2 GiB"))?;
                if variable.space == Space::Parameter
                    && let Some(scope) = self.scopes.last_mut()
                {
                    scope.parameter_bytes.insert(variable.name, bytes);
                }
                let alignment = variable.alignment.max(1);
                if self.context.frame.is_some() {
                    if alignment > 16 {
                        return Err(refused("more than 16 bytes of alignment in a recursive function"));
                    }
                    let start = self.context.frame_bytes.next_multiple_of(alignment);
                    self.context.frame_bytes = start + bytes;
                    Place::Frame(start)
                } else {
                    let start = self.result.local_bytes.next_multiple_of(alignment);
                    self.result.local_bytes = start + bytes;
                    if variable.space == Space::Parameter {
                        self.result.parameters.push((start, bytes));
                    }
                    Place::Local(start)
                }
            }
            _ => return Err(refused("this kind of variable inside a function")),
        };
        if let Some(scope) = self.scopes.last_mut() {
            scope.variables.insert(variable.name, place);
            scope.element_bytes.insert(variable.name, variable.scalar.bytes() as u64);
        }
        Ok(())
    }

    fn reserve_shared(&mut self, variable: &Variable<'a>) -> Result<u64, LoadError> {
        let bytes = variable.bytes().filter(|bytes| *bytes < super::SPACE_LIMIT).ok_or_else(|| {
            LoadError::new(
                variable.position,
                variable.name,
                LoadErrorKind::Unsupported("shared variable beyond 2 GiB".into()),
            )
        })?;
        let start = self.result.static_shared_bytes.next_multiple_of(variable.alignment.max(1));
        self.result.static_shared_bytes = start + bytes;
        self.result.shared_alignment = self.result.shared_alignment.max(variable.alignment);
        Ok(start)
    }

    /// Returns the declared register, or an error if there is none or its type is unsupported.
    pub(crate) fn named_register(&mut self, at: At<'a, '_>, name: &'a str) -> Result<RegisterId, LoadError> {
        match self.register(name) {
            Some(Ok(id)) => Ok(id),
            Some(Err(scalar)) => Err(at.unsupported(format!("registers of type {scalar}"))),
            None => Err(at.undeclared(name)),
        }
    }

    pub(crate) fn typed_register(&mut self, at: At<'a, '_>, name: &'a str, width: Width) -> Result<RegisterId, LoadError> {
        let id = self.named_register(at, name)?;
        if self.width(id) == width {
            Ok(id)
        } else {
            Err(at.invalid(format!("register {name} does not have the instruction's width")))
        }
    }

    /// Returns the register to write, which must have exactly this width.
    pub(crate) fn target(&mut self, at: At<'a, '_>, operand: &Operand<'a>, width: Width) -> Result<RegisterId, LoadError> {
        match operand {
            Operand::Name(name, 0) => self.typed_register(at, name, width),
            Operand::Component(name, component) => match self.element(name, component) {
                Some(id) if self.width(id) == width => Ok(id),
                Some(_) => Err(at.invalid(format!("register {name}.{component} does not have the instruction's width"))),
                None => Err(at.undeclared(name)),
            },
            Operand::Sink => Ok(self.new_register(width)),
            _ => Err(at.invalid("the destination is not a register")),
        }
    }

    /// Returns the register to write, of its declared width; `sink` is the width of a `_`.
    pub(crate) fn any_target(&mut self, at: At<'a, '_>, operand: &Operand<'a>, sink: Width) -> Result<RegisterId, LoadError> {
        match operand {
            Operand::Name(name, 0) => self.named_register(at, name),
            Operand::Component(name, component) => self.element(name, component).ok_or_else(|| at.undeclared(name)),
            Operand::Sink => Ok(self.new_register(sink)),
            _ => Err(at.invalid("the destination is not a register")),
        }
    }

    /// Returns a value of type `scalar` in a register of exactly its width.
    pub(crate) fn source(&mut self, at: At<'a, '_>, operand: &Operand<'a>, scalar: ScalarType) -> Result<RegisterId, LoadError> {
        let width = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.unsupported(format!("operands of type {scalar}")))?;
        let id = self.any_source(at, operand, scalar)?;
        if self.width(id) == width {
            Ok(id)
        } else {
            Err(at.invalid(format!("an operand does not have the width of {scalar}")))
        }
    }

    /// Returns a value in a register of any width: registers as declared, constants as wide as `scalar`.
    pub(crate) fn any_source(&mut self, at: At<'a, '_>, operand: &Operand<'a>, scalar: ScalarType) -> Result<RegisterId, LoadError> {
        let width = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.unsupported(format!("operands of type {scalar}")))?;
        match operand {
            Operand::Constant(constant) => {
                let bits = constant.bits(scalar).ok_or_else(|| match constant {
                    Constant::Integer(_) => at.invalid(format!("an integer constant is no operand of type {scalar}")),
                    _ => at.invalid("the constant does not fit the instruction's type"),
                })?;
                Ok(self.constant(width, bits))
            }
            Operand::Name(name, addend) => {
                if let Some(found) = self.register(name) {
                    return match (found, addend) {
                        (Ok(id), 0) => Ok(id),
                        (Ok(id), addend) => self.register_plus(at, id, *addend),
                        (Err(scalar), _) => Err(at.unsupported(format!("registers of type {scalar}"))),
                    };
                }
                if let Some(found) = self.special(at, name, None, width)? {
                    return match addend {
                        0 => Ok(found),
                        addend => self.register_plus(at, found, *addend),
                    };
                }
                self.variable_address(at, name, *addend, width)
            }
            Operand::Component(name, component) => {
                if let Some(found) = self.element(name, component) {
                    return Ok(found);
                }
                match self.special(at, name, Some(component), width)? {
                    Some(found) => Ok(found),
                    None if self.register(name).is_some() => Err(at.invalid(format!("{name} has no part .{component} here"))),
                    None => Err(at.undeclared(name)),
                }
            }
            Operand::Element(name, index) => {
                let offset = self.element_offset(at, name, *index)?;
                self.variable_address(at, name, offset, width)
            }
            Operand::Not(name) if width == Width::Predicate => {
                let register = self.typed_register(at, name, Width::Predicate)?;
                let inverted = self.new_register(Width::Predicate);
                let guard = self.guard.take();
                self.lane(crate::lanes::logic::<crate::lanes::select::PredicateNot>(), inverted, &[register]);
                self.guard = guard;
                Ok(inverted)
            }
            _ => Err(at.invalid("this operand has no place here")),
        }
    }

    /// Returns the sum of a register and a constant.
    fn register_plus(&mut self, at: At<'a, '_>, register: RegisterId, addend: i64) -> Result<RegisterId, LoadError> {
        use crate::lanes::{binary, integer::Add};
        let width = self.width(register);
        let add = match width {
            Width::W16 => binary::<Add<u16>>(),
            Width::W32 => binary::<Add<u32>>(),
            Width::W64 => binary::<Add<u64>>(),
            Width::Predicate => return Err(at.invalid("a predicate has no offset")),
        };
        let (sum, addend) = (self.new_register(width), self.constant(width, addend as u64));
        let guard = self.guard.take();
        self.lane(add, sum, &[register, addend]);
        self.guard = guard;
        Ok(sum)
    }

    /// Returns the offset in bytes of an element of an array.
    fn element_offset(&self, at: At<'a, '_>, name: &str, index: i64) -> Result<i64, LoadError> {
        let local = self.scopes.iter().rev().find_map(|scope| scope.element_bytes.get(name)).copied();
        let module = || {
            self.texts
                .variable(self.text, name)
                .map(|index| self.texts.variables[index].0.scalar.bytes() as u64)
        };
        let bytes = local.or_else(module).ok_or_else(|| at.undeclared(name))?;
        Ok(index.wrapping_mul(bytes as i64))
    }

    /// Returns the address of a variable as a value.
    fn variable_address(&mut self, at: At<'a, '_>, name: &'a str, addend: i64, width: Width) -> Result<RegisterId, LoadError> {
        if let Some((frame, offset)) = self.frame_variable(name) {
            if width != Width::W64 {
                return Err(at.unsupported("a local address in fewer than 64 bits in this function"));
            }
            let offset = self.constant(Width::W64, offset.wrapping_add(addend as u64));
            let address = self.new_register(Width::W64);
            let guard = self.guard.take();
            self.lane(crate::lanes::binary::<crate::lanes::integer::Add<u64>>(), address, &[frame, offset]);
            self.guard = guard;
            return Ok(address);
        }
        if self.scopes.iter().all(|scope| !scope.variables.contains_key(name))
            && let Some(index) = self.texts.function(self.text, name)
        {
            return Ok(self.constant(width, function_address(index).wrapping_add(addend as u64)));
        }
        self.address_taken(name);
        match self.variable(at, name, addend)? {
            Some((origin, _)) => Ok(self.fixed(width, origin)),
            None => match self.kernel_parameter(name) {
                Some((offset, _)) => Ok(self.constant(width, u64::from(offset).wrapping_add(addend as u64))),
                None => Err(at.undeclared(name)),
            },
        }
    }

    /// Returns the offset in the parameter buffer and the size, in bytes, of a parameter of the kernel that is being lowered.
    pub(super) fn kernel_parameter(&self, name: &str) -> Option<(u32, u32)> {
        let is_kernel = self.context.number.is_none();
        self.parameters.get(name).copied().filter(|_| is_kernel)
    }

    /// Records that the address of a variable is used as a value.
    fn address_taken(&mut self, name: &str) {
        let place = self.scopes.iter().rev().find_map(|scope| scope.variables.get(name));
        if let Some(Place::Local(start)) = place {
            self.result.addresses_taken.push(*start);
        }
    }

    /// Returns the frame register and the offset of a variable in this activation's frame.
    fn frame_variable(&self, name: &str) -> Option<(RegisterId, u64)> {
        match self.scopes.iter().rev().find_map(|scope| scope.variables.get(name))? {
            Place::Frame(offset) => Some((self.context.frame?, *offset)),
            _ => None,
        }
    }

    /// Returns the origin of a variable's address, and its state space.
    fn variable(&mut self, at: At<'a, '_>, name: &'a str, addend: i64) -> Result<Option<(Origin, Space)>, LoadError> {
        let place = self.scopes.iter().rev().find_map(|scope| scope.variables.get(name)).copied();
        if let Some(place) = place {
            return Ok(Some(match place {
                Place::Shared(offset) => (Origin::Constant(offset.wrapping_add(addend as u64)), Space::Shared),
                Place::Local(offset) | Place::Frame(offset) => (Origin::Constant(offset.wrapping_add(addend as u64)), Space::Local),
                Place::DynamicShared => (Origin::DynamicShared { addend }, Space::Shared),
                Place::Static(index) => self.static_address(at, name, index, addend)?,
            }));
        }
        match self.texts.variable(self.text, name) {
            Some(index) => self.static_address(at, name, index, addend).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the origin of the address of a variable outside functions, or with static storage, and its state space.
    fn static_address(&mut self, at: At<'a, '_>, name: &str, index: usize, addend: i64) -> Result<(Origin, Space), LoadError> {
        let (variable, _) = self.texts.variables[index];
        if variable.space == Space::Local {
            let start = match self.module_places.get(&index) {
                Some(start) => *start,
                None => {
                    let bytes = variable.bytes().filter(|bytes| *bytes < super::SPACE_LIMIT);
                    let bytes = bytes.ok_or_else(|| at.unsupported("local variable beyond 2 GiB"))?;
                    let start = self.result.local_bytes.next_multiple_of(variable.alignment.max(1));
                    self.result.local_bytes = start + bytes;
                    self.module_places.insert(index, start);
                    start
                }
            };
            return Ok((Origin::Constant(start.wrapping_add(addend as u64)), Space::Local));
        }
        if variable.space == Space::Shared {
            if variable.elements.is_none() {
                self.result.uses_dynamic_shared = true;
                self.result.shared_alignment = self.result.shared_alignment.max(variable.alignment);
                return Ok((Origin::DynamicShared { addend }, Space::Shared));
            }
            let start = match self.module_places.get(&index) {
                Some(start) => *start,
                None => {
                    let start = self.reserve_shared(variable)?;
                    self.module_places.insert(index, start);
                    start
                }
            };
            return Ok((Origin::Constant(start.wrapping_add(addend as u64)), Space::Shared));
        }
        if variable.is_external() {
            return Err(at.unsupported(format!("external variable {name}, which no text of the module defines")));
        }
        self.result.uses_symbols = true;
        let index = index as u32;
        Ok((Origin::Symbol { index, addend }, variable.space))
    }

    /// Resolves an operand `[…]` to a register plus an offset.
    pub(crate) fn address(&mut self, at: At<'a, '_>, operand: &Operand<'a>) -> Result<Address, LoadError> {
        let (base, addend) = match operand {
            Operand::Address { base, addend } => (*base, *addend),
            Operand::Element(name, index) => (Some(*name), self.element_offset(at, name, *index)?),
            _ => return Err(at.invalid("expected an address in brackets")),
        };
        let Some(name) = base else {
            let register = self.constant(Width::W64, addend as u64);
            return Ok(Address {
                register,
                offset: 0,
                space: None,
                parameter: None,
            });
        };
        match self.register(name) {
            Some(Ok(register)) => {
                if !matches!(self.width(register), Width::W32 | Width::W64) {
                    return Err(at.invalid("an address has 32 or 64 bits"));
                }
                return Ok(Address {
                    register,
                    offset: addend,
                    space: None,
                    parameter: None,
                });
            }
            Some(Err(scalar)) => return Err(at.unsupported(format!("registers of type {scalar}"))),
            None => {}
        }
        if let Some((register, offset)) = self.frame_variable(name) {
            return Ok(Address {
                register,
                offset: addend.wrapping_add(offset as i64),
                space: Some(Space::Local),
                parameter: None,
            });
        }
        if !matches!(at.instruction.opcode, "ld" | "st") {
            self.address_taken(name);
        }
        if let Some((origin, space)) = self.variable(at, name, addend)? {
            let register = self.fixed(Width::W64, origin);
            return Ok(Address {
                register,
                offset: 0,
                space: Some(space),
                parameter: None,
            });
        }
        match self.kernel_parameter(name) {
            Some((offset, bytes)) => {
                let start = i64::from(offset).wrapping_add(addend);
                let inside = u32::try_from(addend).is_ok_and(|addend| addend < bytes);
                let parameter = inside.then(|| (start as u32, bytes - addend as u32));
                let register = self.constant(Width::W64, start as u64);
                Ok(Address {
                    register,
                    offset: 0,
                    space: Some(Space::Parameter),
                    parameter,
                })
            }
            None => Err(at.undeclared(name)),
        }
    }
}
