//! Parser: builds a [`Source`] from tokens (PTX ISA §4.3 statements, §11 directives). It never panics: every malformed text is a
//! [`LoadError`].

mod statement;
pub use statement::collapse;
mod variable;

use crate::error::{LoadError, LoadErrorKind, Position};
use crate::lexer::{Spanned, Token, tokens};
use crate::syntax::{Function, Source, ThreadLimit};
use crate::types::Space;

/// Maximum nesting of scopes and parentheses, so that no text can exhaust the stack.
const DEPTH_LIMIT: u32 = 64;

pub struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Spanned<'a>>,
    at: usize,
    depth: u32,
}

/// Parses a whole module.
pub fn parse(text: &str) -> Result<Source<'_>, LoadError> {
    Parser {
        text,
        tokens: tokens(text)?,
        at: 0,
        depth: 0,
    }
    .source()
}

impl<'a> Parser<'a> {
    fn spanned(&self) -> Spanned<'a> {
        self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn peek(&self) -> Token<'a> {
        self.spanned().token
    }

    fn peek_at(&self, ahead: usize) -> Token<'a> {
        self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].token
    }

    fn position(&self) -> Position {
        self.spanned().position
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn error(&self, reason: impl Into<String>) -> LoadError {
        LoadError::new(self.position(), "", LoadErrorKind::Syntax(reason.into()))
    }

    fn unsupported(&self, what: impl Into<String>) -> LoadError {
        LoadError::new(self.position(), "", LoadErrorKind::Unsupported(what.into()))
    }

    fn accept(&mut self, mark: u8) -> bool {
        let found = self.peek() == Token::Mark(mark);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect(&mut self, mark: u8) -> Result<(), LoadError> {
        if self.accept(mark) {
            Ok(())
        } else {
            Err(self.error(format!("expected `{}`", char::from(mark))))
        }
    }

    fn accept_dot(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Token::Dot(name) if name == word);
        if found {
            self.at += 1;
        }
        found
    }

    fn name(&mut self) -> Result<&'a str, LoadError> {
        match self.peek() {
            Token::Name(name) => {
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.error("expected a name")),
        }
    }

    fn integer(&mut self) -> Result<u64, LoadError> {
        match self.peek() {
            Token::Integer(value) => {
                self.at += 1;
                Ok(value)
            }
            _ => Err(self.error("expected an integer")),
        }
    }

    /// Parses an integer with an optional sign, in two's complement.
    fn signed(&mut self) -> Result<u64, LoadError> {
        if self.accept(b'-') {
            Ok(self.integer()?.wrapping_neg())
        } else {
            self.integer()
        }
    }

    fn enter(&mut self) -> Result<(), LoadError> {
        self.depth += 1;
        if self.depth > DEPTH_LIMIT {
            Err(self.error("nested too deep"))
        } else {
            Ok(())
        }
    }

    fn leave(&mut self) {
        self.depth -= 1;
    }

    fn source(mut self) -> Result<Source<'a>, LoadError> {
        let mut source = Source {
            address_size: 64,
            ..Source::default()
        };
        loop {
            match self.peek() {
                Token::End => break,
                Token::Dot("version") => {
                    self.at += 1;
                    source.version = self.version()?;
                }
                Token::Dot("target") => {
                    self.at += 1;
                    source.target = self.name()?;
                    while self.accept(b',') {
                        self.name()?;
                    }
                }
                Token::Dot("address_size") => {
                    self.at += 1;
                    source.address_size = self.integer()?.min(u64::from(u32::MAX)) as u32;
                }
                Token::Dot("file") => {
                    self.at += 1;
                    let index = self.integer()?;
                    let Token::Text(name) = self.next() else {
                        return Err(self.error("expected a file name"));
                    };
                    while self.accept(b',') {
                        self.integer()?;
                    }
                    source.files.push((index, name));
                }
                Token::Dot("section") => self.section()?,
                Token::Dot("pragma") => self.skip_to_semicolon()?,
                Token::Dot("loc") => {
                    self.location()?;
                }
                Token::Dot("alias") => return Err(self.unsupported(".alias")),
                Token::Mark(b';') => self.at += 1,
                _ => self.declaration(&mut source)?,
            }
        }
        if source.version == (0, 0) {
            return Err(self.error("the module has no .version directive"));
        }
        if source.address_size != 64 {
            return Err(self.unsupported(".address_size other than 64"));
        }
        Ok(source)
    }

    /// Parses a version such as `8.8` from its text, because the lexer reads it as one number.
    fn version(&mut self) -> Result<(u32, u32), LoadError> {
        let spanned = self.spanned();
        let text = self.text.get(spanned.start..spanned.end).unwrap_or_default();
        let (major, minor) = text.split_once('.').ok_or_else(|| self.error("expected a version"))?;
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => {
                self.at += 1;
                Ok((major, minor))
            }
            _ => Err(self.error("expected a version")),
        }
    }

    /// Skips a section of debug data, up to the brace that closes it.
    fn section(&mut self) -> Result<(), LoadError> {
        self.at += 1;
        self.at += 1;
        self.expect(b'{')?;
        let mut open = 1u32;
        while open > 0 {
            match self.next() {
                Token::Mark(b'{') => open += 1,
                Token::Mark(b'}') => open -= 1,
                Token::End => return Err(self.error("section is not closed")),
                _ => {}
            }
        }
        Ok(())
    }

    fn skip_to_semicolon(&mut self) -> Result<(), LoadError> {
        loop {
            match self.next() {
                Token::Mark(b';') => return Ok(()),
                Token::End => return Err(self.error("expected `;`")),
                _ => {}
            }
        }
    }

    /// Parses `.visible .entry …`, `.func …` or a module-scope variable.
    fn declaration(&mut self, source: &mut Source<'a>) -> Result<(), LoadError> {
        let mut is_external = false;
        loop {
            match self.peek() {
                Token::Dot("visible" | "weak" | "common") => self.at += 1,
                Token::Dot("extern") => {
                    is_external = true;
                    self.at += 1;
                }
                _ => break,
            }
        }
        let position = self.position();
        if self.accept_dot("entry") {
            let function = self.function(true, position)?;
            source.functions.push(function);
        } else if self.accept_dot("func") {
            let function = self.function(false, position)?;
            source.functions.push(function);
        } else {
            for variable in self.variables(is_external)? {
                match variable.space {
                    Space::Global | Space::Constant | Space::Shared => source.variables.push(variable),
                    _ => {
                        return Err(LoadError::new(
                            position,
                            "",
                            LoadErrorKind::Invalid("only .global, .const and .shared variables stand at module scope".into()),
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn function(&mut self, is_entry: bool, position: Position) -> Result<Function<'a>, LoadError> {
        self.accept_dot("noreturn");
        let results = if !is_entry && self.peek() == Token::Mark(b'(') {
            self.parameters()?
        } else {
            Vec::new()
        };
        let name = self.name()?;
        let parameters = if self.peek() == Token::Mark(b'(') {
            self.parameters()?
        } else {
            Vec::new()
        };
        let mut thread_limit = None;
        loop {
            match self.peek() {
                Token::Dot(word @ ("maxntid" | "reqntid")) => {
                    self.at += 1;
                    thread_limit = Some(ThreadLimit {
                        extent: self.extent()?,
                        required: word == "reqntid",
                    });
                }
                Token::Dot("minnctapersm" | "maxnreg" | "maxnctapersm" | "abi_preserve" | "abi_preserve_control") => {
                    self.at += 1;
                    self.integer()?;
                }
                Token::Dot("noreturn") => self.at += 1,
                Token::Dot("pragma") => self.skip_to_semicolon()?,
                Token::Dot(word @ ("reqnctapercluster" | "explicitcluster" | "maxclusterrank")) => {
                    return Err(self.unsupported(format!(".{word}: thread block clusters")));
                }
                Token::Dot(word) => {
                    return Err(self.unsupported(format!("function directive .{word}")));
                }
                _ => break,
            }
        }
        let body = if self.accept(b'{') {
            Some(self.statements()?)
        } else {
            self.accept(b';');
            None
        };
        Ok(Function {
            name,
            position,
            is_entry,
            results,
            parameters,
            body,
            thread_limit,
        })
    }

    fn extent(&mut self) -> Result<[u32; 3], LoadError> {
        let mut extent = [1u32; 3];
        for (axis, size) in extent.iter_mut().enumerate() {
            if axis > 0 && !self.accept(b',') {
                break;
            }
            *size = u32::try_from(self.integer()?).map_err(|_| self.error("extent does not fit 32 bits"))?;
        }
        Ok(extent)
    }
}
