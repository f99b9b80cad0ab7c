//! Answers to a client.

use bytes::Bytes;
use sahasra_wire::session::{Failed, FailureCode, PART_BYTES, Part, Tensor, element_width, server_frame::Kind};

/// Maximum size of a failure's message in bytes, far below that of a frame's message.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// An answer, without its sequence number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SessionAnswer {
    pub kind: Kind,
    /// Bytes beside the message.
    pub payload: Bytes,
}

impl From<Kind> for SessionAnswer {
    fn from(kind: Kind) -> Self {
        Self {
            kind,
            payload: Bytes::new(),
        }
    }
}

impl SessionAnswer {
    /// The answers that carry an array: its head, and its bytes in parts.
    pub(crate) fn array(head: Tensor, data: &Bytes) -> impl Iterator<Item = Self> {
        let width = element_width(&head.element_type);
        let parts = (0..data.len()).step_by(PART_BYTES).map(move |start| {
            let end = data.len().min(start + PART_BYTES);
            Self {
                kind: Kind::Part(Part::raw(end - start, width)),
                payload: data.slice(start..end),
            }
        });
        std::iter::once(Kind::Tensor(head).into()).chain(parts)
    }

    /// The answer that a request failed, with the first [`MAX_TEXT_BYTES`] of the message. `operation` describes the operation numbered `sequence`.
    pub(crate) fn failed(request: u64, sequence: u64, operation: &str, code: FailureCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MAX_TEXT_BYTES));
        let failed = Failed {
            request,
            code: code.into(),
            sequence,
            operation: operation.to_owned(),
            message,
        };
        Kind::Failed(failed).into()
    }
}
