//! Size of the variables of a PTX text.

use sahasra_ptx::Outline;

use crate::device::DeviceError;

/// Bytes of the variables that a PTX text declares, counted from the text: the driver reports the size only of loaded variables, each by its
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variables {
    pub(super) global: u64,
    constant: u64,
}

impl Variables {
    pub(super) fn of(ptx: &str) -> Result<Self, DeviceError> {
        let outline = Outline::of(ptx).map_err(|error| DeviceError::Load(format!("failed to count its variables: {error}")))?;
        Ok(Self {
            global: outline.global_bytes,
            constant: outline.constant_bytes,
        })
    }

    pub(super) fn bytes(self) -> u64 {
        self.global.saturating_add(self.constant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_text_are_counted_and_one_that_cannot_be_read_is_refused() {
        let text = |variables: &str| {
            let kernel = ".entry k() { .global .b8 inner[64]; ret; }";
            Variables::of(&format!(".version 7.0 .target sm_70 .address_size 64 {variables} {kernel}"))
        };
        let global = text(".global .b8 x[8589934592]; .const .b32 table[4];").unwrap();
        assert_eq!((global.global, global.bytes()), ((8 << 30) + 64, (8 << 30) + 80));
        assert_eq!(text(".global .b8 x[18446744073709551615];").unwrap().bytes(), u64::MAX);
        for wrong in [text(".global .b8 x["), Variables::of("no PTX")] {
            assert_eq!(wrong.unwrap_err().code(), sahasra_wire::burst::FailureCode::LoadFailed);
        }
    }
}
