//! Threads that leave signals to those of the program.

/// Runs a function with all signals blocked in this thread. Threads that the function starts keep them blocked, so that a program's signal
/// handlers run on its own threads only, for which it may have prepared them.
pub fn with_signals_blocked<T>(function: impl FnOnce() -> T) -> T {
    /// Restores the signals of the thread, also if the function panics.
    struct Restore(libc::sigset_t);

    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: a set that the call below wrote.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
        }
    }

    // SAFETY: sets of signals are plain data, for which zeroes are a value, and both calls write them.
    let _restore = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        Restore(before)
    };
    function()
}
