//! Child processes of the agent: their start, their stderr, their end.

pub(crate) mod ask;
pub(crate) mod sandbox_check;
pub(crate) mod spawn;
pub(crate) mod stderr;

use rustix::process::{Pid, Signal};

/// A child process that is killed and reaped when this handle is dropped.
#[derive(Debug)]
pub(crate) struct Child(pub(crate) Option<std::process::Child>);

impl Child {
    /// Kills the process and its children: each executor leads a process group.
    pub(crate) fn kill(&mut self) {
        let id = self.0.as_ref().and_then(|child| i32::try_from(child.id()).ok());
        if let Some(group) = id.and_then(Pid::from_raw) {
            // The process has not been reaped, so no other process can have its id. An error means that all have exited already.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let Some(mut child) = self.0.take() else { return };
        if !matches!(child.try_wait(), Ok(Some(_))) {
            // The process exits soon, but a driver may take its time to clean up. If no thread can be created, the process stays a zombie
            // until the agent exits.
            let _ = std::thread::Builder::new().stack_size(64 << 10).spawn(move || child.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_an_executor_started_ends_with_it() {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "sleep 600 & echo $!; wait"])
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut started = String::new();
        output.read_line(&mut started).unwrap();
        drop(Child(Some(child)));
        // Both processes hold the pipe open, and neither writes to it again.
        let mut rest = String::new();
        assert_eq!(output.read_line(&mut rest).unwrap(), 0, "{started}{rest}");
    }
}
