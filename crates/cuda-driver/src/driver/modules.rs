//! Modules and their functions as they come and go.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;
use sahasra_cuda_device::{ModuleId, Operation};

use crate::attributes;
use crate::boundary::Handle;
use crate::context::Context;
use crate::jit::Logs;
use crate::module::{Function, Module};
use crate::ranges::Kind;
use crate::status::Status;
use crate::table::new_handle;

use super::Driver;

impl Driver {
    /// Loads texts in a context.
    pub(crate) fn load_module(&self, context: &Arc<Context>, texts: &[String], logs: &Logs) -> Result<Handle, Status> {
        context.check()?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let handle = new_handle();
        let id = ModuleId(handle.0);
        let description = context.queue.load(id, &texts).map_err(|failure| logs.report(&failure))?;
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
        let module = Module {
            handle,
            id,
            context: Arc::downgrade(context),
            context_id: context.id,
            description,
            functions: Mutex::default(),
        };
        self.modules.insert(handle, Arc::new(module));
        Ok(handle)
    }

    /// Unloads a module.
    pub(crate) fn unload_module(&self, handle: Handle) -> Result<(), Status> {
        let module = self.modules.remove(handle)?;
        self.functions.retain(|function| function.module != handle);
        for variable in &module.description.variables {
            self.release(self.ranges.forget(variable.address, module.context_id));
        }
        match module.context.upgrade() {
            Some(context) => context.submit(Operation::Unload(module.id)).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Handle of the function of a name: the same one each time.
    pub(crate) fn function(&self, module: &Module, name: &str) -> Result<Handle, Status> {
        let index = module.description.functions.iter().position(|function| function.name == name);
        self.function_at(module, index.ok_or(Status::NOT_FOUND)?)
    }

    /// Handle of the function with an index.
    pub(crate) fn function_at(&self, module: &Module, index: usize) -> Result<Handle, Status> {
        let description = module.description.functions.get(index).ok_or(Status::INVALID_VALUE)?;
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
            most_dynamic_shared: AtomicU32::new(attributes::SHARED_BYTES.saturating_sub(description.shared_bytes)),
            carveout: AtomicU32::new(u32::MAX),
            name: std::ffi::CString::new(description.name.as_str()).map_err(|_| Status::INVALID_VALUE)?,
            description: description.clone(),
        };
        self.functions.insert(handle, Arc::new(function));
        functions.insert(index, handle);
        Ok(handle)
    }
}
