//! When something is done, and whether it went well.

use std::{ffi::c_void, sync::Arc};

use crate::{
    abi::{self, RawError, RawEvent},
    error::Error,
    plugin::Plugin,
};

/// Something that goes on in the plugin.
#[derive(Debug)]
pub struct Event {
    plugin: Arc<Plugin>,
    raw: *mut RawEvent,
    /// What it is of, for errors.
    of: &'static str,
}

// SAFETY: events may be used from any thread (pjrt_c_api.h).
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        let mut arguments = abi::EventDestroy::new();
        arguments.event = self.raw;
        // Nobody is there to be told.
        let _ = self.plugin.call(&mut arguments);
    }
}

/// What is called once.
type Told = Box<dyn FnOnce(Result<(), Error>) + Send>;

struct Notice {
    plugin: Arc<Plugin>,
    of: &'static str,
    told: Told,
}

unsafe extern "C" fn notify(error: *mut RawError, notice: *mut c_void) {
    // SAFETY: the box that `on_ready` gave away, given back once.
    let notice = unsafe { Box::from_raw(notice.cast::<Notice>()) };
    let outcome = notice.plugin.check(notice.of, error);
    // A panic must not cross into the plugin.
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

    /// Whether it is done, well or not.
    ///
    /// # Errors
    /// What the plugin reports of the question.
    pub fn is_ready(&self) -> Result<bool, Error> {
        let mut arguments = abi::EventIsReady::new();
        arguments.event = self.raw;
        self.plugin.call(&mut arguments)?;
        Ok(arguments.is_ready)
    }

    /// Blocks until it is done.
    ///
    /// # Errors
    /// What went wrong.
    pub fn wait(&self) -> Result<(), Error> {
        let mut arguments = abi::EventAwait::new();
        arguments.event = self.raw;
        self.plugin.call(&mut arguments).map_err(|error| Error {
            function: self.of,
            ..error
        })
    }

    /// Has `told` called when it is done, on a thread of the plugin's or at once on this one: it must not block.
    ///
    /// # Errors
    /// What the plugin reports of the wish; `told` is then not called.
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
            // SAFETY: the plugin refused it: nobody else has it.
            drop(unsafe { Box::from_raw(notice) });
        })
    }
}
