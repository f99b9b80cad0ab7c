//! Bytes in hexadecimal digits as headers of the request for a stream: the client's first frame, which saves a round trip, and the secret with
//! which it resumes a session.

/// Header of a request for a stream, with the frame of the client's [`Hello`](super::Hello) in hexadecimal digits.
pub const HELLO_HEADER: &str = "sahasra-hello";
/// Value of [`HELLO_HEADER`] in a `101` response: the frame is the first one of the stream, and the client must not send it again.
pub const HELLO_ACCEPTED: &str = "accepted";
/// Maximum length of a frame in [`HELLO_HEADER`], in bytes. A longer one is ignored, and the client sends it on the stream.
const HELLO_BYTES: usize = 2048;

/// Header of a request for a stream, with the [`Welcome::resume`](super::Welcome::resume) of the client's [`Hello`](super::Hello) in
/// hexadecimal digits. A client that knows the secret was authorized before, so its access is not checked again.
pub const RESUME_HEADER: &str = "sahasra-resume";
/// Value of [`RESUME_HEADER`] in an agent's `101` response: the secret was valid, and the agent did not check the caller's token.
pub const RESUME_ACCEPTED: &str = "accepted";
/// Maximum length of a secret in [`RESUME_HEADER`], in bytes.
const RESUME_BYTES: usize = 64;

/// Decodes the frame in a value of [`HELLO_HEADER`]. Returns `None` if the value is empty, too long or not hexadecimal.
pub fn hello_frame(value: &[u8]) -> Option<Vec<u8>> {
    decoded(value, HELLO_BYTES)
}

/// Decodes the secret in a value of [`RESUME_HEADER`]. Returns `None` if the value is empty, too long or not hexadecimal.
pub fn resume_secret(value: &[u8]) -> Option<Vec<u8>> {
    decoded(value, RESUME_BYTES)
}

/// Encodes bytes as a value of [`HELLO_HEADER`] or [`RESUME_HEADER`].
pub fn hex_value(bytes: &[u8]) -> String {
    hex::encode(bytes)
}

fn decoded(value: &[u8], limit: usize) -> Option<Vec<u8>> {
    if value.is_empty() || value.len() > 2 * limit {
        return None;
    }
    hex::decode(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_unchanged_by_its_header() {
        let frame: Vec<u8> = (0..=255).collect();
        assert_eq!(hello_frame(hex_value(&frame).as_bytes()), Some(frame));
        for wrong in ["", "0", "0g", &"00".repeat(HELLO_BYTES + 1)] {
            assert_eq!(hello_frame(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_secret_is_unchanged_by_its_header() {
        let secret: Vec<u8> = (0..32).map(|place| place * 8 + 1).collect();
        assert_eq!(hex_value(&secret).len(), 64);
        assert_eq!(resume_secret(hex_value(&secret).as_bytes()), Some(secret));
        let long = "00".repeat(RESUME_BYTES + 1);
        for wrong in ["", "0", "0g", "+1", "é0", &long] {
            assert_eq!(resume_secret(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
