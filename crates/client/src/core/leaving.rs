//! Operations on their way out: which go now, and parts that may be compressed before they do.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use sahasra_wire::session::{ClientFrame, Part, client_frame, decoding_rate, frame};

use super::{Core, Operation};
use crate::Error;

/// A part of an upload that might be compressed before it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Number of its operation.
    pub sequence: u64,
    /// Its bytes.
    pub payload: Bytes,
    /// Bytes of an element.
    pub width: u32,
    /// Nothing of its tensor comes before it.
    pub is_first: bool,
}

impl Core {
    fn place(&self, sequence: u64) -> Option<usize> {
        let first = self.operations.front()?.message.sequence;
        usize::try_from(sequence.checked_sub(first)?).ok()
    }

    /// The next part that is to be sent and of which nobody has said how: [`Core::settle`] does.
    pub fn candidate(&mut self) -> Option<Candidate> {
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
            // It has gone as it is.
            self.candidates.pop_front();
        }
    }

    /// A candidate goes so, or as it is. So it will when it has to go again, and it counts for what it was.
    pub fn settle(&mut self, sequence: u64, encoded: Option<(Part, Bytes)>) {
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

    /// Appends frames that may be sent now, about `at_most` bytes of them, as pieces to be written one after the other. Gives what their
    /// payloads were before they were encoded.
    ///
    /// # Errors
    /// [`Error::Protocol`] when an operation does not fit into a frame.
    pub fn write(&mut self, pieces: &mut VecDeque<Bytes>, at_most: usize) -> Result<u64, Error> {
        self.write_before(pieces, at_most, u64::MAX)
    }

    /// As [`Core::write`], of operations before that one.
    ///
    /// # Errors
    /// As there.
    pub fn write_before(&mut self, pieces: &mut VecDeque<Bytes>, at_most: usize, end: u64) -> Result<u64, Error> {
        self.flush_deleted();
        let mut heads = BytesMut::new();
        let (mut written, mut decoded) = (0, 0);
        while written < at_most
            && let Some(operation) = self.operations.get_mut(self.sent)
            && operation.message.sequence < end
        {
            let bytes = operation.bytes;
            let full = self.sent >= self.theirs.frames as usize || self.sent_bytes + bytes > self.theirs.bytes;
            // The executor need not tell of less than a quarter: waiting for it to do so might last for ever.
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
            self.untold = (0, 0);
        }
        if self.must_tell() {
            let message = ClientFrame {
                sequence: 0,
                received: self.received,
                kind: None,
                decoding_rate: decoding_rate(),
            };
            frame::encode(&message, 0, &mut heads)?;
            self.untold = (0, 0);
        }
        if !heads.is_empty() {
            pieces.push_back(heads.freeze());
        }
        Ok(decoded)
    }
}
