//! The session stream: frames of a client and of a session executor. `proto/session.proto` has the messages, and `docs/protocol.md` the
//! rules that span several messages.

pub mod compression;
pub mod frame;
mod headers;
pub mod keepalive;
mod part;

pub use headers::*;
pub use part::*;

include!(concat!(env!("OUT_DIR"), "/sahasra.session.rs"));

/// Version of the session protocol that this crate implements.
pub const VERSION: u32 = 1;
/// Value of the `Upgrade` header, and name of the WebSocket subprotocol.
pub const PROTOCOL: &str = "sahasra-session.v1";
/// Largest window in frames. Larger announced windows are reduced to this size, because the sender keeps all outstanding frames.
pub const LARGEST_WINDOW_FRAMES: u32 = 1 << 16;
/// Largest window in payload bytes. Larger announced windows are reduced to this size.
pub const LARGEST_WINDOW_BYTES: u64 = 256 << 20;

impl Refused {
    pub fn new(code: RejectionCode, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
        }
    }
}

impl Synchronise {
    /// Creates a request for the first failure since the last [`Synchronise`], whether another answer has reported it or not.
    #[must_use]
    pub fn new(request: u64) -> Self {
        Self {
            request,
            only_unreported: false,
        }
    }
}
