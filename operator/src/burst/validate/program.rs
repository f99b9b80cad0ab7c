//! Checks that the PTX has the entry, and that the entry accepts the arguments and the block.
//!
//! Admission reads the syntax only; nothing is compiled here (ADR 40). The signature comes from the [`Outline`], which does not depend on
//! instructions, because PTX that only a GPU can run is not an error of the job. Then the parser checks the whole text. A syntax error
//! rejects the job, unless the job selects a class of GPU, whose driver then decides. Instructions that the CPU engine does not support
//! reject the job only for the class `cpu`. All other errors are found where the PTX is loaded, and fail the chunks with `LoadFailed`.

use sahasra_crds::burst_job::{ArgumentChoice, ScalarType};
use sahasra_names::Backend;
use sahasra_parameters::{Program as Chunks, is_integer};
use sahasra_ptx_syntax::{
    PARAMETER_LIMIT,
    error::{LoadError, LoadErrorKind},
    instructions,
    outline::{EntryOutline, Outline, ParameterOutline},
    parser::parse,
};

use super::refuse;
use crate::burst::observe::Invalid;

/// Class of the CPU engine's devices.
const CPU: &str = Backend::Cpu.as_str();

/// The launch of the kernel, as far as the PTX declares what it must be.
#[derive(Clone, Copy)]
pub(super) struct Launch<'a> {
    pub entry: &'a str,
    /// Number of threads of a block in x, y and z.
    pub block: [u32; 3],
    pub arguments: &'a [ArgumentChoice<'a>],
}

pub(super) fn check(ptx: &[u8], launch: Launch<'_>, chunks: &Chunks, class: Option<&str>) -> Result<(), Invalid> {
    let invalid = |message: String| refuse("spec.kernel.ptx", "InvalidPtx", message);
    let Ok(text) = std::str::from_utf8(ptx) else {
        return invalid("invalid PTX: expected UTF-8 text".into());
    };
    let outline = match Outline::of(text) {
        Ok(outline) => outline,
        Err(error) => return invalid(error.to_string()),
    };
    let Some(entry) = outline.entries.iter().find(|entry| entry.name == launch.entry) else {
        let names: Vec<&str> = outline.entries.iter().map(|entry| entry.name.as_str()).collect();
        let message = format!(
            ".entry {:?} not found in the PTX; it has: {}",
            launch.entry,
            if names.is_empty() { "none".into() } else { names.join(", ") }
        );
        return refuse("spec.kernel.entry", "EntryNotFound", message);
    };
    check_arguments(entry, launch.arguments, chunks)?;
    check_block(entry, launch.block)?;
    match check_text(text, class) {
        Some(error) => invalid(error.to_string()),
        None => Ok(()),
    }
}

/// Checks the number, sizes and kinds of the arguments against the declared parameters.
fn check_arguments(entry: &EntryOutline, arguments: &[ArgumentChoice<'_>], chunks: &Chunks) -> Result<(), Invalid> {
    let (name, declared) = (&entry.name, &entry.parameters);
    if declared.len() != arguments.len() {
        let message = format!(
            ".entry {name} takes {} arguments, {} are specified: specify one for each parameter, in the order of the PTX",
            declared.len(),
            arguments.len()
        );
        return refuse("spec.kernel.args", "ArgumentCountMismatch", message);
    }
    let total = declared.iter().fold(0_u64, |sum, parameter| sum.saturating_add(parameter.bytes));
    if total > PARAMETER_LIMIT as u64 {
        return refuse(
            "spec.kernel.ptx",
            "InvalidPtx",
            format!(".entry {name} takes {total} bytes of parameters, at most {PARAMETER_LIMIT} are allowed: pass large data as an input"),
        );
    }
    for (index, (&argument, parameter)) in arguments.iter().zip(declared).enumerate() {
        let path = || format!("spec.kernel.args[{index}]");
        let given = scalar_type(argument, chunks);
        // Pointers have 8 bytes.
        let bytes = given.map_or(8, ScalarType::bytes) as u64;
        let (expected, number) = (parameter.bytes, number(parameter));
        if bytes != expected {
            let message = format!(
                "parameter {index} of .entry {name} has {expected} bytes, the argument has {bytes}: specify a value of the parameter's type"
            );
            return refuse(path(), "ArgumentSizeMismatch", message);
        }
        let given = match given {
            Some(type_) if !is_integer(type_) => FLOAT,
            // An integer, or an address.
            _ => INTEGER,
        };
        if let Some(number) = number.filter(|number| *number != given) {
            let message = format!(
                "parameter {index} of .entry {name} is {number}, the argument is {given}, and values are not converted: specify a value of \
                 the parameter's type, or declare the parameter as .b{} if the kernel interprets the bits itself",
                expected * 8
            );
            return refuse(path(), "ArgumentTypeMismatch", message);
        }
    }
    Ok(())
}

/// Checks the block against the entry's `.maxntid` and `.reqntid`.
fn check_block(entry: &EntryOutline, block: [u32; 3]) -> Result<(), Invalid> {
    let product = |extent: [u32; 3]| extent.iter().map(|size| u64::from(*size)).fold(1, u64::saturating_mul);
    let threads = product(block);
    let most = entry.required_block.or(entry.max_block).map_or(u64::MAX, product);
    if threads > most {
        let message = format!("{threads} threads: .entry {} takes at most {most} in a block", entry.name);
        return refuse("spec.kernel.block", "InvalidBlockSize", message);
    }
    match entry.required_block {
        Some(required) if required != block => {
            let message = format!(".entry {} takes blocks of {required:?} only", entry.name);
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

// Kinds of numbers, for error messages. A value of one kind is not converted to the other, so its bits would be misread.
const INTEGER: &str = "an integer";
const FLOAT: &str = "a floating-point number";

/// Type of an argument that is passed by value; `None` for a pointer.
fn scalar_type(argument: ArgumentChoice<'_>, chunks: &Chunks) -> Option<ScalarType> {
    match argument {
        ArgumentChoice::Parameter(name) => chunks.position(name).map(|at| chunks.parameters()[at].type_),
        ArgumentChoice::ChunkIndex(index) => Some(index.type_),
        ArgumentChoice::Scalar(scalar) => Some(scalar.type_),
        ArgumentChoice::Output(_) | ArgumentChoice::Input(_) | ArgumentChoice::Constant(_) => None,
    }
}

/// Kind of number of a parameter; `None` for untyped bits, packed values, arrays and pointers (an address is any 8 bytes).
fn number(parameter: &ParameterOutline) -> Option<&'static str> {
    let (bytes, number) = match parameter.scalar.as_str() {
        "u8" | "s8" => (1, INTEGER),
        "u16" | "s16" => (2, INTEGER),
        "f16" => (2, FLOAT),
        "u32" | "s32" => (4, INTEGER),
        "f32" => (4, FLOAT),
        "u64" | "s64" => (8, INTEGER),
        "f64" => (8, FLOAT),
        _ => return None,
    };
    (parameter.bytes == bytes && !parameter.is_pointer).then_some(number)
}
