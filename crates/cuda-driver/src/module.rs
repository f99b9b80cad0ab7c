//! Modules and libraries with their functions.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sahasra_cuda_device::{FunctionDescription, ModuleDescription, ModuleId, Properties, VariableDescription};

use crate::attributes;
use crate::boundary::Handle;
use crate::context::Context;
use crate::status::Status;

/// Registers of a thread, of which a multiprocessor has enough for 2048 threads.
const REGISTERS_OF_ALL: u32 = attributes::REGISTERS / 2048;

/// A module of a context.
pub(crate) struct Module {
    pub(crate) handle: Handle,
    pub(crate) id: ModuleId,
    pub(crate) context: Weak<Context>,
    pub(crate) context_id: u64,
    /// The library whose module in this context it is.
    pub(crate) library: Option<Handle>,
    pub(crate) entries: Entries,
    pub(crate) variables: Vec<VariableDescription>,
    /// Handles that were given for functions, by their index.
    pub(crate) functions: Mutex<HashMap<usize, Handle>>,
}

/// A library: images that become a module in each context that uses them.
pub(crate) struct Library {
    pub(crate) images: Vec<Vec<u8>>,
    pub(crate) entries: Entries,
    /// Modules that were loaded, by the numbers of their contexts.
    pub(crate) modules: Mutex<HashMap<u64, Handle>>,
    /// Handles that were given for kernels, by their index.
    pub(crate) kernels: Mutex<HashMap<usize, Handle>>,
}

/// A kernel of a library: a function in each context that launches it.
pub(crate) struct Kernel {
    pub(crate) library: Handle,
    pub(crate) index: usize,
    pub(crate) entry: Arc<Entry>,
}

/// A function of a module.
pub(crate) struct Function {
    pub(crate) module: Handle,
    pub(crate) module_id: ModuleId,
    pub(crate) context_id: u64,
    pub(crate) index: u32,
    pub(crate) entry: Arc<Entry>,
}

/// Functions in the order of the text.
#[derive(Clone)]
pub(crate) struct Entries(Arc<[Arc<Entry>]>);

/// A function of a text, with its settings. A library's modules share them.
pub(crate) struct Entry {
    pub(crate) description: FunctionDescription,
    /// Most dynamic shared memory of a launch, in bytes.
    pub(crate) most_dynamic_shared: AtomicU32,
    carveout: AtomicU32,
    /// The name, with a zero byte at its end.
    pub(crate) name: CString,
}

impl Entries {
    pub(crate) fn new(description: &ModuleDescription) -> Result<Self, Status> {
        description
            .functions
            .iter()
            .map(|function| Entry::new(function).map(Arc::new))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn at(&self, index: usize) -> Result<Arc<Entry>, Status> {
        self.0.get(index).cloned().ok_or(Status::INVALID_VALUE)
    }

    /// Index of the function of a name.
    pub(crate) fn find(&self, name: &str) -> Result<usize, Status> {
        self.0
            .iter()
            .position(|entry| entry.description.name == name)
            .ok_or(Status::NOT_FOUND)
    }
}

impl Module {
    /// Address and size in bytes of the variable of a name.
    pub(crate) fn variable(&self, name: &str) -> Result<(u64, u64), Status> {
        let found = self.variables.iter().find(|variable| variable.name == name);
        found.map(|variable| (variable.address, variable.bytes)).ok_or(Status::NOT_FOUND)
    }
}

impl Entry {
    fn new(description: &FunctionDescription) -> Result<Self, Status> {
        Ok(Self {
            most_dynamic_shared: AtomicU32::new(attributes::SHARED_BYTES.saturating_sub(description.shared_bytes)),
            carveout: AtomicU32::new(u32::MAX),
            name: CString::new(description.name.as_str()).map_err(|_| Status::INVALID_VALUE)?,
            description: description.clone(),
        })
    }

    /// Offset and size in bytes of a parameter in the parameter block.
    pub(crate) fn parameter(&self, index: usize) -> Result<(usize, usize), Status> {
        let place = self.description.parameters.get(index).ok_or(Status::INVALID_VALUE)?;
        Ok((place.offset as usize, place.bytes as usize))
    }

    /// Value of an attribute (`CUfunction_attribute`) on a device.
    pub(crate) fn attribute(&self, attribute: u32, device: &Properties) -> Result<i32, Status> {
        let signed = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        Ok(match attribute {
            0 => signed(self.description.max_threads),
            1 => signed(self.description.shared_bytes),
            2 => signed(self.description.constant_bytes),
            3 => signed(self.description.local_bytes),
            4 => signed(self.registers()),
            // Versions of PTX and of machine code: those of the device.
            5 | 6 => {
                let (major, minor) = attributes::capability(device);
                major * 10 + minor
            }
            8 => signed(self.most_dynamic_shared.load(Ordering::Relaxed)),
            9 => self.carveout.load(Ordering::Relaxed) as i32,
            // Caching, clusters, scheduling.
            7 | 10..=15 => 0,
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    /// Registers of a thread. The PTX engine has as many as leave room for all threads of a multiprocessor, so they never limit
    /// occupancy.
    pub(crate) fn registers(&self) -> u32 {
        self.description.registers.unwrap_or(REGISTERS_OF_ALL)
    }

    /// Sets an attribute on a device.
    pub(crate) fn set_attribute(&self, attribute: u32, value: i32, device: &Properties) -> Result<(), Status> {
        match attribute {
            8 => {
                let most = attributes::size(97, device).saturating_sub(self.description.shared_bytes);
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
