//! The library under `LD_PRELOAD`.
//!
//! The loader returns an open library to a program that links `libcuda.so.1` or opens it by name, because that is this library's `SONAME`. The other
//! names by which programs open the libraries of the driver are made known to it here: this library's own name without a version, and the
//! names of NVML. No function of the loader is replaced.

use std::ffi::{CStr, c_void};
use std::path::Path;

/// Name of the file under `LD_PRELOAD`.
const PRELOADED: &str = "libsahasra-cuda.so";
/// Names of files in its folder, the first of which is a link to this library. The loader searches that folder first, because it is in the
/// search path that `build.rs` has given this library.
const NAMES: [&CStr; 3] = [c"libcuda.so", c"libnvidia-ml.so.1", c"libnvidia-ml.so"];

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// Runs when this library was loaded, before the program starts if it is preloaded.
extern "C" fn loaded() {
    let mut information = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the function writes the information, whose fields may be zero.
    let name = unsafe {
        if libc::dladdr(loaded as *const c_void, information.as_mut_ptr()) == 0 {
            return;
        }
        information.assume_init().dli_fname
    };
    if name.is_null() {
        return;
    }
    // SAFETY: the loader wrote a pointer to the name of a loaded file.
    let Ok(path) = unsafe { CStr::from_ptr(name) }.to_str() else {
        return;
    };
    let path = Path::new(path);
    let Some(folder) = path.parent().filter(|_| path.ends_with(PRELOADED)) else {
        return;
    };
    for name in NAMES {
        // A file that is not there leaves its name to the loader.
        if name.to_str().is_ok_and(|name| folder.join(name).exists()) {
            // The handle stays open.
            // SAFETY: the name ends with a zero byte. The files are libraries of Sahasra, whose only initialiser is this function.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        }
    }
}
