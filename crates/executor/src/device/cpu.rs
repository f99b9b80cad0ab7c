//! The CPU backend: the interpreter of `sahasra-ptx` with a memory of its own.
//!
//! A launch runs on the lane's own thread, and on further threads if cores are idle and the grid has several blocks. Every part of an area
//! is an allocation of its own, so that an access past its end is detected. A fault ends only its own chunk.

use std::io::Write;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sahasra_ptx::{
    Cancel, DevicePointer, Fault, FaultKind, Heap, Kernel, Launch, LoadErrorKind, LoadedModule, Memory, MemoryError, Module, Output,
};
use sahasra_wire::burst::FailureCode;

use super::{Arguments, Device, DeviceError, LaunchShape};

#[derive(Debug)]
pub(crate) struct CpuDevice {
    memory: Arc<Memory>,
    threads: usize,
    launches: AtomicUsize,
}

impl CpuDevice {
    /// Device with `memory_bytes` of memory and `threads` threads, at least one.
    pub(crate) fn new(memory_bytes: u64, threads: usize) -> Self {
        Self {
            memory: Arc::new(Memory::new(memory_bytes)),
            threads: threads.max(1),
            launches: AtomicUsize::new(0),
        }
    }
}

/// Allocations of an area, each with its size in bytes.
#[derive(Debug)]
pub(crate) struct CpuArea {
    memory: Arc<Memory>,
    parts: Vec<(DevicePointer, u64)>,
}

impl Drop for CpuArea {
    fn drop(&mut self) {
        for (pointer, _) in &self.parts {
            // Each part was allocated by this area and is freed once.
            let _ = self.memory.free(*pointer);
        }
    }
}

/// Memory of a module's variables, and the instance's heap unless it uses the device's.
#[derive(Debug)]
pub(crate) struct CpuInstance {
    loaded: LoadedModule,
    heap: Option<Heap>,
    memory: Arc<Memory>,
}

impl Drop for CpuInstance {
    fn drop(&mut self) {
        self.loaded.clone().unload(&self.memory);
        if let Some(heap) = &self.heap {
            heap.clear(&self.memory);
        }
    }
}

/// A kernel and its launch shape.
#[derive(Debug)]
pub(crate) struct CpuKernel {
    kernel: Kernel,
    launch: Launch,
    blocks: u64,
    /// Keeps the variables that the kernel uses alive.
    _instance: Arc<CpuInstance>,
}

/// Packed arguments and printed output of a lane.
#[derive(Debug)]
pub(crate) struct CpuStream {
    parameters: Vec<u8>,
    printed: Output,
}

/// Maximum printed output of a launch in bytes; the rest is dropped. The output goes to the standard error of the process, where a GPU's
/// driver writes it too, and the agent logs it line by line.
const PRINTED_BYTES: usize = 4096;

impl From<MemoryError> for DeviceError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::OutOfMemory { .. } | MemoryError::AddressesExhausted => Self::OutOfMemory(error.to_string()),
            _ => Self::Launch(error.to_string()),
        }
    }
}

impl From<Fault> for DeviceError {
    fn from(fault: Fault) -> Self {
        let message = fault.to_string();
        let code = match fault.kind {
            FaultKind::OutOfBounds { .. } | FaultKind::Misaligned { .. } | FaultKind::NullAccess => FailureCode::IllegalAddress,
            FaultKind::Trap | FaultKind::AssertFailed(_) => FailureCode::Trap,
            FaultKind::DivergentBarrier(_) | FaultKind::Deadlock(_) => FailureCode::Deadlock,
            FaultKind::StackOverflow { .. } => FailureCode::StackOverflow,
            FaultKind::StepLimit(_) | FaultKind::Cancelled => return Self::Cancelled(message),
            // Faults that a later version of the interpreter adds.
            _ => return Self::Launch(message),
        };
        Self::Fault { code, message }
    }
}

impl Device for CpuDevice {
    type Area = CpuArea;
    type Module = Module;
    type Instance = CpuInstance;
    type Kernel = CpuKernel;
    type Stream = CpuStream;

    const CANCELS: bool = true;
    #[cfg(test)]
    const FAULTS_POISON: bool = false;

    fn lanes(&self) -> usize {
        self.threads
    }

    #[cfg(test)]
    fn used_bytes(&self) -> u64 {
        self.memory.used()
    }

    fn allocate(&self, parts: &[u64]) -> Result<CpuArea, DeviceError> {
        let mut area = CpuArea {
            memory: Arc::clone(&self.memory),
            parts: Vec::with_capacity(parts.len()),
        };
        for bytes in parts {
            area.parts.push((self.memory.allocate(*bytes)?, *bytes));
        }
        Ok(area)
    }

    fn address(&self, area: &CpuArea, part: usize) -> u64 {
        area.parts[part].0.0
    }

    fn load(&self, ptx: &str) -> Result<Module, DeviceError> {
        Module::load(ptx).map_err(|error| match error.kind {
            LoadErrorKind::Unsupported(_) => DeviceError::Unsupported(error.to_string()),
            _ => DeviceError::Load(error.to_string()),
        })
    }

    fn module_bytes(&self, module: &Module) -> u64 {
        module.code_bytes()
    }

    fn instantiate(&self, module: &Arc<Module>, apart: bool) -> Result<CpuInstance, DeviceError> {
        Ok(CpuInstance {
            loaded: module.instantiate(&self.memory)?,
            heap: apart.then(Heap::default),
            memory: Arc::clone(&self.memory),
        })
    }

    fn kernel(
        &self,
        instance: &Arc<CpuInstance>,
        entry: &str,
        shape: LaunchShape,
        arguments: &Arguments,
    ) -> Result<CpuKernel, DeviceError> {
        let Some(kernel) = instance.loaded.entry(entry) else {
            return Err(DeviceError::Launch(format!("entry {entry} not found in the PTX")));
        };
        let prepared = CpuKernel {
            kernel,
            _instance: Arc::clone(instance),
            launch: Launch {
                dynamic_shared_bytes: shape.dynamic_shared_bytes,
                heap: instance.heap.clone(),
                ..Launch::new(shape.grid, shape.block)
            },
            blocks: shape
                .grid
                .iter()
                .fold(1, |blocks: u64, size| blocks.saturating_mul(u64::from(*size))),
        };
        let declared = prepared.kernel.parameters();
        if declared.len() != arguments.len() {
            return Err(DeviceError::Launch(format!(
                "the kernel has {} parameters, {} arguments were passed",
                declared.len(),
                arguments.len()
            )));
        }
        for (place, parameter) in declared.iter().enumerate() {
            let given = arguments.get(place).len();
            if parameter.size != given {
                return Err(DeviceError::Launch(format!(
                    "parameter {} has {} bytes, the argument has {given}",
                    parameter.name, parameter.size
                )));
            }
        }
        Ok(prepared)
    }

    fn variable_bytes(&self, module: &Module) -> u64 {
        module.variable_bytes()
    }

    fn keeps_state(&self, kernel: &CpuKernel) -> bool {
        kernel.kernel.keeps_state()
    }

    fn stream(&self) -> Result<CpuStream, DeviceError> {
        Ok(CpuStream {
            parameters: Vec::new(),
            printed: Output::with_limit(PRINTED_BYTES),
        })
    }

    fn zero(&self, _stream: &mut CpuStream, area: &CpuArea) -> Result<(), DeviceError> {
        for (pointer, bytes) in &area.parts {
            self.memory.fill(*pointer, 0, *bytes)?;
        }
        Ok(())
    }

    fn write(&self, _stream: &mut CpuStream, area: &CpuArea, part: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        Ok(self.memory.write(area.parts[part].0, bytes)?)
    }

    fn launch(&self, stream: &mut CpuStream, kernel: &CpuKernel, arguments: &Arguments, cancel: &Cancel) -> Result<(), DeviceError> {
        stream.parameters.clear();
        stream.parameters.resize(kernel.kernel.parameter_bytes(), 0);
        for (place, parameter) in kernel.kernel.parameters().iter().enumerate() {
            stream.parameters[parameter.offset..parameter.offset + parameter.size].copy_from_slice(arguments.get(place));
        }
        let launches = self.launches.fetch_add(1, Ordering::Relaxed) + 1;
        let idle = self.threads / launches;
        let (is_wide, prints) = (idle > 1 && kernel.blocks > 1, kernel.kernel.prints());
        let outcome = if is_wide || prints {
            let threads = if is_wide { idle } else { 1 };
            let launch = Launch {
                threads: NonZero::new(threads).unwrap_or(NonZero::<usize>::MIN),
                output: prints.then(|| stream.printed.clone()),
                ..kernel.launch.clone()
            };
            kernel.kernel.launch(&launch, &stream.parameters, &self.memory, cancel)
        } else {
            kernel.kernel.launch(&kernel.launch, &stream.parameters, &self.memory, cancel)
        };
        self.launches.fetch_sub(1, Ordering::Relaxed);
        if prints {
            // Ignore the error: the launch does not depend on its printed output.
            let _ = std::io::stderr().write_all(&stream.printed.take());
        }
        outcome?;
        Ok(())
    }

    fn read(&self, _stream: &mut CpuStream, area: &CpuArea, into: &mut Vec<u8>) -> Result<(), DeviceError> {
        let before = into.len();
        for (pointer, bytes) in &area.parts {
            let start = into.len();
            into.resize(start + *bytes as usize, 0);
            if let Err(error) = self.memory.read(*pointer, &mut into[start..]) {
                into.truncate(before);
                return Err(error.into());
            }
        }
        Ok(())
    }
}
