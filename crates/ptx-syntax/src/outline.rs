//! Declarations of a PTX text, independent of its instructions.
//!
//! [`Outline::of`] reads only directives, so it also describes modules that only a GPU can run. Sizes are those that the text declares; the
//! driver assigns hardware registers.

mod read;

use std::collections::{BTreeMap, HashMap, HashSet};

use self::read::{Body, Reader, Variable};
use crate::error::LoadError;
use crate::lexer::{Token, tokens};
use crate::parser::PARAMETER_LISTS;

/// Declarations of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Version of the PTX ISA: major, minor.
    pub version: (u32, u32),
    /// Target architecture, such as `sm_80`, followed by its options.
    pub targets: Vec<String>,
    /// Size of an address in bits: 64 unless the text says otherwise.
    pub address_size: u32,
    /// Kernels in the order of the text.
    pub entries: Vec<EntryOutline>,
    /// Bytes of `.global` variables, including those declared in functions.
    pub global_bytes: u64,
    /// Bytes of module-scope `.const` variables.
    pub constant_bytes: u64,
    /// Names of module-scope `.global` and `.const` variables in the order of the text.
    pub variables: Vec<String>,
}

/// Declarations of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryOutline {
    /// Name of the kernel in the PTX text.
    pub name: String,
    pub parameters: Vec<ParameterOutline>,
    /// Virtual registers by type, such as `b32`.
    pub registers: BTreeMap<String, u64>,
    /// Bytes of static shared memory: the kernel's own variables, and those of the module that the kernel or its callees name.
    pub shared_bytes: u64,
    /// Whether the kernel takes further shared memory at launch, because it names an open array.
    pub has_dynamic_shared: bool,
    /// Bytes of `.const` variables that the kernel or its callees name.
    pub constant_bytes: u64,
    /// Bytes of local memory of a thread.
    pub local_bytes: u64,
    /// `.maxntid`: maximum number of threads of a block along each axis.
    pub max_block: Option<[u32; 3]>,
    /// `.reqntid`: required number of threads of a block along each axis.
    pub required_block: Option<[u32; 3]>,
}

/// Declaration of a kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterOutline {
    /// Name of the parameter in the PTX text.
    pub name: String,
    /// Type of one element, such as `f32`.
    pub scalar: String,
    /// Size of the parameter in bytes.
    pub bytes: u64,
    /// Offset in the parameter buffer in bytes.
    pub offset: u64,
    /// Whether the text declares the parameter as a pointer (`.ptr`). Many compilers omit this.
    pub is_pointer: bool,
}

impl Outline {
    /// Reads the directives of a text.
    ///
    /// # Errors
    /// The text does not consist of PTX tokens, ends inside a declaration, or lacks a version or a target.
    pub fn of(ptx: &str) -> Result<Self, LoadError> {
        let mut reader = Reader {
            text: ptx,
            tokens: tokens(ptx)?,
            at: 0,
        };
        let mut outline = Self {
            address_size: 64,
            ..Self::default()
        };
        let mut shared: Vec<Variable<'_>> = Vec::new();
        let mut constants: Vec<Variable<'_>> = Vec::new();
        let mut locals: Vec<Variable<'_>> = Vec::new();
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
                    let (name, mut parameters, mut body) = reader.function()?;
                    if let Some(body) = &mut body
                        && outline.version < PARAMETER_LISTS
                    {
                        parameters.append(&mut body.parameters);
                    }
                    // A function may be declared before it is defined.
                    if kind == "entry" && body.is_some() {
                        entries.push((name, laid_out(&parameters)));
                    }
                    if let Some(body) = body {
                        outline.global_bytes = outline.global_bytes.saturating_add(sum(&body.global));
                        outline.constant_bytes = outline.constant_bytes.saturating_add(sum(&body.constant));
                        functions.insert(name, body);
                    }
                }
                Token::Dot("global") => {
                    let found = reader.variables()?;
                    outline.global_bytes = outline.global_bytes.saturating_add(sum(&found));
                    outline.variables.extend(names(&found));
                }
                Token::Dot("tex") => {
                    let handles = 8 * reader.variables()?.len() as u64;
                    outline.global_bytes = outline.global_bytes.saturating_add(handles);
                }
                Token::Dot("const") => {
                    let mut found = reader.variables()?;
                    outline.variables.extend(names(&found));
                    constants.append(&mut found);
                }
                Token::Dot("shared" | "shared::cta") => shared.append(&mut reader.variables()?),
                Token::Dot("local") => locals.append(&mut reader.variables()?),
                _ => reader.at += 1,
            }
        }
        if outline.version == (0, 0) || outline.targets.is_empty() {
            return Err(reader.error("it has no .version and .target: this is not PTX"));
        }
        outline.constant_bytes = outline.constant_bytes.saturating_add(sum(&constants));
        for (name, parameters) in entries {
            outline
                .entries
                .push(entry(name, parameters, &functions, [&shared, &constants, &locals]));
        }
        Ok(outline)
    }
}

/// Adds up the declarations of an entry, and those that it names, directly or through its callees.
fn entry(
    name: &str,
    parameters: Vec<ParameterOutline>,
    functions: &HashMap<&str, Body<'_>>,
    [shared, constants, locals]: [&[Variable<'_>]; 3],
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
    let mut constant_bytes: u64 = 0;
    while let Some(body) = waiting.pop().and_then(|name| functions.get(name)) {
        for (scalar, count) in &body.registers {
            let total = found.registers.entry(scalar.clone()).or_default();
            *total = total.saturating_add(*count);
        }
        own_shared.extend(&body.shared);
        local = local.saturating_add(end(body.local.iter()));
        constant_bytes = constant_bytes.saturating_add(sum(&body.constant));
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
    found.constant_bytes = constants.map(|variable| variable.bytes).fold(constant_bytes, u64::saturating_add);
    found.local_bytes = local.saturating_add(end(locals.iter().filter(|variable| names.contains(variable.name))));
    found
}

fn names(variables: &[Variable<'_>]) -> impl Iterator<Item = String> {
    variables.iter().map(|variable| variable.name.to_owned())
}

fn sum(variables: &[Variable<'_>]) -> u64 {
    variables.iter().map(|variable| variable.bytes).fold(0, u64::saturating_add)
}

/// Returns the end of consecutive variables, each at its own alignment.
fn end<'v, 'a: 'v>(variables: impl Iterator<Item = &'v Variable<'a>>) -> u64 {
    variables.fold(0, |end: u64, variable| {
        end.checked_next_multiple_of(variable.align.max(1))
            .unwrap_or(u64::MAX)
            .saturating_add(variable.bytes)
    })
}

/// Lays out parameters as the CUDA driver packs arguments.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_only_a_gpu_can_run_are_described() {
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
        assert_eq!(outline.variables, ["table", "unused", "counter"]);
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
    fn global_variables_are_counted_wherever_and_however_they_are_declared() {
        let global_bytes = |text: &str| {
            let ptx = format!(".version 7.0 .target sm_70 .address_size 64 {text}");
            Outline::of(&ptx).unwrap().global_bytes
        };
        assert_eq!(global_bytes(".visible .global .align 16 .v4 .f32 a[3], b;"), 64);
        assert_eq!(
            global_bytes(".entry k() { .reg .b64 %r; L: .global .b8 inner[100]; { .global .u32 other; } ld.global.u64 %r, [inner]; ret; }"),
            104
        );
        // A `.loc` has no semicolon.
        assert_eq!(
            global_bytes(".entry k() { .loc 1 1 0 .global .b8 inner[100]; .loc 1 2 0 ld.global.b8 %r, [inner]; .loc 1 3 0 ret; }"),
            100
        );
        assert_eq!(
            global_bytes(".global .b32 open[] = {1, 2, 3}; .global .u16 rows[][4] = {{1, 2}, {3}}; .global .b8 text[] = {0};"),
            29
        );
        assert_eq!(global_bytes(".extern .global .b8 elsewhere[];"), 0);
        assert_eq!(global_bytes(".tex .u32 first, second; .global .texref third;"), 24);
        assert_eq!(
            global_bytes(".global .b8 a[18446744073709551615]; .global .b64 b[2305843009213693952], c;"),
            u64::MAX
        );
    }

    #[test]
    fn text_that_is_not_ptx_is_rejected_with_its_position() {
        let error = Outline::of("int main() { return 0; }").unwrap_err();
        assert!(error.to_string().contains("this is not PTX"), "{error}");
        let error = Outline::of(".version 8.0 .target sm_80\n.entry k(.param .u64 a) { ret;").unwrap_err();
        assert_eq!(error.line, 2, "{error}");
    }
}
