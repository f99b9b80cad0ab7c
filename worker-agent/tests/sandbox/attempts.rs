//! Attempts: actions that the sandbox must reject, and actions that it must allow.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;

use crate::scene::Setup;

/// Environment of the attempts.
pub(crate) struct Place {
    pub setup: Setup,
    /// File descriptor of a TCP connection.
    pub socket: i32,
    /// Content of the secret in the memory of every process.
    pub secret: [u8; 8],
}

/// Kind of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Files of others.
    File,
    /// Memory, descriptors and environment of other processes.
    Memory,
    /// Signals to other processes.
    Signal,
    /// Other actions on other processes.
    Other,
    /// TCP, which Landlock's rules cover.
    Tcp,
    /// Other networks.
    Network,
    /// Unix sockets of this machine.
    Local,
    /// Abstract Unix sockets.
    Abstract,
    /// Programs and processes.
    Program,
    /// The kernel itself.
    Kernel,
}

/// Expected outcome of an attempt outside the sandbox.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outside {
    Succeeds,
    /// The attempt has invalid arguments and fails with this error of the kernel.
    Fails(i32),
    /// The outcome depends on the machine.
    Whatever,
}

impl Outside {
    pub(crate) fn allows(self, errno: i32) -> bool {
        match self {
            Self::Succeeds => errno == 0,
            Self::Fails(expected) => errno == expected,
            Self::Whatever => true,
        }
    }
}

type Run = fn(&Place) -> io::Result<()>;

pub(crate) struct Attempt {
    pub name: &'static str,
    pub kind: Kind,
    pub outside: Outside,
    pub run: Run,
}

impl Attempt {
    /// Returns whether the error is one by which the sandbox rejects the attempt.
    pub(crate) fn is_refusal(&self, errno: i32) -> bool {
        matches!(errno, libc::EPERM | libc::EACCES) || (errno == libc::ENOSYS && self.name.ends_with("clone3"))
    }
}

pub(crate) fn errno(outcome: io::Result<()>) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(-1),
    }
}

fn call(number: libc::c_long, arguments: &[usize]) -> io::Result<usize> {
    let argument = |place: usize| arguments.get(place).copied().unwrap_or(0);
    // SAFETY: pointers among the arguments refer to memory of the callers, which outlives the call and has the size that they state; a call
    // that creates a process is followed by its end.
    let outcome = unsafe { libc::syscall(number, argument(0), argument(1), argument(2), argument(3), argument(4), argument(5)) };
    usize::try_from(outcome).map_err(|_| io::Error::last_os_error())
}

/// Allows every process to trace this one, so that only the sandbox can prevent it where Yama is active.
pub(crate) fn let_everybody_trace() {
    let _ = call(libc::SYS_prctl, &[libc::PR_SET_PTRACER as usize, usize::MAX]);
}

/// Returns the version of the Landlock ABI, or 0 without Landlock.
pub(crate) fn landlock_version() -> u32 {
    call(libc::SYS_landlock_create_ruleset, &[0, 0, 1]).map_or(0, |version| version as u32)
}

/// Runs an attempt on each of the other processes. All must succeed or all must fail, so that no success is missed.
fn each(place: &Place, mut run: impl FnMut(i32, usize) -> io::Result<()>) -> io::Result<()> {
    let outcomes: Vec<_> = place.setup.others.iter().map(|(id, secret)| run(*id, *secret)).collect();
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    if done > 0 && done < outcomes.len() {
        return Err(io::Error::other(format!("one can be reached: {outcomes:?}")));
    }
    outcomes.into_iter().collect()
}

fn of_process(place: &Place, file: &str, read: impl Fn(&str) -> io::Result<()>) -> io::Result<()> {
    each(place, |id, _| read(&format!("/proc/{id}/{file}")))
}

fn read(path: impl AsRef<std::path::Path>) -> io::Result<()> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    if bytes.is_empty() { Err(io::Error::other("empty")) } else { Ok(()) }
}

fn list(path: impl AsRef<std::path::Path>) -> io::Result<()> {
    fs::read_dir(path)?.next().ok_or_else(|| io::Error::other("empty"))?.map(drop)
}

fn text(path: &std::path::Path) -> std::ffi::CString {
    std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn same(place: &Place, bytes: [u8; 8]) -> io::Result<()> {
    if bytes == place.secret {
        Ok(())
    } else {
        Err(io::Error::other("something else"))
    }
}

fn traced(id: i32) -> io::Result<()> {
    let id = id as usize;
    call(libc::SYS_ptrace, &[libc::PTRACE_ATTACH as usize, id])?;
    call(libc::SYS_wait4, &[id, 0, libc::__WALL as usize])?;
    call(libc::SYS_ptrace, &[libc::PTRACE_DETACH as usize, id]).map(drop)
}

fn read_by_call(place: &Place, id: i32, secret: usize) -> io::Result<()> {
    let mut bytes = [0_u8; 8];
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: secret as *mut _,
        iov_len: bytes.len(),
    };
    let (local, remote) = (&raw const local as usize, &raw const remote as usize);
    call(libc::SYS_process_vm_readv, &[id as usize, local, 1, remote, 1])?;
    same(place, bytes)
}

fn descriptor_of(id: i32) -> io::Result<()> {
    let process = call(libc::SYS_pidfd_open, &[id as usize, 0])?;
    let taken = call(libc::SYS_pidfd_getfd, &[process, 0, 0]);
    call(libc::SYS_close, &[process])?;
    call(libc::SYS_close, &[taken?]).map(drop)
}

fn elsewhere(place: &Place) -> io::Result<()> {
    let nowhere = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as u16,
        sa_data: [0; 14],
    };
    let size = size_of::<libc::sockaddr>();
    call(libc::SYS_connect, &[place.socket as usize, &raw const nowhere as usize, size])?;
    let there = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: place.setup.port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
        },
        sin_zero: [0; 8],
    };
    let size = size_of::<libc::sockaddr_in>();
    call(libc::SYS_connect, &[place.socket as usize, &raw const there as usize, size]).map(drop)
}

fn fork() -> io::Result<()> {
    let child = call(libc::SYS_clone, &[libc::SIGCHLD as usize])?;
    if child == 0 {
        let _ = call(libc::SYS_exit_group, &[0]);
    }
    call(libc::SYS_wait4, &[child]).map(drop)
}

fn signal(id: i32, signal: i32) -> io::Result<()> {
    call(libc::SYS_kill, &[id as usize, signal as usize]).map(drop)
}

/// Returns the attempts that the sandbox must reject.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn all() -> Vec<Attempt> {
    use Kind::{Abstract, File as Files, Kernel, Local, Memory, Network, Other, Program, Signal, Tcp};
    use Outside::{Fails, Succeeds, Whatever};
    let attempt = |kind, name, outside, run: Run| Attempt { name, kind, outside, run };
    vec![
        attempt(Files, "read the agent's token", Succeeds, |at| read(at.setup.folder.join("token"))),
        attempt(Files, "read the agent's key", Succeeds, |at| read(at.setup.folder.join("tls.key"))),
        attempt(Files, "read another namespace's program", Succeeds, |at| {
            read(at.setup.folder.join("programs/other/program"))
        }),
        attempt(Files, "list another namespace's programs", Succeeds, |at| {
            list(at.setup.folder.join("programs/other"))
        }),
        attempt(Files, "list namespaces", Succeeds, |at| list(at.setup.folder.join("programs"))),
        attempt(Files, "read the users of the machine", Succeeds, |_| read("/etc/passwd")),
        attempt(Files, "list all processes", Succeeds, |_| list("/proc")),
        attempt(Files, "read the command line of another process", Succeeds, |at| {
            of_process(at, "cmdline", |path| read(path))
        }),
        attempt(Files, "make a file", Succeeds, |at| {
            let path = at.setup.folder.join("made");
            fs::write(&path, "")?;
            fs::remove_file(path)
        }),
        attempt(Files, "change a file", Succeeds, |at| {
            fs::write(at.setup.folder.join("token"), "secret")
        }),
        attempt(Files, "remove a file", Succeeds, |at| {
            fs::remove_file(at.setup.folder.join("removable"))
        }),
        attempt(Files, "link a program out of the cache", Succeeds, |at| {
            let (from, to) = (at.setup.folder.join("programs/mine/linked"), at.setup.folder.join("linked"));
            fs::write(&from, "")?;
            let linked = fs::hard_link(&from, &to);
            fs::remove_file(from)?;
            linked?;
            fs::remove_file(to)
        }),
        attempt(Files, "open a file to everybody by a call", Succeeds, |at| {
            let path = text(&at.setup.folder.join("token"));
            let here = libc::AT_FDCWD as usize;
            call(libc::SYS_fchmodat, &[here, path.as_ptr() as usize, 0o600]).map(drop)
        }),
        attempt(Files, "set the times of a file by a call", Succeeds, |at| {
            let path = text(&at.setup.folder.join("token"));
            call(libc::SYS_utimensat, &[libc::AT_FDCWD as usize, path.as_ptr() as usize]).map(drop)
        }),
        attempt(Files, "watch files by a call", Succeeds, |_| {
            call(libc::SYS_inotify_init1, &[]).and_then(|watch| call(libc::SYS_close, &[watch]).map(drop))
        }),
        attempt(Memory, "read another's environment", Succeeds, |at| {
            of_process(at, "environ", |path| read(path))
        }),
        attempt(Memory, "read another's maps", Succeeds, |at| {
            of_process(at, "maps", |path| read(path))
        }),
        attempt(Memory, "list another's descriptors", Succeeds, |at| {
            of_process(at, "fd", |path| list(path))
        }),
        attempt(Memory, "go through another's root", Succeeds, |at| {
            of_process(at, "root/etc/passwd", |path| read(path))
        }),
        attempt(Memory, "read another's memory", Succeeds, |at| {
            each(at, |id, secret| {
                let mut bytes = [0; 8];
                File::open(format!("/proc/{id}/mem"))?.read_exact_at(&mut bytes, secret as u64)?;
                same(at, bytes)
            })
        }),
        attempt(Memory, "read another's memory by a call", Succeeds, |at| {
            each(at, |id, secret| read_by_call(at, id, secret))
        }),
        attempt(Memory, "trace another by a call", Succeeds, |at| each(at, |id, _| traced(id))),
        attempt(Memory, "take another's descriptor by a call", Succeeds, |at| {
            each(at, |id, _| descriptor_of(id))
        }),
        attempt(Other, "limit another", Succeeds, |at| {
            let mut limit = [0_u64; 2];
            let limit = limit.as_mut_ptr() as usize;
            each(at, |id, _| {
                call(libc::SYS_prlimit64, &[id as usize, libc::RLIMIT_CORE as usize, 0, limit]).map(drop)
            })
        }),
        attempt(Other, "move another to one core", Succeeds, |at| {
            let mut cores = [0_u64; 16];
            let cores = cores.as_mut_ptr() as usize;
            each(at, |id, _| {
                call(libc::SYS_sched_getaffinity, &[id as usize, 128, cores])?;
                call(libc::SYS_sched_setaffinity, &[id as usize, 128, cores]).map(drop)
            })
        }),
        attempt(Other, "survive the agent", Succeeds, |_| {
            call(libc::SYS_prctl, &[libc::PR_SET_PDEATHSIG as usize, 0]).map(drop)
        }),
        attempt(Tcp, "connect to a port", Succeeds, |at| {
            TcpStream::connect(("127.0.0.1", at.setup.port)).map(drop)
        }),
        attempt(Tcp, "listen on a port", Succeeds, |_| TcpListener::bind("127.0.0.1:0").map(drop)),
        attempt(Tcp, "turn a connection elsewhere", Succeeds, elsewhere),
        attempt(Network, "have a socket of UDP", Succeeds, |_| {
            UdpSocket::bind("127.0.0.1:0").map(drop)
        }),
        attempt(Network, "have a socket of netlink", Succeeds, |_| {
            let socket = call(libc::SYS_socket, &[libc::AF_NETLINK as usize, libc::SOCK_RAW as usize, 0])?;
            call(libc::SYS_close, &[socket]).map(drop)
        }),
        attempt(Local, "make a socket of this machine", Succeeds, |_| {
            let socket = call(libc::SYS_socket, &[libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0])?;
            call(libc::SYS_close, &[socket]).map(drop)
        }),
        // Landlock restricts these sockets from its ninth version on: the executor of a GPU may connect.
        attempt(Local, "connect to a socket of this machine", Succeeds, |at| {
            UnixStream::connect(at.setup.folder.join("socket")).map(drop)
        }),
        attempt(Abstract, "connect to an abstract socket", Succeeds, |at| {
            let address = SocketAddr::from_abstract_name(&at.setup.abstract_name)?;
            UnixStream::connect_addr(&address).map(drop)
        }),
        attempt(Program, "start a program", Succeeds, |_| ends_well(&mut Command::new("/bin/true"))),
        attempt(Program, "start a program that lies beside compilers", Succeeds, |at| {
            compile(at, "another", "scratch/source")
        }),
        attempt(Program, "start a compiler", Succeeds, |at| compile(at, "ptxas", "scratch/source")),
        attempt(Program, "have a compiler read the agent's token", Succeeds, |at| {
            compile(at, "ptxas", "token")
        }),
        attempt(Program, "become a program", Fails(libc::ENOENT), |_| {
            call(libc::SYS_execve, &[c"/nowhere".as_ptr() as usize]).map(drop)
        }),
        attempt(Program, "fork", Succeeds, |_| fork()),
        attempt(Program, "fork by clone3", Fails(libc::EINVAL), |_| {
            call(libc::SYS_clone3, &[]).map(drop)
        }),
        attempt(Kernel, "unshare", Succeeds, |_| {
            call(libc::SYS_unshare, &[libc::CLONE_FS as usize]).map(drop)
        }),
        attempt(Kernel, "enter a namespace", Fails(libc::EBADF), |_| {
            call(libc::SYS_setns, &[usize::MAX, 0]).map(drop)
        }),
        attempt(Kernel, "mount", Fails(libc::EFAULT), |_| call(libc::SYS_mount, &[]).map(drop)),
        attempt(Kernel, "use io_uring", Whatever, |_| {
            call(libc::SYS_io_uring_setup, &[1, 0]).map(drop)
        }),
        attempt(Kernel, "use keyrings", Whatever, |_| {
            call(libc::SYS_keyctl, &[0, -3_isize as usize, 0]).map(drop)
        }),
        attempt(Kernel, "use BPF", Whatever, |_| call(libc::SYS_bpf, &[0, 0, 0]).map(drop)),
        attempt(Kernel, "use perf", Whatever, |_| {
            call(libc::SYS_perf_event_open, &[0, 0, 0, 0, 0]).map(drop)
        }),
        attempt(Kernel, "share memory by a key", Succeeds, |_| {
            let memory = call(libc::SYS_shmget, &[libc::IPC_PRIVATE as usize, 4096, 0o600])?;
            call(libc::SYS_shmctl, &[memory, libc::IPC_RMID as usize]).map(drop)
        }),
        // These attempts come last, because they end their targets.
        attempt(Signal, "signal another", Succeeds, |at| each(at, |id, _| signal(id, libc::SIGCONT))),
        attempt(Signal, "signal another's thread", Succeeds, |at| {
            each(at, |id, _| {
                let id = id as usize;
                call(libc::SYS_tgkill, &[id, id, libc::SIGCONT as usize]).map(drop)
            })
        }),
        attempt(Signal, "kill another", Succeeds, |at| each(at, |id, _| signal(id, libc::SIGKILL))),
    ]
}

/// Calls a program as an engine calls a compiler: with a file that it reads, and one that it writes.
fn compile(at: &Place, program: &str, source: &str) -> io::Result<()> {
    let scratch = at.setup.folder.join("scratch");
    if source.starts_with("scratch/") {
        fs::write(at.setup.folder.join(source), "// PTX")?;
    }
    let source = at.setup.folder.join(source);
    let program = at.setup.folder.join("site-packages/nvidia/cuda_nvcc/bin").join(program);
    ends_well(Command::new(program).arg(source).arg(scratch.join("result")))
}

fn ends_well(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    match String::from_utf8_lossy(&output.stderr) {
        _ if output.status.success() => Ok(()),
        said if said.contains("Permission denied") => Err(io::Error::from_raw_os_error(libc::EACCES)),
        said => Err(io::Error::other(format!("{}: {said}", output.status))),
    }
}

pub(crate) fn ordinary() -> Vec<(&'static str, Run)> {
    vec![
        ("read its own maps", |_| read("/proc/self/maps")),
        ("read what the machine is", |_| {
            read("/proc/meminfo").and_then(|()| list("/sys/devices/system/cpu"))
        }),
        ("list libraries", |_| list("/usr/lib")),
        ("read random bytes", |_| File::open("/dev/urandom")?.read_exact(&mut [0; 8])),
        ("write to nowhere", |_| {
            File::options().write(true).open("/dev/null")?.write_all(b"!")
        }),
        ("keep a program", |at| {
            let folder = at.setup.folder.join("programs/mine");
            let (part, whole) = (folder.join("part"), folder.join("whole"));
            fs::write(&part, "program")?;
            fs::rename(&part, &whole)?;
            File::options()
                .write(true)
                .open(&whole)?
                .set_modified(std::time::SystemTime::now())?;
            read(&whole)?;
            list(&folder)?;
            fs::remove_file(whole)
        }),
        ("have threads", |_| {
            std::thread::Builder::new()
                .spawn(|| ())?
                .join()
                .map_err(|_| io::Error::other("it panicked"))
        }),
        ("have a pair of sockets", |_| {
            let (mut one, mut other) = UnixStream::pair()?;
            one.write_all(b"!")?;
            other.read_exact(&mut [0])
        }),
        ("write to the client", |at| {
            call(
                libc::SYS_sendto,
                &[at.socket as usize, b"!".as_ptr() as usize, 1, libc::MSG_NOSIGNAL as usize],
            )
            .map(drop)
        }),
        ("have memory by descriptor", |_| {
            let memory = File::from(rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC)?);
            fs::read_link(format!("/proc/self/fd/{}", memory.as_raw_fd())).map(drop)
        }),
        ("signal itself", |_| signal(std::process::id() as i32, 0)),
    ]
}
