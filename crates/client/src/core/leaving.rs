//! Outgoing operations: selection of the frames to send now, and of the parts to compress before.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use sahasra_wire::session::{ClientFrame, Part, client_frame, decoding_rate, frame};

use super::{Core, Operation};
use crate::Error;

/// Part of an upload that may be compressed before it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub sequence: u64,
    pub payload: Bytes,
    pub width: u32,
    pub is_first: bool,
}

impl Core {
    fn place(&self, sequence: u64) -> Option<usize> {
        let first = self.operations.front()?.message.sequence;
        usize::try_from(sequence.checked_sub(first)?).ok()
    }

    /// Returns the next unsent part whose encoding is undecided; [`Core::settle`] decides it.
    pub(crate) fn candidate(&mut self) -> Option<Candidate> {
        loop {
            let sequence = *self.candidates.front()?;
            let place = self.place(sequence).filter(|place| *place >= self.sent);
            let operation = place.and_then(|place| self.operations.get(place));
            if let (Some(place), Some(Operation { message, payload, .. })) = (place, operation)
                && let Some(client_frame::Kind::Part(part)) = message.kind
            {
                let before = place.checked_sub(1).and_then(|before| self.operations.get(before));
                return Some(Candidate {
                    sequence,
                    payload: payload.clone(),
                    width: part.width,
                    is_first: before.is_some_and(|before| !matches!(before.message.kind, Some(client_frame::Kind::Part(_)))),
                });
            }
            // The part has been sent uncompressed.
            self.candidates.pop_front();
        }
    }

    /// Decides the encoding of a candidate: the given one, or uncompressed. A repeated transmission uses the same encoding. The window
    /// counts the decoded size.
    pub(crate) fn settle(&mut self, sequence: u64, encoded: Option<(Part, Bytes)>) {
        if self.candidates.front() == Some(&sequence) {
            self.candidates.pop_front();
        }
        if let Some((part, payload)) = encoded
            && let Some(place) = self.place(sequence).filter(|place| *place >= self.sent)
            && let Some(operation) = self.operations.get_mut(place)
        {
            operation.message.kind = Some(client_frame::Kind::Part(part));
            operation.payload = payload;
        }
    }

    /// Appends the frames that may be sent now to `pieces`, up to about `at_most` bytes, but only operations with sequence numbers below
    /// `end`. The pieces are to be written in order. Returns the decoded size of the payloads.
    pub(crate) fn write(&mut self, pieces: &mut VecDeque<Bytes>, at_most: usize, end: u64) -> Result<u64, Error> {
        self.flush_deleted();
        let mut heads = BytesMut::new();
        let (mut written, mut decoded) = (0, 0);
        while written < at_most
            && let Some(operation) = self.operations.get_mut(self.sent)
            && operation.message.sequence < end
        {
            let bytes = operation.bytes;
            let full = self.sent >= self.theirs.frames as usize || self.sent_bytes + bytes > self.theirs.bytes;
            // The executor need not confirm less than a quarter of its window, so waiting for its confirmation could last forever.
            let little = self.sent <= self.theirs.frames as usize / 4 && self.sent_bytes <= self.theirs.bytes / 4;
            if full && !little {
                break;
            }
            operation.message.received = self.received;
            operation.message.decoding_rate = decoding_rate();
            let before = heads.len();
            frame::encode(&operation.message, operation.payload.len(), &mut heads)?;
            written += heads.len() - before + operation.payload.len();
            if !operation.payload.is_empty() {
                pieces.push_back(heads.split().freeze());
                pieces.push_back(operation.payload.clone());
            }
            self.sent += 1;
            self.sent_bytes += bytes;
            decoded += bytes;
            self.unconfirmed = (0, 0);
        }
        if self.must_tell() {
            let message = ClientFrame {
                sequence: 0,
                received: self.received,
                kind: None,
                decoding_rate: decoding_rate(),
            };
            frame::encode(&message, 0, &mut heads)?;
            self.unconfirmed = (0, 0);
        }
        if !heads.is_empty() {
            pieces.push_back(heads.freeze());
        }
        Ok(decoded)
    }
}
