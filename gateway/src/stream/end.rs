//! Ends of a stream.

use std::{io, time::Duration};

use tokio_tungstenite::tungstenite::{Error, error::CapacityError, protocol::frame::coding::CloseCode};

/// Longest reason in a close frame (RFC 6455 §5.5: 125 bytes with the code).
const REASON_BYTES: usize = 123;

#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("the client closed the stream")]
    Client,
    /// The client's connection failed, or its data violated the protocol.
    #[error("{}", client_broke(.0))]
    ClientBroke(Error),
    #[error("client timed out after {} s", .0.as_secs_f32())]
    ClientSilent(Duration),
    /// The client sent a text message.
    #[error("only binary messages are supported")]
    Text,
    #[error("the worker closed the stream")]
    Worker,
    #[error("worker connection lost: {0}")]
    WorkerBroke(io::Error),
    #[error("the gateway is shutting down: connect again")]
    Stopping,
}

impl End {
    /// Every value of [`End::label`].
    pub(super) const REASONS: [&'static str; 5] = ["client_closed", "client_error", "worker_closed", "worker_error", "shutdown"];

    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Client => "client_closed",
            Self::ClientBroke(_) | Self::ClientSilent(_) | Self::Text => "client_error",
            Self::Worker => "worker_closed",
            Self::WorkerBroke(_) => "worker_error",
            Self::Stopping => "shutdown",
        }
    }

    pub(super) fn reason(&self) -> String {
        cut(&self.to_string()).to_owned()
    }

    /// Returns the close code for the client, or `None` if the client closed the stream or is gone.
    pub(super) fn close_code(&self) -> Option<CloseCode> {
        match self {
            Self::Client => None,
            Self::ClientBroke(Error::Capacity(_)) => Some(CloseCode::Size),
            Self::ClientBroke(Error::Protocol(_) | Error::Utf8(_)) => Some(CloseCode::Protocol),
            Self::ClientBroke(_) => None,
            Self::ClientSilent(_) => Some(CloseCode::Away),
            Self::Text => Some(CloseCode::Unsupported),
            Self::Worker => Some(CloseCode::Normal),
            Self::WorkerBroke(_) => Some(CloseCode::Error),
            Self::Stopping => Some(CloseCode::Restart),
        }
    }
}

fn client_broke(error: &Error) -> String {
    match error {
        Error::Capacity(CapacityError::MessageTooLong { max_size, .. }) => format!("a message exceeds {max_size} bytes: send several"),
        error => format!("client connection lost: {error}"),
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(REASON_BYTES)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_labels_of_metrics_are_those_of_all_ends() {
        let ends = [
            End::Client,
            End::ClientBroke(Error::ConnectionClosed),
            End::ClientSilent(Duration::ZERO),
            End::Text,
            End::Worker,
            End::WorkerBroke(io::ErrorKind::BrokenPipe.into()),
            End::Stopping,
        ];
        // No wildcard, so that a new variant does not compile until it is added to the list above.
        let listed = |end: &End| match end {
            End::Client | End::ClientBroke(_) | End::ClientSilent(_) | End::Text | End::Worker | End::WorkerBroke(_) | End::Stopping => {
                end.label()
            }
        };
        let labels: BTreeSet<&str> = ends.iter().map(listed).collect();
        assert_eq!(labels, BTreeSet::from(End::REASONS));
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(100);
        assert_eq!(cut(&long).len(), 122);
        assert_eq!(cut(&"a".repeat(123)).len(), 123);
    }
}
