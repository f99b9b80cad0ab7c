//! Checks that the PTX has the entry, and that the entry accepts the arguments and the block.
//!
//! Admission reads the syntax only; nothing is compiled here (ADR 40). The signature comes from the [`Outline`], which does not depend on
//! instructions, because PTX that only a GPU can run is not an error of the job. Then the parser checks the whole text. A syntax error
//! rejects the job, unless the job selects a class of GPU, whose driver then decides. Instructions that the CPU engine does not support
//! reject the job only for the class `cpu`. All other errors are found where the PTX is loaded, and fail the chunks with `LoadFailed`.

use sahasra_crds::burst_job::{Argument, Kernel, ScalarType};
use sahasra_names::Backend;
use sahasra_parameters::{Program as Chunks, is_integer};
use sahasra_ptx_syntax::{
    PARAMETER_LIMIT,
    error::{LoadError, LoadErrorKind},
    instructions,
    outline::{EntryOutline, Outline, ParameterOutline},
    parser::parse,
};

use super::{Invalid, refuse};

/// Class of the CPU engine's devices.
const CPU: &str = Backend::Cpu.as_str();

pub(super) fn check(ptx: &[u8], kernel: &Kernel, chunks: &Chunks, class: Option<&str>) -> Result<(), Invalid> {
    let invalid = |message: String| refuse("spec.kernel.ptx", "InvalidPtx", message);
    let Ok(text) = std::str::from_utf8(ptx) else {
        return invalid("invalid PTX: expected UTF-8 text".into());
    };
    let outline = match Outline::of(text) {
        Ok(outline) => outline,
        Err(error) => return invalid(error.to_string()),
    };
    let Some(entry) = outline.entries.iter().find(|entry| entry.name == kernel.entry) else {
        let names: Vec<&str> = outline.entries.iter().map(|entry| entry.name.as_str()).collect();
        let message = format!(
            ".entry {:?} not found in the PTX; it has: {}",
            kernel.entry,
            if names.is_empty() { "none".into() } else { names.join(", ") }
        );
        return refuse("spec.kernel.entry", "EntryNotFound", message);
    };
    check_arguments(&entry.parameters, kernel, chunks)?;
    check_block(entry, kernel)?;
    match check_text(text, class) {
        Some(error) => invalid(error.to_string()),
        None => Ok(()),
    }
}

/// Checks the number, sizes and kinds of the arguments against the declared parameters.
fn check_arguments(declared: &[ParameterOutline], kernel: &Kernel, chunks: &Chunks) -> Result<(), Invalid> {
    if declared.len() != kernel.args.len() {
        let message = format!(
            ".entry {} takes {} arguments, {} are specified: specify one for each parameter, in the order of the PTX",
            kernel.entry,
            declared.len(),
            kernel.args.len()
        );
        return refuse("spec.kernel.args", "ArgumentCountMismatch", message);
    }
    let total = declared.iter().fold(0_u64, |sum, parameter| sum.saturating_add(parameter.bytes));
    if total > PARAMETER_LIMIT as u64 {
        return refuse(
            "spec.kernel.ptx",
            "InvalidPtx",
            format!(
                ".entry {} takes {total} bytes of parameters, at most {PARAMETER_LIMIT} are allowed: pass large data as an input",
                kernel.entry
            ),
        );
    }
    for (index, (argument, parameter)) in kernel.args.iter().zip(declared).enumerate() {
        let path = || format!("spec.kernel.args[{index}]");
        let given = scalar_type(argument, chunks);
        // Pointers have 8 bytes.
        let bytes = given.map_or(8, ScalarType::bytes) as u64;
        let (expected, number) = (parameter.bytes, number(parameter));
        if bytes != expected {
            let message = format!(
                "parameter {index} of .entry {} has {expected} bytes, the argument has {bytes}: specify a value of the parameter's type",
                kernel.entry
            );
            return refuse(path(), "ArgumentSizeMismatch", message);
        }
        let given = match given {
            Some(type_) if is_integer(type_) => Number::Integer,
            Some(_) => Number::Float,
            // An address.
            None => Number::Integer,
        };
        if let Some(number) = number.filter(|number| *number != given) {
            let message = format!(
                "parameter {index} of .entry {} is {number}, the argument is {given}, and values are not converted: specify a value of \
                 the parameter's type, or declare the parameter as .b{} if the kernel interprets the bits itself",
                kernel.entry,
                expected * 8
            );
            return refuse(path(), "ArgumentTypeMismatch", message);
        }
    }
    Ok(())
}

/// Checks the block against the entry's `.maxntid` and `.reqntid`.
fn check_block(entry: &EntryOutline, kernel: &Kernel) -> Result<(), Invalid> {
    let size = |axis: usize| kernel.block.get(axis).copied().unwrap_or(1);
    let block = [size(0), size(1), size(2)];
    let threads: i64 = block.iter().product();
    let most = entry.required_block.or(entry.max_block);
    let most = most.map_or(u64::MAX, |extent| {
        extent.iter().map(|size| u64::from(*size)).fold(1, u64::saturating_mul)
    });
    if u64::try_from(threads).is_ok_and(|threads| threads > most) {
        let message = format!("{threads} threads: .entry {} takes at most {most} in a block", kernel.entry);
        return refuse("spec.kernel.block", "InvalidBlockSize", message);
    }
    match entry.required_block {
        Some(required) if required.map(i64::from) != block => {
            let message = format!(".entry {} takes blocks of {required:?} only", kernel.entry);
            refuse("spec.kernel.block", "InvalidBlockSize", message)
        }
        _ => Ok(()),
    }
}

/// Returns the first syntax error of the whole text, and for the class of the CPU engine the first instruction that this engine does not
/// support.
fn check_text(text: &str, class: Option<&str>) -> Option<LoadError> {
    let is_cpu = class == Some(CPU);
    match parse(text) {
        Ok(source) => is_cpu.then(|| instructions::unsupported(&source)).flatten(),
        Err(error) => {
            let rejects = match error.kind {
                LoadErrorKind::Unsupported(_) => is_cpu,
                _ => is_cpu || class.is_none(),
            };
            rejects.then_some(error)
        }
    }
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

/// Kind of number of a parameter; `None` for untyped bits, packed values, arrays and pointers (an address is any 8 bytes).
fn number(parameter: &ParameterOutline) -> Option<Number> {
    let (bytes, number) = match parameter.scalar.as_str() {
        "u8" | "s8" => (1, Number::Integer),
        "u16" | "s16" => (2, Number::Integer),
        "f16" => (2, Number::Float),
        "u32" | "s32" => (4, Number::Integer),
        "f32" => (4, Number::Float),
        "u64" | "s64" => (8, Number::Integer),
        "f64" => (8, Number::Float),
        _ => return None,
    };
    (parameter.bytes == bytes && !parameter.is_pointer).then_some(number)
}
