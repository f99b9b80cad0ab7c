//! Modules and their functions.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use sahasra_cuda_device::{FunctionDescription, ModuleDescription, ModuleId};
use sahasra_cuda_environment::CAPABILITY;

use crate::attributes;
use crate::boundary::Handle;
use crate::context::Context;
use crate::status::Status;

/// A module, or the library that is one.
pub(crate) struct Module {
    pub(crate) handle: Handle,
    pub(crate) id: ModuleId,
    pub(crate) context: Weak<Context>,
    pub(crate) context_id: u64,
    pub(crate) description: ModuleDescription,
    /// Handles that were given for functions, by their index.
    pub(crate) functions: Mutex<HashMap<usize, Handle>>,
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
            5 | 6 => CAPABILITY.0 * 10 + CAPABILITY.1,
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
