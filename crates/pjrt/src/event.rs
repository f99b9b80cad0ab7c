//! Completion of asynchronous operations of a plugin.

use std::{ffi::c_void, sync::Arc};

use crate::{
    abi::{self, RawError, RawEvent},
    error::Error,
    plugin::Plugin,
};

/// Completion of an asynchronous operation, successful or not.
#[derive(Debug)]
pub struct Event {
    plugin: Arc<Plugin>,
    raw: *mut RawEvent,
    /// Function that started the operation, for errors.
    of: &'static str,
}

// SAFETY: Events may be used from any thread (pjrt_c_api.h).
unsafe impl Send for Event {}
// SAFETY: Events may be used from any thread (pjrt_c_api.h).
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        let mut arguments = abi::EventDestroy::new();
        arguments.event = self.raw;
        // A destructor cannot report errors.
        let _ = self.plugin.call(&mut arguments);
    }
}

/// Callback that is called once.
type Told = Box<dyn FnOnce(Result<(), Error>) + Send>;

struct Notice {
    plugin: Arc<Plugin>,
    of: &'static str,
    told: Told,
}

unsafe extern "C" fn notify(error: *mut RawError, notice: *mut c_void) {
    // SAFETY: `on_ready` passed the box to the plugin, which returns it once.
    let notice = unsafe { Box::from_raw(notice.cast::<Notice>()) };
    let outcome = notice.plugin.check(notice.of, error);
    // A panic must not unwind into the plugin.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (notice.told)(outcome)));
}

impl Event {
    pub(crate) fn new(plugin: &Arc<Plugin>, raw: *mut RawEvent, of: &'static str) -> Self {
        Self {
            plugin: Arc::clone(plugin),
            raw,
            of,
        }
    }

    /// Returns whether the operation has finished, successfully or not.
    ///
    /// # Errors
    /// An error of the query itself.
    pub fn is_ready(&self) -> Result<bool, Error> {
        let mut arguments = abi::EventIsReady::new();
        arguments.event = self.raw;
        self.plugin.call(&mut arguments)?;
        Ok(arguments.is_ready)
    }

    /// Blocks until the operation has finished.
    ///
    /// # Errors
    /// The error of the operation.
    pub fn wait(&self) -> Result<(), Error> {
        let mut arguments = abi::EventAwait::new();
        arguments.event = self.raw;
        self.plugin.call(&mut arguments).map_err(|error| Error {
            function: self.of,
            ..error
        })
    }

    /// Registers a callback for the end of the operation. It is called on a thread of the plugin, or immediately on this thread, so it must
    /// not block.
    ///
    /// # Errors
    /// An error of the registration; `told` is not called then.
    pub fn on_ready(&self, told: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        let notice = Box::into_raw(Box::new(Notice {
            plugin: Arc::clone(&self.plugin),
            of: self.of,
            told: Box::new(told),
        }));
        let mut arguments = abi::EventOnReady::new();
        arguments.event = self.raw;
        arguments.callback = Some(notify);
        arguments.user_arg = notice.cast();
        self.plugin.call(&mut arguments).inspect_err(|_| {
            // SAFETY: The plugin rejected the callback, so nobody else owns the box.
            drop(unsafe { Box::from_raw(notice) });
        })
    }
}
