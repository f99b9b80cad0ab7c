//! [`Peer`], the interface of a connection for the hub.

use std::os::unix::net::UnixStream;

use super::Hub;

/// A client's connection, as the hub uses it.
pub(crate) trait Peer: Send + Sync {
    /// Number of the connection; never reused.
    fn number(&self) -> u64;

    fn stream(&self) -> &UnixStream;

    /// Shuts the connection down in both directions.
    fn shut_down(&self);

    /// Writes small answers if no other thread is writing. Returns whether the writer thread must write the rest.
    fn write_now(&self, hub: &Hub) -> bool;

    /// Reads available frames, on the engine's thread. Returns whether the engine's thread may continue to read this connection.
    fn read_now(&self, hub: &Hub) -> bool;
}
