//! Formulas: CEL expressions over `index` and `count`, compiled to typed closures.
//!
//! The `cel` crate parses the text. [`check`] then determines the type of every subexpression. So errors that an interpreter would find at
//! some chunk (an unknown name, a double times an int, in whichever branch) are reported when the burst is admitted. The result is a
//! closure, whose evaluation does not allocate and takes time bounded by the formula's length. CEL features other than numbers (text, maps,
//! macros over lists) are rejected with a message that names them. Results agree with CEL's definition of each operator; the tests compare
//! them with the crate's own interpreter.

use std::thread;

use thiserror::Error;

mod check;

use check::Compiled;

use crate::spec::MAX_FORMULA_LENGTH;

/// Maximum nesting of brackets and conditions, beyond that of any readable formula.
const DEEPEST: usize = 48;

/// Stack size of the parser: twice what a text of [`MAX_FORMULA_LENGTH`] characters nested [`DEEPEST`] deep needs in a debug build. Pages that are
/// never touched need no memory.
const PARSER_STACK_BYTES: usize = 32 << 20;

/// A type-checked formula: returns its value at an index.
pub(crate) enum Formula {
    Integer(Compiled<i64>),
    Double(Compiled<f64>),
}

/// Reason why a valid formula has no value at some index.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub(crate) enum Fault {
    #[error("division by zero: `/` of ints has a right side of 0")]
    DivisionByZero,
    #[error("division by zero: `%` has a right side of 0")]
    RemainderByZero,
    #[error("`{0}` of ints leaves the range of 64 bits: compute with double(...)")]
    Overflow(&'static str),
    #[error("element {index} of a list of {length}: use `% {length}` to stay inside")]
    OutsideList { index: i64, length: usize },
    #[error("int({0}) has no value: an int lies between -2^63 and 2^63")]
    NoInteger(f64),
}

impl Formula {
    /// Parses and checks `text`. `count` is the number of chunks. An error describes the problem and the remedy.
    pub(crate) fn compile(text: &str, count: i64) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("the formula is empty: write one over index and count, such as `0.1 * double(index)`".to_owned());
        }
        if text.chars().count() > MAX_FORMULA_LENGTH {
            return Err(format!("the formula is longer than {MAX_FORMULA_LENGTH} characters: shorten it"));
        }
        if nesting(text) > DEEPEST {
            return Err(format!("nested more than {DEEPEST} deep: use fewer brackets and conditions"));
        }
        parse_and_check(text, count)
    }
}

/// Parses and checks a formula on a thread of its own, for two reasons: the parser recurses about 20 times per nesting level with large
/// frames, for which the 2 MiB stacks of a runtime are too small, and its depth counter panics on some invalid texts. The thread costs
/// about 50 µs per formula.
fn parse_and_check(text: &str, count: i64) -> Result<Formula, String> {
    let work = || {
        let program = cel::Program::compile(text).map_err(|errors| syntax(&errors))?;
        check::formula(program.expression(), count)
    };
    thread::scope(|scope| {
        let parser = thread::Builder::new()
            .name("formula-parser".to_owned())
            .stack_size(PARSER_STACK_BYTES)
            .spawn_scoped(scope, work);
        match parser {
            Ok(parser) => parser
                .join()
                .unwrap_or_else(|_| Err("not a CEL expression: the parser failed".to_owned())),
            Err(error) => Err(format!("failed to spawn the parser thread: {error}")),
        }
    })
}

/// Returns an upper bound of the nesting of brackets and conditions. Also counts brackets in string literals, which no valid formula
/// contains.
fn nesting(text: &str) -> usize {
    let mut open: usize = 0;
    let mut deepest = 0;
    let mut conditions = 0;
    for character in text.chars() {
        match character {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            '?' => conditions += 1,
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest + conditions
}

/// Returns the parser's first error in one line.
fn syntax(errors: &cel::ParseErrors) -> String {
    match errors.errors.first() {
        Some(error) => {
            let (line, column) = error.pos;
            let said = error.msg.lines().next().unwrap_or_default();
            let said: String = said.chars().take(200).collect();
            format!("not a CEL expression: line {line}, column {column}: {said}")
        }
        None => "not a CEL expression".to_owned(),
    }
}

#[cfg(test)]
mod tests;
