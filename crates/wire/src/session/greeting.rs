//! The client's first frame as a header of the request for a stream, which saves a round trip.

/// Header of a request for a stream, with the frame of the client's [`Hello`](super::Hello) in hexadecimal digits.
pub const HELLO_HEADER: &str = "sahasra-hello";
/// Value of [`HELLO_HEADER`] in a `101` response: the frame is the first one of the stream, and the client must not send it again.
pub const HELLO_ACCEPTED: &str = "accepted";
/// Maximum length of a frame in [`HELLO_HEADER`], in bytes. A longer one is ignored, and the client sends it on the stream.
const HELLO_BYTES: usize = 2048;

/// Encodes a frame as a value of [`HELLO_HEADER`].
pub fn hello_value(frame: &[u8]) -> String {
    hex::encode(frame)
}

/// Decodes the frame in a value of [`HELLO_HEADER`]. Returns `None` if the value is empty, too long or not hexadecimal.
pub fn hello_frame(value: &[u8]) -> Option<Vec<u8>> {
    if value.is_empty() || value.len() > 2 * HELLO_BYTES {
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
        assert_eq!(hello_frame(hello_value(&frame).as_bytes()), Some(frame));
        for wrong in ["", "0", "0g", &"00".repeat(HELLO_BYTES + 1)] {
            assert_eq!(hello_frame(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
