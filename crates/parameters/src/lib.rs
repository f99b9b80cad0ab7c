//! Parameters of a burst's chunks in a compiled form: validated once at the operator, evaluated at the agents.
//!
//! [`Program::compile`] takes `spec.chunks` and gives a [`Program`], or a [`CompileError`] with the field's path and the remedy.
//! [`Program::evaluate`] gives the values of one chunk: a function of the program and the index alone, so that every agent
//! computes the same ones, in any order, and a retry repeats them. A program is immutable and `Sync`; evaluation allocates
//! nothing once the caller's vector has grown.
//!
//! # Sources
//! - `cel`: a [CEL](https://cel.dev) expression over `index` (int, from 0) and `count` (int, the number of chunks) that gives
//!   an int or a double. Available are int, double and bool literals, `+ - * / %`, comparisons, `&& || !`, `c ? a : b`,
//!   `[a, b, c][i]`, `x in [a, b]`, the conversions `double(x)` and `int(x)` (truncates towards zero), and, all over doubles
//!   unless said: `math.least` and `math.greatest` (two or more arguments; ints too), `math.abs` (ints too), `math.sign`,
//!   `math.floor`, `math.ceil`, `math.round` (halves away from zero), `math.trunc`, `math.sqrt`, `math.exp`, `math.log`,
//!   `math.log2`, `math.log10`, `math.pow(base, exponent)`, `math.sin`, `math.cos` (musl's algorithms, the same bits on
//!   every platform). As in CEL, ints and doubles never mix, `/` of ints truncates, and overflow is an error.
//! - `list`: values taken in turn.
//! - `range`: `start + step × index`; or from `start` to `stop` evenly, where the last chunk gets `stop` itself and a single
//!   chunk gets `start`.
//! - `random`: seeded, see the algorithm in `random.rs`.
//! - `product`: one chunk for every combination, the last list varying fastest.
//!
//! # Representable
//! Whatever the source, a value must be one that the declared type has: whole and in range for integers, finite for floats
//! (which take the nearest). Lists, bounds and ranges are checked whole at compilation. A formula is type-checked whole, and
//! computed at compilation for every chunk of up to 4096, or else for 4096 spread from the first to the last;
//! what fails only at another chunk fails that chunk, with an [`EvaluationError`].

mod compile;
mod formula;
mod random;
mod scalar;
mod source;

use std::fmt;

use sahasra_crds::burst_job::{Chunks, ScalarType};
use thiserror::Error;

pub use scalar::Scalar;

/// Most chunks of a burst, whether by `count` or by `product`.
pub const MOST_CHUNKS: u64 = 10_000_000;

/// Why `spec.chunks` cannot be compiled.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{path}: {message}")]
pub struct CompileError {
    /// The field: `spec.chunks.parameters.learningRate.cel`.
    pub path: String,
    /// What is wrong with it, and the remedy.
    pub message: String,
}

/// Why a chunk has no parameters: its formula leaves the type, divides by zero, or the like. Trying again gives the same.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("parameter {parameter} of chunk {index}: {message}")]
pub struct EvaluationError {
    /// Name of the parameter; empty when the index itself is none of the program's.
    pub parameter: String,
    /// Index of the chunk.
    pub index: u64,
    /// What is wrong.
    pub message: String,
}

/// Name and type of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name, as the kernel's arguments refer to it.
    pub name: String,
    /// Type that the kernel gets.
    pub type_: ScalarType,
}

/// The parameters of a burst, compiled.
pub struct Program {
    count: u64,
    parameters: Vec<Parameter>,
    /// One for each of `parameters`, in their order.
    sources: Vec<source::Source>,
}

impl Program {
    /// Compiles `spec.chunks`. Everything that its fields' schema demands is checked again, so that a program can be made
    /// from a manifest that no API server has seen.
    pub fn compile(chunks: &Chunks) -> Result<Self, CompileError> {
        compile::program(chunks)
    }

    /// Number of chunks; indices are below it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All parameters, product axes included, sorted by name: the order of the values.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Where the parameter of that name stands in [`Program::parameters`] and in the values.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.parameters.binary_search_by(|parameter| parameter.name.as_str().cmp(name)).ok()
    }

    /// The parameters of chunk `index`, into `values` (cleared first), in the order of [`Program::parameters`]. On an error
    /// `values` holds those before the one that failed.
    pub fn evaluate(&self, index: u64, values: &mut Vec<Scalar>) -> Result<(), EvaluationError> {
        values.clear();
        if index >= self.count {
            return Err(EvaluationError {
                parameter: String::new(),
                index,
                message: format!("there are {} chunks, indices from 0", self.count),
            });
        }
        for (parameter, source) in self.parameters.iter().zip(&self.sources) {
            let value = source
                .value(parameter.type_, index, self.count)
                .map_err(|refusal| EvaluationError {
                    parameter: parameter.name.clone(),
                    index,
                    message: refusal.message(parameter.type_),
                })?;
            values.push(value);
        }
        Ok(())
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("count", &self.count)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}
