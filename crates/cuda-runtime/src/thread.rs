//! What the runtime keeps for each thread: its last error and its device.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

thread_local! {
    static LAST: Cell<(Error, u32)> = const { Cell::new((Error::SUCCESS, 0)) };
    static DEVICE: Cell<i32> = const { Cell::new(0) };
}

/// Number of resets of a device: a sticky error does not outlive the next.
static RESETS: AtomicU32 = AtomicU32::new(0);

/// Notes an error of the thread.
pub(crate) fn note(error: Error) {
    LAST.set((error, RESETS.load(Ordering::Relaxed)));
}

/// Forgets sticky errors of all threads.
pub(crate) fn reset() {
    RESETS.fetch_add(1, Ordering::Relaxed);
}

/// The thread's last error.
pub(crate) fn last() -> Error {
    let (error, resets) = LAST.get();
    if error.is_sticky() && resets != RESETS.load(Ordering::Relaxed) {
        return Error::SUCCESS;
    }
    error
}

/// Returns the thread's last error and forgets it, unless it is sticky.
pub(crate) fn take_last() -> Error {
    let error = last();
    if !error.is_sticky() {
        LAST.set((Error::SUCCESS, 0));
    }
    error
}

/// The device that the thread has chosen.
pub(crate) fn device() -> i32 {
    DEVICE.get()
}

/// Chooses a device for the thread.
pub(crate) fn set_device(device: i32) {
    DEVICE.set(device);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_once_and_sticky_ones_until_a_reset() {
        assert_eq!(take_last(), Error::SUCCESS);
        note(Error::INVALID_VALUE);
        assert_eq!(
            (last(), take_last(), last()),
            (Error::INVALID_VALUE, Error::INVALID_VALUE, Error::SUCCESS)
        );
        note(Error::ILLEGAL_ADDRESS);
        assert_eq!((take_last(), take_last()), (Error::ILLEGAL_ADDRESS, Error::ILLEGAL_ADDRESS));
        std::thread::spawn(|| assert_eq!(last(), Error::SUCCESS)).join().expect("no panic");
        reset();
        assert_eq!(take_last(), Error::SUCCESS);
    }
}
