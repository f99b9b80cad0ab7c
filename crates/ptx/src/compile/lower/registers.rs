//! Declared registers (PTX ISA §5.1.1): numbered families, vector registers (§5.4.2), and registers of the module.

use std::ops::Range;

use super::{Lowering, Scope};
use crate::compile::ir::{RegisterId, Width};
use sahasra_ptx_syntax::syntax::{Instruction, Operand, Registers, Variable};
use sahasra_ptx_syntax::types::ScalarType;

/// Consecutive registers that are the elements of a vector register: the first one, and their number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements(RegisterId, u8);

/// Registers that one declaration has: `count` of them with numbered names, or one without a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    count: Option<u64>,
    scalar: ScalarType,
    elements: u8,
}

impl Family {
    fn of(registers: &Registers<'_>) -> Self {
        // A register of 128 bits is a pair of 64.
        let (scalar, elements) = match registers.scalar {
            ScalarType::B128 => (ScalarType::B64, 2 * registers.elements),
            scalar => (scalar, registers.elements),
        };
        Self {
            count: registers.count,
            scalar,
            elements,
        }
    }

    fn width(self) -> Option<Width> {
        Width::of_bytes(self.scalar.bytes())
    }

    /// Returns the family that a name belongs to, given the family of each prefix. `%r<8>` declares %r0 to %r7; compilers write the numbers
    /// without leading zeros.
    fn find(name: &str, family: impl Fn(&str) -> Option<Self>) -> Option<Self> {
        let letters = name.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
        // A number of 64 bits has at most 20 digits.
        let first = letters.max(name.len().saturating_sub(20));
        (first..=name.len()).rev().find_map(|split| {
            let (prefix, digits) = name.split_at(split);
            let found = family(prefix)?;
            let inside = match found.count {
                None => digits.is_empty(),
                Some(count) => digits.parse::<u64>().is_ok_and(|number| number < count),
            };
            inside.then_some(found)
        })
    }
}

impl<'a> Lowering<'a> {
    /// Declares the register of a function's parameter or result in the innermost scope. Returns its elements, or `None` if no register
    /// has this type.
    pub(super) fn declare_parameter(&mut self, variable: &Variable<'a>, scope: &mut Scope<'a>) -> Option<Range<RegisterId>> {
        let registers = Registers {
            name: variable.name,
            scalar: variable.scalar,
            elements: variable.elements.unwrap_or(1) as u8,
            count: None,
        };
        let family = Family::of(&registers);
        let Elements(first, count) = self.new_elements(family.width()?, family.elements);
        if count == 1 {
            scope.registers.insert(variable.name, first);
        } else {
            self.has_vectors = true;
            scope.vectors.insert(variable.name, Elements(first, count));
        }
        Some(first..first + RegisterId::from(count))
    }

    pub(super) fn declare_registers(&mut self, registers: &Registers<'a>) {
        let width = Width::of_bytes(registers.scalar.bytes());
        let scope_index = self.scopes.len() - 1;
        self.has_vectors |= registers.elements > 1 || registers.scalar == ScalarType::B128;
        match (registers.count, width) {
            (None, Some(width)) if registers.elements == 1 => {
                let id = self.new_register(width);
                self.scopes[scope_index].registers.insert(registers.name, id);
            }
            // Registers of 128 bits are rejected where they are used.
            _ => {
                self.scopes[scope_index].families.insert(registers.name, Family::of(registers));
            }
        }
    }

    /// Returns the register that this name means here, or its type if the engine has no registers of this type. Returns `None` if the
    /// innermost scope that declares the name declares a variable.
    pub(crate) fn register(&mut self, name: &'a str) -> Option<Result<RegisterId, ScalarType>> {
        for index in (0..self.scopes.len()).rev() {
            if let Some(found) = self.scopes[index].registers.get(name) {
                return Some(Ok(*found));
            }
            if let Some(family) = Family::find(name, |prefix| self.scopes[index].families.get(prefix).copied()) {
                let Some(width) = family.width().filter(|_| family.elements == 1) else {
                    return Some(Err(family.scalar));
                };
                let id = self.new_register(width);
                self.scopes[index].registers.insert(name, id);
                return Some(Ok(id));
            }
            if self.scopes[index].variables.contains_key(name) {
                return None;
            }
        }
        if self.kernel_parameter(name).is_some() {
            return None;
        }
        match self.module_register(name)? {
            Ok(elements) if elements.1 == 1 => Some(Ok(elements.0)),
            Ok(_) => None,
            Err(scalar) => Some(Err(scalar)),
        }
    }

    fn module_register(&mut self, name: &'a str) -> Option<Result<Elements, ScalarType>> {
        if let Some(found) = self.module_registers.get(&(self.text, name)) {
            return Some(Ok(*found));
        }
        let family = Family::find(name, |prefix| self.texts.registers(self.text, prefix).map(Family::of))?;
        let Some(width) = family.width() else {
            return Some(Err(family.scalar));
        };
        let elements = self.new_elements(width, family.elements);
        self.module_registers.insert((self.text, name), elements);
        Some(Ok(elements))
    }

    fn new_elements(&mut self, width: Width, count: u8) -> Elements {
        let first = self.new_register(width);
        for _ in 1..count {
            self.new_register(width);
        }
        Elements(first, count)
    }

    /// Returns the elements of the vector register of this name.
    fn vector(&mut self, name: &'a str) -> Option<Elements> {
        for index in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[index];
            if let Some(found) = scope.vectors.get(name) {
                return Some(*found);
            }
            if scope.registers.contains_key(name) || scope.variables.contains_key(name) {
                return None;
            }
            if let Some(family) = Family::find(name, |prefix| scope.families.get(prefix).copied()) {
                let width = family.width().filter(|_| family.elements > 1)?;
                let elements = self.new_elements(width, family.elements);
                self.scopes[index].vectors.insert(name, elements);
                return Some(elements);
            }
        }
        let found = self.module_register(name)?.ok()?;
        (found.1 > 1).then_some(found)
    }

    /// Returns the element of a vector register, such as `v.x` or `v.r` (PTX ISA §6.4.3).
    pub(super) fn element(&mut self, name: &'a str, component: &str) -> Option<RegisterId> {
        if !self.has_vectors {
            return None;
        }
        let index = match component {
            "x" | "r" => 0,
            "y" | "g" => 1,
            "z" | "b" => 2,
            "w" | "a" => 3,
            _ => return None,
        };
        let Elements(first, count) = self.vector(name)?;
        (index < count).then(|| first + RegisterId::from(index))
    }

    /// Returns the instruction with vector registers written as vectors of their elements, or `None` if it names none.
    pub(super) fn expand_vectors(&mut self, instruction: &Instruction<'a>) -> Option<Instruction<'a>> {
        if !self.has_vectors {
            return None;
        }
        let mut found = false;
        let operands = instruction
            .operands
            .iter()
            .map(|operand| self.expand_operand(operand, &mut found))
            .collect();
        found.then(|| Instruction {
            operands,
            ..instruction.clone()
        })
    }

    fn expand_operand(&mut self, operand: &Operand<'a>, found: &mut bool) -> Operand<'a> {
        match operand {
            Operand::Name(name, 0) => match self.vector(name) {
                Some(Elements(_, count)) => {
                    *found = true;
                    let parts = ["x", "y", "z", "w"].into_iter().take(usize::from(count));
                    Operand::Vector(parts.map(|part| Operand::Component(name, part)).collect())
                }
                None => operand.clone(),
            },
            Operand::Coordinates(parts) => Operand::Coordinates(parts.iter().map(|part| self.expand_operand(part, found)).collect()),
            Operand::List(parts) => Operand::List(parts.iter().map(|part| self.expand_operand(part, found)).collect()),
            _ => operand.clone(),
        }
    }
}
