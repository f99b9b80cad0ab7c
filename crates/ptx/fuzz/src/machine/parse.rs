//! Tokens to functions of flat instruction lists.

use std::collections::HashMap;

use super::MachineError;
use super::token::{Token, tokens};
use crate::kind::Kind;
use crate::model::Model;

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument {
    Register(usize),
    Negated(usize),
    Integer(u64),
    /// Bits of an f32, and of an f64 written in full.
    Single(u64),
    Double(u64),
    Special(String),
    /// A variable: its space and place in it.
    Variable(Space, u64),
    /// A `.param` variable of the function: offset and size.
    Parameter(u64, u64),
    Memory(Box<Argument>, u64),
    Vector(Vec<Argument>),
    Pair(Box<Argument>, Box<Argument>),
    List(Vec<Argument>),
    /// A label, function or list of labels, by name.
    Name(String),
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Global,
    Shared,
    Local,
    Parameter,
    Generic,
}

impl Space {
    pub(super) fn from_word(word: &str) -> Option<Self> {
        Some(match word.split("::").next().unwrap_or(word) {
            "global" | "const" => Self::Global,
            "shared" => Self::Shared,
            "local" => Self::Local,
            "param" => Self::Parameter,
            _ => return None,
        })
    }
}

pub(super) struct Instruction {
    pub(super) guard: Option<(usize, bool)>,
    pub(super) opcode: String,
    pub(super) words: Vec<String>,
    pub(super) arguments: Vec<Argument>,
    pub(super) model: Option<Model>,
    pub(super) line: usize,
}

/// A module-scope variable in global memory.
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    /// Offset, variable, addend of addresses in it.
    pub(super) addresses: Vec<(usize, usize, u64)>,
}

/// Offset and size in a frame's parameter space.
pub(super) type Slot = (u64, u64);

#[derive(Default)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) returns: Vec<Slot>,
    pub(super) parameters: Vec<Slot>,
    /// Registers that parameters are declared as, instead of slots.
    pub(super) parameter_bytes: u64,
    pub(super) local_bytes: u64,
    pub(super) widths: Vec<u32>,
    pub(super) code: Vec<Instruction>,
    pub(super) labels: HashMap<String, usize>,
    pub(super) targets: HashMap<String, Vec<String>>,
}

/// A module.
#[derive(Default)]
pub struct Program {
    pub(super) functions: Vec<Function>,
    pub(super) variables: Vec<Variable>,
    pub(super) shared: HashMap<String, u64>,
    pub(super) shared_bytes: usize,
}

#[derive(Default)]
struct Scope {
    registers: HashMap<String, usize>,
    families: Vec<(String, u32)>,
    variables: HashMap<String, Argument>,
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    program: Program,
    scopes: Vec<Scope>,
}

/// Reads a module.
pub fn parse(text: &str) -> Result<Program, MachineError> {
    let mut reader = Reader {
        tokens: tokens(text),
        at: 0,
        program: Program::default(),
        scopes: Vec::new(),
    };
    while reader.at < reader.tokens.len() {
        reader.top()?;
    }
    Ok(reader.program)
}

impl Reader {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", |token| &token.text)
    }

    fn next(&mut self) -> String {
        let text = self.peek().to_owned();
        self.at += 1;
        text
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at.min(self.tokens.len() - 1)).map_or(0, |token| token.line)
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Result<T, MachineError> {
        Err(MachineError::Parse(self.line(), reason.into()))
    }

    fn accept(&mut self, text: &str) -> bool {
        let found = self.peek() == text;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, text: &str) -> Result<(), MachineError> {
        if self.accept(text) {
            Ok(())
        } else {
            self.fail(format!("expected {text}, found {}", self.peek()))
        }
    }

    fn skip_past(&mut self, end: &str) {
        while self.at < self.tokens.len() && self.next() != end {}
    }

    fn top(&mut self) -> Result<(), MachineError> {
        match self.peek() {
            ".version" | ".address_size" => self.at += 2,
            ".target" => {
                self.at += 2;
                while self.accept(",") {
                    self.at += 1;
                }
            }
            ".visible" | ".weak" | ".extern" | ".common" => self.at += 1,
            ".file" => {
                self.at += 3;
                while self.accept(",") {
                    self.at += 1;
                }
            }
            ".pragma" => self.skip_past(";"),
            ".section" => self.skip_past("}"),
            ".entry" | ".func" => self.function()?,
            ";" => self.at += 1,
            _ => self.module_variable()?,
        }
        Ok(())
    }

    fn number(&mut self) -> Result<u64, MachineError> {
        let negative = self.accept("-");
        let word = self.next();
        match integer(&word) {
            Some(value) => Ok(if negative { value.wrapping_neg() } else { value }),
            None => self.fail(format!("expected a number, found {word}")),
        }
    }

    /// Type, name and size of a variable, from behind its space word. `None` for a size left open.
    fn declared(&mut self) -> Result<(Kind, u64, String, Option<u64>, u64), MachineError> {
        let (mut align, mut elements, mut kind, mut pointer) = (None, 1, None, false);
        loop {
            match self.peek() {
                ".align" => {
                    self.at += 1;
                    let number = self.number()?;
                    // Behind `.ptr` it is the alignment of what is pointed at.
                    align = if pointer { align } else { Some(number) };
                }
                ".v2" => {
                    self.at += 1;
                    elements = 2;
                }
                ".v4" => {
                    self.at += 1;
                    elements = 4;
                }
                ".ptr" => {
                    self.at += 1;
                    pointer = true;
                }
                ".global" | ".const" | ".shared" | ".local" | ".managed" => self.at += 1,
                word if word.starts_with('.') => {
                    let word = self.next();
                    match Kind::from_name(&word[1..]) {
                        Some(found) => kind = Some(found),
                        None => return self.fail(format!("unknown {word}")),
                    }
                }
                _ => break,
            }
        }
        let Some(kind) = kind else { return self.fail("expected a type") };
        let name = self.next();
        let size = u64::from(kind.width() / 8);
        let mut count = Some(elements);
        while self.accept("[") {
            if self.accept("]") {
                count = None;
            } else {
                let dimension = self.number()?;
                count = count.map(|count| count * dimension);
                self.expect("]")?;
            }
        }
        Ok((
            kind,
            align.unwrap_or(size * elements).max(1),
            name,
            count.map(|count| count * size),
            size,
        ))
    }

    fn module_variable(&mut self) -> Result<(), MachineError> {
        let word = self.next();
        let Some(space) = word.strip_prefix('.').and_then(Space::from_word) else {
            return self.fail(format!("unexpected {word}"));
        };
        let (_, align, name, bytes, size) = self.declared()?;
        if space == Space::Shared {
            let start = (self.program.shared_bytes as u64).next_multiple_of(align.max(16));
            self.program.shared.insert(name, start);
            self.program.shared_bytes = (start + bytes.unwrap_or(0)) as usize;
            return self.expect(";");
        }
        let mut initial = Vec::new();
        let mut addresses = Vec::new();
        if self.accept("=") {
            self.initial(size as usize, &mut initial, &mut addresses)?;
        }
        let length = bytes.map_or(initial.len(), |bytes| bytes as usize);
        initial.resize(length, 0);
        self.program.variables.push(Variable {
            name,
            bytes: initial,
            addresses,
        });
        self.expect(";")
    }

    fn initial(&mut self, size: usize, bytes: &mut Vec<u8>, addresses: &mut Vec<(usize, usize, u64)>) -> Result<(), MachineError> {
        if self.accept("{") {
            while !self.accept("}") {
                self.initial(size, bytes, addresses)?;
                self.accept(",");
            }
            return Ok(());
        }
        let generic = self.accept("generic");
        if generic {
            self.expect("(")?;
        }
        if let Some(target) = self.program.variables.iter().position(|variable| variable.name == self.peek()) {
            self.at += 1;
            let addend = if self.accept("+") { self.number()? } else { 0 };
            addresses.push((bytes.len(), target, addend));
            bytes.extend([0; 8]);
        } else {
            let value = match literal(self.peek()) {
                Some(Argument::Single(bits) | Argument::Double(bits)) => {
                    self.at += 1;
                    bits
                }
                _ => self.number()?,
            };
            bytes.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        if generic {
            self.expect(")")?;
        }
        Ok(())
    }

    fn parameters(&mut self, function: &mut Function, scope: &mut Scope) -> Result<Vec<Slot>, MachineError> {
        let mut slots = Vec::new();
        self.expect("(")?;
        while !self.accept(")") {
            self.accept(",");
            if self.accept(".param") {
                let (_, align, name, bytes, _) = self.declared()?;
                let bytes = bytes.unwrap_or(0);
                let start = function.parameter_bytes.next_multiple_of(align);
                function.parameter_bytes = start + bytes;
                scope.variables.insert(name, Argument::Parameter(start, bytes));
                slots.push((start, bytes));
            } else {
                return self.fail("parameters in registers");
            }
        }
        Ok(slots)
    }

    fn function(&mut self) -> Result<(), MachineError> {
        let mut function = Function::default();
        let mut scope = Scope::default();
        self.at += 1;
        self.accept(".noreturn");
        if self.peek() == "(" {
            function.returns = self.parameters(&mut function, &mut scope)?;
        }
        function.name = self.next();
        if self.peek() == "(" {
            function.parameters = self.parameters(&mut function, &mut scope)?;
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
        self.body(&mut function)?;
        self.scopes.clear();
        self.program.functions.push(function);
        Ok(())
    }

    fn body(&mut self, function: &mut Function) -> Result<(), MachineError> {
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
                "{" => self.body(function)?,
                ";" => self.at += 1,
                ".reg" => self.registers(function)?,
                ".loc" => {
                    let line = self.line();
                    while self.line() == line {
                        self.at += 1;
                    }
                }
                ".pragma" | ".callprototype" => self.skip_past(";"),
                word if word.starts_with('.') => self.variable(function)?,
                _ if self.tokens.get(self.at + 1).is_some_and(|token| token.text == ":") => self.label(function)?,
                _ => self.instruction(function)?,
            }
        }
    }

    fn label(&mut self, function: &mut Function) -> Result<(), MachineError> {
        let name = self.next();
        self.at += 1;
        if self.accept(".branchtargets") {
            let mut labels = vec![self.next()];
            while self.accept(",") {
                labels.push(self.next());
            }
            function.targets.insert(name, labels);
            return self.expect(";");
        }
        if self.peek() == ".callprototype" {
            self.skip_past(";");
            return Ok(());
        }
        function.labels.insert(name, function.code.len());
        Ok(())
    }

    fn registers(&mut self, function: &mut Function) -> Result<(), MachineError> {
        self.at += 1;
        let word = self.next();
        let Some(kind) = Kind::from_name(&word[1..]) else {
            return self.fail(format!("registers of type {word}"));
        };
        loop {
            let name = self.next();
            if self.accept("<") {
                self.number()?;
                self.expect(">")?;
                self.scopes.last_mut().expect("a body").families.push((name, kind.width()));
            } else {
                function.widths.push(kind.width());
                let id = function.widths.len() - 1;
                self.scopes.last_mut().expect("a body").registers.insert(name, id);
            }
            if !self.accept(",") {
                return self.expect(";");
            }
        }
    }

    fn variable(&mut self, function: &mut Function) -> Result<(), MachineError> {
        let word = self.next();
        let Some(space) = Space::from_word(&word[1..]) else {
            return self.fail(format!("unexpected {word}"));
        };
        let (_, align, name, bytes, _) = self.declared()?;
        let bytes = bytes.unwrap_or(0);
        let place = match space {
            Space::Local => {
                let start = function.local_bytes.next_multiple_of(align);
                function.local_bytes = start + bytes;
                Argument::Variable(Space::Local, start)
            }
            Space::Shared => {
                let start = (self.program.shared_bytes as u64).next_multiple_of(align);
                self.program.shared_bytes = (start + bytes) as usize;
                Argument::Variable(Space::Shared, start)
            }
            Space::Parameter => {
                let start = function.parameter_bytes.next_multiple_of(align);
                function.parameter_bytes = start + bytes;
                Argument::Parameter(start, bytes)
            }
            _ => return self.fail("a variable of this space in a function"),
        };
        self.scopes.last_mut().expect("a body").variables.insert(name, place);
        self.expect(";")
    }

    fn instruction(&mut self, function: &mut Function) -> Result<(), MachineError> {
        let line = self.line();
        let mut guard = None;
        if self.accept("@") {
            let negated = self.accept("!");
            let name = self.next();
            match self.resolve(&name, function) {
                Some(Argument::Register(register)) => guard = Some((register, negated)),
                _ => return self.fail(format!("{name} guards")),
            }
        }
        let mut form = self.next();
        // `.shared::cta` and its like were split at the colons.
        while self.peek() == ":" {
            self.at += 2;
            let rest = self.next();
            form.push_str("::");
            form.push_str(&rest);
        }
        let mut arguments = Vec::new();
        while !self.accept(";") {
            arguments.push(self.argument(function)?);
            self.accept(",");
        }
        let mut words = form.split('.').map(str::to_owned);
        let opcode = words.next().unwrap_or_default();
        let model = Model::of(&form);
        function.code.push(Instruction {
            guard,
            opcode,
            words: words.collect(),
            arguments,
            model,
            line,
        });
        Ok(())
    }

    fn list(&mut self, end: &str, function: &mut Function) -> Result<Vec<Argument>, MachineError> {
        let mut found = Vec::new();
        while !self.accept(end) {
            found.push(self.argument(function)?);
            self.accept(",");
        }
        Ok(found)
    }

    fn argument(&mut self, function: &mut Function) -> Result<Argument, MachineError> {
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
            return match self.resolve(&name, function) {
                Some(Argument::Register(register)) => Ok(Argument::Negated(register)),
                _ => self.fail(format!("!{name}")),
            };
        }
        if self.accept("-") {
            let value = self.number()?;
            return Ok(Argument::Integer(value.wrapping_neg()));
        }
        let word = self.next();
        let first = if word == "_" {
            Argument::Nothing
        } else if let Some(found) = literal(&word) {
            found
        } else {
            match self.resolve(&word, function) {
                Some(found) => found,
                None if word.starts_with('%') => Argument::Special(word),
                None => Argument::Name(word),
            }
        };
        if self.accept("|") {
            let second = self.argument(function)?;
            return Ok(Argument::Pair(Box::new(first), Box::new(second)));
        }
        if self.peek() == "+"
            && let Argument::Variable(space, place) = first
        {
            self.at += 1;
            return Ok(Argument::Variable(space, place + self.number()?));
        }
        Ok(first)
    }

    /// A register or variable by name, innermost scope first.
    fn resolve(&mut self, name: &str, function: &mut Function) -> Option<Argument> {
        for scope in self.scopes.iter_mut().rev() {
            if let Some(id) = scope.registers.get(name) {
                return Some(Argument::Register(*id));
            }
            if let Some(variable) = scope.variables.get(name) {
                return Some(variable.clone());
            }
            let prefix = name.trim_end_matches(|character: char| character.is_ascii_digit());
            if prefix.len() < name.len()
                && let Some((_, width)) = scope.families.iter().find(|(family, _)| family == prefix)
            {
                function.widths.push(*width);
                let id = function.widths.len() - 1;
                scope.registers.insert(name.to_owned(), id);
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
            .map(|index| Argument::Variable(Space::Global, (index as u64) << 40))
    }
}

fn integer(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    if let Some(hexadecimal) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        return u64::from_str_radix(hexadecimal, 16).ok();
    }
    word.parse().ok()
}

fn literal(word: &str) -> Option<Argument> {
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
