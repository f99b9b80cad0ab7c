//! Memory of a caller that is sent without a copy: the caller waits until nothing refers to it any more.

use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

/// Signalled when the memory is not referred to any more.
#[derive(Debug, Default)]
struct Returned {
    is_returned: Mutex<bool>,
    changed: Condvar,
}

/// Owner of a [`Bytes`] and its slices.
struct Owner {
    start: *const u8,
    length: usize,
    returned: Arc<Returned>,
}

// SAFETY: the memory is only read, and `lend` returns after the owner was dropped.
unsafe impl Send for Owner {}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `lend` got these bytes as a slice and has not returned.
        unsafe { slice::from_raw_parts(self.start, self.length) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        *self.returned.is_returned.lock() = true;
        self.returned.changed.notify_all();
    }
}

/// Waits when it is dropped, so that a panic does not end the loan before its time.
struct Loan(Arc<Returned>);

impl Drop for Loan {
    fn drop(&mut self) {
        let mut is_returned = self.0.is_returned.lock();
        self.0.changed.wait_while(&mut is_returned, |is_returned| !*is_returned);
    }
}

/// Calls `send` with the bytes, and returns when all [`Bytes`] that refer to them have been dropped.
pub(crate) fn lend<T>(bytes: &[u8], send: impl FnOnce(Bytes) -> T) -> T {
    let returned = Arc::<Returned>::default();
    let _loan = Loan(Arc::clone(&returned));
    send(Bytes::from_owner(Owner {
        start: bytes.as_ptr(),
        length: bytes.len(),
        returned,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_ends_after_the_last_reference() {
        let memory = vec![7; 1000];
        let reader = lend(&memory, |bytes| {
            let part = bytes.slice(100..200);
            drop(bytes);
            std::thread::spawn(move || part.iter().map(|byte| u32::from(*byte)).sum::<u32>())
        });
        // The thread has dropped its part, after it had read it.
        drop(memory);
        assert_eq!(reader.join().unwrap(), 700);
    }

    #[test]
    fn a_panic_does_not_end_a_loan() {
        let memory = vec![1; 10];
        let (sender, receiver) = std::sync::mpsc::channel::<Bytes>();
        let reader = std::thread::spawn(move || receiver.recv().map(|bytes| bytes.len()));
        let lent = std::panic::catch_unwind(|| {
            lend(&memory, |bytes| {
                sender.send(bytes).unwrap();
                panic!("after the bytes were passed on")
            })
        });
        assert!(lent.is_err());
        assert_eq!(reader.join().unwrap(), Ok(10));
    }
}
