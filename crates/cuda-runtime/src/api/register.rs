//! What compilers emit beside the documented API: registration of images, kernels and variables before `main`, and the configurations of
//! launches, as LLVM's code generator for CUDA uses them.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;

use sahasra_cuda_boundary::process::AtThreadEnd;

use super::launch::{Launch, launch};
use crate::boundary::{Dimensions, Handle, In, Out, Pointer, Text};
use crate::registry;
use crate::{Error, exports};

/// First word of `__fatBinC_Wrapper_t`.
const WRAPPER: c_uint = 0x4662_43b1;

/// `__fatBinC_Wrapper_t`: magic, version, image, and a name or linked images.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Wrapper {
    magic: c_uint,
    version: c_uint,
    image: usize,
    rest: usize,
}

/// Configuration of a launch, between the brackets of `<<<…>>>` and the call of the kernel's stub.
#[derive(Clone, Copy, Debug)]
struct Configuration {
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: usize,
    stream: Handle,
}

thread_local! {
    /// Configurations of the launches that the thread has begun.
    static CONFIGURATIONS: ManuallyDrop<RefCell<Vec<Configuration>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    static END: AtThreadEnd = const { AtThreadEnd(clear) };
}

fn clear() {
    CONFIGURATIONS.with(|configurations| configurations.take());
}

/// Runs a registration, which has no way to report an error: one is reported by the first launch.
fn note(registration: impl FnOnce() -> Result<(), Error>) {
    sahasra_cuda_boundary::call(registration);
}

fn name(text: *const c_char) -> Result<CString, Error> {
    CString::new(Text::new(text).get()?).map_err(|_| Error::INVALID_VALUE)
}

fn number(binary: *mut *mut c_void) -> u64 {
    binary as u64
}

/// Notes an image. Its number takes the place of a handle.
#[unsafe(no_mangle)]
#[allow(clippy::missing_safety_doc, reason = "the compiler's code passes what it has made")]
pub unsafe extern "C" fn __cudaRegisterFatBinary(wrapper: *const Wrapper) -> *mut *mut c_void {
    let mut binary = 0;
    note(|| {
        let wrapper = In::new(wrapper).get()?;
        // An image of another kind is refused by the driver when a kernel of it is launched.
        binary = registry::add_binary(if wrapper.magic == WRAPPER { wrapper.image } else { 0 });
        Ok(())
    });
    binary as *mut *mut c_void
}

/// Nothing is left to do: images are loaded when they are used.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_binary: *mut *mut c_void) {}

/// Forgets an image.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(binary: *mut *mut c_void) {
    note(|| {
        registry::remove_binary(number(binary));
        Ok(())
    });
}

/// Whether the module of an image can be used.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaInitModule(_binary: *mut *mut c_void) -> c_char {
    1
}

/// Notes a kernel under the address of its stub.
#[unsafe(no_mangle)]
#[allow(clippy::missing_safety_doc, reason = "the compiler's code passes what it has made")]
pub unsafe extern "C" fn __cudaRegisterFunction(
    binary: *mut *mut c_void,
    stub: *const c_char,
    _device_function: *mut c_char,
    device_name: *const c_char,
    _thread_limit: c_int,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_dimensions: *mut c_void,
    _grid_dimensions: *mut c_void,
    _warp_size: *mut c_int,
) {
    note(|| {
        registry::add_function(number(binary), stub as usize, name(device_name)?);
        Ok(())
    });
}

/// Notes a variable under the address of its shadow in the host.
#[unsafe(no_mangle)]
#[allow(clippy::missing_safety_doc, reason = "the compiler's code passes what it has made")]
pub unsafe extern "C" fn __cudaRegisterVar(
    binary: *mut *mut c_void,
    shadow: *mut c_char,
    _device_address: *mut c_char,
    device_name: *const c_char,
    _is_external: c_int,
    _bytes: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    note(|| {
        registry::add_variable(number(binary), shadow as usize, name(device_name)?);
        Ok(())
    });
}

/// Variables in managed memory would need an address before their image is loaded.
#[unsafe(no_mangle)]
#[allow(clippy::missing_safety_doc, reason = "the compiler's code passes what it has made")]
pub unsafe extern "C" fn __cudaRegisterManagedVar(
    binary: *mut *mut c_void,
    _shadow: *mut *mut c_void,
    _device_address: *mut c_char,
    device_name: *const c_char,
    _is_external: c_int,
    _bytes: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    note(|| {
        registry::refuse_managed(number(binary), &name(device_name)?);
        Ok(())
    });
}

/// Begins a launch: `kernel<<<grid, block, shared_bytes, stream>>>`. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaPushCallConfiguration(grid: Dimensions, block: Dimensions, shared_bytes: usize, stream: Handle) -> c_uint {
    let configuration = Configuration {
        grid,
        block,
        shared_bytes,
        stream,
    };
    let pushed = sahasra_cuda_boundary::call::<Error>(|| {
        // Fails while the thread ends.
        let _ = END.try_with(|_| ());
        CONFIGURATIONS.with(|configurations| configurations.borrow_mut().push(configuration));
        Ok(())
    });
    pushed.0
}

exports! {
    fn __cudaPopCallConfiguration(grid: Out<Dimensions>, block: Out<Dimensions>, shared_bytes: Out<usize>, stream: Out<Handle>) {
        let configuration = CONFIGURATIONS.with(|configurations| configurations.borrow_mut().pop()).ok_or(Error::MISSING_CONFIGURATION)?;
        grid.set(configuration.grid)?;
        block.set(configuration.block)?;
        shared_bytes.set(configuration.shared_bytes)?;
        stream.set(configuration.stream)
    }

    /// Compilers keep this handle for the life of the process and launch it whether this succeeds or not. So it is the address of the stub, since
    /// kernels of the driver end with their context, and an image that cannot be loaded is reported by the launch.
    fn __cudaGetKernel(kernel: Out<usize>, stub: usize) {
        registry::check_function(stub)?;
        kernel.set(stub)
    }

    fn __cudaLaunchKernel(kernel: usize, grid: Dimensions, block: Dimensions, parameters: Pointer, shared_bytes: usize, stream: Handle) {
        launch(&Launch { function: kernel, grid, block, parameters, shared_bytes, stream, is_cooperative: false })
    }
}
