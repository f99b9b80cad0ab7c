//! Libraries and their kernels as they come and go. A library belongs to no context. It becomes a module in each context that uses it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sahasra_cuda_boundary::log;
use sahasra_cuda_device::ModuleId;

use crate::boundary::Handle;
use crate::context::Context;
use crate::jit::Logs;
use crate::module::{Entries, Entry, Function, Kernel, Library, Module};
use crate::status::Status;
use crate::table::new_handle;

use super::Driver;
use super::modules::refused;

impl Driver {
    /// Loads a library. Its images are checked at once: by loading them in a context if there is one, or in a queue for that alone.
    pub(crate) fn load_library(&self, context: Option<&Arc<Context>>, images: Vec<Vec<u8>>, logs: &Logs) -> Result<Handle, Status> {
        let handle = new_handle();
        let mut modules = HashMap::new();
        let entries = match context {
            Some(context) => {
                let module = self.load(context, &images, logs, Some(handle), None)?;
                modules.insert(context.id, module.handle);
                self.modules.insert(module.handle, Arc::clone(&module));
                module.entries.clone()
            }
            None => self.describe(&images, logs)?,
        };
        let library = Library {
            images,
            entries,
            modules: Mutex::new(modules),
            kernels: Mutex::default(),
        };
        self.libraries.insert(handle, Arc::new(library));
        Ok(handle)
    }

    /// Functions of images that are not loaded in any context.
    fn describe(&self, images: &[Vec<u8>], logs: &Logs) -> Result<Entries, Status> {
        let queue = self.device.open().map_err(|failure| {
            log::line(&failure.message);
            Status::from(&failure)
        })?;
        let images: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
        let description = queue
            .load(ModuleId(1), &images)
            .map_err(|failure| refused(&failure, &images, logs))?;
        logs.finish(&description);
        Entries::new(&description)
    }

    /// Unloads a library in every context.
    pub(crate) fn unload_library(&self, handle: Handle) -> Result<(), Status> {
        let library = self.libraries.remove(handle)?;
        self.kernels.retain(|kernel| kernel.library != handle);
        let modules = std::mem::take(&mut *library.modules.lock());
        for module in modules.into_values().filter_map(|module| self.modules.remove(module).ok()) {
            // A context that has failed frees everything when it ends.
            let _ = self.unload(&module);
        }
        Ok(())
    }

    /// The module of a library in a context, which is loaded with the first use.
    pub(crate) fn module_of(&self, handle: Handle, context: &Arc<Context>) -> Result<Arc<Module>, Status> {
        let library = self.libraries.get(handle)?;
        let known = || {
            library
                .modules
                .lock()
                .get(&context.id)
                .and_then(|module| self.modules.find(*module))
        };
        if let Some(module) = known() {
            return Ok(module);
        }
        // Unlocked: the load waits for the work of the context.
        let entries = Some(library.entries.clone());
        let module = self.load(context, &library.images, &Logs::default(), Some(handle), entries)?;
        self.modules.insert(module.handle, Arc::clone(&module));
        let mut modules = library.modules.lock();
        let found = modules.get(&context.id).and_then(|module| self.modules.find(*module));
        if let Some(other) = found {
            // Another thread was faster.
            drop(modules);
            self.modules.remove(module.handle)?;
            self.unload(&module)?;
            return Ok(other);
        }
        modules.insert(context.id, module.handle);
        Ok(module)
    }

    /// Handle of the kernel with an index: the same one each time.
    pub(crate) fn kernel_at(&self, handle: Handle, library: &Library, index: usize) -> Result<Handle, Status> {
        let entry = library.entries.at(index)?;
        let mut kernels = library.kernels.lock();
        Ok(*kernels.entry(index).or_insert_with(|| {
            let kernel = new_handle();
            let library = handle;
            self.kernels.insert(kernel, Arc::new(Kernel { library, index, entry }));
            kernel
        }))
    }

    /// Handle of the function that a kernel is in a context.
    pub(crate) fn function_of(&self, kernel: &Kernel, context: &Arc<Context>) -> Result<Handle, Status> {
        self.function_at(&*self.module_of(kernel.library, context)?, kernel.index)
    }

    /// The function of a handle, which may be that of a kernel, in a context.
    pub(crate) fn function(&self, handle: Handle, context: &Arc<Context>) -> Result<Arc<Function>, Status> {
        if let Some(kernel) = self.kernels.find(handle) {
            return self.functions.get(self.function_of(&kernel, context)?);
        }
        let function = self.functions.get(handle)?;
        if function.context_id == context.id {
            Ok(function)
        } else {
            Err(Status::INVALID_HANDLE)
        }
    }

    /// What a handle of a function or of a kernel stands for in every context.
    pub(crate) fn entry(&self, handle: Handle) -> Result<Arc<Entry>, Status> {
        match self.kernels.find(handle) {
            Some(kernel) => Ok(Arc::clone(&kernel.entry)),
            None => Ok(Arc::clone(&self.functions.get(handle)?.entry)),
        }
    }
}
