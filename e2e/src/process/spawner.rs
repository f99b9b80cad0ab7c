//! Thread that starts all child processes.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use rustix::process::{Pid, Signal};

type Request = (Command, Sender<io::Result<Child>>);

static REQUESTS: OnceLock<Sender<Request>> = OnceLock::new();

/// Starts `command` from a thread that lives as long as this process; the child is killed when this process ends.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. The closure makes two system calls (prctl and getppid),
    // allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || die_with(parent));
    }
    let requests = REQUESTS.get_or_init(|| {
        let (sender, receiver) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, reply) in receiver {
                // The receiver waits for this reply; if it has ended, the child still ends with this process.
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
    // The parent may have ended before the death signal was set.
    if rustix::process::getppid() == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::BrokenPipe))
    }
}
