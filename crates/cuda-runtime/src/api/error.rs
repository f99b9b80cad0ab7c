//! Errors, versions, entry points of the driver, profiling.

use std::ffi::{c_char, c_int, c_uint};

use crate::boundary::{Handle, Out, Text};
use crate::{Error, context, driver, exports, thread};

/// Name of an error code.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(error: Error) -> *const c_char {
    error.name().as_ptr()
}

/// Description of an error code.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(error: Error) -> *const c_char {
    error.text().as_ptr()
}

/// The thread's last error, which is forgotten unless it is sticky.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> Error {
    thread::take_last()
}

/// The thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> Error {
    thread::last()
}

/// Finds the form of a function of the driver API for callers of this CUDA version. A function that there is not is no error: `status` says it.
pub fn entry_point(name: Text, function: Out<usize>, version: c_int, flags: u64, status: Out<c_uint>) -> Result<(), Error> {
    function.require()?;
    let mut found = 0;
    match driver::get()?.cuGetProcAddress_v2(name, function, version, flags, Out::new(&raw mut found)) {
        Ok(()) => {}
        Err(Error::SYMBOL_NOT_FOUND) => function.set(0)?,
        Err(error) => return Err(error),
    }
    status.set_if_wanted(found);
    Ok(())
}

/// Version of the driver library, or 0 if there is none. At least that of the runtime, which needs no newer driver than it has found: programs
/// take an older one for insufficient.
pub fn driver_version(version: Out<c_int>, own: c_int) -> Result<(), Error> {
    version.set(0)?;
    match driver::library() {
        Ok(driver) => {
            let mut found = 0;
            driver.cuDriverGetVersion(Out::new(&raw mut found))?;
            version.set(found.max(own))
        }
        Err(Error::INSUFFICIENT_DRIVER) => Ok(()),
        Err(error) => Err(error),
    }
}

exports! {
    fn cudaGetDriverEntryPointByVersion(name: Text, function: Out<usize>, version: c_uint, flags: u64, status: Out<c_uint>) {
        entry_point(name, function, version as c_int, flags, status)
    }

    /// No profiler is there to be started.
    fn cudaProfilerStart() {
        driver::get().map(|_| ())
    }

    fn cudaProfilerStop() {
        driver::get().map(|_| ())
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        context::ready()?.cuThreadExchangeStreamCaptureMode(mode)
    }

    fn cudaCtxResetPersistingL2Cache() {
        context::ready()?.cuCtxResetPersistingL2Cache()
    }

    /// Functions are the driver's, which this returns for a registered kernel.
    fn cudaGetFuncBySymbol(function: Out<Handle>, symbol: usize) {
        super::function::handle(function, symbol)
    }

    fn cudaGetKernel(kernel: Out<Handle>, symbol: usize) {
        super::function::handle(kernel, symbol)
    }
}
