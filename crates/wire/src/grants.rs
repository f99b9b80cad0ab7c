//! Grants: messages that acquire, renew and release slices of a device.

include!(concat!(env!("OUT_DIR"), "/sahasra.grants.rs"));

impl GrantId {
    /// Returns the identifier as `BOOT/COUNTER`, the form that status fields show.
    pub fn text(&self) -> String {
        format!("{}/{}", self.boot_id, self.counter)
    }
}

impl Refusal {
    /// Creates a rejection with 0 free bytes.
    pub fn new(code: RejectionCode, message: impl Into<String>) -> Self {
        Self {
            code: code as i32,
            message: message.into(),
            free_bytes: 0,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(RejectionCode::InvalidRequest, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_contains_every_rejection_code() {
        let last = RejectionCode::all().last().map_or(0, |code| code as i32);
        for code in last + 1..1000 {
            assert!(RejectionCode::try_from(code).is_err(), "{code} is missing in `RejectionCode::all`");
        }
    }
}
