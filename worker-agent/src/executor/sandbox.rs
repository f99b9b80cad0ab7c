//! What an executor gives up before it sees anything of a tenant's.
//!
//! The supervisor starts it with an empty environment (but for what a driver needs), its working directory at the root,
//! in a process group of its own, with three descriptors: the socket as standard input, the status board as standard
//! output, and a pipe for its words as standard error. [`enter`] does the rest. Further walls (a uid of its own, seccomp,
//! no network) belong here too.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, Resource, Rlimit, Signal};

/// Descriptors that an executor may have open: a driver takes some tens for each device.
const OPEN_FILES: u64 = 1024;
/// Memory beside the device's that the CPU engine may use: code, results on their way, stacks.
const OWN_BYTES: u64 = 1 << 30;

/// What the supervisor has handed over.
pub struct Inherited {
    /// Towards the supervisor.
    pub socket: UnixStream,
    /// File of the status board.
    pub board: OwnedFd,
}

/// Enters the sandbox. `parent` is the agent; `memory_bytes` the device's memory where it is this process's own.
///
/// # Errors
/// The system's; and when the agent is gone already.
pub fn enter(parent: i32, memory_bytes: Option<u64>) -> io::Result<Inherited> {
    // Killed when the agent's thread that made it ends. The end of the socket says the same, should that not come.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Pid::from_raw(parent) {
        return Err(io::Error::other("the agent is gone"));
    }
    close_inherited()?;
    let socket = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    let board = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    // A kernel's own output comes this way.
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;

    rustix::thread::set_no_new_privs(true)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, OPEN_FILES)?;
    if let Some(bytes) = memory_bytes {
        limit(Resource::Data, bytes.saturating_add(OWN_BYTES))?;
    }
    // The first to go when memory is short. Not everywhere allowed, and no wall.
    let _ = std::fs::write("/proc/self/oom_score_adj", "800");
    Ok(Inherited { socket, board })
}

fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let before = rustix::process::getrlimit(resource);
    let value = before.maximum.map_or(value, |maximum| maximum.min(value));
    Ok(rustix::process::setrlimit(
        resource,
        Rlimit {
            current: Some(value),
            maximum: Some(value),
        },
    )?)
}

/// Closes everything beyond the three standard descriptors that whoever started the agent may have left open.
fn close_inherited() -> io::Result<()> {
    let numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    for number in numbers {
        // The one through which the folder was read is closed already.
        if std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok() {
            // SAFETY: open, as was just seen; and this runs first of all in a fresh process with one thread, in which
            // nothing owns a descriptor yet.
            unsafe { rustix::io::close(number) };
        }
    }
    Ok(())
}
