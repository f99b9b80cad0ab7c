//! The sandbox of an executor: rights that the process gives up before it receives anything of a tenant.
//!
//! The supervisor starts the process with an empty environment (except for the variables that a driver needs), with the root as working
//! directory, in a process group of its own, and with three descriptors: the socket as standard input, the status page as standard output,
//! and a pipe for its messages as standard error. [`enter`] does the rest: death with the agent, no further inherited descriptors, resource
//! limits, no capabilities, and the restrictions of [`restrict`]:
//!
//! - [`files`]: Landlock restricts which files the process may open, forbids TCP and signals and abstract sockets to other processes, and hides
//!   the memory, descriptors and environment of other processes, although all executors have the agent's uid.
//! - [`calls`]: seccomp rejects the system calls that no engine needs, whatever their arguments.
//!
//! Each of the two closes gaps that the other leaves; `docs/adr/0020-sandbox-of-executors.md` lists the remaining ones.

pub mod calls;
pub mod files;
pub mod reach;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use sahasra_executor_protocol::probe::SandboxFeatures;

use self::reach::Reach;

/// Limit of open descriptors; a driver needs some tens for each device.
const OPEN_FILES: u64 = 1024;
/// Memory of the CPU backend beside the device's memory, in bytes: code, results in transit, stacks.
const OWN_BYTES: u64 = 1 << 30;

/// Descriptors that the supervisor has passed to this process.
#[derive(Debug)]
pub struct Inherited {
    /// Connection to the supervisor.
    pub socket: UnixStream,
    pub status_page: OwnedFd,
}

/// Reason why an executor does not start.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("the agent has exited")]
    AgentGone,
    /// The process has this number of threads: restrictions apply only to the calling thread and to threads that it starts.
    #[error("process has {0} threads: expected 1")]
    Threads(usize),
    /// A system call on an inherited descriptor, a limit, or the rights of the process failed.
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("failed to restrict file access")]
    Files(#[from] files::FilesError),
    #[error("failed to restrict system calls")]
    Calls(#[from] calls::CallsError),
}

/// Enters the sandbox. `parent` is the process id of the agent. `memory_bytes` is the device's memory if it is memory of this process.
///
/// # Errors
/// [`SandboxError`]. A restriction that the kernel does not support is no error.
pub fn enter(parent: i32, memory_bytes: Option<u64>, reach: &Reach) -> Result<Inherited, SandboxError> {
    // Die when the agent's thread that started this process ends. Should the signal be missed, the closed socket has the same effect.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    if rustix::process::getppid() != Pid::from_raw(parent) {
        return Err(SandboxError::AgentGone);
    }
    close_inherited()?;
    let inherited = take_over()?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, OPEN_FILES)?;
    if let Some(bytes) = memory_bytes {
        limit(Resource::Data, bytes.saturating_add(OWN_BYTES))?;
    }
    // The kernel kills this process first when memory is short. The write is not allowed everywhere, and security does not depend on it.
    let _ = std::fs::write("/proc/self/oom_score_adj", "800");
    restrict(reach)?;
    Ok(inherited)
}

/// Restricts this process permanently, including everything that it starts and loads.
///
/// # Errors
/// [`SandboxError`] if a restriction that the kernel supports cannot be applied. A restriction that the kernel does not support is no
/// error.
pub fn restrict(reach: &Reach) -> Result<SandboxFeatures, SandboxError> {
    // Without /proc the number of threads is unknown and assumed to be one: an executor calls this before it starts a thread.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(SandboxError::Threads(threads));
    }
    rustix::thread::set_no_new_privs(true).map_err(io::Error::from)?;
    drop_capabilities()?;
    Ok(SandboxFeatures {
        landlock: files::restrict(reach)?,
        seccomp: calls::restrict(reach)?,
    })
}

/// Drops root's capabilities except `CAP_DAC_OVERRIDE`: a plugin may lie in another user's folder, and Landlock decides which files are
/// accessible.
fn drop_capabilities() -> io::Result<()> {
    let kept = rustix::thread::capabilities(None)?.permitted & CapabilitySet::DAC_OVERRIDE;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

fn take_over() -> io::Result<Inherited> {
    let socket = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    let status_page = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    // Standard output receives the output of kernels.
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(Inherited { socket, status_page })
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

/// Closes all descriptors beyond the three standard ones, which the process that started the agent may have left open.
fn close_inherited() -> io::Result<()> {
    let numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    for number in numbers {
        // The descriptor through which the folder was read is closed already.
        if std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok() {
            // SAFETY: the descriptor is open, as was just checked, and nothing owns it: the process is new, has one thread and has opened
            // nothing.
            unsafe { rustix::io::close(number) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_restricted() {
        // The thread of a test is not the only one of its process.
        assert!(matches!(restrict(&Reach::default()), Err(SandboxError::Threads(2..))));
    }
}
