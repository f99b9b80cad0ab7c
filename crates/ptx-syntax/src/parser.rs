//! Parser: builds a [`Source`] from tokens (PTX ISA §4.3 statements, §11 directives). It never panics: every malformed text is a
//! [`LoadError`].

mod constant;
mod statement;
pub use statement::collapse;
mod variable;

use crate::error::{LoadError, LoadErrorKind, Position};
use crate::lexer::{Spanned, Token, tokens};
use crate::syntax::{Function, Linkage, Source, Statement, ThreadLimit, Variable};
use crate::target;
use crate::types::Space;

/// Maximum nesting of scopes and parentheses, so that no text can exhaust the stack.
const DEPTH_LIMIT: u32 = 64;

pub struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Spanned<'a>>,
    at: usize,
    depth: u32,
    /// Whether parentheses enclose a list of arguments, and not a part of an expression.
    in_call: bool,
    /// Variables declared in functions so far, for [`Source::statics`].
    statics: Vec<Variable<'a>>,
}

/// Version of the ISA from which on kernels have parameter lists. In earlier texts, `.param` variables of the body are the parameters.
pub(crate) const PARAMETER_LISTS: (u32, u32) = (1, 4);

/// Makes the `.param` variables of a kernel's body its parameters.
fn parameters_of_body(function: &mut Function<'_>) {
    let Some(body) = &mut function.body else { return };
    let declared = std::mem::take(body);
    for statement in declared {
        match statement {
            Statement::Variable(variable) if variable.space == Space::Parameter => function.parameters.push(variable),
            other => body.push(other),
        }
    }
}

fn invalid(position: Position, reason: String) -> LoadError {
    LoadError::new(position, "", LoadErrorKind::Invalid(reason))
}

/// Parses a whole module.
pub fn parse(text: &str) -> Result<Source<'_>, LoadError> {
    Parser {
        text,
        tokens: tokens(text)?,
        at: 0,
        depth: 0,
        in_call: false,
        statics: Vec::new(),
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
            let mut error = self.error(format!("expected `{}`", char::from(mark)));
            // What is missing at the end of a line is reported there, and not at the line that follows.
            if let Some(last) = self.at.checked_sub(1).map(|at| self.tokens[at.min(self.tokens.len() - 1)])
                && last.position.line < error.line
            {
                error.line = last.position.line;
                error.column = last
                    .position
                    .column
                    .saturating_add(u32::try_from(last.end - last.start).unwrap_or(u32::MAX));
            }
            Err(error)
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
            Token::Integer { bits, .. } => {
                self.at += 1;
                Ok(bits)
            }
            _ => Err(self.error("expected an integer")),
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
                    let position = self.position();
                    source.version = self.version()?;
                    target::check_version(source.version).map_err(|reason| invalid(position, reason))?;
                }
                Token::Dot("target") => {
                    self.at += 1;
                    source.target = self.target(source.version)?;
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
                Token::Dot("section") => {
                    self.at += 1;
                    self.section()?;
                }
                Token::Dot("pragma") => self.skip_to_semicolon()?,
                Token::Dot("loc") => {
                    self.location()?;
                }
                Token::Dot("alias") => {
                    self.at += 1;
                    let name = self.name()?;
                    self.expect(b',')?;
                    source.aliases.push((name, self.name()?));
                    self.expect(b';')?;
                }
                Token::Dot("reg") => {
                    self.at += 1;
                    source.registers.append(&mut self.registers()?);
                }
                Token::Mark(b';') => self.at += 1,
                _ => self.declaration(&mut source)?,
            }
        }
        if source.version == (0, 0) {
            return Err(self.error("the module has no .version directive"));
        }
        if source.target.is_empty() {
            return Err(self.error("the module has no .target directive"));
        }
        if source.address_size != 64 {
            return Err(self.unsupported(".address_size other than 64"));
        }
        source.statics = self.statics;
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

    /// Parses `sm_80, debug` after `.target`. Returns the architecture.
    fn target(&mut self, version: (u32, u32)) -> Result<&'a str, LoadError> {
        if version == (0, 0) {
            return Err(self.error(".target stands before .version"));
        }
        let position = self.position();
        let architecture = self.name()?;
        target::check_architecture(version, architecture).map_err(|reason| invalid(position, reason))?;
        while self.accept(b',') {
            let position = self.position();
            target::check_option(self.name()?).map_err(|reason| invalid(position, reason))?;
        }
        Ok(architecture)
    }

    /// Skips a word, such as the name of a section of debug data, and what the braces behind it enclose.
    fn section(&mut self) -> Result<(), LoadError> {
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
        let mut linkage = Linkage::Private;
        loop {
            linkage = match self.peek() {
                Token::Dot("visible") => Linkage::Visible,
                Token::Dot("weak") => Linkage::Weak,
                Token::Dot("common") => Linkage::Common,
                Token::Dot("extern") => Linkage::External,
                _ => break,
            };
            self.at += 1;
        }
        let position = self.position();
        if self.accept_dot("entry") {
            let mut function = self.function(true, position, linkage)?;
            if source.version < PARAMETER_LISTS {
                parameters_of_body(&mut function);
            }
            source.functions.push(function);
        } else if self.accept_dot("func") {
            let function = self.function(false, position, linkage)?;
            source.functions.push(function);
        } else {
            for variable in self.variables(linkage)? {
                if variable.space == Space::Parameter {
                    let reason = LoadErrorKind::Invalid("a .param variable does not stand at module scope".into());
                    return Err(LoadError::new(position, "", reason));
                }
                source.variables.push(variable);
            }
        }
        Ok(())
    }

    fn function(&mut self, is_entry: bool, position: Position, linkage: Linkage) -> Result<Function<'a>, LoadError> {
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
        let mut has_cluster = false;
        loop {
            match self.peek() {
                Token::Dot(word @ ("maxntid" | "reqntid")) => {
                    self.at += 1;
                    thread_limit = Some(ThreadLimit {
                        extent: self.extent()?,
                        required: word == "reqntid",
                    });
                }
                Token::Dot("minnctapersm" | "maxnreg" | "maxnctapersm" | "maxclusterrank" | "abi_preserve" | "abi_preserve_control") => {
                    self.at += 1;
                    self.integer()?;
                }
                Token::Dot("noreturn") => self.at += 1,
                Token::Dot("pragma") => self.skip_to_semicolon()?,
                // A cluster of one block is a block.
                Token::Dot("reqnctapercluster") => {
                    self.at += 1;
                    has_cluster = true;
                    if self.extent()? != [1; 3] {
                        return Err(self.unsupported(".reqnctapercluster: thread block clusters"));
                    }
                }
                Token::Dot("explicitcluster" | "blocksareclusters") => {
                    self.at += 1;
                    has_cluster = true;
                }
                // The prototypes of nvopencc have no semicolon, so any other directive may follow.
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
            linkage,
            results,
            parameters,
            body,
            thread_limit,
            has_cluster,
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
