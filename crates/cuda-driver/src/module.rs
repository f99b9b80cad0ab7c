//! Modules and their functions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sahasra_cuda_device::{FunctionDescription, ModuleDescription, ModuleId, Operation};

use crate::attributes;
use crate::boundary::Handle;
use crate::context::Context;
use crate::driver::Driver;
use crate::image::Logs;
use crate::ranges::Kind;
use crate::status::Status;
use crate::table::new_handle;

/// A module, or the library that is one.
pub(crate) struct Module {
    pub(crate) handle: Handle,
    pub(crate) id: ModuleId,
    pub(crate) context: Weak<Context>,
    pub(crate) context_id: u64,
    pub(crate) description: ModuleDescription,
    /// Handles that were given for functions, by their index.
    functions: Mutex<HashMap<usize, Handle>>,
}

/// A function, or the kernel of a library that is one.
pub(crate) struct Function {
    pub(crate) module: Handle,
    pub(crate) module_id: ModuleId,
    pub(crate) context_id: u64,
    pub(crate) index: u32,
    pub(crate) description: FunctionDescription,
    /// Most dynamic shared memory of a launch, in bytes.
    pub(crate) most_dynamic_shared: AtomicU32,
    pub(crate) carveout: AtomicU32,
    /// The name, with a zero byte at its end.
    pub(crate) name: std::ffi::CString,
}

impl Module {
    /// Loads texts in a context.
    pub(crate) fn load(driver: &Driver, context: &Arc<Context>, texts: &[String], logs: &Logs) -> Result<Handle, Status> {
        context.check()?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let handle = new_handle();
        let id = ModuleId(handle.0);
        let description = context.queue.load(id, &texts).map_err(|failure| logs.report(&failure))?;
        logs.clear();
        let sizes = || description.variables.iter().map(|variable| variable.bytes);
        if let Err(status) = driver.charge_variables(sizes()) {
            context.submit(Operation::Unload(id))?;
            return Err(status);
        }
        for (index, variable) in description.variables.iter().enumerate() {
            if let Err(status) = driver.ranges.note(context, variable.address, variable.bytes, Kind::Variable) {
                // The context is gone, and what was noted is counted as free already.
                driver.release_variables(sizes().skip(index));
                return Err(status);
            }
        }
        let module = Self {
            handle,
            id,
            context: Arc::downgrade(context),
            context_id: context.id,
            description,
            functions: Mutex::default(),
        };
        driver.modules.insert(handle, Arc::new(module));
        Ok(handle)
    }

    /// Unloads a module.
    pub(crate) fn unload(driver: &Driver, handle: Handle) -> Result<(), Status> {
        let module = driver.modules.remove(handle)?;
        driver.functions.retain(|function| function.module != handle);
        for variable in &module.description.variables {
            driver.release(driver.ranges.forget(variable.address, module.context_id));
        }
        match module.context.upgrade() {
            Some(context) => context.submit(Operation::Unload(module.id)).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Handle of the function of a name: the same one each time.
    pub(crate) fn function(&self, driver: &Driver, name: &str) -> Result<Handle, Status> {
        let index = self.description.functions.iter().position(|function| function.name == name);
        self.function_at(driver, index.ok_or(Status::NOT_FOUND)?)
    }

    /// Handle of the function with an index.
    pub(crate) fn function_at(&self, driver: &Driver, index: usize) -> Result<Handle, Status> {
        let description = self.description.functions.get(index).ok_or(Status::INVALID_VALUE)?;
        let mut functions = self.functions.lock();
        if let Some(handle) = functions.get(&index) {
            return Ok(*handle);
        }
        let handle = new_handle();
        let function = Function {
            module: self.handle,
            module_id: self.id,
            context_id: self.context_id,
            index: u32::try_from(index).map_err(|_| Status::INVALID_VALUE)?,
            most_dynamic_shared: AtomicU32::new(attributes::SHARED_BYTES.saturating_sub(description.shared_bytes)),
            carveout: AtomicU32::new(u32::MAX),
            name: std::ffi::CString::new(description.name.as_str()).map_err(|_| Status::INVALID_VALUE)?,
            description: description.clone(),
        };
        driver.functions.insert(handle, Arc::new(function));
        functions.insert(index, handle);
        Ok(handle)
    }

    /// Address and size in bytes of the variable of a name.
    pub(crate) fn variable(&self, name: &str) -> Result<(u64, u64), Status> {
        let found = self.description.variables.iter().find(|variable| variable.name == name);
        found.map(|variable| (variable.address, variable.bytes)).ok_or(Status::NOT_FOUND)
    }
}

impl Function {
    /// Value of an attribute (`CUfunction_attribute`).
    pub(crate) fn attribute(&self, attribute: u32) -> Result<i32, Status> {
        let signed = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        Ok(match attribute {
            0 => signed(self.description.max_threads),
            1 => signed(self.description.shared_bytes),
            3 => signed(self.description.local_bytes),
            // Registers that leave room for a block of the most threads.
            4 => signed((attributes::REGISTERS / self.description.max_threads.max(1)).min(64)),
            // Versions of PTX and of machine code, as of compute capability 8.0.
            5 | 6 => attributes::CAPABILITY.0 * 10 + attributes::CAPABILITY.1,
            8 => signed(self.most_dynamic_shared.load(Ordering::Relaxed)),
            9 => self.carveout.load(Ordering::Relaxed) as i32,
            // Constant memory, caching, clusters, scheduling.
            2 | 7 | 10..=15 => 0,
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    /// Sets an attribute.
    pub(crate) fn set_attribute(&self, attribute: u32, value: i32) -> Result<(), Status> {
        match attribute {
            8 => {
                let most = attributes::SHARED_BYTES_OPT_IN.saturating_sub(self.description.shared_bytes);
                let value = u32::try_from(value)
                    .ok()
                    .filter(|value| *value <= most)
                    .ok_or(Status::INVALID_VALUE)?;
                self.most_dynamic_shared.store(value, Ordering::Relaxed);
                Ok(())
            }
            9 if (-1..=100).contains(&value) => {
                self.carveout.store(value as u32, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(Status::INVALID_VALUE),
        }
    }
}
