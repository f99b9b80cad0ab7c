//! The executor's end of the socket towards its supervisor.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use sahasra_wire::frame;

use super::protocol::FromExecutor;

/// Writes whole frames, one lane at a time. A supervisor that does not read makes the lanes wait.
#[derive(Debug)]
pub struct Reporter {
    socket: Mutex<UnixStream>,
}

impl Reporter {
    /// Over a blocking socket.
    pub fn new(socket: UnixStream) -> Self {
        Self {
            socket: Mutex::new(socket),
        }
    }

    /// Sends. Without a supervisor there is nobody to run for: the process ends.
    pub fn send_all(&self, messages: impl IntoIterator<Item = FromExecutor>) {
        for message in messages {
            let bytes = frame::encode(&message);
            let written = self.socket.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes);
            if written.is_err() {
                end_process();
            }
        }
    }

    /// Ends the process between two frames.
    pub fn end_process(&self) -> ! {
        let _socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        end_process()
    }
}

/// Ends the process without destructors and exit handlers: a driver's would wait for a kernel that never ends. What was
/// written before stays readable, and the status board says why.
pub fn end_process() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
