//! Messages and status page of an executor that runs chunks.

/// Messages between a supervisor and its executor: frames of [`sahasra_wire::frame`] over a socket pair, in both directions.
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/sahasra.executor.rs"));
}
pub mod status_page;

/// Maximum length of a failure's message in bytes: it becomes part of the status of a Kubernetes object.
pub const MAX_MESSAGE_BYTES: usize = 1024;

/// Truncates a failure's message to [`MAX_MESSAGE_BYTES`], at a character boundary.
pub fn bounded_message(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
    message
}
