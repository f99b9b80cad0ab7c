//! Statements inside a function body: labels, instructions, operands (PTX ISA §4.3.2, §6, §8.1).

use super::Parser;
use crate::error::LoadError;
use crate::lexer::Token;
use crate::syntax::{Guard, Instruction, Linkage, Operand, Statement, Variable};
use crate::types::Space;

impl<'a> Parser<'a> {
    /// Parses statements up to and including the closing brace.
    pub(super) fn statements(&mut self) -> Result<Vec<Statement<'a>>, LoadError> {
        self.enter()?;
        let mut found = Vec::new();
        loop {
            match self.peek() {
                Token::Mark(b'}') => {
                    self.at += 1;
                    break;
                }
                Token::End => return Err(self.error("function body is not closed")),
                Token::Mark(b';') => self.at += 1,
                Token::Mark(b'{') => {
                    self.at += 1;
                    found.push(Statement::Scope(self.statements()?));
                }
                Token::Dot("reg") => {
                    self.at += 1;
                    found.extend(self.registers()?.into_iter().map(Statement::Registers));
                }
                Token::Dot("loc") => {
                    let (file, line) = self.location()?;
                    found.push(Statement::Location { file, line });
                }
                Token::Dot("pragma") => self.skip_to_semicolon()?,
                Token::Dot("extern") => {
                    self.at += 1;
                    for variable in self.variables(Linkage::External)? {
                        found.push(self.local_declaration(variable));
                    }
                }
                Token::Dot(_) => {
                    for variable in self.variables(Linkage::Private)? {
                        found.push(self.local_declaration(variable));
                    }
                }
                Token::Name(name) if self.peek_at(1) == Token::Mark(b':') => {
                    let position = self.position();
                    self.at += 2;
                    found.push(match self.peek() {
                        Token::Dot("branchtargets") => Statement::BranchTargets {
                            name,
                            labels: self.target_list()?,
                        },
                        Token::Dot("calltargets") => Statement::CallTargets {
                            name,
                            functions: self.target_list()?,
                        },
                        Token::Dot("callprototype") => self.prototype(name)?,
                        _ => Statement::Label { name, position },
                    });
                }
                _ => {
                    let instruction = self.instruction()?;
                    found.push(Statement::Instruction(instruction));
                }
            }
        }
        self.leave();
        Ok(found)
    }

    /// Returns the statement that declares a variable in a function.
    fn local_declaration(&mut self, variable: Variable<'a>) -> Statement<'a> {
        if !matches!(variable.space, Space::Global | Space::Constant) {
            return Statement::Variable(variable);
        }
        let (name, index) = (variable.name, self.statics.len());
        self.statics.push(variable);
        Statement::Static { name, index }
    }

    /// Parses the names after `.branchtargets` or `.calltargets`.
    fn target_list(&mut self) -> Result<Vec<&'a str>, LoadError> {
        self.at += 1;
        let mut names = vec![self.name()?];
        while self.accept(b',') {
            names.push(self.name()?);
        }
        self.expect(b';')?;
        Ok(names)
    }

    fn prototype(&mut self, name: &'a str) -> Result<Statement<'a>, LoadError> {
        self.at += 1;
        let results = if self.peek() == Token::Mark(b'(') {
            self.parameters()?
        } else {
            Vec::new()
        };
        self.name()?;
        let parameters = if self.peek() == Token::Mark(b'(') {
            self.parameters()?
        } else {
            Vec::new()
        };
        loop {
            match self.peek() {
                Token::Dot("noreturn") => self.at += 1,
                Token::Dot("abi_preserve" | "abi_preserve_control") => {
                    self.at += 1;
                    self.integer()?;
                }
                _ => break,
            }
        }
        self.expect(b';')?;
        Ok(Statement::Prototype { name, results, parameters })
    }

    /// Parses `.loc 1 12 3` and its optional inlining data `, function_name label+4, inlined_at 1 2 3`, without a semicolon (PTX ISA §11.5.4).
    pub(super) fn location(&mut self) -> Result<(u64, u64), LoadError> {
        self.at += 1;
        let place = (self.integer()?, self.integer()?);
        while matches!(self.peek(), Token::Integer { .. }) {
            self.at += 1;
        }
        while self.accept(b',') {
            if self.name()? == "function_name" {
                self.name()?;
                self.accept(b'+');
            }
            while matches!(self.peek(), Token::Integer { .. }) {
                self.at += 1;
            }
        }
        Ok(place)
    }

    fn instruction(&mut self) -> Result<Instruction<'a>, LoadError> {
        let first = self.spanned();
        let parsed = self.instruction_parts();
        match parsed {
            Ok((guard, opcode, modifiers, operands)) => {
                let end = self.tokens[self.at.saturating_sub(1)].start;
                let text = self.text.get(first.start..end).unwrap_or_default().trim_end();
                Ok(Instruction {
                    position: first.position,
                    text,
                    guard,
                    opcode,
                    modifiers,
                    operands,
                })
            }
            Err(mut error) => {
                let rest = self.text.get(first.start..).unwrap_or_default();
                let end = rest.find([';', '\n']).unwrap_or(rest.len());
                error.instruction = collapse(&rest[..end]);
                Err(error)
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "the parts of one instruction, joined by the only caller")]
    fn instruction_parts(&mut self) -> Result<(Option<Guard<'a>>, &'a str, Vec<&'a str>, Vec<Operand<'a>>), LoadError> {
        let guard = if self.accept(b'@') {
            let negated = self.accept(b'!');
            Some(Guard {
                register: self.name()?,
                negated,
            })
        } else {
            None
        };
        let Token::Name(opcode) = self.peek() else {
            return Err(self.error("expected an instruction"));
        };
        self.at += 1;
        self.in_call = opcode == "call";
        let mut modifiers = Vec::new();
        while let Token::Dot(word) = self.peek() {
            modifiers.push(word);
            self.at += 1;
        }
        let mut operands = Vec::new();
        if !self.accept(b';') {
            loop {
                operands.push(self.operand()?);
                if !self.accept(b',') {
                    break;
                }
            }
            self.expect(b';')?;
        }
        Ok((guard, opcode, modifiers, operands))
    }

    fn operand(&mut self) -> Result<Operand<'a>, LoadError> {
        self.enter()?;
        let mut operand = self.operand_inner()?;
        if self.accept(b'|') {
            let second = self.operand_inner()?;
            operand = Operand::Pair(Box::new(operand), Box::new(second));
        }
        self.leave();
        Ok(operand)
    }

    fn operand_inner(&mut self) -> Result<Operand<'a>, LoadError> {
        match self.peek() {
            Token::Name("_") => {
                self.at += 1;
                Ok(Operand::Sink)
            }
            Token::Name(name) => {
                self.at += 1;
                if let Token::Dot(component) = self.peek() {
                    self.at += 1;
                    return Ok(Operand::Component(name, component));
                }
                if self.accept(b'[') {
                    if let Token::Name(index) = self.peek() {
                        return Err(self.unsupported(format!("the register {index} as index of an array")));
                    }
                    let index = self.expression(0)?.bits as i64;
                    self.expect(b']')?;
                    return Ok(Operand::Element(name, index));
                }
                Ok(Operand::Name(name, self.addend()?))
            }
            Token::Mark(b'!') if matches!(self.peek_at(1), Token::Name(_)) => {
                self.at += 1;
                Ok(Operand::Not(self.name()?))
            }
            Token::Mark(b'[') => {
                self.at += 1;
                let base = if let Token::Name(name) = self.peek() {
                    self.at += 1;
                    Some(name)
                } else {
                    None
                };
                let addend = if base.is_some() {
                    self.addend()?
                } else {
                    self.expression(0)?.bits as i64
                };
                if self.peek() != Token::Mark(b',') {
                    self.expect(b']')?;
                    return Ok(Operand::Address { base, addend });
                }
                let mut parts = vec![Operand::Address { base, addend }];
                while self.accept(b',') {
                    parts.push(self.operand()?);
                }
                self.expect(b']')?;
                Ok(Operand::Coordinates(parts))
            }
            Token::Mark(open @ (b'{' | b'(')) if open == b'{' || self.in_call => {
                self.at += 1;
                let close = if open == b'{' { b'}' } else { b')' };
                let mut elements = Vec::new();
                if !self.accept(close) {
                    loop {
                        elements.push(self.operand()?);
                        if !self.accept(b',') {
                            break;
                        }
                    }
                    self.expect(close)?;
                }
                Ok(if open == b'{' {
                    Operand::Vector(elements)
                } else {
                    Operand::List(elements)
                })
            }
            Token::Mark(b'-') if matches!(self.peek_at(1), Token::Name(_)) => {
                self.at += 1;
                Ok(Operand::Minus(Box::new(self.operand()?)))
            }
            _ => Ok(Operand::Constant(self.constant()?)),
        }
    }
}

/// Collapses runs of white space to single blanks.
pub fn collapse(text: &str) -> String {
    let mut collapsed = String::with_capacity(text.len());
    for word in text.split_ascii_whitespace() {
        if !collapsed.is_empty() {
            collapsed.push(' ');
        }
        collapsed.push_str(word);
    }
    collapsed
}
