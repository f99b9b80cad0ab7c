//! What the driver library of this process knows: the device that it has opened, and how much memory of it is in use.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use sahasra_cuda_environment::Description;

/// Length of the name of a device, with its zero byte.
const NAME_BYTES: usize = 256;

/// The driver library, as far as this process has loaded it.
struct Driver(*mut c_void);

impl Driver {
    fn loaded() -> Option<Self> {
        // SAFETY: the name ends with a zero byte. The library is not loaded for this.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        (!library.is_null()).then(|| Self(library))
    }

    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is that of an open library, and the name ends with a zero byte.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: the handle is that of an open library, which this object alone closes.
        unsafe { libc::dlclose(self.0) };
    }
}

/// Looks a function of the driver API up, with its type.
macro_rules! function {
    ($driver:expr, $name:literal, fn($($argument:ty),*)) => {{
        let symbol = $driver.symbol($name)?;
        // SAFETY: the CUDA driver API documents this type for the function.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_uint>(symbol) }
    }};
}

/// Sets name, identifier and compute capability in a description to those of the device that this process has opened, if it has.
pub(crate) fn identify(description: &mut Description) {
    if let Some((name, uuid, capability)) = identity() {
        description.name = name;
        description.uuid = uuid;
        description.capability = capability;
    }
}

/// Name, identifier and compute capability of the device; `None` before the driver library is initialised.
fn identity() -> Option<(String, [u8; 16], (i32, i32))> {
    let driver = Driver::loaded()?;
    let name_of = function!(driver, c"cuDeviceGetName", fn(*mut c_char, c_int, c_int));
    let uuid_of = function!(driver, c"cuDeviceGetUuid_v2", fn(*mut [u8; 16], c_int));
    let capability_of = function!(driver, c"cuDeviceComputeCapability", fn(*mut c_int, *mut c_int, c_int));
    let mut name = [0 as c_char; NAME_BYTES];
    let (mut uuid, mut major, mut minor) = ([0; 16], 0, 0);
    // SAFETY: each call gets pointers to what it writes.
    let is_known = unsafe {
        name_of(name.as_mut_ptr(), NAME_BYTES as c_int, 0) == 0
            && uuid_of(&raw mut uuid, 0) == 0
            && capability_of(&raw mut major, &raw mut minor, 0) == 0
    };
    name[NAME_BYTES - 1] = 0;
    // SAFETY: the text has a zero byte at its end.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    is_known.then(|| (name.to_string_lossy().into_owned(), uuid, (major, minor)))
}

/// Bytes of device memory that this process has allocated; `None` if it did not use the device yet.
pub(crate) fn used_bytes() -> Option<u64> {
    let driver = Driver::loaded()?;
    let state = function!(driver, c"cuDevicePrimaryCtxGetState", fn(c_int, *mut c_uint, *mut c_int));
    let retain = function!(driver, c"cuDevicePrimaryCtxRetain", fn(*mut *mut c_void, c_int));
    let release = function!(driver, c"cuDevicePrimaryCtxRelease_v2", fn(c_int));
    let push = function!(driver, c"cuCtxPushCurrent_v2", fn(*mut c_void));
    let pop = function!(driver, c"cuCtxPopCurrent_v2", fn(*mut *mut c_void));
    let information = function!(driver, c"cuMemGetInfo_v2", fn(*mut usize, *mut usize));
    let (mut flags, mut is_active) = (0, 0);
    let mut context = std::ptr::null_mut();
    let (mut free, mut total) = (0, 0);
    // SAFETY: each call gets pointers to what it writes, and handles that the library gave.
    unsafe {
        if state(0, &raw mut flags, &raw mut is_active) != 0 || is_active == 0 || retain(&raw mut context, 0) != 0 {
            return None;
        }
        let is_pushed = push(context) == 0;
        let is_known = is_pushed && information(&raw mut free, &raw mut total) == 0;
        if is_pushed {
            pop(&raw mut context);
        }
        release(0);
        is_known.then(|| total.saturating_sub(free) as u64)
    }
}
