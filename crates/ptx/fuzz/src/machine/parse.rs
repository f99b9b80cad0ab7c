//! Parsing of tokens to a module: its variables and functions.

mod body;
mod operand;

use std::collections::HashMap;

use super::MachineError;
use super::decode::{Written, decode};
use super::program::{Argument, Function, Program, Space, Variable};
use super::token::{Token, tokens};
use crate::kind::Kind;
use operand::{integer, literal};

/// Names declared between two braces.
#[derive(Default)]
struct Scope<'a> {
    registers: HashMap<&'a str, usize>,
    families: Vec<(&'a str, u32)>,
    variables: HashMap<&'a str, Argument>,
}

/// Function that is being parsed.
#[derive(Default)]
struct Body<'a> {
    function: Function,
    code: Vec<Written<'a>>,
    labels: HashMap<&'a str, usize>,
    lists: HashMap<&'a str, Vec<&'a str>>,
}

/// Variable declared after a state space.
struct Declared<'a> {
    align: u64,
    name: &'a str,
    /// Size of the variable in bytes; `None` if the size is left open.
    bytes: Option<u64>,
    /// Size of an element in bytes.
    size: u64,
}

struct Reader<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    program: Program,
    bodies: Vec<Body<'a>>,
    scopes: Vec<Scope<'a>>,
}

pub fn parse(text: &str) -> Result<Program, MachineError> {
    let mut reader = Reader {
        tokens: tokens(text),
        at: 0,
        program: Program::default(),
        bodies: Vec::new(),
        scopes: Vec::new(),
    };
    while reader.at < reader.tokens.len() {
        reader.top()?;
    }
    let mut program = reader.program;
    let mut codes = Vec::new();
    for body in &mut reader.bodies {
        program.functions.push(std::mem::take(&mut body.function));
    }
    // All functions have an index now, including those that are called before their definition.
    for body in reader.bodies {
        let code = body.code.into_iter().map(|written| decode(written, &body.labels, &program));
        codes.push(code.collect());
    }
    for (function, code) in program.functions.iter_mut().zip(codes) {
        function.code = code;
    }
    Ok(program)
}

impl<'a> Reader<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |token| token.text)
    }

    fn next(&mut self) -> &'a str {
        let text = self.peek();
        self.at += 1;
        text
    }

    fn line(&self) -> usize {
        let last = self.tokens.len().saturating_sub(1);
        self.tokens.get(self.at.min(last)).map_or(0, |token| token.line)
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
        match integer(word) {
            Some(value) => Ok(if negative { value.wrapping_neg() } else { value }),
            None => self.fail(format!("expected a number, found {word}")),
        }
    }

    /// Parses type, name and size of a variable, starting after its state space.
    fn declared(&mut self) -> Result<Declared<'a>, MachineError> {
        let (mut align, mut elements, mut kind, mut pointer) = (None, 1, None, false);
        loop {
            match self.peek() {
                ".align" => {
                    self.at += 1;
                    let number = self.number()?;
                    // After `.ptr`, the alignment is that of the pointee.
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
                    self.at += 1;
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
        Ok(Declared {
            align: align.unwrap_or(size * elements).max(1),
            name,
            bytes: count.map(|count| count * size),
            size,
        })
    }

    fn module_variable(&mut self) -> Result<(), MachineError> {
        let word = self.next();
        let Some(space) = word.strip_prefix('.').and_then(Space::from_word) else {
            return self.fail(format!("unexpected {word}"));
        };
        let declared = self.declared()?;
        if space == Space::Shared {
            let start = (self.program.shared_bytes as u64).next_multiple_of(declared.align.max(16));
            self.program.shared.insert(declared.name.to_owned(), start);
            self.program.shared_bytes = (start + declared.bytes.unwrap_or(0)) as usize;
            return self.expect(";");
        }
        let mut variable = Variable {
            name: declared.name.to_owned(),
            bytes: Vec::new(),
            addresses: Vec::new(),
            functions: Vec::new(),
        };
        if self.accept("=") {
            self.initial(declared.size as usize, &mut variable)?;
        }
        let length = declared.bytes.map_or(variable.bytes.len(), |bytes| bytes as usize);
        variable.bytes.resize(length, 0);
        self.program.variables.push(variable);
        self.expect(";")
    }

    fn initial(&mut self, size: usize, variable: &mut Variable) -> Result<(), MachineError> {
        if self.accept("{") {
            while !self.accept("}") {
                self.initial(size, variable)?;
                self.accept(",");
            }
            return Ok(());
        }
        let generic = self.accept("generic");
        if generic {
            self.expect("(")?;
        }
        let word = self.peek();
        if let Some(target) = self.program.variables.iter().position(|variable| variable.name == word) {
            self.at += 1;
            let addend = if self.accept("+") { self.number()? } else { 0 };
            variable.addresses.push((variable.bytes.len(), target, addend));
            variable.bytes.extend([0; 8]);
        } else if word.starts_with(|first: char| first.is_ascii_alphabetic() || matches!(first, '_' | '$' | '%')) {
            // A name that is not a variable is that of a function, which may be defined later.
            self.at += 1;
            variable.functions.push((variable.bytes.len(), word.to_owned()));
            variable.bytes.extend([0; 8]);
        } else {
            let value = match literal(word) {
                Some(Argument::Single(bits) | Argument::Double(bits)) => {
                    self.at += 1;
                    bits
                }
                _ => self.number()?,
            };
            variable.bytes.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        if generic {
            self.expect(")")?;
        }
        Ok(())
    }
}
