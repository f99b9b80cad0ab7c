//! Contexts as they come and go.

use std::sync::Arc;

use crate::boundary::Handle;
use crate::context::Context;
use crate::status::Status;
use crate::table::new_handle;

use super::Driver;
use super::host::remedy;

impl Driver {
    /// Makes a context of a program's own.
    pub(crate) fn create_context(&self, flags: u32) -> Result<Arc<Context>, Status> {
        let context = Context::open(&*self.device, new_handle(), false, flags, remedy)?;
        self.contexts.insert(context.handle, Arc::clone(&context));
        Ok(context)
    }

    /// Destroys everything in a context that was removed from the table, after its work.
    pub(crate) fn destroy(&self, context: &Context) {
        // A failure has no meaning any more.
        let _ = context.synchronise();
        let id = context.id;
        // Before captures end, so that none begins afterwards.
        self.streams.retain(|stream| stream.context_id != id);
        for capture in self.captures.forget_context(id) {
            self.abandon(&capture, None);
        }
        self.forget_graphs_of(id);
        self.functions.retain(|function| function.context_id != id);
        self.modules.retain(|module| module.context_id != id);
        self.libraries.each(|library| {
            library.modules.lock().remove(&id);
        });
        self.events.retain(|event| event.context_id != id);
        // Before other contexts get its addresses: a thread for functions of the program, or a call, may still have the queue.
        context.queue.close();
        for (kind, size) in self.ranges.remove_context(context) {
            self.discount(kind, size);
        }
        // The context is marked as destroyed: other threads add none any more.
        self.textures.retain(|texture| texture.context_id != id);
        self.surfaces.retain(|surface| surface.context_id != id);
        self.arrays.retain(|array| array.context_id != id);
        self.virtual_memory.lock().forget_context(id);
        self.host.write().retain(|_, range| !(range.is_managed() && range.context_id == id));
    }
}

/// The primary context of the device.
pub(crate) struct Primary {
    handle: Handle,
    references: u32,
    pub(crate) flags: u32,
}

impl Default for Primary {
    fn default() -> Self {
        Self {
            handle: new_handle(),
            references: 0,
            flags: 0,
        }
    }
}

impl Primary {
    /// Handle of the context, whether it exists or not.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Whether the context exists.
    pub(crate) fn is_active(&self) -> bool {
        self.references > 0
    }

    /// Takes a reference, with which the context comes into being.
    pub(crate) fn retain(&mut self, driver: &Driver) -> Result<Handle, Status> {
        if driver.contexts.find(self.handle).is_none() {
            let context = Context::open(&*driver.device, self.handle, true, self.flags, remedy)?;
            driver.contexts.insert(self.handle, context);
        }
        self.references += 1;
        Ok(self.handle)
    }

    /// Gives a reference back. Without one, the context is removed and returned: the caller destroys it.
    pub(crate) fn release(&mut self, driver: &Driver) -> Result<Option<Arc<Context>>, Status> {
        self.references = self.references.checked_sub(1).ok_or(Status::INVALID_CONTEXT)?;
        match self.references {
            0 => driver.contexts.remove(self.handle).map(Some),
            _ => Ok(None),
        }
    }

    /// Removes the context and returns it: the caller destroys it. If there are references to it, a new one is in its place at once.
    pub(crate) fn reset(&mut self, driver: &Driver) -> Result<Option<Arc<Context>>, Status> {
        if self.references == 0 {
            return Ok(driver.contexts.remove(self.handle).ok());
        }
        let context = Context::open(&*driver.device, self.handle, true, self.flags, remedy)?;
        Ok(driver.contexts.insert(self.handle, context))
    }
}
