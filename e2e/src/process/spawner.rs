//! The one thread that starts children.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use rustix::process::{Pid, Signal};

type Request = (Command, Sender<io::Result<Child>>);

static REQUESTS: OnceLock<Sender<Request>> = OnceLock::new();

/// Starts `command` from the thread that lives as long as this process; the child is killed when that ends.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; the closure makes two system calls (prctl and
    // getppid) and neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || die_with(parent));
    }
    let requests = REQUESTS.get_or_init(|| {
        let (sender, receiver) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, reply) in receiver {
                // The asker waits for this reply; should it be gone, the child dies with this process.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, answer) = channel();
    let gone = || io::Error::other("the thread that starts children has ended");
    requests.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above.
    if rustix::process::getppid() == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::BrokenPipe))
    }
}
