//! A context of the driver with one stream, and the operations that it begins.
//!
//! Work on the stream runs in order. What the driver does at once (mapping, unloading, limits) is done when the caller has waited for the work
//! that it concerns, as [`Context::needs_idle`] says.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUlimit};
use parking_lot::Mutex;
use sahasra_cuda_device::{
    Extent, Failure, FailureKind, LaunchRequest, LoadFailure, ModuleDescription, ModuleId, Operation, Region, SequenceId, Unmapped,
};

use super::event::Event;
use super::fence::Launched;
use super::lease::Lease;
use super::module::Module;
use super::outcome::{check, check_launch};
use super::pages::Pages;
use super::rows::{self, Side};
use super::sequences::Stored;
use super::symbols::Symbols;

/// Maximum size of the heap of kernels in bytes, as on the PTX engine: beside the session's memory.
const MAX_HEAP_BYTES: u64 = 64 << 20;
/// Maximum size of the call stack of a thread in bytes, as of the driver library's `cuCtxSetLimit`.
const MAX_STACK_BYTES: u64 = 512 << 10;
/// Markers of a launch's `extra` parameters (`CU_LAUNCH_PARAM_…`).
const BUFFER: *mut c_void = std::ptr::without_provenance_mut(1);
const BUFFER_BYTES: *mut c_void = std::ptr::without_provenance_mut(2);
const END: *mut c_void = std::ptr::null_mut();

/// A context. Its methods make it current in the calling thread.
#[derive(Debug)]
pub(super) struct Context {
    /// Number that no other context of the process has.
    number: u64,
    context: sys::CUcontext,
    stream: sys::CUstream,
    pages: Arc<Pages>,
    lease: Arc<Lease>,
    modules: Mutex<HashMap<ModuleId, Arc<Module>>>,
    unmapped: Unmapped,
    stack_bytes: AtomicU64,
    stacks: Mutex<Stacks>,
    stored: Stored,
    /// Whether nothing needs to be begun any more.
    is_cancelled: AtomicBool,
}

/// Memory of call stacks beyond the driver's own, which it keeps for all threads that the device runs at once.
#[derive(Debug)]
struct Stacks {
    threads: u64,
    /// Call stack of a thread in bytes, the largest that there was.
    highest: u64,
    /// Bytes of the lease.
    taken: u64,
}

// SAFETY: a context may be current in many threads, and its stream be used by them; the driver locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Makes a context on a device. It counts against the lease, with the memory that it makes.
    pub(super) fn open(device: i32, number: u64, pages: &Arc<Pages>, lease: &Arc<Lease>) -> Result<Self, Failure> {
        lease.take_context()?;
        Self::make(device, number, pages, lease).inspect_err(|_| lease.give_context())
    }

    fn make(device: i32, number: u64, pages: &Arc<Pages>, lease: &Arc<Lease>) -> Result<Self, Failure> {
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the driver writes two handles.
        unsafe {
            let flags = sys::CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC as u32;
            check("cuCtxCreate", sys::cuCtxCreate_v2(&mut context, flags, device))?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            let mut popped = std::ptr::null_mut();
            let made = check("cuStreamCreate", sys::cuStreamCreate(&mut stream, flags))
                .and_then(|()| check("cuCtxPopCurrent", sys::cuCtxPopCurrent_v2(&mut popped)));
            made.inspect_err(|_| {
                let _ = sys::cuCtxDestroy_v2(context);
            })?;
        }
        Ok(Self {
            number,
            context,
            stream,
            pages: Arc::clone(pages),
            lease: Arc::clone(lease),
            modules: Mutex::default(),
            unmapped: Unmapped::default(),
            stack_bytes: AtomicU64::new(0),
            stacks: Mutex::new(Stacks {
                threads: threads(device)?,
                highest: 0,
                taken: 0,
            }),
            stored: Stored::new(lease),
            is_cancelled: AtomicBool::new(false),
        })
    }

    /// Makes this context the current one of the calling thread.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        // SAFETY: the context lives until `destroy`, after which nothing is called.
        unsafe { check("cuCtxSetCurrent", sys::cuCtxSetCurrent(self.context)) }
    }

    /// Ends a replay that is being begun, and all later ones.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Destroys the context and frees its memory. Waits for running kernels as the driver does. Nothing may be called afterwards.
    pub(super) fn destroy(&self) -> Result<(), Failure> {
        // After a fault this fails, like the calls below.
        let _ = self.enter();
        // SAFETY: made by `open` and destroyed once; no other thread uses them any more. After a fault the calls return it.
        unsafe {
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuCtxDestroy_v2(self.context);
            let freed: u64 = self.modules.lock().drain().map(|(_, module)| module.bytes).sum();
            self.lease.give(freed + std::mem::take(&mut self.stacks.lock().taken));
            self.lease.give_context();
            self.stored.clear();
            self.pages.release(self.number)
        }
    }

    /// Call stack of a thread in bytes, as the driver has it.
    pub(super) fn read_stack_bytes(&self) -> Result<u64, Failure> {
        self.enter()?;
        let mut bytes = 0;
        // SAFETY: the driver writes a number.
        check("cuCtxGetLimit", unsafe {
            sys::cuCtxGetLimit(&mut bytes, CUlimit::CU_LIMIT_STACK_SIZE)
        })?;
        self.stack_bytes.store(bytes as u64, Ordering::Relaxed);
        self.stacks.lock().highest = bytes as u64;
        Ok(bytes as u64)
    }

    /// Records an event behind everything that was begun.
    pub(super) fn record(&self, event: &Event) -> Result<(), Failure> {
        event.record(self.stream)
    }

    /// Whether an operation is done at once, so that everything before must have ended.
    pub(super) fn needs_idle(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Unmap { address } => self.pages.frees_pages(self.number, *address),
            Operation::Unload(_) | Operation::LimitHeap(_) => true,
            Operation::Launch(request) => u64::from(request.stack_bytes) != self.stack_bytes.load(Ordering::Relaxed),
            Operation::Replay(sequence) => {
                let operations = self.stored.operations(*sequence);
                operations.is_ok_and(|operations| operations.iter().any(|operation| self.needs_idle(operation)))
            }
            _ => false,
        }
    }

    /// Kernels that an operation launches.
    pub(super) fn launched(&self, operation: &Operation) -> Launched {
        let of = |operation: &Operation| match operation {
            Operation::Launch(request) => Some((self.module(request.module)?, request.function)),
            _ => None,
        };
        let replayed = match operation {
            Operation::Replay(sequence) => self.stored.operations(*sequence).unwrap_or_default(),
            _ => Arc::default(),
        };
        let mut kernels: Vec<_> = replayed.iter().chain([operation]).filter_map(of).collect();
        let prints = kernels.iter().any(|(module, _)| module.prints);
        let kernel = kernels.pop().filter(|_| kernels.is_empty());
        Launched { kernel, prints }
    }

    /// A module that is loaded.
    pub(super) fn module(&self, id: ModuleId) -> Option<Arc<Module>> {
        self.modules.lock().get(&id).cloned()
    }

    pub(super) fn begin(&self, operation: &Operation) -> Result<(), Failure> {
        match operation {
            Operation::Map { address, bytes } => self.map(*address, *bytes),
            Operation::Unmap { address } if self.unmapped.remove(*address) => Ok(()),
            Operation::Unmap { address } => self.pages.unmap(self.number, *address),
            Operation::Write { to, extent, bytes } => {
                if extent.bytes() != Some(bytes.len() as u64) {
                    return Err(Failure::new(FailureKind::Protocol, "the bytes do not have the size of the rows"));
                }
                self.check_rows(*to, *extent)?;
                rows::copy(self.stream, Side::Host(bytes.as_ptr() as u64), Side::Device(*to), *extent)
            }
            Operation::Copy { from, to, extent } => {
                self.check_rows(*from, *extent)?;
                self.check_rows(*to, *extent)?;
                rows::copy(self.stream, Side::Device(*from), Side::Device(*to), *extent)
            }
            Operation::Fill {
                to,
                extent,
                value,
                element_bytes,
            } => {
                self.check_rows(*to, *extent)?;
                rows::fill(self.stream, *to, *extent, *value, *element_bytes)
            }
            Operation::Launch(request) => self.launch(request),
            // Whoever calls this records an event for it.
            Operation::Mark(_) => Ok(()),
            Operation::Unload(module) => self.unload(*module),
            Operation::Extend { sequence, operations } => self.stored.extend(*sequence, operations),
            Operation::Amend {
                sequence,
                index,
                operations,
            } => self.stored.amend(*sequence, *index, operations),
            Operation::Replay(sequence) => self.replay(*sequence),
            Operation::Erase(sequence) => self.stored.erase(*sequence),
            Operation::LimitHeap(bytes) => {
                let bytes = (*bytes).min(MAX_HEAP_BYTES) as usize;
                // SAFETY: the driver reads a number.
                let set = unsafe { sys::cuCtxSetLimit(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, bytes) };
                // Refused once a kernel that allocates was launched.
                check_launch("the size of the heap", set)
            }
        }
    }

    /// Begins the operations of a sequence, up to a sticky failure. Returns the first failure.
    fn replay(&self, sequence: SequenceId) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for operation in &*self.stored.operations(sequence)? {
            if self.is_cancelled.load(Ordering::Relaxed) {
                return Err(Failure::new(FailureKind::Lost, "the launch of a graph was cancelled"));
            }
            let begun = self.begin(operation);
            if begun.as_ref().is_err_and(Failure::is_sticky) {
                return begun;
            }
            outcome = outcome.and(begun);
        }
        outcome
    }

    fn map(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        match self.pages.map(self.number, address, bytes) {
            // New pages as a whole: kernels can access what the allocation does not fill.
            Ok(made) => {
                let mut zeroed = made.clone();
                if !made.iter().any(|pages| pages.start <= address && address + bytes <= pages.end) {
                    zeroed.push(address..address + bytes);
                }
                zeroed.into_iter().try_for_each(|range| {
                    let extent = Extent::linear(range.end - range.start);
                    rows::fill(self.stream, Region::linear(range.start), extent, 0, 1)
                })
            }
            Err(failure) if failure.kind == FailureKind::OutOfMemory => Err(self.unmapped.add(address, failure)),
            Err(failure) => Err(failure),
        }
    }

    /// Refuses rows that are not in memory of this context. The driver would take some addresses for those of this process.
    fn check_rows(&self, region: Region, extent: Extent) -> Result<(), Failure> {
        let stray = |what: &str| Failure::new(FailureKind::IllegalAddress, format!("{:#x}: {what}", region.address));
        let most = self.lease.capacity().saturating_add(MAX_HEAP_BYTES);
        let Some(bytes) = extent.bytes().filter(|bytes| *bytes <= most) else {
            return Err(Failure::new(FailureKind::Protocol, "the rows have more bytes than the memory"));
        };
        if bytes == 0 {
            return Ok(());
        }
        let span = extent.span(&region).ok_or_else(|| stray("a row is beyond the address space"))?;
        if self.contains(region.address, span) {
            return Ok(());
        }
        for (row, slice) in extent.rows() {
            let start = region.row(row, slice).ok_or_else(|| stray("a row is beyond the address space"))?;
            if !self.contains(start, extent.width) {
                let width = extent.width;
                return Err(stray(&format!("{width} bytes at {start:#x} are not in memory that is mapped")));
            }
        }
        Ok(())
    }

    /// Whether a range is in an allocation or a variable of this context.
    fn contains(&self, address: u64, bytes: u64) -> bool {
        let in_variable = |module: &Arc<Module>| {
            let below = module.variables.range(..=address).next_back();
            below.is_some_and(|(start, size)| size.checked_sub(address - start).is_some_and(|room| bytes <= room))
        };
        self.pages.contains(self.number, address, bytes) || self.modules.lock().values().any(in_variable)
    }

    fn launch(&self, request: &LaunchRequest) -> Result<(), Failure> {
        let refused = |message: String| Failure::new(FailureKind::Launch, message);
        let module = self.module(request.module).ok_or_else(|| unknown(request.module))?;
        let function = module.functions.get(request.function as usize);
        let message = || format!("kernel {} not found", request.function);
        let function = function.ok_or_else(|| Failure::new(FailureKind::Protocol, message()))?;
        let (name, mut bytes) = (&function.name, request.parameters.len());
        if bytes != function.parameter_bytes as usize {
            let expected = function.parameter_bytes;
            return Err(refused(format!(
                "kernel {name}: {bytes} bytes of parameters, {expected} are declared"
            )));
        }
        function.allow_dynamic_shared(request.dynamic_shared_bytes)?;
        let stack = u64::from(request.stack_bytes);
        if stack > MAX_STACK_BYTES {
            return Err(refused(format!(
                "kernel {name}: {stack} bytes of stack for each thread, the limit is {MAX_STACK_BYTES}"
            )));
        }
        if self.stack_bytes.load(Ordering::Relaxed) != stack {
            self.set_stack(stack)?;
        }
        // SAFETY: zero is a value of the union, of which the field of the attribute is set.
        let mut cooperative: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        cooperative.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        cooperative.value.cooperative = 1;
        let configuration = sys::CUlaunchConfig {
            gridDimX: request.grid[0],
            gridDimY: request.grid[1],
            gridDimZ: request.grid[2],
            blockDimX: request.block[0],
            blockDimY: request.block[1],
            blockDimZ: request.block[2],
            sharedMemBytes: request.dynamic_shared_bytes,
            hStream: self.stream,
            attrs: &mut cooperative,
            numAttrs: u32::from(request.cooperative),
        };
        let block = request.parameters.as_ptr().cast_mut().cast();
        let mut extra = [BUFFER, block, BUFFER_BYTES, (&raw mut bytes).cast(), END];
        let pointers = std::ptr::null_mut();
        let extra = if request.parameters.is_empty() {
            std::ptr::null_mut()
        } else {
            extra.as_mut_ptr()
        };
        // SAFETY: the function is loaded; the driver copies the parameter block, whose length it gets, before it returns.
        let launched = unsafe { sys::cuLaunchKernelEx(&configuration, function.function, pointers, extra) };
        check_launch(&format!("kernel {name}"), launched)
    }

    /// Sets the call stack of a thread in bytes. The driver keeps the memory of the largest one.
    fn set_stack(&self, stack: u64) -> Result<(), Failure> {
        let mut stacks = self.stacks.lock();
        let bytes = stack.saturating_sub(stacks.highest).saturating_mul(stacks.threads);
        let refused = |failure: Failure| Failure::new(failure.kind, format!("{stack} bytes of stack for each thread: {failure}"));
        self.lease.take(bytes).map_err(refused)?;
        // SAFETY: the driver reads a number.
        let set = unsafe { sys::cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, stack as usize) };
        check_launch("the size of the call stack", set).inspect_err(|_| self.lease.give(bytes))?;
        stacks.taken += bytes;
        stacks.highest = stacks.highest.max(stack);
        self.stack_bytes.store(stack, Ordering::Relaxed);
        Ok(())
    }

    fn unload(&self, module: ModuleId) -> Result<(), Failure> {
        let removed = self.modules.lock().remove(&module).ok_or_else(|| unknown(module))?;
        removed.unload()?;
        self.lease.give(removed.bytes);
        Ok(())
    }

    /// Loads images. Everything that was begun must have ended.
    pub(super) fn load(&self, id: ModuleId, images: &[&[u8]]) -> Result<ModuleDescription, LoadFailure> {
        self.enter()?;
        if self.modules.lock().contains_key(&id) {
            return Err(Failure::new(FailureKind::Protocol, format!("module {} is loaded already", id.0)).into());
        }
        let symbols = Symbols::of(images)?;
        let code: u64 = images.iter().map(|image| image.len() as u64).sum();
        let bytes = symbols.variable_bytes.saturating_add(code);
        self.lease.take(bytes)?;
        let module = Module::load(images, &symbols, bytes).inspect_err(|_| self.lease.give(bytes))?;
        let description = module.description.clone();
        self.modules.lock().insert(id, Arc::new(module));
        Ok(description)
    }

    /// Reads rows. Everything that was begun must have ended.
    pub(super) fn read(&self, from: Region, extent: Extent, into: &mut [u8]) -> Result<(), Failure> {
        if extent.bytes() != Some(into.len() as u64) {
            return Err(Failure::new(FailureKind::Protocol, "the target does not have the size of the rows"));
        }
        self.enter()?;
        self.check_rows(from, extent)?;
        rows::copy(self.stream, Side::Device(from), Side::Host(into.as_mut_ptr() as u64), extent)?;
        // SAFETY: the stream is of this context.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

/// Number of threads that a device runs at once.
fn threads(device: i32) -> Result<u64, Failure> {
    let read = |attribute| {
        let mut value = 0;
        // SAFETY: the driver writes a number.
        check("cuDeviceGetAttribute", unsafe {
            sys::cuDeviceGetAttribute(&mut value, attribute, device)
        })?;
        Ok::<_, Failure>(u64::from(value.unsigned_abs()))
    };
    let each = read(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
    Ok(each * read(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?)
}

fn unknown(module: ModuleId) -> Failure {
    Failure::new(FailureKind::Protocol, format!("module {} not found", module.0))
}
