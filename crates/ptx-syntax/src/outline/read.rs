//! Reader for the directives of a PTX text, which skips everything between them.

use std::collections::{BTreeMap, HashSet};

use crate::error::{LoadError, LoadErrorKind, Position};
use crate::lexer::{Spanned, Token};
use crate::types::ScalarType;

/// Declared variable or parameter.
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    pub(super) scalar: &'a str,
    /// Number of elements of the vector type.
    width: u64,
    /// Size in bytes; 0 for an open array without values.
    pub(super) bytes: u64,
    /// For an open array, the bytes of one element of its first dimension.
    unit: u64,
    pub(super) align: u64,
    pub(super) is_open: bool,
    pub(super) is_pointer: bool,
}

/// Body of a function, before names are resolved.
#[derive(Default)]
pub(super) struct Body<'a> {
    pub(super) registers: BTreeMap<String, u64>,
    pub(super) global: Vec<Variable<'a>>,
    pub(super) constant: Vec<Variable<'a>>,
    /// `.param` variables between the outer braces, which are the kernel's parameters in texts of early versions.
    pub(super) parameters: Vec<Variable<'a>>,
    pub(super) shared: Vec<Variable<'a>>,
    pub(super) local: Vec<Variable<'a>>,
    pub(super) names: HashSet<&'a str>,
    pub(super) max_block: Option<[u32; 3]>,
    pub(super) required_block: Option<[u32; 3]>,
}

pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) tokens: Vec<Spanned<'a>>,
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn peek(&self) -> Token<'a> {
        self.tokens[self.at.min(self.tokens.len() - 1)].token
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> LoadError {
        let position: Position = self.tokens[self.at.min(self.tokens.len() - 1)].position;
        LoadError::new(position, "", LoadErrorKind::Syntax(reason.into()))
    }

    pub(super) fn integer(&mut self) -> Result<u64, LoadError> {
        match self.next() {
            Token::Integer { bits, .. } => Ok(bits),
            _ => Err(self.error("expected an integer")),
        }
    }

    /// Parses a version such as `8.8` from its text, because the lexer reads it as one number.
    pub(super) fn version(&mut self) -> Result<(u32, u32), LoadError> {
        let spanned = self.tokens[self.at.min(self.tokens.len() - 1)];
        self.at += 1;
        let text = self.text.get(spanned.start..spanned.end).unwrap_or_default();
        let parsed = text
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parsed.ok_or_else(|| self.error("expected a version"))
    }

    /// Parses a list of words, such as `sm_90a, debug`.
    pub(super) fn words(&mut self) -> Vec<String> {
        let mut words = Vec::new();
        while let Token::Name(word) = self.peek() {
            words.push(word.to_owned());
            self.at += 1;
            if self.peek() != Token::Mark(b',') {
                break;
            }
            self.at += 1;
        }
        words
    }

    /// Skips tokens until the next brace that opens is closed.
    pub(super) fn skip_braces(&mut self) -> Result<(), LoadError> {
        let mut open = 0u32;
        loop {
            match self.next() {
                Token::Mark(b'{') => open += 1,
                Token::Mark(b'}') if open <= 1 => return Ok(()),
                Token::Mark(b'}') => open -= 1,
                Token::End => return Err(self.error("a brace is not closed")),
                _ => {}
            }
        }
    }

    /// Parses a declaration such as `.shared .align 4 .b8 name[16], other;`, starting at its state space.
    pub(super) fn variables(&mut self) -> Result<Vec<Variable<'a>>, LoadError> {
        let mut found = vec![self.declaration()?];
        loop {
            match self.next() {
                Token::Mark(b';') => return Ok(found),
                Token::Mark(b',') => {
                    let Token::Name(name) = self.next() else {
                        return Err(self.error("expected a name"));
                    };
                    let (scalar, align, width) = (found[0].scalar, found[0].align, found[0].width);
                    let (elements, is_open) = self.dimensions()?;
                    let unit = bytes(scalar).saturating_mul(width).saturating_mul(elements);
                    found.push(Variable {
                        name,
                        scalar,
                        width,
                        bytes: if is_open { 0 } else { unit },
                        unit,
                        align,
                        is_open,
                        is_pointer: false,
                    });
                }
                Token::Mark(b'=') if self.peek() == Token::Mark(b'{') => {
                    let values = self.values()?;
                    if let Some(variable) = found.last_mut().filter(|variable| variable.is_open) {
                        variable.bytes = variable.unit.saturating_mul(values);
                    }
                }
                Token::End => return Err(self.error("a declaration is not ended")),
                _ => {}
            }
        }
    }

    /// Counts the values in the next pair of braces.
    fn values(&mut self) -> Result<u64, LoadError> {
        let (mut open, mut values) = (0u32, 1);
        loop {
            match self.next() {
                Token::Mark(b'{') => open += 1,
                Token::Mark(b'}') if open <= 1 => return Ok(values),
                Token::Mark(b'}') => open -= 1,
                Token::Mark(b',') if open == 1 => values += 1,
                Token::End => return Err(self.error("a brace is not closed")),
                _ => {}
            }
        }
    }

    /// Parses one declaration, up to and including its dimensions.
    fn declaration(&mut self) -> Result<Variable<'a>, LoadError> {
        self.at += 1;
        let (mut align, mut scalar, mut width, mut is_pointer) = (None, None, 1, false);
        let name = loop {
            match self.next() {
                Token::Dot("align") => {
                    let value = self.integer()?;
                    // After `.ptr`, the alignment is that of the pointee.
                    if !is_pointer {
                        align = Some(value);
                    }
                }
                Token::Dot("ptr") => is_pointer = true,
                Token::Dot("v2") => width = 2,
                Token::Dot("v4") => width = 4,
                Token::Dot("attribute") => while !matches!(self.next(), Token::Mark(b')') | Token::End) {},
                Token::Dot(word) if scalar.is_none() && !is_pointer => scalar = Some(word),
                Token::Dot(_) => {}
                Token::Name(name) => break name,
                _ => return Err(self.error("expected a name")),
            }
        };
        let Some(scalar) = scalar else {
            return Err(self.error("expected a type"));
        };
        let (elements, is_open) = self.dimensions()?;
        let unit = bytes(scalar).saturating_mul(width).saturating_mul(elements);
        Ok(Variable {
            name,
            scalar,
            width,
            bytes: if is_open { 0 } else { unit },
            unit,
            align: align.unwrap_or_else(|| (bytes(scalar) * width).max(1)),
            is_open,
            is_pointer,
        })
    }

    /// Parses dimensions such as `[16][4]`. Returns the number of elements, without an open dimension, and whether one is open.
    fn dimensions(&mut self) -> Result<(u64, bool), LoadError> {
        let mut elements = 1u64;
        let mut is_open = false;
        while self.peek() == Token::Mark(b'[') {
            self.at += 1;
            if let Token::Integer { bits, .. } = self.peek() {
                elements = elements.saturating_mul(bits);
                self.at += 1;
            } else {
                is_open = true;
            }
            if self.next() != Token::Mark(b']') {
                return Err(self.error("expected `]`"));
            }
        }
        Ok((elements, is_open))
    }

    /// Parses the name, parameters and body of a function, starting after its directive.
    #[allow(clippy::type_complexity, reason = "taken apart where it is called")]
    pub(super) fn function(&mut self) -> Result<(&'a str, Vec<Variable<'a>>, Option<Body<'a>>), LoadError> {
        let mut parameters = Vec::new();
        let mut name = None;
        let mut body = Body::default();
        loop {
            match self.peek() {
                Token::Name(word) if name.is_none() => {
                    name = Some(word);
                    self.at += 1;
                }
                // A list before the name declares the function's results.
                Token::Mark(b'(') => {
                    let list = self.parameters()?;
                    if name.is_some() {
                        parameters = list;
                    }
                }
                Token::Dot("maxntid") => body.max_block = Some(self.extent()?),
                Token::Dot("reqntid") => body.required_block = Some(self.extent()?),
                Token::Mark(b'{') => break,
                Token::Mark(b';') => {
                    self.at += 1;
                    return name
                        .map(|name| (name, parameters, None))
                        .ok_or_else(|| self.error("expected a name"));
                }
                // The semicolon of a pragma is not that of a prototype.
                Token::Dot("pragma") => while !matches!(self.next(), Token::Mark(b';') | Token::End) {},
                Token::End if name.is_none() => return Err(self.error("a function has no name")),
                token if token == Token::End || matches!(token, Token::Dot(word) if begins_declaration(word)) => {
                    // The prototypes of nvopencc have no semicolon.
                    return name
                        .map(|name| (name, parameters, None))
                        .ok_or_else(|| self.error("expected a name"));
                }
                _ => self.at += 1,
            }
        }
        self.body(&mut body)?;
        name.map(|name| (name, parameters, Some(body)))
            .ok_or_else(|| self.error("expected a name"))
    }

    fn parameters(&mut self) -> Result<Vec<Variable<'a>>, LoadError> {
        self.at += 1;
        let mut found = Vec::new();
        loop {
            match self.peek() {
                Token::Mark(b')') => {
                    self.at += 1;
                    return Ok(found);
                }
                Token::Mark(b',') => self.at += 1,
                Token::Dot("param" | "reg") => found.push(self.declaration()?),
                _ => return Err(self.error("expected a parameter")),
            }
        }
    }

    fn extent(&mut self) -> Result<[u32; 3], LoadError> {
        let mut extent = [1; 3];
        for (axis, size) in extent.iter_mut().enumerate() {
            if axis > 0 && self.peek() != Token::Mark(b',') {
                break;
            }
            self.at += 1;
            *size = u32::try_from(self.integer()?).map_err(|_| self.error("an extent does not fit 32 bits"))?;
        }
        Ok(extent)
    }

    /// Parses the declarations and names between a function's braces.
    fn body(&mut self, body: &mut Body<'a>) -> Result<(), LoadError> {
        let mut open = 0u32;
        // Only directives begin a declaration. Modifiers of instructions look like directives, but follow a name or another modifier. A
        // declaration may also follow the number that ends a `.loc`, which has no semicolon.
        let mut begins = true;
        loop {
            match self.peek() {
                Token::Dot("reg") if begins => self.registers(&mut body.registers)?,
                Token::Dot("global") if begins => body.global.append(&mut self.variables()?),
                Token::Dot("shared" | "shared::cta") if begins => body.shared.append(&mut self.variables()?),
                Token::Dot("local") if begins => body.local.append(&mut self.variables()?),
                Token::Dot("const") if begins => body.constant.append(&mut self.variables()?),
                Token::Dot("param") if begins && open == 1 => body.parameters.append(&mut self.variables()?),
                Token::End => return Err(self.error("a function is not closed")),
                token => {
                    self.at += 1;
                    match token {
                        Token::Name(name) => {
                            body.names.insert(name);
                        }
                        Token::Mark(b'{') => open += 1,
                        Token::Mark(b'}') => open -= 1,
                        _ => {}
                    }
                    if open == 0 {
                        return Ok(());
                    }
                    begins = !matches!(token, Token::Name(_) | Token::Dot(_));
                }
            }
        }
    }

    /// Parses a declaration such as `.reg .b32 %r<10>, %extra;`.
    fn registers(&mut self, counts: &mut BTreeMap<String, u64>) -> Result<(), LoadError> {
        self.at += 1;
        let mut scalar = "";
        let mut width = 1;
        loop {
            match self.next() {
                Token::Dot("v2") => width = 2,
                Token::Dot("v4") => width = 4,
                Token::Dot(word) => scalar = word,
                Token::Name(_) => {
                    let mut count = 1;
                    if self.peek() == Token::Mark(b'<') {
                        self.at += 1;
                        count = self.integer()?;
                    }
                    let total = counts.entry(scalar.to_owned()).or_default();
                    *total = total.saturating_add(count.saturating_mul(width));
                }
                Token::Mark(b';') => return Ok(()),
                Token::End => return Err(self.error("a declaration is not ended")),
                _ => {}
            }
        }
    }
}

/// Whether a directive begins a module-scope declaration.
fn begins_declaration(word: &str) -> bool {
    matches!(
        word,
        "visible" | "extern" | "weak" | "common" | "entry" | "func" | "global" | "const" | "shared" | "local" | "tex" | "reg" | "file"
    )
}

/// Returns the size of a type in bytes; 0 if the type has no size or is unknown.
fn bytes(scalar: &str) -> u64 {
    match scalar {
        "texref" | "samplerref" | "surfref" => 8,
        _ => ScalarType::from_name(scalar).map_or(0, |scalar| scalar.bytes() as u64),
    }
}
