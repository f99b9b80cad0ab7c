//! Module-scope variables: their sizes and their initial values when a module is loaded (PTX ISA §5.4.1, §5.4.4).

use std::collections::HashMap;

use crate::compile::calls::{CallGraph, function_address};
use sahasra_ptx_syntax::error::{LoadError, LoadErrorKind};
use sahasra_ptx_syntax::syntax::{self, InitialValue};

/// A module-scope `.global` or `.const` variable.
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Runs of initial bytes, with their offsets. The bytes between runs are zero.
    pub(super) initial: Vec<(u64, Vec<u8>)>,
    /// Addresses of other variables to write: offset, index of the variable, addend.
    pub(super) addresses: Vec<(u64, u32, i64)>,
}

impl Variable {
    /// Resolves the names in a declaration. `symbols` are the module's variables.
    ///
    /// # Errors
    /// An initial value that does not fit its type, or that names nothing.
    pub(super) fn new(variable: &syntax::Variable<'_>, symbols: &HashMap<&str, u32>, graph: &CallGraph<'_>) -> Result<Self, LoadError> {
        let fail = |kind| LoadError::new(variable.position, variable.name, kind);
        let mut found = Self {
            name: variable.name.to_owned(),
            bytes: variable.bytes().unwrap_or(0),
            initial: Vec::new(),
            addresses: Vec::new(),
        };
        for element in &variable.initial {
            match element.value {
                InitialValue::Constant(constant) => {
                    let bits = constant
                        .bits(variable.scalar)
                        .ok_or_else(|| fail(LoadErrorKind::Invalid("an initial value does not fit the type".into())))?;
                    let bytes = &bits.to_le_bytes()[..variable.scalar.bytes().min(8)];
                    match found.initial.last_mut() {
                        Some((offset, run)) if *offset + run.len() as u64 == element.offset => run.extend_from_slice(bytes),
                        _ => found.initial.push((element.offset, bytes.to_vec())),
                    }
                }
                InitialValue::Address { name, .. } if !symbols.contains_key(name) && graph.defined.contains_key(name) => {
                    if variable.scalar.bytes() != 8 {
                        return Err(fail(LoadErrorKind::Unsupported("an address in fewer than 64 bits".into())));
                    }
                    let address = function_address(graph.defined[name]);
                    found.initial.push((element.offset, address.to_le_bytes().to_vec()));
                }
                InitialValue::Address { name, addend } => {
                    let target = symbols
                        .get(name)
                        .copied()
                        .ok_or_else(|| fail(LoadErrorKind::Undeclared(name.to_owned())))?;
                    if variable.scalar.bytes() != 8 {
                        return Err(fail(LoadErrorKind::Unsupported("an address in fewer than 64 bits".into())));
                    }
                    found.addresses.push((element.offset, target, addend));
                }
            }
        }
        Ok(found)
    }
}
