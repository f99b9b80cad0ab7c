//! A GPU through the CUDA driver.
//!
//! The driver is found at run time; a machine without one has no devices of this kind, and that is no error. One context
//! a process (the device's primary one), one stream a lane, copies through pinned memory. A fault poisons the context,
//! and a launch cannot be cancelled: in both cases the process is replaced.
//!
//! PTX is compiled by the driver once for a module ([`CudaModule`] is the result, in host memory), and loaded anew for each
//! instance: module-scope variables start afresh in it, as they do on the CPU engine. The heap of `malloc` is the context's: it lasts as
//! long as the process.

mod driver;
mod memory;
mod probe;
mod stream;

use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{self, CUfunction_attribute, CUjit_option, CUjitInputType, CUresult};
use sahasra_ptx::{Cancel, Outline};

use self::driver::{check, check_launch, check_load};
use self::stream::{STAGING, ZEROS};
use super::{Arguments, Device, DeviceError, LaunchShape, rounded_bytes};

pub use self::memory::CudaArea;
pub use self::probe::{Gpu, Probe, probe};
pub use self::stream::CudaStream;

/// Chunks at a time: as many kernels as any GPU runs at once gain little beyond this, and each lane is a thread.
pub const LANES: u32 = 32;
/// Room for the compiler's words.
const LOG: usize = 8 << 10;
/// Driver from which it tells a kernel's parameters.
const DRIVER_WITH_PARAMETERS: i32 = 12_040;

/// The context of this process on one GPU.
#[derive(Debug)]
pub struct Context {
    context: sys::CUcontext,
}

// SAFETY: a context may be current in many threads; the driver locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Makes it the current one of this thread.
    fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context lives to the end of the process.
        unsafe { check("cuCtxSetCurrent", sys::cuCtxSetCurrent(self.context)) }
    }
}

/// A GPU in this process.
#[derive(Debug)]
pub struct CudaDevice {
    context: Arc<Context>,
    used: Arc<AtomicU64>,
    total_bytes: u64,
    tells_parameters: bool,
}

impl CudaDevice {
    /// Opens the GPU of that number.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without driver or GPU; the driver's.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        if !driver::is_present() {
            return Err(DeviceError::Unavailable("the CUDA driver (libcuda) is not installed".to_owned()));
        }
        let unavailable = |call, result| check(call, result).map_err(|error| DeviceError::Unavailable(error.to_string()));
        let mut device = 0;
        let mut version = 0;
        let mut total = 0;
        let mut context = std::ptr::null_mut();
        let ordinal = i32::try_from(ordinal).map_err(|_| DeviceError::Unavailable(format!("there is no GPU {ordinal}")))?;
        // SAFETY: the driver is there; `cuInit` comes first; every pointer is to a local of the type that it writes.
        unsafe {
            unavailable("cuInit", sys::cuInit(0))?;
            unavailable("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
            unavailable("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal))?;
            unavailable("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut total, device))?;
            // Lanes sleep while their kernels run: the node's cores are other people's.
            unavailable(
                "cuDevicePrimaryCtxSetFlags",
                sys::cuDevicePrimaryCtxSetFlags_v2(device, sys::CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC as u32),
            )?;
            unavailable("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
        }
        let context = Arc::new(Context { context });
        context.enter()?;
        Ok(Self {
            context,
            used: Arc::default(),
            total_bytes: total as u64,
            tells_parameters: version >= DRIVER_WITH_PARAMETERS,
        })
    }

    /// Compares the arguments with what the entry declares.
    fn check_parameters(&self, function: sys::CUfunction, arguments: &Arguments) -> Result<(), DeviceError> {
        if !self.tells_parameters {
            return Ok(());
        }
        let mut declared = 0;
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the function is loaded; the driver writes two numbers.
            let result = unsafe { sys::cuFuncGetParamInfo(function, declared, &mut offset, &mut size) };
            match result {
                CUresult::CUDA_SUCCESS => {}
                CUresult::CUDA_ERROR_INVALID_VALUE => break,
                _ => check("cuFuncGetParamInfo", result)?,
            }
            if declared < arguments.len() && arguments.get(declared).len() != size {
                return Err(DeviceError::Launch(format!(
                    "parameter {declared} has {size} bytes, the argument has {}",
                    arguments.get(declared).len()
                )));
            }
            declared += 1;
        }
        if declared != arguments.len() {
            return Err(DeviceError::Launch(format!(
                "the kernel has {declared} parameters, {} arguments are given",
                arguments.len()
            )));
        }
        Ok(())
    }
}

/// Code compiled for this GPU, in host memory.
#[derive(Debug)]
pub struct CudaModule {
    image: Vec<u8>,
    variables: Variables,
}

/// Bytes of the variables that a text declares. The driver is not asked: it tells the size of a variable by its name, and of loaded ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variables {
    global: u64,
    constant: u64,
}

impl Variables {
    fn of(ptx: &str) -> Result<Self, DeviceError> {
        let outline = Outline::of(ptx).map_err(|error| DeviceError::Load(format!("its variables cannot be counted: {error}")))?;
        Ok(Self {
            global: outline.global_bytes,
            constant: outline.constant_bytes,
        })
    }

    fn bytes(self) -> u64 {
        self.global.saturating_add(self.constant)
    }
}

/// One entry of a module on the GPU.
#[derive(Debug)]
pub struct CudaKernel {
    instance: Arc<CudaInstance>,
    function: sys::CUfunction,
    shape: LaunchShape,
}

// SAFETY: a function may be launched from many threads; the driver locks.
unsafe impl Send for CudaKernel {}
// SAFETY: as above.
unsafe impl Sync for CudaKernel {}

/// A module on the GPU.
#[derive(Debug)]
pub struct CudaInstance {
    context: Arc<Context>,
    module: sys::CUmodule,
    has_globals: bool,
}

// SAFETY: a module may be used from many threads; the driver locks.
unsafe impl Send for CudaInstance {}
// SAFETY: as above.
unsafe impl Sync for CudaInstance {}

impl Drop for CudaInstance {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: loaded by `instantiate` and unloaded once; no launch of it is under way when its last user is gone.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// Ends a compilation.
struct Linker(sys::CUlinkState);

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: made by `load` and destroyed once.
        let _ = unsafe { sys::cuLinkDestroy(self.0) };
    }
}

impl Device for CudaDevice {
    type Area = CudaArea;
    type Module = CudaModule;
    type Instance = CudaInstance;
    type Kernel = CudaKernel;
    type Stream = CudaStream;

    const CANCELS: bool = false;
    const FAULTS_POISON: bool = true;

    fn lanes(&self) -> usize {
        LANES as usize
    }

    fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn allocate(&self, parts: &[u64]) -> Result<CudaArea, DeviceError> {
        let bytes = rounded_bytes(parts);
        if bytes > self.total_bytes {
            return Err(DeviceError::OutOfMemory(format!(
                "{bytes} bytes requested, the GPU has {}",
                self.total_bytes
            )));
        }
        CudaArea::allocate(&self.context, &self.used, parts)
    }

    fn address(&self, area: &CudaArea, part: usize) -> u64 {
        area.address(part)
    }

    fn load(&self, ptx: &str) -> Result<CudaModule, DeviceError> {
        let variables = Variables::of(ptx)?;
        self.context.enter()?;
        let text = CString::new(ptx).map_err(|_| DeviceError::Load("the text has a zero byte".to_owned()))?;
        let mut log = vec![0u8; LOG];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG as *mut c_void];
        let mut state = std::ptr::null_mut();
        let (mut image, mut length) = (std::ptr::null_mut(), 0usize);
        // SAFETY: options and log outlive the link state, which is destroyed at the end of this function; the text ends with a
        // zero byte, which its size includes; the image belongs to the state and is copied before that ends.
        unsafe {
            check(
                "cuLinkCreate",
                sys::cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut state),
            )?;
            let linker = Linker(state);
            let bytes = text.as_bytes_with_nul();
            let mut result = sys::cuLinkAddData_v2(
                linker.0,
                CUjitInputType::CU_JIT_INPUT_PTX,
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                c"kernel.ptx".as_ptr(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            );
            if result == CUresult::CUDA_SUCCESS {
                result = sys::cuLinkComplete(linker.0, &mut image, &mut length);
            }
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            check_load(result, &String::from_utf8_lossy(&log[..end]))?;
            Ok(CudaModule {
                image: std::slice::from_raw_parts(image.cast::<u8>(), length).to_vec(),
                variables,
            })
        }
    }

    fn module_bytes(&self, module: &CudaModule) -> u64 {
        module.image.len() as u64
    }

    fn instantiate(&self, module: &Arc<CudaModule>, _apart: bool) -> Result<CudaInstance, DeviceError> {
        self.context.enter()?;
        let mut loaded = std::ptr::null_mut();
        // SAFETY: the image is what the driver's linker made, whole; it copies it.
        unsafe { check_load(sys::cuModuleLoadData(&mut loaded, module.image.as_ptr().cast()), "")? };
        Ok(CudaInstance {
            context: Arc::clone(&self.context),
            module: loaded,
            has_globals: module.variables.global > 0,
        })
    }

    fn kernel(
        &self,
        instance: &Arc<CudaInstance>,
        entry: &str,
        shape: LaunchShape,
        arguments: &Arguments,
    ) -> Result<CudaKernel, DeviceError> {
        self.context.enter()?;
        let name = CString::new(entry).map_err(|_| DeviceError::Launch("the entry's name has a zero byte".to_owned()))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded and outlives the function in the kernel.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, instance.module, name.as_ptr()) };
        if found == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(DeviceError::Launch(format!("the PTX has no entry {entry}")));
        }
        check_launch("cuModuleGetFunction", found)?;
        self.check_parameters(function, arguments)?;
        let mut most_threads = 0;
        // SAFETY: the function is loaded; the driver writes a number.
        unsafe {
            check_launch(
                "cuFuncGetAttribute",
                sys::cuFuncGetAttribute(
                    &mut most_threads,
                    CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                    function,
                ),
            )?;
        }
        let threads = shape.block.iter().map(|size| u64::from(*size)).product::<u64>();
        if threads > most_threads.max(0) as u64 {
            return Err(DeviceError::Launch(format!(
                "a block of {threads} threads is more than the {most_threads} that this kernel can have"
            )));
        }
        let shared = i32::try_from(shape.dynamic_shared_bytes)
            .map_err(|_| DeviceError::Launch(format!("{} bytes of dynamic shared memory", shape.dynamic_shared_bytes)))?;
        // SAFETY: as above.
        unsafe {
            check_launch(
                "dynamic shared memory",
                sys::cuFuncSetAttribute(
                    function,
                    CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared,
                ),
            )?;
        }
        Ok(CudaKernel {
            instance: Arc::clone(instance),
            function,
            shape,
        })
    }

    fn variable_bytes(&self, module: &CudaModule) -> u64 {
        module.variables.bytes()
    }

    fn instance_bytes(&self, module: &CudaModule) -> u64 {
        self.variable_bytes(module).saturating_add(module.image.len() as u64)
    }

    fn keeps_state(&self, kernel: &CudaKernel) -> bool {
        kernel.instance.has_globals
    }

    fn stream(&self) -> Result<CudaStream, DeviceError> {
        CudaStream::new(&self.context)
    }

    fn zero(&self, stream: &mut CudaStream, area: &CudaArea) -> Result<(), DeviceError> {
        if area.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the range is the area's, which outlives the work on the stream: it is read, or waited for, before it goes.
        unsafe { check("cuMemsetD8Async", sys::cuMemsetD8Async(area.base(), 0, area.bytes(), stream.stream)) }
    }

    fn write(&self, stream: &mut CudaStream, area: &CudaArea, part: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let (offset, length) = area.parts()[part];
        if bytes.len() as u64 > length {
            return Err(DeviceError::Launch(format!("{} bytes do not fit {length}", bytes.len())));
        }
        let mut address = area.base() + offset;
        for piece in bytes.chunks(STAGING) {
            if stream.uploading + piece.len() > stream.upload.length() {
                stream.synchronise()?;
            }
            stream.upload.put(stream.uploading, piece);
            // SAFETY: source and target were checked; the source is not written again before the stream was waited for.
            unsafe {
                let source = stream.upload.pointer().add(stream.uploading);
                check(
                    "cuMemcpyHtoDAsync",
                    sys::cuMemcpyHtoDAsync_v2(address, source.cast(), piece.len(), stream.stream),
                )?;
            }
            stream.uploading += piece.len();
            address += piece.len() as u64;
        }
        Ok(())
    }

    fn launch(&self, stream: &mut CudaStream, kernel: &CudaKernel, arguments: &Arguments, _cancel: &Cancel) -> Result<(), DeviceError> {
        debug_assert!(Arc::ptr_eq(&kernel.instance.context, &stream.context));
        for place in 0..arguments.len() {
            stream.parameters[place] = arguments.get(place).as_ptr().cast_mut().cast();
        }
        let LaunchShape {
            grid,
            block,
            dynamic_shared_bytes,
        } = kernel.shape;
        // SAFETY: the function is loaded; each parameter points to as many bytes as the kernel takes (the driver copies
        // them before it returns), and where it declares more than were given, to zeros.
        let result = unsafe {
            sys::cuLaunchKernel(
                kernel.function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                dynamic_shared_bytes,
                stream.stream,
                stream.parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        stream.parameters[..arguments.len()].fill(ZEROS.as_ptr().cast_mut().cast());
        check_launch("cuLaunchKernel", result)
    }

    fn read(&self, stream: &mut CudaStream, area: &CudaArea, into: &mut Vec<u8>) -> Result<(), DeviceError> {
        let before = into.len();
        let read = self.read_pieces(stream, area, into);
        if read.is_err() {
            into.truncate(before);
        }
        read
    }
}

impl CudaDevice {
    fn read_pieces(&self, stream: &mut CudaStream, area: &CudaArea, into: &mut Vec<u8>) -> Result<(), DeviceError> {
        if area.bytes() == 0 {
            return stream.synchronise();
        }
        // Small outputs come in one copy with the gaps between them; large ones in pieces of one part.
        if area.bytes() <= STAGING {
            self.fetch(stream, area.base(), area.bytes())?;
            for (offset, length) in area.parts() {
                into.extend_from_slice(&stream.download.bytes(area.bytes())[*offset as usize..(offset + length) as usize]);
            }
            return Ok(());
        }
        for (offset, length) in area.parts() {
            let mut done = 0;
            while done < *length {
                let piece = (length - done).min(STAGING as u64);
                self.fetch(stream, area.base() + offset + done, piece as usize)?;
                into.extend_from_slice(stream.download.bytes(piece as usize));
                done += piece;
            }
        }
        Ok(())
    }

    fn fetch(&self, stream: &mut CudaStream, address: sys::CUdeviceptr, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's range is an area's, `bytes` at most STAGING; nothing reads the target until the stream was waited for.
        unsafe {
            check(
                "cuMemcpyDtoHAsync",
                sys::cuMemcpyDtoHAsync_v2(stream.download.pointer().cast(), address, bytes, stream.stream),
            )?;
        }
        stream.synchronise()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_text_are_counted_and_one_that_cannot_be_read_is_refused() {
        let text = |variables: &str| {
            let kernel = ".entry k() { .global .b8 inner[64]; ret; }";
            Variables::of(&format!(".version 7.0 .target sm_70 .address_size 64 {variables} {kernel}"))
        };
        let global = text(".global .b8 x[8589934592]; .const .b32 table[4];").unwrap();
        assert_eq!((global.global, global.bytes()), ((8 << 30) + 64, (8 << 30) + 80));
        assert_eq!(text(".global .b8 x[18446744073709551615];").unwrap().bytes(), u64::MAX);
        for wrong in [text(".global .b8 x["), Variables::of("no PTX")] {
            assert_eq!(wrong.unwrap_err().code(), sahasra_wire::burst::FailureCode::LoadFailed);
        }
    }
}
