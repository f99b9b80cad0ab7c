//! What a PTX text declares, whatever its instructions are.
//!
//! [`Outline::of`] reads directives alone: it also describes modules that only a GPU can run. Sizes are those that the
//! text declares; hardware registers are the driver's to assign.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::{LoadError, LoadErrorKind, Position};
use crate::lexer::{Spanned, Token, tokens};
use crate::types::ScalarType;

/// A module as it is declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Version of the PTX ISA: major, minor.
    pub version: (u32, u32),
    /// Architecture that it is for, such as `sm_80`; options behind it follow.
    pub targets: Vec<String>,
    /// Bits of an address.
    pub address_size: u32,
    /// Kernels in the order of the text.
    pub entries: Vec<EntryOutline>,
    /// Bytes of module-scope `.global` variables.
    pub global_bytes: u64,
    /// Bytes of module-scope `.const` variables.
    pub constant_bytes: u64,
}

/// A kernel as it is declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryOutline {
    /// Name in the text.
    pub name: String,
    /// Parameters in order.
    pub parameters: Vec<ParameterOutline>,
    /// Virtual registers by type, such as `b32`.
    pub registers: BTreeMap<String, u64>,
    /// Bytes of static shared memory: its own, and the module's variables that it or what it calls names.
    pub shared_bytes: u64,
    /// It takes more shared memory at launch: it names an open array.
    pub has_dynamic_shared: bool,
    /// Bytes of `.const` variables that it or what it calls names.
    pub constant_bytes: u64,
    /// Bytes of local memory of a thread.
    pub local_bytes: u64,
    /// `.maxntid`: most threads of a block, by axis.
    pub max_block: Option<[u32; 3]>,
    /// `.reqntid`: the block that it must be launched with.
    pub required_block: Option<[u32; 3]>,
}

/// A kernel parameter as it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterOutline {
    /// Name in the text.
    pub name: String,
    /// Type of one element, such as `f32`.
    pub scalar: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Offset in the parameter buffer in bytes.
    pub offset: u64,
    /// The text says that it is a pointer (`.ptr`). Many compilers leave that out.
    pub is_pointer: bool,
}

/// One declared name.
struct Variable<'a> {
    name: &'a str,
    scalar: &'a str,
    /// 0 for an open array.
    bytes: u64,
    align: u64,
    is_open: bool,
    is_pointer: bool,
}

/// A function's body, before names are followed.
#[derive(Default)]
struct Body<'a> {
    registers: BTreeMap<String, u64>,
    shared: Vec<Variable<'a>>,
    local: Vec<Variable<'a>>,
    names: HashSet<&'a str>,
    max_block: Option<[u32; 3]>,
    required_block: Option<[u32; 3]>,
}

struct Reader<'a> {
    text: &'a str,
    tokens: Vec<Spanned<'a>>,
    at: usize,
}

impl Outline {
    /// Reads the text's directives.
    ///
    /// # Errors
    /// When the text does not split into PTX's words, ends inside a declaration, or has neither version nor target.
    pub fn of(ptx: &str) -> Result<Self, LoadError> {
        let mut reader = Reader {
            text: ptx,
            tokens: tokens(ptx)?,
            at: 0,
        };
        let mut outline = Self {
            address_size: 32,
            ..Self::default()
        };
        let mut shared: Vec<Variable<'_>> = Vec::new();
        let mut constants: Vec<Variable<'_>> = Vec::new();
        let mut functions: HashMap<&str, Body<'_>> = HashMap::new();
        let mut entries: Vec<(&str, Vec<ParameterOutline>)> = Vec::new();
        loop {
            match reader.peek() {
                Token::End => break,
                Token::Dot("version") => {
                    reader.at += 1;
                    outline.version = reader.version()?;
                }
                Token::Dot("target") => {
                    reader.at += 1;
                    outline.targets = reader.words();
                }
                Token::Dot("address_size") => {
                    reader.at += 1;
                    outline.address_size = u32::try_from(reader.integer()?).unwrap_or_default();
                }
                Token::Dot("section") => reader.skip_braces()?,
                Token::Dot(kind @ ("entry" | "func")) => {
                    reader.at += 1;
                    let (name, parameters, body) = reader.function()?;
                    // A declaration may come before the definition.
                    if kind == "entry" && body.is_some() {
                        entries.push((name, laid_out(&parameters)));
                    }
                    if let Some(body) = body {
                        functions.insert(name, body);
                    }
                }
                Token::Dot("global") => outline.global_bytes += sum(&reader.variables()?),
                Token::Dot("const") => constants.append(&mut reader.variables()?),
                Token::Dot("shared" | "shared::cta") => shared.append(&mut reader.variables()?),
                _ => reader.at += 1,
            }
        }
        if outline.version == (0, 0) || outline.targets.is_empty() {
            return Err(reader.error("it has no .version and .target: this is not PTX"));
        }
        outline.constant_bytes = sum(&constants);
        for (name, parameters) in entries {
            outline.entries.push(entry(name, parameters, &functions, &shared, &constants));
        }
        Ok(outline)
    }
}

/// Adds up what an entry has itself and what it names, directly or through what it calls.
fn entry(
    name: &str,
    parameters: Vec<ParameterOutline>,
    functions: &HashMap<&str, Body<'_>>,
    shared: &[Variable<'_>],
    constants: &[Variable<'_>],
) -> EntryOutline {
    let mut found = EntryOutline {
        name: name.to_owned(),
        parameters,
        ..EntryOutline::default()
    };
    let mut reached: HashSet<&str> = HashSet::from([name]);
    let mut waiting = vec![name];
    let mut names: HashSet<&str> = HashSet::new();
    let mut own_shared: Vec<&Variable<'_>> = Vec::new();
    let mut local: u64 = 0;
    while let Some(body) = waiting.pop().and_then(|name| functions.get(name)) {
        for (scalar, count) in &body.registers {
            *found.registers.entry(scalar.clone()).or_default() += count;
        }
        own_shared.extend(&body.shared);
        local += end(body.local.iter());
        for called in body.names.iter().filter(|name| functions.contains_key(*name)) {
            if reached.insert(called) {
                waiting.push(called);
            }
        }
        names.extend(&body.names);
    }
    if let Some(body) = functions.get(name) {
        found.max_block = body.max_block;
        found.required_block = body.required_block;
    }
    let named = shared.iter().filter(|variable| names.contains(variable.name));
    own_shared.extend(named);
    found.has_dynamic_shared = own_shared.iter().any(|variable| variable.is_open);
    found.shared_bytes = end(own_shared.into_iter());
    let constants = constants.iter().filter(|variable| names.contains(variable.name));
    found.constant_bytes = constants.map(|variable| variable.bytes).sum();
    found.local_bytes = local;
    found
}

fn sum(variables: &[Variable<'_>]) -> u64 {
    variables.iter().map(|variable| variable.bytes).fold(0, u64::saturating_add)
}

/// Where variables end that follow each other, each at its own alignment.
fn end<'v, 'a: 'v>(variables: impl Iterator<Item = &'v Variable<'a>>) -> u64 {
    variables.fold(0, |end: u64, variable| {
        end.checked_next_multiple_of(variable.align.max(1))
            .unwrap_or(u64::MAX)
            .saturating_add(variable.bytes)
    })
}

/// Offsets as the CUDA driver packs arguments.
fn laid_out(declared: &[Variable<'_>]) -> Vec<ParameterOutline> {
    let mut end = 0u64;
    let place = |variable: &Variable<'_>| {
        let offset = end.checked_next_multiple_of(variable.align.max(1)).unwrap_or(u64::MAX);
        end = offset.saturating_add(variable.bytes);
        ParameterOutline {
            name: variable.name.to_owned(),
            scalar: variable.scalar.to_owned(),
            bytes: variable.bytes,
            offset,
            is_pointer: variable.is_pointer,
        }
    };
    declared.iter().map(place).collect()
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens[self.at.min(self.tokens.len() - 1)].token
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn error(&self, reason: impl Into<String>) -> LoadError {
        let position: Position = self.tokens[self.at.min(self.tokens.len() - 1)].position;
        LoadError::new(position, "", LoadErrorKind::Syntax(reason.into()))
    }

    fn integer(&mut self) -> Result<u64, LoadError> {
        match self.next() {
            Token::Integer(value) => Ok(value),
            _ => Err(self.error("expected an integer")),
        }
    }

    /// `8.8` was lexed as one number; its text is what counts.
    fn version(&mut self) -> Result<(u32, u32), LoadError> {
        let spanned = self.tokens[self.at.min(self.tokens.len() - 1)];
        self.at += 1;
        let text = self.text.get(spanned.start..spanned.end).unwrap_or_default();
        let parsed = text
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parsed.ok_or_else(|| self.error("expected a version"))
    }

    /// `sm_90a, debug`
    fn words(&mut self) -> Vec<String> {
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

    /// To behind the brace that closes the next one that opens.
    fn skip_braces(&mut self) -> Result<(), LoadError> {
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

    /// `.shared .align 4 .b8 name[16], other;`, from its state space on.
    fn variables(&mut self) -> Result<Vec<Variable<'a>>, LoadError> {
        let mut found = vec![self.declaration()?];
        loop {
            match self.next() {
                Token::Mark(b';') => return Ok(found),
                Token::Mark(b',') => {
                    let Token::Name(name) = self.next() else {
                        return Err(self.error("expected a name"));
                    };
                    let (scalar, align) = (found[0].scalar, found[0].align);
                    let (elements, is_open) = self.dimensions()?;
                    found.push(Variable {
                        name,
                        scalar,
                        bytes: bytes(scalar).saturating_mul(elements),
                        align,
                        is_open,
                        is_pointer: false,
                    });
                }
                Token::Mark(b'=') if self.peek() == Token::Mark(b'{') => self.skip_braces()?,
                Token::End => return Err(self.error("a declaration is not ended")),
                _ => {}
            }
        }
    }

    /// One declaration, up to its dimensions.
    fn declaration(&mut self) -> Result<Variable<'a>, LoadError> {
        self.at += 1;
        let (mut align, mut scalar, mut width, mut is_pointer) = (None, None, 1, false);
        let name = loop {
            match self.next() {
                Token::Dot("align") => {
                    let value = self.integer()?;
                    // Behind `.ptr` it is the pointee's.
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
        Ok(Variable {
            name,
            scalar,
            bytes: bytes(scalar).saturating_mul(width).saturating_mul(elements),
            align: align.unwrap_or_else(|| (bytes(scalar) * width).max(1)),
            is_open,
            is_pointer,
        })
    }

    /// `[16][4]`: how many elements, and whether the array is open.
    fn dimensions(&mut self) -> Result<(u64, bool), LoadError> {
        let mut elements = 1u64;
        let mut is_open = false;
        while self.peek() == Token::Mark(b'[') {
            self.at += 1;
            if let Token::Integer(count) = self.peek() {
                elements = elements.saturating_mul(count);
                self.at += 1;
            } else {
                is_open = true;
            }
            if self.next() != Token::Mark(b']') {
                return Err(self.error("expected `]`"));
            }
        }
        Ok((if is_open { 0 } else { elements }, is_open))
    }

    /// Name, parameters and body of a function, from behind its directive on.
    #[allow(clippy::type_complexity, reason = "taken apart where it is called")]
    fn function(&mut self) -> Result<(&'a str, Vec<Variable<'a>>, Option<Body<'a>>), LoadError> {
        let mut parameters = Vec::new();
        let mut name = None;
        let mut body = Body::default();
        loop {
            match self.peek() {
                Token::Name(word) if name.is_none() => {
                    name = Some(word);
                    self.at += 1;
                }
                // Before the name it is what a function gives back.
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
                Token::End => return Err(self.error("a function has no body")),
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

    /// Declarations and names between a function's braces.
    fn body(&mut self, body: &mut Body<'a>) -> Result<(), LoadError> {
        let mut open = 0u32;
        // Modifiers of instructions look like directives: those stand at the beginning of a statement.
        let mut begins = true;
        loop {
            match self.peek() {
                Token::Dot("reg") if begins => self.registers(&mut body.registers)?,
                Token::Dot("shared" | "shared::cta") if begins => body.shared.append(&mut self.variables()?),
                Token::Dot("local") if begins => body.local.append(&mut self.variables()?),
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
                    begins = matches!(token, Token::Mark(b';' | b'{' | b'}' | b':'));
                }
            }
        }
    }

    /// `.reg .b32 %r<10>, %extra;`
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
                    *counts.entry(scalar.to_owned()).or_default() += count.saturating_mul(width);
                }
                Token::Mark(b';') => return Ok(()),
                Token::End => return Err(self.error("a declaration is not ended")),
                _ => {}
            }
        }
    }
}

/// Bytes of a type; 0 for one that has none or is unknown.
fn bytes(scalar: &str) -> u64 {
    match scalar {
        "texref" | "samplerref" | "surfref" => 8,
        _ => ScalarType::from_name(scalar).map_or(0, |scalar| scalar.bytes() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_a_gpu_runs_is_described_too() {
        let outline = Outline::of(
            ".version 8.8 .target sm_90a, debug .address_size 64
             .file 1 \"source.cu\"
             .const .align 4 .f32 table[3] = {0f3F800000, 0f3F800000, 0f3F800000};
             .const .u32 unused;
             .global .align 8 .u64 counter;
             .shared .align 16 .b8 tile[2][32];
             .extern .shared .align 4 .b8 dynamic[];
             .func (.param .b32 r) helper(.reg .u32 x) { .reg .b64 %rd<3>; ld.const.f32 %f1, [table]; ret; }
             .visible .entry first(.param .u32 n, .param .u64 .ptr .global .align 4 out, .param .align 8 .b8 pair[24])
             .maxntid 128, 2
             { .reg .b32 %r<5>, %extra; .shared .b8 own; .local .align 8 .b8 depot[16];
               wgmma.something.new %r1, [tile]; L: ld.shared.u32 %r1, [dynamic]; call (r), helper, (%r1); ret; }
             .entry second { .reg .pred %p<2>; ret; }",
        )
        .unwrap();
        assert_eq!((outline.version, outline.address_size), ((8, 8), 64));
        assert_eq!(outline.targets, ["sm_90a", "debug"]);
        assert_eq!((outline.global_bytes, outline.constant_bytes), (8, 16));
        let [first, second] = &outline.entries[..] else {
            panic!("{outline:?}")
        };
        let parameters: Vec<_> = first
            .parameters
            .iter()
            .map(|parameter| {
                (
                    parameter.name.as_str(),
                    parameter.scalar.as_str(),
                    parameter.bytes,
                    parameter.offset,
                    parameter.is_pointer,
                )
            })
            .collect();
        assert_eq!(
            parameters,
            [("n", "u32", 4, 0, false), ("out", "u64", 8, 8, true), ("pair", "b8", 24, 16, false)]
        );
        assert_eq!(first.registers, BTreeMap::from([("b32".to_owned(), 6), ("b64".to_owned(), 3)]));
        // One byte, then the tile at its alignment of 16.
        assert_eq!((first.shared_bytes, first.constant_bytes, first.local_bytes), (80, 12, 16));
        assert!(first.has_dynamic_shared);
        assert_eq!((first.max_block, first.required_block), (Some([128, 2, 1]), None));
        assert_eq!(
            (second.name.as_str(), second.shared_bytes, second.has_dynamic_shared),
            ("second", 0, false)
        );
        assert_eq!(second.registers, BTreeMap::from([("pred".to_owned(), 2)]));
    }

    #[test]
    fn text_that_is_no_ptx_is_refused_with_its_place() {
        let error = Outline::of("int main() { return 0; }").unwrap_err();
        assert!(error.to_string().contains("this is not PTX"), "{error}");
        let error = Outline::of(".version 8.0 .target sm_80\n.entry k(.param .u64 a) { ret;").unwrap_err();
        assert_eq!(error.line, 2, "{error}");
    }
}
