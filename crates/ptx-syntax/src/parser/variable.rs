//! Variable, parameter and register declarations with initialisers (PTX ISA §5.4).

use super::Parser;
use crate::error::LoadError;
use crate::lexer::Token;
use crate::syntax::{Initial, InitialValue, Linkage, Registers, Variable};
use crate::types::{ScalarType, Space};

impl<'a> Parser<'a> {
    /// Parses `(.param .u64 .ptr .global .align 4 name, …)`.
    pub(super) fn parameters(&mut self) -> Result<Vec<Variable<'a>>, LoadError> {
        self.expect(b'(')?;
        let mut found = Vec::new();
        if self.accept(b')') {
            return Ok(found);
        }
        loop {
            if self.accept_dot("reg") {
                // Only device functions have register parameters.
                let position = self.position();
                let width = self.vector_width();
                let scalar = self.scalar_type()?;
                let name = self.name()?;
                found.push(Variable {
                    name,
                    position,
                    space: Space::Parameter,
                    scalar,
                    elements: Some(u64::from(width)),
                    alignment: (scalar.bytes().max(1) * usize::from(width)) as u64,
                    is_pointer: false,
                    linkage: Linkage::Private,
                    is_register: true,
                    initial: Vec::new(),
                });
            } else {
                let mut declared = self.declarators(Linkage::Private)?;
                if declared.len() != 1 {
                    return Err(self.error("expected one parameter"));
                }
                found.append(&mut declared);
            }
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b')')?;
        Ok(found)
    }

    /// Parses a whole declaration with its semicolon, which may declare several names.
    pub(super) fn variables(&mut self, linkage: Linkage) -> Result<Vec<Variable<'a>>, LoadError> {
        let mut found = self.declarators(linkage)?;
        while self.accept(b',') {
            let Some(first) = found.first().cloned() else {
                break;
            };
            let next = self.declarator(first)?;
            found.push(next);
        }
        self.expect(b';')?;
        Ok(found)
    }

    fn space(&mut self) -> Option<Space> {
        let space = match self.peek() {
            Token::Dot("global") => Space::Global,
            Token::Dot("const") => Space::Constant,
            Token::Dot("shared" | "shared::cta") => Space::Shared,
            Token::Dot("local") => Space::Local,
            Token::Dot("param") => Space::Parameter,
            // `.tex .u64 name` is the old form of `.global .texref name` (§5.3).
            Token::Dot("tex") => Space::Global,
            _ => return None,
        };
        self.at += 1;
        Some(space)
    }

    fn scalar_type(&mut self) -> Result<ScalarType, LoadError> {
        match self.peek() {
            Token::Dot(name) => {
                let scalar = match name {
                    // Opaque types (§5.3) hold a handle.
                    "texref" | "samplerref" | "surfref" => ScalarType::B64,
                    _ => ScalarType::from_name(name).ok_or_else(|| self.unsupported(format!("type .{name}")))?,
                };
                self.at += 1;
                Ok(scalar)
            }
            _ => Err(self.error("expected a type")),
        }
    }

    fn alignment(&mut self) -> Result<u64, LoadError> {
        let value = self.integer()?;
        if value.is_power_of_two() && value <= 4096 {
            Ok(value)
        } else {
            Err(self.error("alignment is not a power of two up to 4096"))
        }
    }

    fn declarators(&mut self, linkage: Linkage) -> Result<Vec<Variable<'a>>, LoadError> {
        let position = self.position();
        let space = self.space().ok_or_else(|| match self.peek() {
            Token::Dot(word) => self.error(format!("no declaration begins with .{word}")),
            _ => self.error("expected a directive or a state space"),
        })?;
        // The type of a `.tex` variable is that of an address, of 64 bits here.
        let is_texture = self.tokens[self.at - 1].token == Token::Dot("tex");
        let mut alignment = None;
        let mut width = 1u64;
        let mut scalar = None;
        let mut is_pointer = false;
        loop {
            match self.peek() {
                Token::Dot("align") => {
                    self.at += 1;
                    let value = self.alignment()?;
                    // After `.ptr`, the alignment is that of the pointee.
                    if !is_pointer {
                        alignment = Some(value);
                    }
                }
                Token::Dot("ptr") => {
                    self.at += 1;
                    is_pointer = true;
                }
                Token::Dot("global" | "shared" | "const" | "local") if is_pointer => self.at += 1,
                Token::Dot("v2") => {
                    self.at += 1;
                    width = 2;
                }
                Token::Dot("v4") => {
                    self.at += 1;
                    width = 4;
                }
                Token::Dot("attribute") => {
                    self.at += 1;
                    self.expect(b'(')?;
                    while !self.accept(b')') {
                        if self.next() == Token::End {
                            return Err(self.error("expected `)`"));
                        }
                    }
                }
                Token::Dot(_) if scalar.is_none() => scalar = Some(self.scalar_type()?),
                _ => break,
            }
        }
        let scalar = scalar.ok_or_else(|| self.error("expected a type"))?;
        let scalar = if is_texture { ScalarType::B64 } else { scalar };
        let template = Variable {
            name: "",
            position,
            space,
            scalar,
            elements: Some(width),
            alignment: alignment.unwrap_or_else(|| (scalar.bytes() as u64 * width).max(1).next_power_of_two()),
            is_pointer,
            linkage,
            is_register: false,
            initial: Vec::new(),
        };
        Ok(vec![self.declarator(template)?])
    }

    /// Parses `name[4][2] = {…}`. `template` has the properties that precede the name.
    fn declarator(&mut self, template: Variable<'a>) -> Result<Variable<'a>, LoadError> {
        let name = self.name()?;
        let mut variable = Variable {
            name,
            initial: Vec::new(),
            ..template
        };
        let mut is_open = false;
        let mut dimensions = Vec::new();
        while self.accept(b'[') {
            if self.accept(b']') {
                is_open = true;
                dimensions.push(1);
                continue;
            }
            dimensions.push(self.integer()?);
            self.expect(b']')?;
        }
        let mut elements = variable.elements.unwrap_or(1);
        for dimension in &dimensions {
            elements = elements.checked_mul(*dimension).ok_or_else(|| self.error("array is too large"))?;
        }
        variable.elements = Some(elements);
        if variable.bytes().is_none_or(|bytes| bytes > 1 << 46) {
            return Err(self.error("array is too large"));
        }
        let is_opaque = matches!(self.peek_at(2), Token::Name(_)) && self.peek_at(3) == Token::Mark(b'=');
        if self.peek() == Token::Mark(b'=') && self.peek_at(1) == Token::Mark(b'{') && is_opaque {
            // Sampling of an opaque variable, such as `{ filter_mode = linear }`, which the host sets.
            self.section()?;
        } else if self.accept(b'=') {
            let end = self.initialiser(&mut variable, &dimensions, 0)?;
            if is_open {
                variable.elements = Some(end / variable.scalar.bytes().max(1) as u64);
                is_open = false;
            }
            if variable.bytes().is_some_and(|bytes| end > bytes) {
                return Err(self.error("more initial values than elements"));
            }
        }
        if is_open {
            variable.elements = None;
        }
        Ok(variable)
    }

    /// Parses initial values from `offset` on. Returns the offset after the last value.
    fn initialiser(&mut self, variable: &mut Variable<'a>, dimensions: &[u64], offset: u64) -> Result<u64, LoadError> {
        let bytes = variable.scalar.bytes() as u64;
        if !self.accept(b'{') {
            let value = self.initial_value()?;
            variable.initial.push(Initial { offset, value });
            return offset.checked_add(bytes).ok_or_else(|| self.error("array is too large"));
        }
        self.enter()?;
        let inner = dimensions.get(1..).unwrap_or_default();
        // A nested row starts at its own offset, even if the preceding row is short.
        let row = inner
            .iter()
            .try_fold(bytes, |product, dimension| product.checked_mul(*dimension))
            .ok_or_else(|| self.error("array is too large"))?;
        let mut at = offset;
        let mut rows = 0u64;
        if !self.accept(b'}') {
            loop {
                if self.peek() == Token::Mark(b'{') {
                    at = rows
                        .checked_mul(row)
                        .and_then(|skip| skip.checked_add(offset))
                        .ok_or_else(|| self.error("array is too large"))?;
                }
                at = self.initialiser(variable, inner, at)?;
                rows += 1;
                if !self.accept(b',') {
                    break;
                }
            }
            self.expect(b'}')?;
        }
        self.leave();
        Ok(at)
    }

    fn initial_value(&mut self) -> Result<InitialValue<'a>, LoadError> {
        // `0xff00(name)` is the part of an address that the mask selects.
        let mut mask = u64::MAX;
        if let (Token::Integer { bits, .. }, Token::Mark(b'(')) = (self.peek(), self.peek_at(1)) {
            self.at += 2;
            mask = bits;
        }
        if let Token::Name(name) = self.peek() {
            self.at += 1;
            let name = if name == "generic" && self.accept(b'(') {
                let inner = self.name()?;
                self.expect(b')')?;
                inner
            } else {
                name
            };
            let addend = self.addend()?;
            if mask != u64::MAX {
                self.expect(b')')?;
            }
            return Ok(InitialValue::Address { name, addend, mask });
        }
        if mask != u64::MAX {
            return Err(self.error("expected a name"));
        }
        Ok(InitialValue::Constant(self.constant()?))
    }

    /// Parses `.v2` or `.v4`, if there is one. Returns the number of elements.
    fn vector_width(&mut self) -> u8 {
        let elements = match self.peek() {
            Token::Dot("v2") => 2,
            Token::Dot("v4") => 4,
            _ => 1,
        };
        self.at += usize::from(elements > 1);
        elements
    }

    /// Parses `.reg .b32 %r<8>, %x;`, starting at the type.
    pub(super) fn registers(&mut self) -> Result<Vec<Registers<'a>>, LoadError> {
        let elements = self.vector_width();
        let scalar = self.scalar_type()?;
        let mut found = Vec::new();
        loop {
            let name = self.name()?;
            let count = if self.accept(b'<') {
                let count = self.integer()?;
                self.expect(b'>')?;
                Some(count)
            } else {
                None
            };
            found.push(Registers {
                name,
                scalar,
                elements,
                count,
            });
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b';')?;
        Ok(found)
    }
}
