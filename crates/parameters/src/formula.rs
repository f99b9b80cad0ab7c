//! Formulas: CEL expressions over `index` and `count`, compiled to typed trees.
//!
//! The `cel` crate parses. [`check`] then gives every part its type, which refuses at admission what an interpreter would
//! refuse at some chunk (an unknown name, a double times an int, in whichever branch), and leaves a [`typed`] tree
//! that is evaluated without allocation in time bounded by the formula's length. What CEL offers beyond numbers (text, maps,
//! macros over lists) is refused by name. Results agree with CEL's definition of each operator; the tests hold them
//! against the crate's own interpreter.

use std::thread;

use thiserror::Error;

pub(crate) mod check;
pub(crate) mod typed;

use typed::{Double, Integer};

/// Longest formula in characters, as in the schema.
pub(crate) const LONGEST: usize = 1024;

/// Deepest nesting of brackets and conditions: more than any formula that a person reads.
const DEEPEST: usize = 48;

/// What a text of [`LONGEST`] characters nested [`DEEPEST`] deep needs even in a debug build, twice over; only touched pages count.
const PARSER_STACK_BYTES: usize = 32 << 20;

/// A checked formula.
#[derive(Debug)]
pub(crate) enum Formula {
    /// Gives an int.
    Integer(Integer),
    /// Gives a double.
    Double(Double),
}

/// What a formula gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Integer(i64),
    Double(f64),
}

/// Why a formula that is right in itself has no value at some index.
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
    /// Parses and checks `text`; `count` is the number of chunks. The error says what is wrong and the remedy.
    pub(crate) fn compile(text: &str, count: i64) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("the formula is empty: write one over index and count, such as `0.1 * double(index)`".to_owned());
        }
        if text.chars().count() > LONGEST {
            return Err(format!("the formula is longer than {LONGEST} characters: shorten it"));
        }
        if nesting(text) > DEEPEST {
            return Err(format!("nested more than {DEEPEST} deep: use fewer brackets and conditions"));
        }
        parse_and_check(text, count)
    }

    /// The value at `index`.
    pub(crate) fn evaluate(&self, index: i64) -> Result<Number, Fault> {
        match self {
            Self::Integer(tree) => tree.evaluate(index).map(Number::Integer),
            Self::Double(tree) => tree.evaluate(index).map(Number::Double),
        }
    }
}

/// On a thread of its own, because the parser recurses about 20 times a nesting level with large frames, which a runtime's
/// 2 MiB stacks do not hold, and because its depth counter panics on some wrong texts. Costs some 50 µs, once a formula.
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
                .unwrap_or_else(|_| Err("not a CEL expression: the parser gave it up".to_owned())),
            Err(error) => Err(format!("cannot be parsed for lack of a thread: {error}")),
        }
    })
}

/// An upper bound of how deep brackets and conditions nest; counts those in text literals too, which no formula has.
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

/// The parser's first complaint in one line.
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
