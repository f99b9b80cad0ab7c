//! Completion of asynchronous operations of a plugin.

use std::{ffi::c_void, sync::Arc};

use crate::{
    abi::{self, Handle, RawError, RawEvent},
    error::Error,
    plugin::Plugin,
};

/// Completion of an asynchronous operation, successful or not.
#[derive(Debug)]
pub struct Event {
    plugin: Arc<Plugin>,
    raw: Handle<RawEvent>,
    /// Function that started the operation, for errors.
    of: &'static str,
}

impl Drop for Event {
    fn drop(&mut self) {
        // A destructor cannot report errors.
        let _ = self.plugin.call(abi::EventDestroy::of(self.raw.0));
    }
}

type Callback = Box<dyn FnOnce(Result<(), Error>) + Send>;

struct Registration {
    plugin: Arc<Plugin>,
    of: &'static str,
    callback: Callback,
}

unsafe extern "C" fn notify(error: *mut RawError, registration: *mut c_void) {
    // SAFETY: `on_ready` passed the box to the plugin, which returns it once.
    let registration = unsafe { Box::from_raw(registration.cast::<Registration>()) };
    let outcome = registration.plugin.check(registration.of, error);
    // A panic must not unwind into the plugin.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (registration.callback)(outcome)));
}

impl Event {
    pub(crate) fn new(plugin: &Arc<Plugin>, raw: *mut RawEvent, of: &'static str) -> Self {
        Self {
            plugin: Arc::clone(plugin),
            raw: Handle(raw),
            of,
        }
    }

    /// Blocks until the operation has finished.
    pub fn wait(&self) -> Result<(), Error> {
        let waited = self.plugin.call(abi::EventAwait::of(self.raw.0));
        waited.map(drop).map_err(|error| Error {
            function: self.of,
            ..error
        })
    }

    /// Registers a callback for the end of the operation. It is called on a thread of the plugin, or immediately on this thread, so it must
    /// not block.
    ///
    /// # Errors
    /// An error of the registration; `callback` is not called then.
    pub fn on_ready(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        let registration = Box::into_raw(Box::new(Registration {
            plugin: Arc::clone(&self.plugin),
            of: self.of,
            callback: Box::new(callback),
        }));
        let mut arguments = abi::EventOnReady::of(self.raw.0);
        arguments.callback = Some(notify);
        arguments.user_arg = registration.cast();
        self.plugin.call(arguments).map(drop).inspect_err(|_| {
            // SAFETY: The plugin rejected the callback, so nobody else owns the box.
            drop(unsafe { Box::from_raw(registration) });
        })
    }
}
