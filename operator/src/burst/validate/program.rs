//! Checks that the PTX has the entry, and that the entry accepts the arguments and the block.
//!
//! The signature is parsed here from the text, regardless of the instructions, because PTX that only a GPU can run is not an error of the
//! job. Then the parser of the CPU engine checks the whole text. Its errors reject the job, unless the job selects a class of GPU, whose
//! driver then decides. Features that the parser does not support reject the job only for the class `cpu`.

use sahasra_crds::burst_job::{Argument, Kernel, ScalarType};
use sahasra_parameters::{Program as Chunks, is_integer};
use sahasra_ptx::{LoadErrorKind, Module};

use super::{Invalid, refuse};

/// Class of the CPU engine's devices.
const CPU: &str = "cpu";

/// Maximum sum of the sizes of a kernel's parameters, in bytes (PTX ISA, kernel function parameters, from 8.1 on: 32 764).
const MAX_PARAMETER_BYTES: usize = 32_764;

/// Checks the entry, and the number and sizes of its parameters.
pub(super) fn check(ptx: &[u8], kernel: &Kernel, chunks: &Chunks, class: Option<&str>) -> Result<(), Invalid> {
    let Ok(text) = std::str::from_utf8(ptx) else {
        return refuse("spec.kernel.ptx", "InvalidPtx", "it is not UTF-8 text");
    };
    let plain = without_comments(text);
    if !plain.contains(".version") || !plain.contains(".target") {
        return refuse("spec.kernel.ptx", "InvalidPtx", "it has no .version and .target: this is not PTX");
    }
    let entries = entries(&plain);
    let Some((_, parameters)) = entries.iter().find(|(name, _)| *name == kernel.entry) else {
        let names: Vec<&str> = entries.iter().map(|(name, _)| *name).collect();
        let message = format!(
            "the PTX has no .entry {:?}; it has: {}",
            kernel.entry,
            if names.is_empty() { "none".into() } else { names.join(", ") }
        );
        return refuse("spec.kernel.entry", "EntryMissing", message);
    };
    let declared = match parameters {
        Ok(declared) => declared,
        Err(declaration) => {
            return refuse(
                "spec.kernel.ptx",
                "InvalidPtx",
                format!("cannot read the parameter {declaration:?} of .entry {}", kernel.entry),
            );
        }
    };
    if declared.len() != kernel.args.len() {
        let message = format!(
            ".entry {} takes {} arguments, {} are given: give one for each parameter, in the order of the PTX",
            kernel.entry,
            declared.len(),
            kernel.args.len()
        );
        return refuse("spec.kernel.args", "ArgumentCount", message);
    }
    let total = declared.iter().fold(0_usize, |sum, parameter| sum.saturating_add(parameter.bytes));
    if total > MAX_PARAMETER_BYTES {
        return refuse(
            "spec.kernel.ptx",
            "InvalidPtx",
            format!(
                ".entry {} takes {total} bytes of parameters, at most {MAX_PARAMETER_BYTES} are allowed: pass large data as an input",
                kernel.entry
            ),
        );
    }
    for (index, (argument, parameter)) in kernel.args.iter().zip(declared).enumerate() {
        let path = || format!("spec.kernel.args[{index}]");
        let given = scalar_type(argument, chunks);
        // Pointers have 8 bytes.
        let bytes = given.map_or(8, ScalarType::bytes);
        let Parameter { bytes: expected, number } = *parameter;
        if bytes != expected {
            let message = format!(
                "parameter {index} of .entry {} has {expected} bytes, the argument has {bytes}: give a value of the parameter's type",
                kernel.entry
            );
            return refuse(path(), "ArgumentSize", message);
        }
        let given = match given {
            Some(type_) if is_integer(type_) => Number::Integer,
            Some(_) => Number::Float,
            // An address.
            None => Number::Integer,
        };
        if let Some(number) = number.filter(|number| *number != given) {
            let message = format!(
                "parameter {index} of .entry {} is {number}, the argument is {given}, and values are not converted: give a value of the \
                 parameter's type, or declare the parameter as .b{} if the kernel interprets the bits itself",
                kernel.entry,
                expected * 8
            );
            return refuse(path(), "ArgumentType", message);
        }
    }
    check_module(text, kernel, class)
}

/// Checks the whole text with the CPU engine's parser, and the block against the entry's launch bounds.
fn check_module(text: &str, kernel: &Kernel, class: Option<&str>) -> Result<(), Invalid> {
    let module = match Module::load(text) {
        Ok(module) => module,
        Err(error) => {
            let refused = match error.kind {
                LoadErrorKind::Unsupported(_) => class == Some(CPU),
                _ => class.is_none_or(|class| class == CPU),
            };
            return if refused {
                refuse("spec.kernel.ptx", "InvalidPtx", error.to_string())
            } else {
                Ok(())
            };
        }
    };
    let Some(entry) = module.entry(&kernel.entry) else { return Ok(()) };
    let size = |axis: usize| kernel.block.get(axis).copied().unwrap_or(1);
    let block = [size(0), size(1), size(2)];
    let threads: i64 = block.iter().product();
    if threads > i64::from(entry.max_threads()) {
        let message = format!(
            "{threads} threads: .entry {} takes at most {} in a block",
            kernel.entry,
            entry.max_threads()
        );
        return refuse("spec.kernel.block", "LaunchBounds", message);
    }
    match entry.required_block() {
        Some(required) if required.map(i64::from) != block => {
            let message = format!(".entry {} takes blocks of {required:?} only", kernel.entry);
            refuse("spec.kernel.block", "LaunchBounds", message)
        }
        _ => Ok(()),
    }
}

/// A parameter of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameter {
    bytes: usize,
    /// `None` for untyped bits, packed values and arrays.
    number: Option<Number>,
}

/// Kinds of numbers. A value of one kind is not converted to the other, so its bits would be misread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Integer,
    Float,
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Integer => "an integer",
            Self::Float => "a floating-point number",
        })
    }
}

/// Type of an argument that is passed by value; `None` for a pointer.
fn scalar_type(argument: &Argument, chunks: &Chunks) -> Option<ScalarType> {
    match argument {
        Argument { parameter: Some(name), .. } => chunks.position(name).map(|at| chunks.parameters()[at].type_),
        Argument {
            chunk_index: Some(index), ..
        } => Some(index.type_),
        Argument { scalar: Some(scalar), .. } => Some(scalar.type_),
        _ => None,
    }
}

/// Name of each entry, with its parameters or the first declaration that cannot be parsed.
fn entries(text: &str) -> Vec<(&str, Result<Vec<Parameter>, &str>)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(".entry") {
        let after = &rest[at + ".entry".len()..];
        rest = after;
        if !after.starts_with(|next: char| next.is_ascii_whitespace()) {
            continue;
        }
        let after = after.trim_start();
        let end = after.find(|next: char| !is_name(next)).unwrap_or(after.len());
        let (name, after) = after.split_at(end);
        if name.is_empty() {
            continue;
        }
        // A kernel without parameters may omit the parentheses.
        let parameters = match after.trim_start().strip_prefix('(').and_then(|list| list.split_once(')')) {
            None => Ok(Vec::new()),
            Some((list, _)) => list
                .split(',')
                .map(str::trim)
                .filter(|declaration| !declaration.is_empty())
                .map(|declaration| parameter(declaration).ok_or(declaration))
                .collect(),
        };
        found.push((name, parameters));
    }
    found
}

/// Parses a declaration such as `.param .u64 .ptr .global .align 4 name` or `.param .align 8 .b8 name[24]`.
fn parameter(declaration: &str) -> Option<Parameter> {
    let mut type_ = None;
    let mut is_pointer = false;
    let mut words = declaration.split_ascii_whitespace();
    if words.next() != Some(".param") {
        return None;
    }
    let mut last = "";
    for word in words {
        last = word;
        is_pointer |= word == ".ptr";
        let (bytes, number) = match word {
            ".b8" => (1, None),
            ".u8" | ".s8" => (1, Some(Number::Integer)),
            ".b16" => (2, None),
            ".u16" | ".s16" => (2, Some(Number::Integer)),
            ".f16" => (2, Some(Number::Float)),
            ".b32" | ".f16x2" => (4, None),
            ".u32" | ".s32" => (4, Some(Number::Integer)),
            ".f32" => (4, Some(Number::Float)),
            ".b64" => (8, None),
            ".u64" | ".s64" => (8, Some(Number::Integer)),
            ".f64" => (8, Some(Number::Float)),
            _ => continue,
        };
        type_ = type_.or(Some(Parameter { bytes, number }));
    }
    let type_ = type_?;
    Some(match last.split_once('[') {
        Some((_, count)) => Parameter {
            bytes: type_.bytes.checked_mul(count.strip_suffix(']')?.trim().parse().ok()?)?,
            number: None,
        },
        None if is_pointer => Parameter { number: None, ..type_ },
        None => type_,
    })
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '$' | '%')
}

/// The text with comments replaced by blanks (PTX ISA, comments: as in C++).
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
            plain.push(' ');
        } else {
            plain.push('/');
            rest = &rest[1..];
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_read_whatever_the_body() {
        let text = "
            .version 8.8 .target sm_90a .address_size 64
            // .entry commented(.param .u64 a)
            .visible .entry first(.param .u64 .ptr .global .align 4 out, .param .f32 x,\n .param .align 8 .b8 pair[24])
            { wgmma.something.new; }
            /* .entry also() */ .entry second { ret; }
            .entry third() { ret; }";
        let plain = without_comments(text);
        let found = entries(&plain);
        let parameter = |bytes, number| Parameter { bytes, number };
        let first = vec![parameter(8, None), parameter(4, Some(Number::Float)), parameter(24, None)];
        assert_eq!(found, [("first", Ok(first)), ("second", Ok(vec![])), ("third", Ok(vec![]))]);
    }

    #[test]
    fn a_declaration_that_is_none_is_named() {
        assert_eq!(entries(".entry k(.param .u64 a, nonsense)"), [("k", Err("nonsense"))]);
    }
}
