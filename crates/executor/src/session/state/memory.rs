//! Accounting of device memory against the session's limit.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use sahasra_wire::session::FailureCode;

use super::State;
use crate::session::engine::{Engine, Fault};

/// Device memory in use, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Account {
    used: Cell<u64>,
}

/// A share of an [`Account`], until it is dropped or released.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Rc<Account>,
    bytes: Cell<u64>,
}

impl Account {
    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.get()
    }

    /// Adds `bytes` to the bytes in use until the charge is dropped or released.
    pub(crate) fn charge(self: &Rc<Self>, bytes: u64) -> Charge {
        self.used.set(self.used.get().saturating_add(bytes));
        Charge {
            account: Rc::clone(self),
            bytes: Cell::new(bytes),
        }
    }
}

impl Charge {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Ends the charge, for example because the memory has a new owner.
    pub(crate) fn release(&self) {
        let account = &self.account.used;
        account.set(account.get().saturating_sub(self.bytes.take()));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

impl<E: Engine> State<E> {
    /// Bytes of device memory in use, without the temporary memory of running programs.
    pub(super) fn used(&self) -> u64 {
        self.account.used().saturating_add(self.unsent())
    }

    /// Ensures that `bytes` of device memory, and `temporaries` more while a program runs, are within the limit. Waits for running
    /// executions, and for tensors that are being sent, if that can make room.
    ///
    /// # Errors
    /// [`FailureCode::OutOfMemory`], with the numbers.
    pub(super) fn reserve(&mut self, bytes: u64, temporaries: u64) -> Result<(), Fault> {
        let needed = bytes.saturating_add(temporaries);
        let mut until = None;
        loop {
            let sent = self.sent.count();
            let unsent = self.unsent();
            let used = self.account.used().saturating_add(self.temporaries).saturating_add(unsent);
            if used.saturating_add(needed) <= self.limit_bytes {
                return Ok(());
            }
            if self.finish_oldest() {
                continue;
            }
            let would_help = unsent > 0 && (used - unsent).saturating_add(needed) <= self.limit_bytes;
            let until = *until.get_or_insert_with(|| Instant::now() + self.sending_timeout);
            if !would_help || !self.sent.wait(sent, until) {
                let between = match temporaries {
                    0 => String::new(),
                    temporaries => format!(", {temporaries} of them only while it runs"),
                };
                let on_its_way = match unsent {
                    0 => String::new(),
                    unsent => format!(" ({unsent} of them by deleted tensors that are still being sent)"),
                };
                let message = format!(
                    "{needed} bytes of device memory are needed{between}; the session may use {}, {used} are in use{on_its_way}: delete tensors \
                     that are not needed, or ask for a session with more memory",
                    self.limit_bytes
                );
                return Err(Fault::new(FailureCode::OutOfMemory, message));
            }
        }
    }
}
