//! Parsing of operands: registers, constants, addresses, and lists of them.

use super::{Argument, Reader, Space};
use crate::machine::MachineError;
use crate::machine::program::{Function, Special};

impl<'a> Reader<'a> {
    fn list(&mut self, end: &str, function: &mut Function) -> Result<Vec<Argument>, MachineError> {
        let mut found = Vec::new();
        while !self.accept(end) {
            found.push(self.argument(function)?);
            self.accept(",");
        }
        Ok(found)
    }

    pub(super) fn argument(&mut self, function: &mut Function) -> Result<Argument, MachineError> {
        if self.accept("[") {
            let base = self.argument(function)?;
            let offset = if self.accept("+") {
                self.number()?
            } else if self.accept("-") {
                self.number()?.wrapping_neg()
            } else {
                0
            };
            self.expect("]")?;
            return Ok(Argument::Memory(Box::new(base), offset));
        }
        if self.accept("{") {
            return Ok(Argument::Vector(self.list("}", function)?));
        }
        if self.accept("(") {
            return Ok(Argument::List(self.list(")", function)?));
        }
        if self.accept("!") {
            let name = self.next();
            return match self.resolve(name, function) {
                Some(Argument::Register(register)) => Ok(Argument::Negated(register)),
                _ => self.fail(format!("!{name}")),
            };
        }
        if self.accept("-") {
            let value = self.number()?;
            return Ok(Argument::Integer(value.wrapping_neg()));
        }
        if self.at >= self.tokens.len() {
            return self.fail("the text ends in an instruction");
        }
        let word = self.next();
        let first = if word == "_" {
            Argument::Nothing
        } else if let Some(found) = literal(word) {
            found
        } else {
            match self.resolve(word, function) {
                Some(found) => found,
                None => Special::from_name(word).map_or_else(|| Argument::Name(word.to_owned()), Argument::Special),
            }
        };
        if self.accept("|") {
            let second = self.argument(function)?;
            return Ok(Argument::Pair(Box::new(first), Box::new(second)));
        }
        if self.peek() == "+" {
            match first {
                Argument::Variable(space, place) => {
                    self.at += 1;
                    return Ok(Argument::Variable(space, place + self.number()?));
                }
                Argument::Symbol(variable, place) => {
                    self.at += 1;
                    return Ok(Argument::Symbol(variable, place + self.number()?));
                }
                _ => {}
            }
        }
        Ok(first)
    }

    /// Resolves the name of a register or variable, innermost scope first.
    pub(super) fn resolve(&mut self, name: &'a str, function: &mut Function) -> Option<Argument> {
        for scope in self.scopes.iter_mut().rev() {
            if let Some(id) = scope.registers.get(name) {
                return Some(Argument::Register(*id));
            }
            if let Some(variable) = scope.variables.get(name) {
                return Some(variable.clone());
            }
            let prefix = name.trim_end_matches(|character: char| character.is_ascii_digit());
            if prefix.len() < name.len()
                && let Some((_, width)) = scope.families.iter().find(|(family, _)| *family == prefix)
            {
                function.widths.push(*width);
                let id = function.widths.len() - 1;
                scope.registers.insert(name, id);
                return Some(Argument::Register(id));
            }
        }
        if let Some(start) = self.program.shared.get(name) {
            return Some(Argument::Variable(Space::Shared, *start));
        }
        self.program
            .variables
            .iter()
            .position(|variable| variable.name == name)
            .map(|index| Argument::Symbol(index, 0))
    }
}

pub(super) fn integer(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    if let Some(hexadecimal) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        return u64::from_str_radix(hexadecimal, 16).ok();
    }
    word.parse().ok()
}

pub(super) fn literal(word: &str) -> Option<Argument> {
    if !word.starts_with(|character: char| character.is_ascii_digit()) {
        return None;
    }
    let bits = |digits: &str| u64::from_str_radix(digits, 16).ok();
    match word.get(..2) {
        Some("0f" | "0F") => return bits(&word[2..]).map(Argument::Single),
        Some("0d" | "0D") => return bits(&word[2..]).map(Argument::Double),
        _ => {}
    }
    if let Some(value) = integer(word) {
        return Some(Argument::Integer(value));
    }
    word.parse::<f64>().ok().map(|value| Argument::Double(value.to_bits()))
}
