//! Frames of the session stream: two lengths of four bytes each, little-endian, then a message of the first length and a payload of the
//! second. The payload is never copied into or out of the message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Length of the two length fields before the message, in bytes.
pub const HEAD_BYTES: usize = 8;
/// Largest accepted message, in bytes: enough for an execution with tens of thousands of arguments.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Largest accepted payload, in bytes. Tensors are sent in parts, the code of a program in one piece.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// Error that prevents a stream from being read any further, or a frame from being sent.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("message of {0} bytes exceeds the limit of {MAX_MESSAGE_BYTES}")]
    MessageTooLarge(usize),
    #[error("payload of {0} bytes exceeds the limit of {MAX_PAYLOAD_BYTES}")]
    PayloadTooLarge(usize),
    #[error("failed to decode the message")]
    Decode(#[from] prost::DecodeError),
}

/// Appends the two lengths and the message of a frame to `into`. The caller sends the payload after them.
///
/// # Errors
/// When the message or the payload is too large. `into` is unchanged then.
pub fn encode<M: Message>(message: &M, payload_bytes: usize, into: &mut BytesMut) -> Result<(), FrameError> {
    let message_bytes = message.encoded_len();
    check(message_bytes, payload_bytes)?;
    into.reserve(HEAD_BYTES + message_bytes);
    // The limits above keep both lengths far below 2^32.
    into.put_u32_le(message_bytes as u32);
    into.put_u32_le(payload_bytes as u32);
    message.encode(into).expect("the buffer grows");
    Ok(())
}

/// Returns the lengths of message and payload of the frame at the start of `buffer`, or `None` if the buffer is shorter than
/// [`HEAD_BYTES`]. For callers that read the payload directly into its destination; other callers use [`Decoder`].
pub fn lengths(mut buffer: &[u8]) -> Result<Option<(usize, usize)>, FrameError> {
    let (Ok(message_bytes), Ok(payload_bytes)) = (buffer.try_get_u32_le(), buffer.try_get_u32_le()) else {
        return Ok(None);
    };
    let (message_bytes, payload_bytes) = (message_bytes as usize, payload_bytes as usize);
    check(message_bytes, payload_bytes)?;
    Ok(Some((message_bytes, payload_bytes)))
}

fn check(message_bytes: usize, payload_bytes: usize) -> Result<(), FrameError> {
    if message_bytes > MAX_MESSAGE_BYTES {
        return Err(FrameError::MessageTooLarge(message_bytes));
    }
    if payload_bytes > MAX_PAYLOAD_BYTES {
        return Err(FrameError::PayloadTooLarge(payload_bytes));
    }
    Ok(())
}

/// Collects bytes as they arrive and returns whole frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Returns the buffer to which the caller appends received bytes. The caller can read into the buffer's spare capacity.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Returns the next whole frame, or `None` until more bytes arrive; the buffer then has capacity for the rest of the frame. The payload
    /// shares the buffer's memory.
    ///
    /// # Errors
    /// When the stream is invalid. It cannot be read any further then.
    pub fn next_frame<M: Message + Default>(&mut self) -> Result<Option<(M, Bytes)>, FrameError> {
        let Some((message_bytes, payload_bytes)) = lengths(&self.buffer)? else {
            self.buffer.reserve(HEAD_BYTES);
            return Ok(None);
        };
        let frame = HEAD_BYTES + message_bytes + payload_bytes;
        if self.buffer.len() < frame {
            self.buffer.reserve(frame - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        let message = M::decode(self.buffer.split_to(message_bytes))?;
        Ok(Some((message, self.buffer.split_to(payload_bytes).freeze())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{ClientFrame, Execute, Part, client_frame::Kind};

    fn frames() -> Vec<(ClientFrame, Bytes)> {
        let execute = Kind::Execute(Execute {
            program: 3,
            arguments: vec![1, 2, 1 << 40],
            outputs: vec![4],
            donated: vec![1],
        });
        let frame = |sequence, kind: Option<Kind>, payload: &'static [u8]| {
            let message = ClientFrame {
                sequence,
                received: 7,
                kind,
                ..ClientFrame::default()
            };
            (message, Bytes::from_static(payload))
        };
        vec![
            frame(1, Some(execute), b""),
            frame(2, Some(Kind::Part(Part::default())), b"payload"),
            frame(0, None, b""),
        ]
    }

    #[test]
    fn frames_survive_any_cut() {
        let mut bytes = BytesMut::new();
        for (message, payload) in frames() {
            encode(&message, payload.len(), &mut bytes).unwrap();
            bytes.extend_from_slice(&payload);
        }
        for size in 1..=bytes.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for part in bytes.chunks(size) {
                decoder.buffer().extend_from_slice(part);
                while let Some(frame) = decoder.next_frame::<ClientFrame>().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, frames());
            assert!(decoder.buffer.is_empty());
        }
    }

    #[test]
    fn a_payload_is_not_copied() {
        let mut decoder = Decoder::default();
        let payload = vec![7; 100_000];
        encode(&ClientFrame::default(), payload.len(), decoder.buffer()).unwrap();
        decoder.buffer().extend_from_slice(&payload);
        let there = decoder.buffer()[HEAD_BYTES..].as_ptr();
        let (_, payload) = decoder.next_frame::<ClientFrame>().unwrap().unwrap();
        assert_eq!(payload.as_ptr(), there);
    }

    #[test]
    fn oversized_and_damaged_frames_are_errors() {
        let mut out = BytesMut::new();
        let error = encode(&ClientFrame::default(), MAX_PAYLOAD_BYTES + 1, &mut out);
        assert!(matches!(error, Err(FrameError::PayloadTooLarge(_))) && out.is_empty());
        let decode = |bytes: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.buffer().extend_from_slice(bytes);
            decoder.next_frame::<ClientFrame>()
        };
        let too_large = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        assert!(matches!(decode(&too_large), Err(FrameError::MessageTooLarge(_))));
        let too_large = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert!(matches!(decode(&too_large), Err(FrameError::PayloadTooLarge(_))));
        let broken = [2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        assert!(matches!(decode(&broken), Err(FrameError::Decode(_))));
    }

    #[test]
    fn the_largest_frame_is_accepted_and_a_larger_one_is_rejected() {
        let head = |message: usize, payload: usize| {
            let mut head = BytesMut::new();
            head.put_u32_le(u32::try_from(message).unwrap());
            head.put_u32_le(u32::try_from(payload).unwrap());
            lengths(&head)
        };
        let largest = Some((MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES));
        assert_eq!(head(MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES).unwrap(), largest);
        let more = head(MAX_MESSAGE_BYTES + 1, 0);
        assert!(matches!(more, Err(FrameError::MessageTooLarge(_))), "{more:?}");
        let more = head(0, MAX_PAYLOAD_BYTES + 1);
        assert!(matches!(more, Err(FrameError::PayloadTooLarge(_))), "{more:?}");

        // The list consists of numbers of one byte each, preceded by tags and lengths.
        let execute = |bytes: usize| ClientFrame {
            kind: Some(Kind::Execute(Execute {
                arguments: vec![1; bytes],
                ..Execute::default()
            })),
            ..ClientFrame::default()
        };
        let around = execute(MAX_MESSAGE_BYTES - 64).encoded_len() - (MAX_MESSAGE_BYTES - 64);
        let largest = execute(MAX_MESSAGE_BYTES - around);
        assert_eq!(largest.encoded_len(), MAX_MESSAGE_BYTES);
        let mut out = BytesMut::new();
        encode(&largest, MAX_PAYLOAD_BYTES, &mut out).unwrap();
        out.clear();
        let error = encode(&execute(MAX_MESSAGE_BYTES - around + 1), 0, &mut out);
        assert!(matches!(error, Err(FrameError::MessageTooLarge(_))) && out.is_empty());
    }
}
