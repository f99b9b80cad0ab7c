//! Parsing of functions: parameters, registers, variables, labels and instructions.

use super::{Argument, Body, Kind, Reader, Scope, Space, Written};
use crate::machine::MachineError;
use crate::machine::program::Slot;

impl<'a> Reader<'a> {
    fn parameters(&mut self, body: &mut Body<'a>, scope: &mut Scope<'a>) -> Result<Vec<Slot>, MachineError> {
        let mut slots = Vec::new();
        self.expect("(")?;
        while !self.accept(")") {
            self.accept(",");
            if !self.accept(".param") {
                return self.fail("parameters in registers");
            }
            let declared = self.declared()?;
            let slot = parameter(body, declared.align, declared.bytes.unwrap_or(0));
            scope.variables.insert(declared.name, Argument::Parameter(slot.0, slot.1));
            slots.push(slot);
        }
        Ok(slots)
    }

    pub(super) fn function(&mut self) -> Result<(), MachineError> {
        let mut body = Body::default();
        let mut scope = Scope::default();
        self.at += 1;
        self.accept(".noreturn");
        if self.peek() == "(" {
            body.function.returns = self.parameters(&mut body, &mut scope)?;
        }
        body.function.name = self.next().to_owned();
        if self.peek() == "(" {
            body.function.parameters = self.parameters(&mut body, &mut scope)?;
        }
        while self.peek() != "{" && self.peek() != ";" {
            if self.at >= self.tokens.len() {
                return self.fail("the function has no body");
            }
            self.at += 1;
        }
        if self.accept(";") {
            return Ok(());
        }
        self.scopes.push(scope);
        self.statements(&mut body)?;
        self.scopes.clear();
        self.bodies.push(body);
        Ok(())
    }

    fn scope(&mut self) -> &mut Scope<'a> {
        self.scopes.last_mut().expect("statements stand in a scope")
    }

    /// Parses from a `{` to its `}`.
    fn statements(&mut self, body: &mut Body<'a>) -> Result<(), MachineError> {
        self.expect("{")?;
        self.scopes.push(Scope::default());
        loop {
            match self.peek() {
                "" => return self.fail("a body is not closed"),
                "}" => {
                    self.at += 1;
                    self.scopes.pop();
                    return Ok(());
                }
                "{" => self.statements(body)?,
                ";" => self.at += 1,
                ".reg" => self.registers(body)?,
                ".loc" => {
                    let line = self.line();
                    while self.line() == line && self.at < self.tokens.len() {
                        self.at += 1;
                    }
                }
                ".pragma" | ".callprototype" => self.skip_past(";"),
                word if word.starts_with('.') => self.variable(body)?,
                _ if self.tokens.get(self.at + 1).is_some_and(|token| token.text == ":") => self.label(body)?,
                _ => self.instruction(body)?,
            }
        }
    }

    fn label(&mut self, body: &mut Body<'a>) -> Result<(), MachineError> {
        let name = self.next();
        self.at += 1;
        if self.accept(".branchtargets") {
            let mut labels = vec![self.next()];
            while self.accept(",") {
                labels.push(self.next());
            }
            body.lists.insert(name, labels);
            return self.expect(";");
        }
        if matches!(self.peek(), ".callprototype" | ".calltargets") {
            self.skip_past(";");
            return Ok(());
        }
        body.labels.insert(name, body.code.len());
        Ok(())
    }

    fn registers(&mut self, body: &mut Body<'a>) -> Result<(), MachineError> {
        self.at += 1;
        let word = self.next();
        let Some(kind) = word.get(1..).and_then(Kind::from_name) else {
            return self.fail(format!("registers of type {word}"));
        };
        loop {
            let name = self.next();
            if self.accept("<") {
                self.number()?;
                self.expect(">")?;
                self.scope().families.push((name, kind.width()));
            } else {
                body.function.widths.push(kind.width());
                let id = body.function.widths.len() - 1;
                self.scope().registers.insert(name, id);
            }
            if !self.accept(",") {
                return self.expect(";");
            }
        }
    }

    fn variable(&mut self, body: &mut Body<'a>) -> Result<(), MachineError> {
        let word = self.next();
        let Some(space) = Space::from_word(&word[1..]) else {
            return self.fail(format!("unexpected {word}"));
        };
        let declared = self.declared()?;
        let (align, bytes) = (declared.align, declared.bytes.unwrap_or(0));
        let place = match space {
            Space::Local => {
                let start = body.function.local_bytes.next_multiple_of(align);
                body.function.local_bytes = start + bytes;
                Argument::Variable(Space::Local, start)
            }
            Space::Shared => {
                let start = (self.program.shared_bytes as u64).next_multiple_of(align);
                self.program.shared_bytes = (start + bytes) as usize;
                Argument::Variable(Space::Shared, start)
            }
            Space::Parameter => {
                let slot = parameter(body, align, bytes);
                Argument::Parameter(slot.0, slot.1)
            }
            _ => return self.fail("a variable of this space in a function"),
        };
        self.scope().variables.insert(declared.name, place);
        self.expect(";")
    }

    fn instruction(&mut self, body: &mut Body<'a>) -> Result<(), MachineError> {
        let line = self.line();
        let mut guard = None;
        if self.accept("@") {
            let negated = self.accept("!");
            let name = self.next();
            match self.resolve(name, &mut body.function) {
                Some(Argument::Register(register)) => guard = Some((register, negated)),
                _ => return self.fail(format!("{name} guards")),
            }
        }
        let mut form = self.next().to_owned();
        // Words such as `.shared::cta` were split at the colons.
        while self.peek() == ":" {
            self.at += 2;
            form.push_str("::");
            form.push_str(self.next());
        }
        let mut arguments = Vec::new();
        while !self.accept(";") {
            arguments.push(self.argument(&mut body.function)?);
            self.accept(",");
        }
        let targets = match arguments.as_slice() {
            [_, Argument::Name(list)] => body.lists.get(list.as_str()).cloned().unwrap_or_default(),
            _ => Vec::new(),
        };
        body.code.push(Written {
            guard,
            form,
            arguments,
            line,
            targets,
        });
        Ok(())
    }
}

/// Allocates space for a parameter in the function's parameter space.
fn parameter(body: &mut Body<'_>, align: u64, bytes: u64) -> Slot {
    let start = body.function.parameter_bytes.next_multiple_of(align);
    body.function.parameter_bytes = start + bytes;
    (start, bytes)
}
