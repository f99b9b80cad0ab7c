//! Frames of the session stream: two lengths of four bytes, little-endian, then a message of the first length and a payload
//! of the second. The payload is never copied into or out of the message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Bytes before the message.
pub const HEAD_BYTES: usize = 8;
/// Largest message accepted, in bytes: an execution with tens of thousands of arguments fits.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Largest payload accepted, in bytes: tensors come in parts, code whole.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// Why a stream cannot be read on, or a frame not be sent.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The message exceeds [`MAX_MESSAGE_BYTES`].
    #[error("message of {0} bytes exceeds the limit of {MAX_MESSAGE_BYTES}")]
    MessageTooLarge(usize),
    /// The payload exceeds [`MAX_PAYLOAD_BYTES`].
    #[error("payload of {0} bytes exceeds the limit of {MAX_PAYLOAD_BYTES}")]
    PayloadTooLarge(usize),
    /// The bytes are not the message.
    #[error("message does not decode")]
    Decode(#[from] prost::DecodeError),
}

/// Appends everything of a frame but its payload, which is to follow.
///
/// # Errors
/// When message or payload are too large; `into` is as before.
pub fn encode<M: Message>(message: &M, payload_bytes: usize, into: &mut BytesMut) -> Result<(), FrameError> {
    let message_bytes = message.encoded_len();
    if message_bytes > MAX_MESSAGE_BYTES {
        return Err(FrameError::MessageTooLarge(message_bytes));
    }
    if payload_bytes > MAX_PAYLOAD_BYTES {
        return Err(FrameError::PayloadTooLarge(payload_bytes));
    }
    into.reserve(HEAD_BYTES + message_bytes);
    // Both are far below 2^32 by the limits.
    into.put_u32_le(message_bytes as u32);
    into.put_u32_le(payload_bytes as u32);
    message.encode(into).expect("the buffer grows");
    Ok(())
}

/// Lengths of message and payload of the frame that begins here, once its head is there: for who reads the payload straight to
/// where it belongs. [`Decoder`] is for all others.
///
/// # Errors
/// When message or payload are too large.
pub fn lengths(buffer: &[u8]) -> Result<Option<(usize, usize)>, FrameError> {
    let Some(head) = buffer.first_chunk::<HEAD_BYTES>() else {
        return Ok(None);
    };
    let [a, b, c, d, e, f, g, h] = *head;
    let message_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
    let payload_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
    if message_bytes > MAX_MESSAGE_BYTES {
        return Err(FrameError::MessageTooLarge(message_bytes));
    }
    if payload_bytes > MAX_PAYLOAD_BYTES {
        return Err(FrameError::PayloadTooLarge(payload_bytes));
    }
    Ok(Some((message_bytes, payload_bytes)))
}

/// Collects bytes as they arrive and gives back whole frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Where bytes that arrive are to be appended: read into its spare capacity.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next whole frame, or `None` until more bytes arrive: then there is room for the rest of it. The payload shares the
    /// buffer's memory.
    ///
    /// # Errors
    /// When the stream makes no sense: it cannot be read on.
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

    /// Whether a frame has begun and not ended: a stream that ends here was cut.
    pub fn is_mid_frame(&self) -> bool {
        !self.buffer.is_empty()
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
            assert!(!decoder.is_mid_frame());
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
    fn what_is_too_large_or_broken_is_an_error() {
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
    fn the_largest_frame_is_written_and_read_and_a_larger_one_is_not() {
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

        // Of numbers of one byte each, behind tags and lengths.
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
