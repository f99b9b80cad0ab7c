//! [`Peer`], the interface of a connection for the hub.

use std::io;
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

    /// Receives available bytes on the engine's thread, and returns their number; 0 at the end of the connection.
    ///
    /// # Errors
    /// `WouldBlock` if there are none, or an error of the connection.
    fn receive_now(&self, hub: &Hub) -> io::Result<usize>;

    /// Processes the frames received, on the engine's thread. Returns whether the engine's thread may continue to receive.
    fn process_now(&self, hub: &Hub) -> bool;
}
