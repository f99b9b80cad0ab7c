//! Devices as an executor uses them: memory, modules, kernels and streams behind one trait.
//!
//! Two backends implement [`Device`]: [`cpu`] (the engine of `sahasra-ptx`) and [`cuda`] (a GPU through the driver). One
//! contract suite (`contract.rs`) runs unchanged against both, so that the rest of the executor need not know which it has.
//!
//! A chunk's way through a device: its **outputs** are zeroed, its **inputs** written, its [`Arguments`] filled in, the
//! [`Device::Kernel`] launched, the outputs read back; all on one [`Device::Stream`], which one thread (a *lane*) owns.

pub mod cpu;
pub mod cuda;

#[cfg(test)]
mod contract;

use std::sync::Arc;

use sahasra_ptx::Cancel;
use sahasra_wire::burst::FailureCode;

/// Every part of an [`Device::Area`] starts at a multiple of this many bytes and is counted rounded up to it, as
/// `cuMemAlloc` aligns.
pub const ALIGNMENT: u64 = 256;

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub dynamic_shared_bytes: u32,
}

/// Why a device refused or ended something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no such device, or no driver.
    #[error("device unavailable: {0}")]
    Unavailable(String),
    /// Not enough memory.
    #[error("out of device memory: {0}")]
    OutOfMemory(String),
    /// The PTX does not load.
    #[error("PTX does not load: {0}")]
    Load(String),
    /// The PTX uses what the engine lacks.
    #[error("PTX not supported: {0}")]
    Unsupported(String),
    /// The launch was refused: no such entry, wrong arguments, wrong shape.
    #[error("launch refused: {0}")]
    Launch(String),
    /// `trap` or a failed assertion.
    #[error("{0}")]
    Trap(String),
    /// An access out of bounds, misaligned, or through null.
    #[error("{0}")]
    IllegalAddress(String),
    /// Calls went deeper than the stack.
    #[error("{0}")]
    StackOverflow(String),
    /// Threads wait for each other for ever.
    #[error("{0}")]
    Deadlock(String),
    /// The launch was cancelled.
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// The context is unusable from here on, and what runs in it is lost: only a new process helps.
    #[error("{message}")]
    Poisoned {
        /// What the first of those that ran then did, if only one ran.
        code: FailureCode,
        /// The driver's words.
        message: String,
    },
    /// A call that nothing of the tenant's explains.
    #[error("{call}: {message}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's words.
        message: String,
    },
}

impl DeviceError {
    /// The code under which it is reported.
    pub fn code(&self) -> FailureCode {
        match self {
            Self::Unavailable(_) | Self::Driver { .. } => FailureCode::ExecutorLost,
            Self::OutOfMemory(_) => FailureCode::OutOfDeviceMemory,
            Self::Load(_) => FailureCode::LoadFailed,
            Self::Unsupported(_) => FailureCode::Unsupported,
            Self::Launch(_) => FailureCode::LaunchFailed,
            Self::Trap(_) => FailureCode::Trap,
            Self::IllegalAddress(_) => FailureCode::IllegalAddress,
            Self::StackOverflow(_) => FailureCode::StackOverflow,
            Self::Deadlock(_) => FailureCode::Deadlock,
            Self::Cancelled(_) => FailureCode::ChunkTimeout,
            Self::Poisoned { code, .. } => *code,
        }
    }

    /// Whether the process must be replaced.
    pub fn is_poisoned(&self) -> bool {
        matches!(self, Self::Poisoned { .. })
    }
}

/// A kernel's arguments as bytes, one after the other at multiples of 8. Filled in place: no allocation a launch.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    bytes: Vec<u8>,
    /// Offset and size of each.
    places: Vec<(usize, usize)>,
}

impl Arguments {
    /// Arguments of these sizes in bytes, all zero.
    pub fn new(sizes: &[usize]) -> Self {
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Sets the argument in that place to little-endian bytes of its size.
    ///
    /// # Panics
    /// When the place or the size is another.
    pub fn set(&mut self, place: usize, value: &[u8]) {
        let (offset, size) = self.places[place];
        self.bytes[offset..offset + size].copy_from_slice(value);
    }

    /// The bytes of the argument in that place.
    pub fn get(&self, place: usize) -> &[u8] {
        let (offset, size) = self.places[place];
        &self.bytes[offset..offset + size]
    }
}

/// A device in this process. All methods may be called from many threads; a stream belongs to one at a time.
pub trait Device: Send + Sync + Sized + 'static {
    /// Memory made of parts; zeroed when allocated, freed when dropped.
    type Area: Send + Sync;
    /// Loaded code without memory on the device: kept between runs.
    type Module: Send + Sync;
    /// A module's variables on the device, with the values that they have in its text until a kernel writes them.
    type Instance: Send + Sync;
    /// An entry of an instance, checked against a shape and its arguments. Kernels of one instance share its variables.
    type Kernel: Send + Sync;
    /// The order in which one thread's copies and launches happen.
    type Stream: Send;

    /// Whether a launch ends when it is cancelled. Otherwise only the end of the process ends it.
    const CANCELS: bool;
    /// Whether a fault ends the context with everything that runs in it.
    const FAULTS_POISON: bool;

    /// Launches that gain from running at the same time.
    fn lanes(&self) -> usize;

    /// Bytes in areas, each part rounded up to [`ALIGNMENT`].
    fn used_bytes(&self) -> u64;

    /// Zeroed memory of parts of so many bytes.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&self, parts: &[u64]) -> Result<Self::Area, DeviceError>;

    /// Device address of a part.
    fn address(&self, area: &Self::Area, part: usize) -> u64;

    /// Loads PTX text.
    ///
    /// # Errors
    /// [`DeviceError::Load`] or [`DeviceError::Unsupported`], with the place in the text where the engine tells it.
    fn load(&self, ptx: &str) -> Result<Self::Module, DeviceError>;

    /// Host memory that a loaded module takes, in bytes; not exact.
    fn module_bytes(&self, module: &Self::Module) -> u64;

    /// Gives a module's variables their place. What kernels take by `malloc` comes from a heap of the instance's own when it is `apart` and
    /// the engine can do that, and is given back with it; else from the device's, as CUDA has it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`]; what [`Device::load`] says where only now is known whether the text loads.
    fn instantiate(&self, module: &Arc<Self::Module>, apart: bool) -> Result<Self::Instance, DeviceError>;

    /// Prepares an entry for launches in one shape with arguments of these sizes.
    ///
    /// # Errors
    /// [`DeviceError::Launch`] where entry, shape or arguments do not fit; [`DeviceError::OutOfMemory`].
    fn kernel(
        &self,
        instance: &Arc<Self::Instance>,
        entry: &str,
        shape: LaunchShape,
        arguments: &Arguments,
    ) -> Result<Self::Kernel, DeviceError>;

    /// Bytes on the device of an instance's variables, before there is one.
    fn variable_bytes(&self, module: &Self::Module) -> u64;

    /// Bytes on the device of an instance, its code included where that lies there.
    fn instance_bytes(&self, module: &Self::Module) -> u64 {
        self.variable_bytes(module)
    }

    /// Whether a launch may leave something that later ones of the same instance find.
    fn keeps_state(&self, kernel: &Self::Kernel) -> bool;

    /// A new stream.
    ///
    /// # Errors
    /// When the driver has no more.
    fn stream(&self) -> Result<Self::Stream, DeviceError>;

    /// Sets all parts to zero.
    ///
    /// # Errors
    /// A poisoned context's.
    fn zero(&self, stream: &mut Self::Stream, area: &Self::Area) -> Result<(), DeviceError>;

    /// Copies bytes to the start of a part. The bytes may be reused at once.
    ///
    /// # Errors
    /// [`DeviceError::Launch`] where they do not fit the part; a poisoned context's.
    fn write(&self, stream: &mut Self::Stream, area: &Self::Area, part: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Launches. May return before the kernel has ended: faults come then from [`Device::read`].
    ///
    /// # Errors
    /// How the kernel ended, unless well; `cancel` ends it where [`Device::CANCELS`].
    fn launch(&self, stream: &mut Self::Stream, kernel: &Self::Kernel, arguments: &Arguments, cancel: &Cancel) -> Result<(), DeviceError>;

    /// Waits for everything on the stream, then appends all parts to `into`, one after the other without gaps. On an
    /// error `into` is as before.
    ///
    /// # Errors
    /// How a kernel launched before ended, unless well.
    fn read(&self, stream: &mut Self::Stream, area: &Self::Area, into: &mut Vec<u8>) -> Result<(), DeviceError>;
}

/// Bytes that parts take, each rounded up to [`ALIGNMENT`]; saturates.
pub fn rounded_bytes(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |sum, part| {
        sum.saturating_add(part.max(&1).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX))
    })
}
