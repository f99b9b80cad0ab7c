//! The executor's end of the socket to its supervisor.

use std::io::Write;
use std::os::unix::net::UnixStream;

use parking_lot::Mutex;
use sahasra_executor_protocol::burst::messages::{FromExecutor, from_executor::Kind};
use sahasra_wire::frame;

use crate::process::end_process;

/// Writes messages as whole frames, one lane at a time. Lanes block while the supervisor does not read.
#[derive(Debug)]
pub(crate) struct Reporter {
    socket: Mutex<UnixStream>,
}

impl Reporter {
    /// Reporter that writes to a blocking socket.
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            socket: Mutex::new(socket),
        }
    }

    /// Sends the messages. Ends the process if the supervisor is gone, because nobody else needs its results.
    pub(crate) fn send_all(&self, messages: impl IntoIterator<Item = Kind>) {
        for kind in messages {
            let bytes = frame::encode(&FromExecutor { kind: Some(kind) });
            let written = self.socket.lock().write_all(&bytes);
            if written.is_err() {
                end_process();
            }
        }
    }

    /// Ends the process, but not in the middle of a frame.
    pub(crate) fn end_process(&self) -> ! {
        let _socket = self.socket.lock();
        end_process()
    }
}
