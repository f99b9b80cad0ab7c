//! A GPU as the device of a session of engine `cuda`, through the CUDA driver.
//!
//! ```text
//! session::engines::cuda ──► dyn WatchedDevice: GpuDevice ──► GpuQueue (two threads) ──► Context (a context of the driver, one stream) ──► Pages, Module
//! ```
//!
//! Each context of a client is a context of the driver, so that limits, faults and what kernels print are a context's own. A fault makes
//! the driver's context unusable. If the driver makes none after that, only a new process does: the device is lost, and with it the session.
//! `docs/adr/0045-a-session-maps-pages-of-its-gpu-under-its-clients-addresses.md` gives the reasons.

mod context;
mod event;
mod fence;
mod lease;
mod module;
mod outcome;
mod pages;
mod printed;
mod queue;
mod rows;
mod sequences;
mod symbols;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use parking_lot::Mutex;
use sahasra_cuda_device::{Device, Ended, Failure, FailureKind, Freed, HostBlock, Lost, Properties, Queue, WatchedDevice};

use crate::device::cuda::driver;
use context::Context;
use lease::Lease;
use outcome::check;
use pages::Pages;
use queue::{GpuQueue, Reaper};

pub(crate) use printed::Printed;

/// First driver version with `cuModuleEnumerateFunctions` and `cuFuncGetParamInfo`, which describe a module.
const FIRST_DRIVER: i32 = 12_040;
/// Addresses that clients get at least and at most, in bytes. They use an address again after all others.
const ADDRESSES: Range<u64> = 1 << 40..1 << 44;
/// Addresses that the driver is asked for: between the heap of programs and their libraries, where processes have nothing (x86-64 and
/// AArch64 Linux).
const WANTED_ADDRESS: u64 = 0x4000_0000_0000;
/// Time for the end of a context. A kernel that runs longer is ended by the end of the process.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Attributes that clients are told (`CUdevice_attribute`): limits, sizes and rates of the hardware.
const ATTRIBUTES: &[Attribute] = &[
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
    Attribute::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY,
    Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK,
    Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
    Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT,
    Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
    Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
    Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
    Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT,
    Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
    Attribute::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR,
    Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
];

/// A GPU in this process.
pub(crate) struct GpuDevice {
    device: i32,
    properties: Properties,
    pages: Arc<Pages>,
    lease: Arc<Lease>,
    /// Context for the first queue.
    spare: Mutex<Option<Context>>,
    opened: AtomicU64,
    /// Number of queues that have not been dropped.
    queues: Arc<AtomicUsize>,
    lost: Arc<OnceLock<Lost>>,
    freed: Arc<OnceLock<Freed>>,
    printed: Printed,
}

fn lost(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Lost, message)
}

impl GpuDevice {
    /// Opens the GPU with this number, of which `memory_bytes` may be used. One context is beside them, each further one takes
    /// `context_bytes` of them. `printed` has what kernels print.
    ///
    /// # Errors
    /// [`FailureKind::Lost`] with the reason: the driver or the GPU does not exist, or the driver is too old.
    pub(crate) fn open(ordinal: u32, memory_bytes: u64, context_bytes: u64, printed: Printed) -> Result<Self, Failure> {
        if !driver::is_present() {
            return Err(lost("the CUDA driver (libcuda) is not installed"));
        }
        let (mut device, mut version) = (0, 0);
        let ordinal = i32::try_from(ordinal).map_err(|_| lost(format!("GPU {ordinal} not found")))?;
        // SAFETY: the driver is present; `cuInit` is called first; the driver writes two numbers.
        unsafe {
            check("cuInit", sys::cuInit(0))?;
            check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal))?;
        }
        if version < FIRST_DRIVER {
            let message =
                format!("engine cuda requires a driver of CUDA 12.4 (550) or later, this one is of version {version}: update the driver");
            return Err(lost(message));
        }
        let lease = Arc::new(Lease::new(memory_bytes, context_bytes));
        let page = page_bytes(device)?;
        let addresses = reserve(memory_bytes, page)?;
        let pages = Arc::new(Pages::new(device, page, addresses.clone(), Arc::clone(&lease)));
        let spare = Context::open(device, 0, &pages, &lease)?;
        let stack_bytes = spare.read_stack_bytes()?;
        let attributes = attributes(device)?;
        let multiprocessors = attributes.get(&(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32));
        Ok(Self {
            device,
            properties: Properties {
                name: name(device)?,
                uuid: uuid(device)?,
                memory_bytes,
                addresses,
                // Any address that was not granted.
                placed_from: u64::MAX,
                multiprocessors: multiprocessors.map_or(1, |count| count.unsigned_abs()),
                shares_host_memory: false,
                attributes,
                takes_machine_code: true,
                reads_descriptors: false,
                page_bytes: page,
                stack_bytes,
            },
            pages,
            lease,
            spare: Mutex::new(Some(spare)),
            opened: AtomicU64::new(1),
            queues: Arc::default(),
            lost: Arc::default(),
            freed: Arc::default(),
            printed,
        })
    }

    fn open_with(&self, ended: Option<Ended>) -> Result<Arc<dyn Queue>, Failure> {
        let made = self.discard_printed().and_then(|()| self.context()).and_then(|context| {
            self.queues.fetch_add(1, Ordering::Relaxed);
            GpuQueue::new(context, ended, self.printed.clone(), self.reaper())
        });
        let failed = |failure: &Failure| {
            if failure.kind != FailureKind::OutOfMemory {
                report(&self.lost, &format!("failed to create a CUDA context: {failure}"));
            }
        };
        Ok(Arc::new(made.inspect_err(failed)?))
    }

    /// Context for a queue.
    fn context(&self) -> Result<Context, Failure> {
        if let Some(spare) = self.spare.lock().take() {
            return Ok(spare);
        }
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let context = Context::open(self.device, number, &self.pages, &self.lease)?;
        if let Err(failure) = context.read_stack_bytes() {
            // That failure says more.
            let _ = context.destroy();
            return Err(failure);
        }
        Ok(context)
    }

    /// Discards what kernels of a former client printed, before the first queue of a client: the driver writes the last of it when their
    /// contexts end.
    fn discard_printed(&self) -> Result<(), Failure> {
        if self.queues.load(Ordering::Relaxed) > 0 || !self.printed.is_kept() {
            return Ok(());
        }
        if !self.lease.wait_until_ended() {
            return Err(lost("the contexts of the client before have not ended"));
        }
        drop(self.printed.take());
        Ok(())
    }

    /// Ends contexts on a thread for each, which is given a limited time.
    fn reaper(&self) -> Reaper {
        let (lease, lost, freed) = (Arc::clone(&self.lease), Arc::clone(&self.lost), Arc::clone(&self.freed));
        let queues = Arc::clone(&self.queues);
        Arc::new(move |end| {
            lease.begin_end();
            queues.fetch_sub(1, Ordering::Relaxed);
            let (of_thread, lost, freed) = (Arc::clone(&lease), Arc::clone(&lost), Arc::clone(&freed));
            let not_started = Arc::clone(&lost);
            let reap = move || {
                let (sender, ended) = mpsc::channel();
                let ending = std::thread::Builder::new().name("cuda-destroy".to_owned());
                let started = ending.spawn(move || {
                    // The receiver is gone when the time is over.
                    let _ = sender.send(end());
                });
                let reason = match started.map(|_| ended.recv_timeout(END_TIMEOUT)) {
                    Ok(Ok(Ok(()))) => None,
                    Ok(Ok(Err(failure))) => Some(format!("failed to free the memory of a context: {failure}")),
                    Ok(Err(_)) => Some(format!(
                        "a kernel of a context that has ended still runs after {} s",
                        END_TIMEOUT.as_secs()
                    )),
                    Err(error) => Some(format!("failed to start a thread: {error}")),
                };
                if let Some(reason) = reason {
                    report(&lost, &reason);
                }
                of_thread.end();
                if let Some(freed) = freed.get() {
                    freed();
                }
            };
            if let Err(error) = std::thread::Builder::new().name("cuda-reaper".to_owned()).spawn(reap) {
                report(&not_started, &format!("failed to start a thread: {error}"));
            }
        })
    }
}

impl Drop for GpuDevice {
    fn drop(&mut self) {
        if let Some(context) = self.spare.lock().take() {
            // The process ends if the context could not be destroyed.
            let _ = context.destroy();
        }
    }
}

fn report(lost: &OnceLock<Lost>, reason: &str) {
    match lost.get() {
        Some(lost) => lost(reason),
        None => eprintln!("the GPU is lost: {reason}"),
    }
}

impl Device for GpuDevice {
    fn allocate_host(&self, bytes: usize, alignment: usize) -> Option<HostBlock> {
        HostBlock::new(bytes, alignment)
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn open(&self) -> Result<Arc<dyn Queue>, Failure> {
        self.open_with(None)
    }
}

impl WatchedDevice for GpuDevice {
    fn used_bytes(&self) -> u64 {
        self.lease.used()
    }

    fn open_watched(&self, ended: Ended) -> Result<Arc<dyn Queue>, Failure> {
        self.open_with(Some(ended))
    }

    fn when_freed(&self, freed: Freed) {
        // The first one stays.
        let _ = self.freed.set(freed);
    }

    fn when_lost(&self, lost: Lost) {
        // The first one stays.
        let _ = self.lost.set(lost);
    }
}

fn page_bytes(device: i32) -> Result<u64, Failure> {
    let mut bytes = 0;
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the driver reads a structure and writes a number.
    let result = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &Pages::properties(device), option) };
    check("cuMemGetAllocationGranularity: the GPU has no virtual memory management", result)?;
    Ok(bytes as u64)
}

/// Reserves addresses for clients: as many as the driver has, at least four times the memory.
fn reserve(memory_bytes: u64, page: u64) -> Result<Range<u64>, Failure> {
    let fewest = memory_bytes.saturating_mul(4).next_multiple_of(page);
    let mut bytes = memory_bytes
        .saturating_mul(64)
        .clamp(ADDRESSES.start, ADDRESSES.end)
        .max(fewest)
        .next_multiple_of(page);
    loop {
        let mut start = 0;
        // SAFETY: the driver writes an address.
        let reserved = unsafe { sys::cuMemAddressReserve(&mut start, bytes as usize, page as usize, WANTED_ADDRESS, 0) };
        match check("cuMemAddressReserve", reserved) {
            Ok(()) => return Ok(start..start + bytes),
            Err(_) if bytes / 2 >= fewest => bytes = (bytes / 2).next_multiple_of(page),
            Err(failure) => return Err(failure),
        }
    }
}

fn attributes(device: i32) -> Result<BTreeMap<u32, i32>, Failure> {
    let mut known = BTreeMap::new();
    for attribute in ATTRIBUTES {
        let mut value = 0;
        // SAFETY: the driver writes a number.
        check("cuDeviceGetAttribute", unsafe {
            sys::cuDeviceGetAttribute(&mut value, *attribute, device)
        })?;
        known.insert(*attribute as u32, value);
    }
    Ok(known)
}

fn name(device: i32) -> Result<String, Failure> {
    let mut name = [0; 256];
    // SAFETY: the driver writes a text of at most this length, with a zero byte at its end.
    check("cuDeviceGetName", unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device)
    })?;
    let name: Vec<u8> = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

fn uuid(device: i32) -> Result<[u8; 16], Failure> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the driver writes 16 bytes.
    check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) })?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}
