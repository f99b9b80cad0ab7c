//! Module-scope variables: their sizes and their initial values when a module is loaded (PTX ISA §5.4.1, §5.4.4).

use crate::compile::calls::function_address;
use crate::compile::texts::Texts;
use sahasra_ptx_syntax::error::{LoadError, LoadErrorKind};
use sahasra_ptx_syntax::syntax::{self, InitialValue};

/// A module-scope `.global` or `.const` variable.
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Runs of initial bytes, with their offsets. The bytes between runs are zero.
    pub(super) initial: Vec<(u64, Vec<u8>)>,
    /// Addresses of other variables to write.
    pub(super) addresses: Vec<Address>,
}

/// Address of a variable as an initial value.
pub(super) struct Address {
    /// Offset in the variable that holds it.
    pub(super) offset: u64,
    /// Size of the element that holds it.
    pub(super) bytes: usize,
    /// Index of the variable whose address it is.
    pub(super) target: usize,
    addend: i64,
    mask: u64,
}

impl Address {
    /// Returns the initial value, given the address of the variable.
    pub(super) fn value(&self, address: u64) -> u64 {
        selected(address.wrapping_add_signed(self.addend), self.mask)
    }
}

/// Returns the bits that a mask selects, shifted down to bit 0.
fn selected(address: u64, mask: u64) -> u64 {
    (address & mask).checked_shr(mask.trailing_zeros()).unwrap_or(0)
}

impl Variable {
    /// Resolves the names in a declaration of a text.
    ///
    /// # Errors
    /// An initial value that does not fit its type, or that names nothing.
    pub(super) fn new(variable: &syntax::Variable<'_>, text: usize, texts: &Texts<'_>) -> Result<Self, LoadError> {
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
                InitialValue::Address { name, addend, mask } => {
                    let bytes = variable.scalar.bytes();
                    if bytes != 8 && mask == u64::MAX {
                        return Err(fail(LoadErrorKind::Unsupported("an address in fewer than 64 bits".into())));
                    }
                    let offset = element.offset;
                    if let Some(target) = texts.variable(text, name) {
                        found.addresses.push(Address {
                            offset,
                            bytes: bytes.min(8),
                            target,
                            addend,
                            mask,
                        });
                        continue;
                    }
                    let function = texts
                        .function(text, name)
                        .ok_or_else(|| fail(LoadErrorKind::Undeclared(name.to_owned())))?;
                    let address = function_address(function).wrapping_add_signed(addend);
                    let value = selected(address, mask).to_le_bytes();
                    found.initial.push((offset, value[..bytes.min(8)].to_vec()));
                }
            }
        }
        Ok(found)
    }
}
