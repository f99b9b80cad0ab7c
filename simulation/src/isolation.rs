//! Isolation of a run, which makes it repeatable everywhere: each run has its own process, forked from one that has done nothing yet,
//! without address randomisation, and with the C library's random source and clocks replaced by seeded and virtual ones. Only this binary
//! does that.

use std::{
    cell::Cell,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, FromRawFd},
    os::unix::process::CommandExt,
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Flag of `personality(2)`: addresses are not randomised.
const ADDR_NO_RANDOMIZE: libc::c_ulong = 0x0004_0000;

thread_local! {
    /// State of the seeded generator; absent outside a process that runs a seed.
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Set in a process that runs a seed, where clocks are virtual.
static ORIGIN: OnceLock<()> = OnceLock::new();

/// Executes this program again without address randomisation, unless randomisation is off already or may not be changed.
pub(crate) fn without_randomised_addresses() {
    // SAFETY: `personality` only reads and sets a flag of this process.
    let set = unsafe {
        let now = libc::personality(0xffff_ffff);
        if now == -1 || now as libc::c_ulong & ADDR_NO_RANDOMIZE != 0 {
            return;
        }
        libc::personality(now as libc::c_ulong | ADDR_NO_RANDOMIZE) != -1
    };
    if let (true, Ok(program)) = (set, std::env::current_exe()) {
        let error = Command::new(program).args(std::env::args_os().skip(1)).exec();
        eprintln!("failed to disable the randomization of addresses: {error}");
    }
}

/// Process that runs a seed.
#[derive(Debug)]
pub(crate) struct Child {
    process: libc::pid_t,
    said: File,
    /// Limit of the child's processor time.
    limit: Duration,
    began: Instant,
}

/// Factor between the limit of processor time and the limit of real time. The second limit finds a child that waits forever and uses no
/// processor time; the factor is large because a child that gets little processor time does not hang.
const STARVED: u32 = 30;

/// Runs `work` in a forked process with randomness from `seed` and a virtual clock. The process reports the text that `work` returns, and
/// counts as hung when it has used more processor time than `limit`.
pub(crate) fn fork(seed: u64, limit: Duration, work: impl FnOnce() -> String) -> io::Result<Child> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors were just opened, and nothing else owns them.
    let (reader, mut writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    // SAFETY: this process has one thread, so the child finds every lock released.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(reader);
            STATE.set(Some(seed));
            let _ = ORIGIN.set(());
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_default();
            let _ = writer.write_all(said.as_bytes());
            drop(writer);
            // SAFETY: `_exit` ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        process => Ok(Child {
            process,
            said: reader,
            limit,
            began: Instant::now(),
        }),
    }
}

/// Waits until a child has ended or exceeded its limits, and returns its index.
pub(crate) fn first_ended<'a>(children: impl Iterator<Item = &'a Child> + Clone) -> usize {
    loop {
        let mut polled: Vec<libc::pollfd> = (children.clone())
            .map(|child| libc::pollfd {
                fd: child.said.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        // SAFETY: the pointer and the length are those of `polled`.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 1000) };
        let ended = polled.iter().position(|entry| entry.revents != 0);
        let late = children.clone().position(|child| child.hangs());
        if let Some(index) = ended.or(late) {
            return index;
        }
    }
}

impl Child {
    /// Waits for the child, and returns its text, or an error if it hangs.
    pub(crate) fn wait(mut self) -> Result<String, String> {
        first_ended(std::iter::once(&self));
        if self.hangs() {
            let limit = self.limit.as_secs();
            self.end();
            return Err(format!("it hangs, in real time: no end after {limit} s of processor time"));
        }
        let mut text = String::new();
        let read = self.said.read_to_string(&mut text).map_err(|error| error.to_string());
        self.reap();
        read.map(|_| text)
    }

    fn hangs(&self) -> bool {
        self.processor_time() >= self.limit || self.began.elapsed() >= self.limit * STARVED
    }

    /// Returns the processor time that the child has used, or zero once it has ended.
    fn processor_time(&self) -> Duration {
        let mut clock = 0;
        let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both calls write only to the variables that they are given. The child has not been waited for, so its id is still its
        // own.
        let known = unsafe {
            libc::clock_getcpuclockid(self.process, &mut clock) == 0 && libc::syscall(libc::SYS_clock_gettime, clock, &mut used) == 0
        };
        if !known {
            return Duration::ZERO;
        }
        Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
    }

    /// Kills the child.
    pub(crate) fn end(self) {
        // SAFETY: the signal goes to a child that has not been waited for.
        unsafe { libc::kill(self.process, libc::SIGKILL) };
        self.reap();
    }

    fn reap(&self) {
        // SAFETY: waits for a child of this process, and passes no pointer to write to.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// Random source of the C library: seeded in a process that runs a seed, the system's in others.
///
/// # Safety
/// As for `getrandom(2)`: `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: libc::size_t, flags: libc::c_uint) -> libc::ssize_t {
    let Some(state) = STATE.try_with(Cell::get).ok().flatten() else {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) } as libc::ssize_t;
    };
    // SAFETY: the caller guarantees that `buffer` has room for `length` bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    let mut random = fastrand::Rng::with_seed(state);
    random.fill(bytes);
    STATE.set(Some(random.get_seed()));
    length as libc::ssize_t
}

/// Clocks of the C library: virtual in a process that runs a seed, the system's in others.
///
/// # Safety
/// As for `clock_gettime(2)`: `time` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    if ORIGIN.get().is_none() {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as libc::c_int;
    }
    let elapsed = sahasra_simulation::virtual_time();
    // The time at the start of a run is arbitrary, but large enough that no subtraction underflows.
    let origin = if clock == libc::CLOCK_REALTIME { 1_800_000_000 } else { 1_000_000 };
    // SAFETY: the caller guarantees that `time` can be written.
    unsafe {
        (*time).tv_sec = origin + elapsed.as_secs() as libc::time_t;
        (*time).tv_nsec = libc::c_long::from(elapsed.subsec_nanos());
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    #[test]
    fn a_child_that_exceeds_its_processor_time_hangs() {
        let child = fork(1, LIMIT, || {
            let mut sum = 0_u64;
            loop {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
        });
        let said = child.expect("a process can be made").wait();
        assert!(said.is_err_and(|error| error.contains("hangs")));
    }

    #[test]
    fn a_child_that_waits_for_a_processor_does_not_hang() {
        let child = fork(1, LIMIT, || {
            std::thread::sleep(3 * LIMIT);
            "done".to_owned()
        });
        let said = child.expect("a process can be made").wait();
        assert_eq!(said.as_deref(), Ok("done"));
    }
}
