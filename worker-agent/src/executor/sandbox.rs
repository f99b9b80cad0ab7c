//! What an executor gives up before it sees anything of a tenant's.
//!
//! The supervisor starts it with an empty environment (but for what a driver needs), its working directory at the root,
//! in a process group of its own, with three descriptors: the socket as standard input, the status board as standard
//! output, and a pipe for its words as standard error. [`enter`] does the rest: death with the agent, no inherited descriptor,
//! limits, no capabilities, and the **walls** ([`put_up_walls`]):
//!
//! - [`files`]: Landlock. Which files it may open, no TCP, no signals and abstract sockets towards others, and nothing of
//!   another process's memory, descriptors and environment, though all executors have the agent's uid.
//! - [`calls`]: seccomp. No call that has no place in an engine, whatever it is done to.
//!
//! Each closes what the other leaves open; `docs/adr/0020-walls-of-executors.md` says what is left.

pub mod calls;
pub mod files;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

/// Descriptors that an executor may have open: a driver takes some tens for each device.
const OPEN_FILES: u64 = 1024;
/// Memory beside the device's that the CPU engine may use: code, results on their way, stacks.
const OWN_BYTES: u64 = 1 << 30;

/// What the supervisor has handed over.
#[derive(Debug)]
pub struct Inherited {
    /// Towards the supervisor.
    pub socket: UnixStream,
    /// File of the status board.
    pub board: OwnedFd,
}

/// What an executor has to reach beyond what each one does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// GPUs, through their driver.
    pub gpu: bool,
    /// The PJRT plugin.
    pub plugin: Option<PathBuf>,
    /// The folder in which compiled programs are read and written.
    pub program_cache: Option<PathBuf>,
    /// A folder of its own for files that live as long as it.
    pub scratch: Option<PathBuf>,
}

impl Reach {
    /// Whether the plugin may start the vendor's compilers, which are programs of their own, within these walls: XLA hands what it has made
    /// for a GPU to `ptxas`.
    pub fn has_compilers(&self) -> bool {
        self.gpu && self.plugin.is_some()
    }
}

/// Which walls stand: what the kernel has of those that were put up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walls {
    /// Version of Landlock's interface that is in force; 0 without Landlock.
    pub landlock: u32,
    /// Whether calls are filtered.
    pub seccomp: bool,
}

/// Why an executor does not run.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The agent ended meanwhile.
    #[error("the agent is gone")]
    AgentGone,
    /// Walls are of the thread that puts them up, and of those that it starts.
    #[error("there are {0} threads already")]
    Threads(usize),
    /// What was inherited, or a limit.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Files.
    #[error("cannot restrict files")]
    Files(#[from] files::FilesError),
    /// Calls.
    #[error("cannot restrict system calls")]
    Calls(#[from] calls::CallsError),
}

impl Walls {
    /// What the kernel lacks, and what an executor that was broken into can do for want of it; empty where nothing is missing. The
    /// executors of a `gpu` need more of Landlock, as its driver has sockets.
    pub fn missing(&self, gpu: bool) -> Vec<&'static str> {
        let mut missing = Vec::new();
        match self.landlock {
            0 => missing.push("Landlock (read and write what the agent may: its token, its key, other namespaces' programs and memory)"),
            1 | 2 => missing.push("Landlock 3, of Linux 6.2 (truncate files that it may read)"),
            _ => {}
        }
        if gpu && (1..4).contains(&self.landlock) {
            missing.push("Landlock 4, of Linux 6.7 (turn a connection that it was handed into one to elsewhere)");
        }
        if gpu && (1..6).contains(&self.landlock) {
            missing.push("Landlock 6, of Linux 6.12 (speak to abstract sockets of others)");
        }
        if !self.seccomp {
            missing.push("seccomp (open connections, start programs, signal the agent)");
        }
        missing
    }
}

/// Enters the sandbox. `parent` is the agent; `memory_bytes` the device's memory where it is this process's own.
///
/// # Errors
/// [`SandboxError`]. That the kernel lacks a wall is none.
pub fn enter(parent: i32, memory_bytes: Option<u64>, reach: &Reach) -> Result<Inherited, SandboxError> {
    // Killed when the agent's thread that made it ends. The end of the socket says the same, should that not come.
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
    // The first to go when memory is short. Not everywhere allowed, and no wall.
    let _ = std::fs::write("/proc/self/oom_score_adj", "800");
    put_up_walls(reach)?;
    Ok(inherited)
}

/// Puts up the walls around this process, for good: whatever it starts and loads is inside.
///
/// # Errors
/// [`SandboxError`]: what does not come about where the kernel has it. That the kernel lacks a wall is none.
pub fn put_up_walls(reach: &Reach) -> Result<Walls, SandboxError> {
    // Where there is no /proc nothing says how many; an executor is called before anything starts one.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(SandboxError::Threads(threads));
    }
    rustix::thread::set_no_new_privs(true).map_err(io::Error::from)?;
    drop_capabilities()?;
    Ok(Walls {
        landlock: files::restrict(reach)?,
        seccomp: calls::restrict(reach)?,
    })
}

/// Root's rights go, but for reading what belongs to others: a plugin may lie in somebody's folder, and which files are within reach
/// is Landlock's to say.
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
    let board = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    // A kernel's own output comes this way.
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let missing = |landlock, seccomp, gpu| Walls { landlock, seccomp }.missing(gpu).join("; ");
        for complete in [(3, true, false), (9, true, false), (6, true, true)] {
            assert_eq!(missing(complete.0, complete.1, complete.2), "");
        }
        assert!(missing(5, true, true).starts_with("Landlock 6") && missing(3, true, true).contains("Landlock 4"));
        assert!(missing(2, true, false).contains("truncate"));
        assert!(missing(0, true, true).starts_with("Landlock (") && !missing(0, true, true).contains("seccomp"));
        assert!(missing(7, false, false).starts_with("seccomp"));
        assert!(missing(0, false, false).contains("Landlock") && missing(0, false, false).contains("seccomp"));
    }

    #[test]
    fn walls_are_not_put_up_around_a_part_of_the_process() {
        // A test has a thread beside the one that started it.
        assert!(matches!(put_up_walls(&Reach::default()), Err(SandboxError::Threads(2..))));
    }
}
