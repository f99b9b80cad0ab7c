//! Modules and their functions as they come and go.

use std::sync::Arc;

use parking_lot::Mutex;
use sahasra_cuda_device::{LoadFailure, ModuleId, Operation, is_machine_code};

use crate::boundary::Handle;
use crate::context::Context;
use crate::image::Target;
use crate::jit::Logs;
use crate::module::{Entries, Function, Module};
use crate::ranges::Kind;
use crate::status::Status;
use crate::table::new_handle;

use super::Driver;

/// Reports why images were not loaded. Damaged machine code is no invalid text.
pub(super) fn refused(failure: &LoadFailure, images: &[&[u8]], logs: &Logs) -> Status {
    match logs.report(failure) {
        Status::INVALID_PTX if images.iter().any(|image| is_machine_code(image)) => Status::INVALID_IMAGE,
        status => status,
    }
}

impl Driver {
    /// Which images the device takes.
    pub(crate) fn target(&self) -> Target {
        Target::of(self.device.properties())
    }

    /// Loads images in a context.
    pub(crate) fn load_module(&self, context: &Arc<Context>, images: &[Vec<u8>], logs: &Logs) -> Result<Handle, Status> {
        let module = self.load(context, images, logs, None, None)?;
        self.modules.insert(module.handle, Arc::clone(&module));
        Ok(module.handle)
    }

    /// Loads images in a context, perhaps for a library, with its entries or those that the device describes.
    pub(super) fn load(
        &self,
        context: &Arc<Context>,
        images: &[Vec<u8>],
        logs: &Logs,
        library: Option<Handle>,
        entries: Option<Entries>,
    ) -> Result<Arc<Module>, Status> {
        context.check()?;
        let images: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
        let handle = new_handle();
        let id = ModuleId(handle.0);
        let description = context
            .queue
            .load(id, &images)
            .map_err(|failure| refused(&failure, &images, logs))?;
        logs.finish(&description);
        let sizes = || description.variables.iter().map(|variable| variable.bytes);
        if let Err(status) = self.charge_variables(sizes()) {
            context.submit(Operation::Unload(id))?;
            return Err(status);
        }
        for (index, variable) in description.variables.iter().enumerate() {
            if let Err(status) = self.ranges.note(context, variable.address, variable.bytes, Kind::Variable) {
                // The context is gone, and what was noted is counted as free already.
                self.release_variables(sizes().skip(index));
                return Err(status);
            }
        }
        Ok(Arc::new(Module {
            handle,
            id,
            context: Arc::downgrade(context),
            context_id: context.id,
            library,
            entries: entries.map_or_else(|| Entries::new(&description), Ok)?,
            variables: description.variables,
            functions: Mutex::default(),
        }))
    }

    /// Unloads a module, unless a library has it.
    pub(crate) fn unload_module(&self, handle: Handle) -> Result<(), Status> {
        if self.modules.get(handle)?.library.is_some() {
            return Err(Status::INVALID_HANDLE);
        }
        self.modules.remove(handle).and_then(|module| self.unload(&module))
    }

    /// Frees the variables and functions of a module that has no handle any more.
    pub(super) fn unload(&self, module: &Module) -> Result<(), Status> {
        self.functions.retain(|function| function.module != module.handle);
        for variable in &module.variables {
            self.release(self.ranges.forget(variable.address, module.context_id));
        }
        match module.context.upgrade() {
            Some(context) => context.submit(Operation::Unload(module.id)).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Handle of the function with an index: the same one each time.
    pub(crate) fn function_at(&self, module: &Module, index: usize) -> Result<Handle, Status> {
        let entry = module.entries.at(index)?;
        let mut functions = module.functions.lock();
        if let Some(handle) = functions.get(&index) {
            return Ok(*handle);
        }
        let handle = new_handle();
        let function = Function {
            module: module.handle,
            module_id: module.id,
            context_id: module.context_id,
            index: u32::try_from(index).map_err(|_| Status::INVALID_VALUE)?,
            entry,
        };
        self.functions.insert(handle, Arc::new(function));
        functions.insert(index, handle);
        Ok(handle)
    }
}
