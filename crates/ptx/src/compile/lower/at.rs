//! The instruction that is being lowered: its operands and modifiers, and errors with its position.

use sahasra_ptx_syntax::error::{LoadError, LoadErrorKind};
use sahasra_ptx_syntax::parser::collapse;
use sahasra_ptx_syntax::syntax::{Instruction, Operand};
use sahasra_ptx_syntax::types::ScalarType;

/// Statement that is being lowered. Provides the position of errors.
#[derive(Clone, Copy)]
pub(crate) struct At<'a, 'b> {
    pub(super) instruction: &'b Instruction<'a>,
}

impl<'a> At<'a, '_> {
    pub(super) fn error(&self, kind: LoadErrorKind) -> LoadError {
        LoadError::new(self.instruction.position, collapse(self.instruction.text), kind)
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> LoadError {
        self.error(LoadErrorKind::Unsupported(what.into()))
    }

    pub(crate) fn invalid(&self, what: impl Into<String>) -> LoadError {
        self.error(LoadErrorKind::Invalid(what.into()))
    }

    pub(crate) fn undeclared(&self, name: &str) -> LoadError {
        self.error(LoadErrorKind::Undeclared(name.to_owned()))
    }

    /// Error for an instruction form that this engine does not support.
    pub(crate) fn form(&self) -> LoadError {
        let mut form = self.instruction.opcode.to_owned();
        for modifier in &self.instruction.modifiers {
            form.push('.');
            form.push_str(modifier);
        }
        self.unsupported(format!("instruction form {form}"))
    }

    pub(crate) fn modifiers(&self) -> &[&'a str] {
        &self.instruction.modifiers
    }

    /// Returns the operands, of which there must be exactly `N`.
    pub(crate) fn operands<const N: usize>(&self) -> Result<&[Operand<'a>; N], LoadError> {
        self.instruction
            .operands
            .as_slice()
            .try_into()
            .map_err(|_| self.invalid(format!("expected {N} operands, found {}", self.instruction.operands.len())))
    }

    /// Returns the operands without the cache policy that `.L2::cache_hint` adds. Exactly `N` must remain.
    pub(crate) fn operands_before_policy<const N: usize>(&self) -> Result<&[Operand<'a>; N], LoadError> {
        let operands = self.instruction.operands.as_slice();
        let hinted = self.instruction.modifiers.contains(&"L2::cache_hint");
        let kept = &operands[..operands.len().saturating_sub(usize::from(hinted))];
        kept.try_into()
            .map_err(|_| self.invalid(format!("expected {N} operands, found {}", kept.len())))
    }

    pub(crate) fn all_operands(&self) -> &[Operand<'a>] {
        &self.instruction.operands
    }

    /// Partitions the modifiers into those in `known`, such as `.rn`, and the rest.
    pub(crate) fn split(&self, known: &[&str]) -> (Vec<&'a str>, Vec<&'a str>) {
        self.instruction.modifiers.iter().partition(|word| known.contains(word))
    }

    /// Parses `rest`, which must be a single type.
    pub(crate) fn one_type(&self, rest: &[&str]) -> Result<ScalarType, LoadError> {
        match rest {
            [name] => ScalarType::from_name(name).ok_or_else(|| self.form()),
            _ => Err(self.form()),
        }
    }
}
