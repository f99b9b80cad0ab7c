//! Devices as an executor uses them: memory, modules, kernels and streams behind one trait.
//!
//! Two backends implement [`Device`]: [`cpu`] (the interpreter of `sahasra-ptx`) and [`cuda`] (a GPU through the CUDA driver). One contract
//! suite (`contract.rs`) runs unchanged against both, so that the rest of the executor does not depend on the backend.
//!
//! The steps of a chunk on a device: its **outputs** are zeroed, its **inputs** written, its [`Arguments`] set, its [`Device::Kernel`]
//! launched, and the outputs read back. All steps use one [`Device::Stream`], which is owned by one thread (a *lane*).

pub(crate) mod cpu;
pub(crate) mod cuda;

#[cfg(test)]
mod contract;

use std::sync::Arc;

use sahasra_ptx::Cancel;
use sahasra_wire::burst::FailureCode;

/// Alignment in bytes of each part of a [`Device::Area`]. The size of a part counts rounded up to this value. `cuMemAlloc` aligns to the
/// same.
pub(crate) const ALIGNMENT: u64 = 256;

/// Shape of a launch: grid, block and dynamic shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShape {
    /// Number of blocks in x, y, z.
    pub grid: [u32; 3],
    /// Number of threads of a block in x, y, z.
    pub block: [u32; 3],
    pub dynamic_shared_bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error("device unavailable: {0}")]
    Unavailable(String),
    #[error("out of device memory: {0}")]
    OutOfMemory(String),
    #[error("failed to load PTX: {0}")]
    Load(String),
    #[error("PTX not supported: {0}")]
    Unsupported(String),
    /// The launch was rejected: no such entry, wrong arguments, wrong shape.
    #[error("launch rejected: {0}")]
    Launch(String),
    /// The kernel did something that ends it.
    #[error("{message}")]
    Fault { code: FailureCode, message: String },
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// The context is permanently unusable, and everything running in it is lost: only a new process helps.
    #[error("{message}")]
    Poisoned {
        /// Failure of the first chunk that ran then, valid if it was the only one that ran.
        code: FailureCode,
        message: String,
    },
    /// A driver call failed for a reason outside the tenant's code.
    #[error("{call}: {message}")]
    Driver {
        /// Name of the driver call.
        call: &'static str,
        message: String,
    },
}

impl DeviceError {
    /// Code under which the failure of a chunk is reported.
    pub(crate) fn code(&self) -> FailureCode {
        match self {
            Self::Unavailable(_) | Self::Driver { .. } => FailureCode::ExecutorLost,
            Self::OutOfMemory(_) => FailureCode::OutOfDeviceMemory,
            Self::Load(_) => FailureCode::LoadFailed,
            Self::Unsupported(_) => FailureCode::Unsupported,
            Self::Launch(_) => FailureCode::LaunchFailed,
            Self::Cancelled(_) => FailureCode::ChunkTimeout,
            Self::Fault { code, .. } | Self::Poisoned { code, .. } => *code,
        }
    }

    /// Whether the context is poisoned, so that the process must be replaced.
    pub(crate) fn is_poisoned(&self) -> bool {
        matches!(self, Self::Poisoned { .. })
    }
}

/// A kernel's arguments as bytes, concatenated at multiples of 8. They are set in place, so that a launch allocates nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    bytes: Vec<u8>,
    /// Offset and size in bytes of each argument.
    places: Vec<(usize, usize)>,
}

impl Arguments {
    /// Zeroed arguments of these sizes in bytes.
    pub(crate) fn new(sizes: &[usize]) -> Self {
        let mut bytes = 0;
        let mut places = Vec::with_capacity(sizes.len());
        for size in sizes {
            places.push((bytes, *size));
            bytes += size.next_multiple_of(8);
        }
        Self {
            bytes: vec![0; bytes],
            places,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Sets the argument at index `place` to its little-endian bytes.
    ///
    /// # Panics
    /// If `place` is out of range, or `value` differs from the argument's size.
    pub(crate) fn set(&mut self, place: usize, value: &[u8]) {
        let (offset, size) = self.places[place];
        self.bytes[offset..offset + size].copy_from_slice(value);
    }

    pub(crate) fn get(&self, place: usize) -> &[u8] {
        let (offset, size) = self.places[place];
        &self.bytes[offset..offset + size]
    }
}

/// A device in this process. All methods may be called from many threads; a stream belongs to one thread at a time.
pub(crate) trait Device: Send + Sync + Sized + 'static {
    /// Device memory that consists of parts; zeroed on allocation, freed on drop.
    type Area: Send + Sync;
    /// Loaded code without device memory; cached between runs.
    type Module: Send + Sync;
    /// A module's variables on the device. They have the initial values of the PTX text until a kernel writes them.
    type Instance: Send + Sync;
    /// An entry of an instance, checked against a launch shape and arguments. Kernels of one instance share its variables.
    type Kernel: Send + Sync;
    /// Sequence of the copies and launches of one thread.
    type Stream: Send;

    /// Whether a launch ends when it is cancelled. Otherwise only the end of the process ends it.
    const CANCELS: bool;
    /// Whether a fault makes the context unusable and loses everything that runs in it.
    #[cfg(test)]
    const FAULTS_POISON: bool;

    /// Number of launches that benefit from running concurrently.
    fn lanes(&self) -> usize;

    /// Allocated bytes in areas, each part rounded up to [`ALIGNMENT`].
    #[cfg(test)]
    fn used_bytes(&self) -> u64;

    /// Allocates zeroed memory with parts of the given sizes in bytes.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&self, parts: &[u64]) -> Result<Self::Area, DeviceError>;

    fn address(&self, area: &Self::Area, part: usize) -> u64;

    /// Loads PTX text.
    ///
    /// # Errors
    /// [`DeviceError::Load`] or [`DeviceError::Unsupported`], with the position in the text where the backend reports it.
    fn load(&self, ptx: &str) -> Result<Self::Module, DeviceError>;

    /// Approximate host memory of a loaded module, in bytes.
    fn module_bytes(&self, module: &Self::Module) -> u64;

    /// Creates an instance: allocates a module's variables. If `apart` is set and the backend supports it, the instance gets its own heap
    /// for `malloc` in kernels, which is freed with the instance. Otherwise kernels use the device's heap, as in CUDA.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`]; the errors of [`Device::load`] if the backend detects them only now.
    fn instantiate(&self, module: &Arc<Self::Module>, apart: bool) -> Result<Self::Instance, DeviceError>;

    /// Prepares an entry for launches in one shape with arguments of these sizes.
    ///
    /// # Errors
    /// [`DeviceError::Launch`] if the entry does not exist, or the shape or the arguments do not fit; [`DeviceError::OutOfMemory`].
    fn kernel(
        &self,
        instance: &Arc<Self::Instance>,
        entry: &str,
        shape: LaunchShape,
        arguments: &Arguments,
    ) -> Result<Self::Kernel, DeviceError>;

    /// Device memory that the variables of an instance of `module` need, in bytes.
    fn variable_bytes(&self, module: &Self::Module) -> u64;

    /// Device memory that an instance of `module` needs, in bytes. Includes the code if that lies on the device.
    fn instance_bytes(&self, module: &Self::Module) -> u64 {
        self.variable_bytes(module)
    }

    /// Whether a launch may leave state that later launches of the same instance can see.
    fn keeps_state(&self, kernel: &Self::Kernel) -> bool;

    /// Creates a stream.
    ///
    /// # Errors
    /// Errors of the driver, for example when it has no more streams.
    fn stream(&self) -> Result<Self::Stream, DeviceError>;

    /// Sets all parts to zero.
    ///
    /// # Errors
    /// [`DeviceError::Poisoned`] if the context is unusable.
    fn zero(&self, stream: &mut Self::Stream, area: &Self::Area) -> Result<(), DeviceError>;

    /// Copies bytes to the start of a part. The caller may reuse `bytes` when this returns.
    ///
    /// # Errors
    /// [`DeviceError::Launch`] if the bytes do not fit the part; [`DeviceError::Poisoned`] if the context is unusable.
    fn write(&self, stream: &mut Self::Stream, area: &Self::Area, part: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Launches a kernel. May return before the kernel has ended: then [`Device::read`] reports its faults. `cancel` ends the launch if
    /// [`Device::CANCELS`] is set.
    ///
    /// # Errors
    /// The fault or the cancellation of the kernel; [`DeviceError::Launch`] if the launch is rejected.
    fn launch(&self, stream: &mut Self::Stream, kernel: &Self::Kernel, arguments: &Arguments, cancel: &Cancel) -> Result<(), DeviceError>;

    /// Waits for everything on the stream, then appends all parts to `into`, one after the other without gaps. On an error `into` is
    /// unchanged.
    ///
    /// # Errors
    /// Faults of kernels that were launched before.
    fn read(&self, stream: &mut Self::Stream, area: &Self::Area, into: &mut Vec<u8>) -> Result<(), DeviceError>;
}

/// Total size of parts in bytes, each rounded up to [`ALIGNMENT`], an empty part to one unit. Saturates.
pub(crate) fn rounded_bytes(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |sum, part| {
        sum.saturating_add(part.max(&1).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX))
    })
}
