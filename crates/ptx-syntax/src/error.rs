//! Errors of loading a module: a position in the PTX text, the statement at this position, and the reason.

use std::fmt;

/// Position in PTX text. Lines and columns count from 1; columns count bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

/// The class of a load failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadErrorKind {
    /// The text is not PTX.
    #[error("syntax error: {0}")]
    Syntax(String),
    /// The text is PTX that this engine does not run.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The text is PTX but has an error, such as mismatched types, too few operands, or a branch out of the function.
    #[error("invalid: {0}")]
    Invalid(String),
    /// A register, label, variable or function that is not declared.
    #[error("`{0}` is not declared")]
    Undeclared(String),
}

/// A module that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// Line in the PTX text, from 1.
    pub line: u32,
    /// Byte column in the line, from 1.
    pub column: u32,
    /// Statement at the position, with white space collapsed; empty if the error is not inside a statement.
    pub instruction: String,
    pub kind: LoadErrorKind,
}

impl LoadError {
    pub fn new(position: Position, instruction: impl Into<String>, kind: LoadErrorKind) -> Self {
        Self {
            line: position.line,
            column: position.column,
            instruction: instruction.into(),
            kind,
        }
    }

    /// Returns the reason as text, without the position.
    pub fn reason(&self) -> String {
        self.kind.to_string()
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}, column {}: ", self.line, self.column)?;
        if !self.instruction.is_empty() {
            write!(formatter, "`{}`: ", self.instruction)?;
        }
        write!(formatter, "{}", self.kind)
    }
}

impl std::error::Error for LoadError {}
