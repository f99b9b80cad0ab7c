//! What makes a run the same wherever and whenever it happens: each in a process of its own, forked from one that has done
//! nothing, with addresses that are not randomised, and with the C library's randomness and clocks replaced by seeded
//! and virtual ones. Only this binary does so.

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

/// Of `personality(2)`: addresses are not randomised.
const ADDR_NO_RANDOMIZE: libc::c_ulong = 0x0004_0000;

thread_local! {
    /// Of the seeded generator, when there is one.
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Where virtual time is counted from, in a process that runs a seed.
static ORIGIN: OnceLock<()> = OnceLock::new();

/// Starts this program again without randomised addresses, unless it runs so already or may not.
pub fn without_randomised_addresses() {
    // SAFETY: reads and sets a flag of this process.
    let set = unsafe {
        let now = libc::personality(0xffff_ffff);
        if now == -1 || now as libc::c_ulong & ADDR_NO_RANDOMIZE != 0 {
            return;
        }
        libc::personality(now as libc::c_ulong | ADDR_NO_RANDOMIZE) != -1
    };
    if let (true, Ok(program)) = (set, std::env::current_exe()) {
        let error = Command::new(program).args(std::env::args_os().skip(1)).exec();
        eprintln!("addresses stay randomised: {error}");
    }
}

/// A process that runs a seed.
#[derive(Debug)]
pub struct Child {
    process: libc::pid_t,
    said: File,
    /// Processor time that it may use.
    patience: Duration,
    began: Instant,
}

/// A child that waits for what never comes uses no processor time; one that is starved by others does not hang. So many times its
/// patience may go by on the clock.
const STARVED: u32 = 30;

/// Runs `work` in a process of its own with randomness from `seed` and a virtual clock; it says one text, and hangs when it has
/// used more processor time than `patience`.
pub fn fork(seed: u64, patience: Duration, work: impl FnOnce() -> String) -> io::Result<Child> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptors were just opened and belong to nobody else.
    let (reader, mut writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    // SAFETY: this process has one thread, so that the child finds every lock open.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(reader);
            STATE.set(Some(seed));
            let _ = ORIGIN.set(());
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_default();
            let _ = writer.write_all(said.as_bytes());
            drop(writer);
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        process => Ok(Child {
            process,
            said: reader,
            patience,
            began: Instant::now(),
        }),
    }
}

/// The place of a child that has ended, or whose time is over.
pub fn first_ended<'a>(children: impl Iterator<Item = &'a Child> + Clone) -> usize {
    loop {
        let mut polled: Vec<libc::pollfd> = (children.clone())
            .map(|child| libc::pollfd {
                fd: child.said.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        // SAFETY: as many entries as it is told.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 1000) };
        let ended = polled.iter().position(|entry| entry.revents != 0);
        let late = children.clone().position(|child| child.hangs());
        if let Some(place) = ended.or(late) {
            return place;
        }
    }
}

impl Child {
    /// What it said, once it has ended; or that it did not in time.
    pub fn wait(mut self) -> Result<String, String> {
        first_ended(std::iter::once(&self));
        if self.hangs() {
            let patience = self.patience.as_secs();
            self.end();
            return Err(format!("it hangs, in real time: no end after {patience} s of processor time"));
        }
        let mut text = String::new();
        let read = self.said.read_to_string(&mut text).map_err(|error| error.to_string());
        self.reap();
        read.map(|_| text)
    }

    fn hangs(&self) -> bool {
        self.processor_time() >= self.patience || self.began.elapsed() >= self.patience * STARVED
    }

    /// What it has used of the processors; nothing when it has ended.
    fn processor_time(&self) -> Duration {
        let mut clock = 0;
        let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both write to what they are given; the process has not been waited for, so that the number is still its own.
        let known = unsafe {
            libc::clock_getcpuclockid(self.process, &mut clock) == 0 && libc::syscall(libc::SYS_clock_gettime, clock, &mut used) == 0
        };
        if !known {
            return Duration::ZERO;
        }
        Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
    }

    /// Ends it.
    pub fn end(self) {
        // SAFETY: signals a child that has not been waited for.
        unsafe { libc::kill(self.process, libc::SIGKILL) };
        self.reap();
    }

    fn reap(&self) {
        // SAFETY: waits for a child of this process; nothing is written.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// The C library's random source: seeded in a process that runs a seed, the system's elsewhere.
///
/// # Safety
/// As for `getrandom(2)`: `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: libc::size_t, flags: libc::c_uint) -> libc::ssize_t {
    let Some(mut state) = STATE.try_with(Cell::get).ok().flatten() else {
        // SAFETY: the caller's arguments, handed on.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) } as libc::ssize_t;
    };
    // SAFETY: the caller says that there is room.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for byte in bytes {
        // splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *byte = (mixed >> 56) as u8;
    }
    STATE.set(Some(state));
    length as libc::ssize_t
}

/// The C library's clocks: virtual in a process that runs a seed, the system's elsewhere.
///
/// # Safety
/// As for `clock_gettime(2)`: `time` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    if ORIGIN.get().is_none() {
        // SAFETY: the caller's arguments, handed on.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as libc::c_int;
    }
    let elapsed = sahasra_simulation::virtual_time();
    // Some day, and far enough from zero for whatever is subtracted.
    let origin = if clock == libc::CLOCK_REALTIME { 1_800_000_000 } else { 1_000_000 };
    // SAFETY: the caller says that it can be written.
    unsafe {
        (*time).tv_sec = origin + elapsed.as_secs() as libc::time_t;
        (*time).tv_nsec = libc::c_long::from(elapsed.subsec_nanos());
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);

    #[test]
    fn who_computes_for_too_long_hangs() {
        let child = fork(1, PATIENCE, || {
            let mut sum = 0_u64;
            loop {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
        });
        let said = child.expect("a process can be made").wait();
        assert!(said.is_err_and(|error| error.contains("hangs")));
    }

    #[test]
    fn who_only_waits_for_a_processor_does_not_hang() {
        let child = fork(1, PATIENCE, || {
            std::thread::sleep(3 * PATIENCE);
            "done".to_owned()
        });
        let said = child.expect("a process can be made").wait();
        assert_eq!(said.as_deref(), Ok("done"));
    }
}
