//! End of the executor's process.

/// Installs a panic hook that ends the whole process: an executor that lost one thread would leave chunks unfinished.
pub(crate) fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        end_process();
    }));
}

/// Kills the process without running destructors and exit handlers, because a GPU driver's would wait for a kernel that never ends. Frames
/// that were written before stay readable, and the status page shows the reason.
pub(crate) fn end_process() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
