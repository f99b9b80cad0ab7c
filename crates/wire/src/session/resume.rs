//! The secret with which a client resumes a session, as a header of the request for a stream.

/// Header of a request for a stream, with the [`Welcome::resume`](super::Welcome::resume) of the client's [`Hello`](super::Hello) in
/// hexadecimal digits. A client that knows the secret was authorized before, so its access is not checked again.
pub const RESUME_HEADER: &str = "sahasra-resume";
/// Value of [`RESUME_HEADER`] in an agent's `101` response: the secret was valid, and the agent did not check the caller's token.
pub const RESUME_ACCEPTED: &str = "accepted";
/// Maximum length of a secret in [`RESUME_HEADER`], in bytes.
const RESUME_BYTES: usize = 64;

/// Encodes a secret as a value of [`RESUME_HEADER`].
pub fn resume_value(secret: &[u8]) -> String {
    hex::encode(secret)
}

/// Decodes the secret in a value of [`RESUME_HEADER`]. Returns `None` if the value is empty, too long or not hexadecimal.
pub fn resume_secret(value: &[u8]) -> Option<Vec<u8>> {
    if value.is_empty() || value.len() > 2 * RESUME_BYTES {
        return None;
    }
    hex::decode(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_unchanged_by_its_header() {
        let secret: Vec<u8> = (0..32).map(|place| place * 8 + 1).collect();
        assert_eq!(resume_value(&secret).len(), 64);
        assert_eq!(resume_secret(resume_value(&secret).as_bytes()), Some(secret));
        let long = "00".repeat(RESUME_BYTES + 1);
        for wrong in ["", "0", "0g", "+1", "é0", &long] {
            assert_eq!(resume_secret(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
