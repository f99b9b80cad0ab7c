//! Checks that the PTX has the entry, and that the entry accepts the arguments and the block.
//!
//! The signature is parsed here from the text, regardless of the instructions, because PTX that only a GPU can run is not an error of the
//! job. Then the parser of the CPU engine checks the whole text. Its errors reject the job, unless the job selects a class of GPU, whose
//! driver then decides. Features that the parser does not support reject the job only for the class `cpu`.

use sahasra_crds::burst_job::{Argument, Kernel};
use sahasra_parameters::Program as Chunks;

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
    let sizes = match parameters {
        Ok(sizes) => sizes,
        Err(declaration) => {
            return refuse(
                "spec.kernel.ptx",
                "InvalidPtx",
                format!("cannot read the parameter {declaration:?} of .entry {}", kernel.entry),
            );
        }
    };
    if sizes.len() != kernel.args.len() {
        let message = format!(
            ".entry {} takes {} arguments, {} are given",
            kernel.entry,
            sizes.len(),
            kernel.args.len()
        );
        return refuse("spec.kernel.args", "ArgumentCount", message);
    }
    let total: usize = sizes.iter().sum();
    if total > MAX_PARAMETER_BYTES {
        return refuse(
            "spec.kernel.ptx",
            "InvalidPtx",
            format!(".entry {} takes {total} bytes of parameters", kernel.entry),
        );
    }
    for (index, (argument, size)) in kernel.args.iter().zip(sizes).enumerate() {
        let given = bytes(argument, chunks);
        if given != *size {
            let message = format!(
                "argument {index} of .entry {} has {size} bytes, what is given has {given}",
                kernel.entry
            );
            return refuse(format!("spec.kernel.args[{index}]"), "ArgumentSize", message);
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

/// Size of an argument as the kernel declares it, in bytes. Pointers have 8.
fn bytes(argument: &Argument, chunks: &Chunks) -> usize {
    match argument {
        Argument { parameter: Some(name), .. } => chunks.position(name).map_or(0, |at| chunks.parameters()[at].type_.bytes()),
        Argument {
            chunk_index: Some(index), ..
        } => index.type_.bytes(),
        Argument { scalar: Some(scalar), .. } => scalar.type_.bytes(),
        _ => 8,
    }
}

/// Name of each entry, with the sizes of its parameters or the first declaration that cannot be parsed.
fn entries(text: &str) -> Vec<(&str, Result<Vec<usize>, &str>)> {
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
                .map(|declaration| size(declaration).ok_or(declaration))
                .collect(),
        };
        found.push((name, parameters));
    }
    found
}

/// Size in bytes of a declaration such as `.param .u64 .ptr .global .align 4 name` or `.param .align 8 .b8 name[24]`.
fn size(declaration: &str) -> Option<usize> {
    let mut bytes: Option<usize> = None;
    let mut words = declaration.split_ascii_whitespace();
    if words.next() != Some(".param") {
        return None;
    }
    let mut last = "";
    for word in words {
        last = word;
        let type_bytes = match word {
            ".b8" | ".u8" | ".s8" => 1,
            ".b16" | ".u16" | ".s16" | ".f16" => 2,
            ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" => 4,
            ".b64" | ".u64" | ".s64" | ".f64" => 8,
            _ => continue,
        };
        bytes = bytes.or(Some(type_bytes));
    }
    let elements = match last.split_once('[') {
        Some((_, count)) => count.strip_suffix(']')?.trim().parse().ok()?,
        None => 1,
    };
    bytes?.checked_mul(elements)
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
        assert_eq!(
            found,
            [("first", Ok(vec![8, 4, 24])), ("second", Ok(vec![])), ("third", Ok(vec![]))]
        );
    }

    #[test]
    fn a_declaration_that_is_none_is_named() {
        assert_eq!(entries(".entry k(.param .u64 a, nonsense)"), [("k", Err("nonsense"))]);
    }
}
