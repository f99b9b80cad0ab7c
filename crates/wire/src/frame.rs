//! Frames of a stream: a length of four bytes, little-endian, then that many bytes of one message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Largest frame accepted, in bytes: a kernel of 128 KiB and its inputs fit; larger inputs travel by store URL.
pub const MAX_FRAME_BYTES: usize = 64 << 20;

/// Why a stream of frames cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length exceeds [`MAX_FRAME_BYTES`].
    #[error("frame of {0} bytes exceeds the limit of {MAX_FRAME_BYTES}")]
    TooLarge(usize),
    /// The bytes are not the message.
    #[error("frame does not decode")]
    Decode(#[from] prost::DecodeError),
}

/// One message as a frame.
pub fn encode<M: Message>(message: &M) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(4 + length);
    bytes.put_u32_le(u32::try_from(length).expect("messages are kept below MAX_FRAME_BYTES"));
    message.encode(&mut bytes).expect("the buffer grows");
    bytes.freeze()
}

/// Collects bytes as they arrive and gives back whole messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Adds bytes that arrived.
    pub fn extend(&mut self, bytes: impl Buf) {
        self.buffer.put(bytes);
    }

    /// The next whole message, or `None` until more bytes arrive.
    pub fn next_message<M: Message + Default>(&mut self) -> Result<Option<M>, FrameError> {
        let Some(length) = self.buffer.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes) as usize) else {
            return Ok(None);
        };
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::TooLarge(length));
        }
        if self.buffer.len() < 4 + length {
            self.buffer.reserve(4 + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(4);
        let body = self.buffer.split_to(length).freeze();
        Ok(Some(M::decode(body)?))
    }

    /// Whether a message has begun and not ended: a stream that ends here was cut.
    pub fn is_mid_frame(&self) -> bool {
        !self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grants::GrantId;

    #[test]
    fn messages_survive_any_cut() {
        let messages: Vec<GrantId> = (0..5)
            .map(|counter| GrantId {
                boot_id: "boot".repeat(counter as usize),
                counter,
            })
            .collect();
        let bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).to_vec()).collect();
        for size in 1..bytes.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for part in bytes.chunks(size) {
                decoder.extend(part);
                while let Some(message) = decoder.next_message::<GrantId>().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, messages);
            assert!(!decoder.is_mid_frame());
        }
    }

    #[test]
    fn oversized_and_broken_frames_are_errors() {
        let mut decoder = Decoder::default();
        decoder.extend(&u32::MAX.to_le_bytes()[..]);
        assert!(matches!(decoder.next_message::<GrantId>(), Err(FrameError::TooLarge(_))));
        let mut decoder = Decoder::default();
        decoder.extend(&[2, 0, 0, 0, 0xff, 0xff][..]);
        assert!(matches!(decoder.next_message::<GrantId>(), Err(FrameError::Decode(_))));
    }
}
