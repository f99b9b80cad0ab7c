//! A GPU through the CUDA driver.
//!
//! The driver is loaded at run time; a machine without a driver has no CUDA devices, which is no error. The process has one context (the
//! device's primary context), each lane one stream, and copies go through pinned memory. A fault poisons the context, and a launch cannot
//! be cancelled: in both cases the process is replaced.
//!
//! The driver compiles PTX once for each module ([`CudaModule`] holds the result in host memory) and loads it again for each instance, so
//! that module-scope variables have their initial values, as on the CPU backend. The heap of `malloc` belongs to the context and lasts as
//! long as the process.

pub(crate) mod driver;
mod memory;
mod probe;
mod stream;

use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cudarc::driver::sys::{self, CUfunction_attribute, CUjit_option, CUjitInputType, CUresult};
use sahasra_executor_protocol::probe::GPU_LANES;
use sahasra_ptx::{Cancel, Outline};

use self::driver::{check, check_launch, check_load};
use self::stream::{STAGING, ZEROS};
use super::{Arguments, Device, DeviceError, LaunchShape, rounded_bytes};

pub(crate) use self::memory::CudaArea;
pub(crate) use self::probe::probe;
pub(crate) use self::stream::CudaStream;

/// Size of the buffer for the compiler's error log, in bytes.
const LOG: usize = 8 << 10;
/// First driver version with `cuFuncGetParamInfo`, which describes a kernel's parameters.
const DRIVER_WITH_PARAMETERS: i32 = 12_040;

/// The context of this process on one GPU.
#[derive(Debug)]
pub(crate) struct Context {
    context: sys::CUcontext,
}

// SAFETY: a context may be current in many threads; the driver locks.
unsafe impl Send for Context {}
// SAFETY: a context may be current in many threads; the driver locks.
unsafe impl Sync for Context {}

impl Context {
    /// Makes this context the current one of the calling thread.
    fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context lives until the end of the process.
        unsafe { check("cuCtxSetCurrent", sys::cuCtxSetCurrent(self.context)) }
    }
}

/// A GPU in this process.
#[derive(Debug)]
pub(crate) struct CudaDevice {
    context: Arc<Context>,
    used: Arc<AtomicU64>,
    total_bytes: u64,
    reports_parameters: bool,
}

impl CudaDevice {
    /// Opens the GPU with this number.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] if the driver or the GPU does not exist; other errors of the driver.
    pub(crate) fn open(ordinal: u32) -> Result<Self, DeviceError> {
        if !driver::is_present() {
            return Err(DeviceError::Unavailable("the CUDA driver (libcuda) is not installed".to_owned()));
        }
        let unavailable = |call, result| check(call, result).map_err(|error| DeviceError::Unavailable(error.to_string()));
        let mut device = 0;
        let mut version = 0;
        let mut total = 0;
        let mut context = std::ptr::null_mut();
        let ordinal = i32::try_from(ordinal).map_err(|_| DeviceError::Unavailable(format!("GPU {ordinal} not found")))?;
        // SAFETY: the driver is present; `cuInit` is called first; every pointer is to a local of the type that the driver writes.
        unsafe {
            unavailable("cuInit", sys::cuInit(0))?;
            unavailable("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
            unavailable("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal))?;
            unavailable("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut total, device))?;
            // Lanes sleep while their kernels run, because other processes use the node's cores.
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
            reports_parameters: version >= DRIVER_WITH_PARAMETERS,
        })
    }

    /// Compares the arguments with the parameters that the entry declares.
    fn check_parameters(&self, function: sys::CUfunction, arguments: &Arguments) -> Result<(), DeviceError> {
        if !self.reports_parameters {
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
                "the kernel has {declared} parameters, {} arguments were passed",
                arguments.len()
            )));
        }
        Ok(())
    }
}

/// Code compiled for this GPU, in host memory.
#[derive(Debug)]
pub(crate) struct CudaModule {
    image: Vec<u8>,
    /// Bytes of its variables, counted from the text: the driver reports the size only of loaded variables, each by its name.
    global_bytes: u64,
    constant_bytes: u64,
}

/// One entry of a module on the GPU.
#[derive(Debug)]
pub(crate) struct CudaKernel {
    instance: Arc<CudaInstance>,
    function: sys::CUfunction,
    shape: LaunchShape,
}

// SAFETY: a function may be launched from many threads; the driver locks.
unsafe impl Send for CudaKernel {}
// SAFETY: a function may be launched from many threads; the driver locks.
unsafe impl Sync for CudaKernel {}

/// A module on the GPU.
#[derive(Debug)]
pub(crate) struct CudaInstance {
    context: Arc<Context>,
    module: sys::CUmodule,
    has_globals: bool,
}

// SAFETY: a module may be used from many threads; the driver locks.
unsafe impl Send for CudaInstance {}
// SAFETY: a module may be used from many threads; the driver locks.
unsafe impl Sync for CudaInstance {}

impl Drop for CudaInstance {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: loaded by `instantiate` and unloaded once; no launch of the module is running when its last user is dropped.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// Link state of a compilation; destroyed on drop.
struct Linker(sys::CUlinkState);

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: created by `load` and destroyed once.
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
    #[cfg(test)]
    const FAULTS_POISON: bool = true;

    fn lanes(&self) -> usize {
        GPU_LANES as usize
    }

    #[cfg(test)]
    fn used_bytes(&self) -> u64 {
        self.used.load(std::sync::atomic::Ordering::Relaxed)
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
        let outline = outline(ptx)?;
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
        // SAFETY: options and log outlive the link state, which is destroyed at the end of this function; the text ends with a zero byte,
        // which is included in its size; the image belongs to the link state and is copied before the state is destroyed.
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
                global_bytes: outline.global_bytes,
                constant_bytes: outline.constant_bytes,
            })
        }
    }

    fn module_bytes(&self, module: &CudaModule) -> u64 {
        module.image.len() as u64
    }

    fn instantiate(&self, module: &Arc<CudaModule>, _apart: bool) -> Result<CudaInstance, DeviceError> {
        self.context.enter()?;
        let mut loaded = std::ptr::null_mut();
        // SAFETY: the image is complete, as the driver's linker made it; the driver copies it.
        unsafe { check_load(sys::cuModuleLoadData(&mut loaded, module.image.as_ptr().cast()), "")? };
        Ok(CudaInstance {
            context: Arc::clone(&self.context),
            module: loaded,
            has_globals: module.global_bytes > 0,
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
        // SAFETY: the module is loaded and outlives the function, because the kernel holds the instance.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, instance.module, name.as_ptr()) };
        if found == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(DeviceError::Launch(format!("entry {entry} not found in the PTX")));
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
                "block of {threads} threads exceeds the limit of {most_threads} of this kernel"
            )));
        }
        let shared = i32::try_from(shape.dynamic_shared_bytes)
            .map_err(|_| DeviceError::Launch(format!("{} bytes of dynamic shared memory", shape.dynamic_shared_bytes)))?;
        // SAFETY: the function is loaded; the driver reads a number.
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
        module.global_bytes.saturating_add(module.constant_bytes)
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
        // SAFETY: the range belongs to the area. The area outlives the work on the stream, because its owner reads it or waits for the
        // stream before dropping it.
        unsafe { check("cuMemsetD8Async", sys::cuMemsetD8Async(area.base, 0, area.bytes(), stream.stream)) }
    }

    fn write(&self, stream: &mut CudaStream, area: &CudaArea, part: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let (offset, length) = area.parts[part];
        if bytes.len() as u64 > length {
            return Err(DeviceError::Launch(format!("{} bytes do not fit {length}", bytes.len())));
        }
        let mut address = area.base + offset;
        for piece in bytes.chunks(STAGING) {
            if stream.uploading + piece.len() > stream.upload.length {
                stream.synchronise()?;
            }
            stream.upload.put(stream.uploading, piece);
            // SAFETY: source and target ranges were checked; the source is not overwritten before the stream was waited for.
            unsafe {
                let source = stream.upload.pointer.add(stream.uploading);
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
        // SAFETY: the function is loaded; each parameter points to as many bytes as the kernel takes, which the driver copies before it
        // returns. Parameters that the kernel declares beyond the given arguments point to zeros.
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
        // A small output is read in one copy, including the gaps between its parts; a large one in pieces that each lie in one part.
        if area.bytes() <= STAGING {
            self.fetch(stream, area.base, area.bytes())?;
            for (offset, length) in &area.parts {
                into.extend_from_slice(&stream.download.bytes(area.bytes())[*offset as usize..(offset + length) as usize]);
            }
            return Ok(());
        }
        for (offset, length) in &area.parts {
            let mut done = 0;
            while done < *length {
                let piece = (length - done).min(STAGING as u64);
                self.fetch(stream, area.base + offset + done, piece as usize)?;
                into.extend_from_slice(stream.download.bytes(piece as usize));
                done += piece;
            }
        }
        Ok(())
    }

    fn fetch(&self, stream: &mut CudaStream, address: sys::CUdeviceptr, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's range belongs to an area; `bytes` is at most `STAGING`; nothing reads the target before the stream was
        // waited for.
        unsafe {
            check(
                "cuMemcpyDtoHAsync",
                sys::cuMemcpyDtoHAsync_v2(stream.download.pointer.cast(), address, bytes, stream.stream),
            )?;
        }
        stream.synchronise()
    }
}

fn outline(ptx: &str) -> Result<Outline, DeviceError> {
    Outline::of(ptx).map_err(|error| DeviceError::Load(format!("failed to count its variables: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_whose_variables_cannot_be_counted_fails_to_load() {
        for wrong in [".version 7.0 .target sm_70 .address_size 64 .global .b8 x[", "no PTX"] {
            let error = outline(wrong).unwrap_err();
            assert_eq!(error.code(), sahasra_wire::burst::FailureCode::LoadFailed, "{error}");
        }
    }
}
