//! Frames of the burst stream: a length of four bytes, little-endian, followed by one message of that length.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint},
};

use crate::burst::{Argument, ClientFrame, Input, Open, Program, argument, client_frame};

/// Largest frame accepted, in bytes: the largest PTX and the largest inputs fit.
pub const MAX_FRAME_BYTES: usize = 64 << 20;

/// Error that prevents a stream of frames from being read any further.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {0} bytes exceeds the limit of {MAX_FRAME_BYTES}")]
    TooLarge(usize),
    #[error("failed to decode the frame")]
    Decode(#[from] prost::DecodeError),
}

/// Encodes one message as a frame.
pub fn encode<M: Message>(message: &M) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(4 + length);
    bytes.put_u32_le(u32::try_from(length).expect("messages are kept below MAX_FRAME_BYTES"));
    message.encode(&mut bytes).expect("the buffer grows");
    bytes.freeze()
}

/// Smallest `bytes` field that [`pieces`] keeps as a piece of its own, in bytes: one page, below which copying costs less than a separate
/// piece.
const SHARED_BYTES: usize = 4096;

/// Encodes one message as a frame, split into consecutive pieces. The PTX and the inputs of a program are not copied: the frames to all
/// agents share their memory with the program.
pub fn pieces(frame: &ClientFrame) -> Vec<Bytes> {
    let Some(client_frame::Kind::Open(open)) = &frame.kind else {
        return vec![encode(frame)];
    };
    // When an embedded message occurs twice in another message, the decoder merges both occurrences (Protocol Buffers encoding, "last one
    // wins"). So prost encodes everything except the large fields, and those are appended by hand.
    let small = Open {
        program: Program {
            ptx: Bytes::new(),
            arguments: Vec::new(),
            ..open.program.clone()
        },
        ..Open::clone(open)
    };
    let mut program = Pieces::default();
    program.field(1, Pieces::of(open.program.ptx.clone()));
    for argument in &open.program.arguments {
        program.field(7, argument_pieces(argument));
    }
    let mut whole = Pieces::of(small.encode_to_vec().into());
    whole.field(3, program);
    let mut message = Pieces::default();
    message.field(1, whole);
    let mut head = BytesMut::with_capacity(4);
    head.put_u32_le(u32::try_from(message.bytes).expect("messages are kept below MAX_FRAME_BYTES"));
    let mut frame = Pieces::of(head.freeze());
    frame.append(message);
    frame.joined()
}

fn argument_pieces(argument: &Argument) -> Pieces {
    let mut pieces = Pieces::default();
    match &argument.kind {
        Some(argument::Kind::Constant(bytes)) => pieces.field(4, Pieces::of(bytes.clone())),
        Some(argument::Kind::Input(input)) => {
            let rest = Input {
                bytes: Bytes::new(),
                bytes_per_chunk: input.bytes_per_chunk,
            };
            let mut whole = Pieces::of(rest.encode_to_vec().into());
            whole.field(1, Pieces::of(input.bytes.clone()));
            pieces.field(3, whole);
        }
        _ => pieces = Pieces::of(argument.encode_to_vec().into()),
    }
    pieces
}

/// Consecutive pieces of an encoding, and their total length in bytes.
#[derive(Default)]
struct Pieces {
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl Pieces {
    fn of(bytes: Bytes) -> Self {
        Self {
            bytes: bytes.len(),
            pieces: vec![bytes],
        }
    }

    fn append(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.pieces.extend(more.pieces);
    }

    /// Appends a length-delimited field: bytes or an encoded message.
    fn field(&mut self, tag: u32, contents: Self) {
        let mut head = BytesMut::new();
        encode_key(tag, WireType::LengthDelimited, &mut head);
        encode_varint(contents.bytes as u64, &mut head);
        self.append(Self::of(head.freeze()));
        self.append(contents);
    }

    /// Returns the pieces, with adjacent small ones merged.
    fn joined(self) -> Vec<Bytes> {
        let mut joined = Vec::new();
        let mut small = BytesMut::new();
        for piece in self.pieces {
            if piece.len() < SHARED_BYTES {
                small.extend_from_slice(&piece);
            } else {
                joined.extend([small.split().freeze(), piece]);
            }
        }
        joined.push(small.freeze());
        joined.retain(|piece| !piece.is_empty());
        joined
    }
}

/// Collects bytes as they arrive and returns whole messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    pub fn extend(&mut self, bytes: impl Buf) {
        self.buffer.put(bytes);
    }

    /// Returns the next whole message, or `None` until more bytes arrive.
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

    /// Returns whether the buffer holds an incomplete frame: a stream that ends in this state was cut off.
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
    fn a_program_in_pieces_has_the_same_encoding_and_shares_large_fields() {
        use crate::{burst::Store, grants::Owner};
        let large = Bytes::from(vec![7; 100_000]);
        let kinds = [
            argument::Kind::OutputBytes(8),
            argument::Kind::Constant(large.clone()),
            argument::Kind::Parameter("rate".to_owned()),
            argument::Kind::Input(Input {
                bytes: large.clone(),
                bytes_per_chunk: 10,
            }),
            argument::Kind::Input(Input {
                bytes: Bytes::from_static(b"small"),
                bytes_per_chunk: 0,
            }),
            argument::Kind::Constant(Bytes::new()),
            argument::Kind::Scalar(Bytes::from_static(&[0, 0, 0, 0])),
            argument::Kind::ChunkIndexBytes(4),
        ];
        let open = Open {
            owner: Owner {
                uid: "uid".to_owned(),
                namespace: "default".to_owned(),
                name: "BurstJob/a".to_owned(),
                term: 3,
            },
            boot_id: "boot".to_owned(),
            program: Program {
                ptx: large.slice(1..),
                digest: Bytes::from_static(&[1; 32]),
                entry: "k".to_owned(),
                grid: vec![1, 2, 3],
                block: vec![4, 5, 6],
                dynamic_shared_bytes: 7,
                arguments: kinds.map(|kind| Argument { kind: Some(kind) }).to_vec(),
                chunks_json: Bytes::from_static(b"{}"),
                slice_bytes: 8,
                chunk_timeout_milliseconds: 9,
                store: Some(Store {
                    url: "s3://bucket".to_owned(),
                    options: [("region".to_owned(), "eu-1".to_owned())].into(),
                }),
                aggregated_output: Some(0),
                aggregate_only: true,
            },
            covered: vec![1, 2, 5, 9],
        };
        for program in [open.program.clone(), Program::default()] {
            let frame = ClientFrame::from(client_frame::Kind::Open(Box::new(Open {
                program: program.clone(),
                ..open.clone()
            })));
            let pieces = pieces(&frame);
            let mut decoder = Decoder::default();
            for piece in &pieces {
                decoder.extend(piece.clone());
            }
            assert_eq!(decoder.next_message::<ClientFrame>().unwrap(), Some(frame));
            assert!(!decoder.is_mid_frame());
            if program != Program::default() {
                let shared = pieces.iter().filter(|piece| large.as_ptr_range().contains(&piece.as_ptr()));
                assert_eq!(shared.count(), 3);
                assert_eq!(pieces.iter().filter(|piece| piece.len() >= SHARED_BYTES).count(), 3);
            }
        }
        let other = ClientFrame::from(client_frame::Kind::Acknowledge(crate::burst::Acknowledge { sequence: 4 }));
        assert_eq!(pieces(&other), [encode(&other)]);
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

    #[test]
    fn the_largest_message_is_accepted_and_a_larger_one_is_rejected() {
        let decoded = |bytes: usize| {
            // The text is preceded by a tag of one byte and a length of four bytes.
            let message = GrantId {
                boot_id: "b".repeat(bytes - 5),
                counter: 0,
            };
            assert_eq!(message.encoded_len(), bytes);
            let mut decoder = Decoder::default();
            decoder.extend(encode(&message));
            decoder.next_message::<GrantId>().map(|decoded| decoded == Some(message))
        };
        assert!(matches!(decoded(MAX_FRAME_BYTES), Ok(true)));
        assert!(matches!(decoded(MAX_FRAME_BYTES + 1), Err(FrameError::TooLarge(_))));
    }
}
