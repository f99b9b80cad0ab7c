//! Parameters of a burst's chunks in compiled form: validated once by the operator, evaluated by the agents.
//!
//! [`Program::compile`] turns `spec.chunks` into a [`Program`], or returns a [`CompileError`] with the path of the field and the remedy.
//! [`Program::evaluate`] returns the values of one chunk. They depend on the program and the index only, so every agent computes the same
//! values, in any order, and a retry computes them again. A program is immutable and `Sync`. Evaluation does not allocate once the caller's
//! vector has grown.
//!
//! # Sources
//! - `cel`: a [CEL](https://cel.dev) expression over `index` (int, from 0) and `count` (int, the number of chunks) whose result is an int
//!   or a double. Available are int, double and bool literals, `+ - * / %`, comparisons, `&& || !`, `c ? a : b`, `[a, b, c][i]`, `x in [a,
//!   b]`, the conversions `double(x)` and `int(x)` (truncates towards zero), and the following functions of doubles: `math.least` and
//!   `math.greatest` (two or more arguments; ints too), `math.abs` (ints too), `math.sign`, `math.floor`, `math.ceil`, `math.round` (halves
//!   away from zero), `math.trunc`, `math.sqrt`, `math.exp`, `math.log`, `math.log2`, `math.log10`, `math.pow(base, exponent)`, `math.sin`,
//!   `math.cos` (musl's algorithms, the same bits on every platform). As in CEL, ints and doubles never mix, `/` of ints truncates, and
//!   overflow is an error.
//! - `list`: the listed values in turn, from the beginning again after the last.
//! - `range`: `start + step × index`; or evenly spaced from `start` to `stop`, where the last chunk gets exactly `stop` and a single chunk
//!   gets `start`.
//! - `random`: seeded random numbers; `random.rs` describes the algorithm.
//! - `product`: one chunk for each combination of the lists' values. The last list varies fastest.
//!
//! # Range checks
//! The declared type must be able to represent every value: integers must be whole and in range, floats finite (they are rounded to the
//! nearest value). Lists, bounds and ranges are checked completely at compilation. A formula is type-checked completely, and evaluated at
//! compilation for up to 4096 chunks, spread evenly from the first to the last if there are more. An error at any other chunk fails that
//! chunk with an [`EvaluationError`].

mod compile;
mod formula;
pub mod launch;
mod one_of;
mod random;
pub mod rules;
mod scalar;
mod source;
pub mod spec;

use std::fmt;

use spec::{Chunks, ScalarType};
use thiserror::Error;

pub use one_of::NotOne;
pub use scalar::{Scalar, is_integer};

/// Maximum number of chunks of a burst, whether given by `count` or by `product`.
pub const MAX_CHUNKS: u64 = 10_000_000;

/// Error in `spec.chunks`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{path}: {message}")]
pub struct CompileError {
    /// Path of the field, such as `spec.chunks.parameters.learningRate.cel`.
    pub path: String,
    /// Description of the error, and the remedy.
    pub message: String,
}

/// Error in the evaluation of a chunk's parameters: a value is not in the range of its type, a formula divides by zero, or similar. A retry
/// fails again.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("parameter {parameter} of chunk {index}: {message}")]
pub struct EvaluationError {
    /// Name of the parameter. Empty if the index is not below the number of chunks.
    pub parameter: String,
    pub index: u64,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name by which the kernel's arguments refer to the parameter.
    pub name: String,
    pub type_: ScalarType,
}

/// Compiled parameters of a burst.
pub struct Program {
    count: u64,
    parameters: Vec<Parameter>,
    /// Sources of the values, in the order of `parameters`.
    sources: Vec<source::Source>,
}

impl Program {
    /// Compiles `spec.chunks`. Checks everything that the schema of the fields requires, so that a manifest can be compiled that no API
    /// server has validated.
    pub fn compile(chunks: &Chunks) -> Result<Self, CompileError> {
        compile::program(chunks)
    }

    /// Returns the number of chunks. Valid indices are below this number.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns all parameters, including product axes, sorted by name. Values are in the same order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the index of the named parameter in [`Program::parameters`] and in the values, or `None` if there is no such parameter.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.parameters.binary_search_by(|parameter| parameter.name.as_str().cmp(name)).ok()
    }

    /// Writes the parameters of chunk `index` into `values` (cleared first), in the order of [`Program::parameters`].
    ///
    /// # Errors
    /// [`EvaluationError`] when the index or a value is out of range. `values` then holds the parameters before the failed one.
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
            let value = source(index).map_err(|refusal| EvaluationError {
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
