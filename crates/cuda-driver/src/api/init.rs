//! Initialisation, versions, error texts, entry points.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::boundary::{In, Out, Text};
use crate::driver::{self, VERSION};
use crate::status::Status;
use crate::symbols::{self, Lookup};

/// `CU_GET_PROC_ADDRESS_SUCCESS`.
const FOUND: c_uint = 0;
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const SYMBOL_NOT_FOUND: c_uint = 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`.
const VERSION_NOT_SUFFICIENT: c_uint = 2;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

exports! {
    before cuInit:

    /// Opens the device that the environment names.
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        driver::initialise()
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(VERSION)
    }

    fn cuGetErrorName(status: Status, text: Out<*const c_char>) {
        text.require()?;
        text.set(status.name().map_or(std::ptr::null(), |name| name.as_ptr()))?;
        status.name().map(|_| ()).ok_or(Status::INVALID_VALUE)
    }

    fn cuGetErrorString(status: Status, text: Out<*const c_char>) {
        text.require()?;
        text.set(status.text().map_or(std::ptr::null(), |text| text.as_ptr()))?;
        status.text().map(|_| ()).ok_or(Status::INVALID_VALUE)
    }

    fn cuGetProcAddress(name: Text, function: Out<*const ()>, version: c_int, flags: u64) {
        match find(name, function, version, flags)? {
            FOUND => Ok(()),
            _ => Err(Status::NOT_FOUND),
        }
    }

    /// A name that is missing is said in `status` only. Callers that are newer than the library get what there is. Forms with a default stream
    /// of each thread are those with the default stream of the context: both are one order here.
    fn cuGetProcAddress_v2(name: Text, function: Out<*const ()>, version: c_int, flags: u64, status: Out<c_uint>) {
        status.set_if_wanted(find(name, function, version, flags)?);
        Ok(())
    }

    /// There are none of these undocumented tables.
    fn cuGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        id.get()?;
        table.set(std::ptr::null())?;
        Err(Status::NOT_FOUND)
    }

}

exports! {
    fn cuProfilerStart() {
        Ok(())
    }

    fn cuProfilerStop() {
        Ok(())
    }
}

/// Writes the address of a function, or null. Returns whether it was found (`CUdriverProcAddressQueryResult`).
fn find(name: Text, function: Out<*const ()>, version: c_int, flags: u64) -> Result<c_uint, Status> {
    let name = name.get()?;
    function.require()?;
    if flags > 2 {
        return Err(Status::INVALID_VALUE);
    }
    let (address, status) = match symbols::find(&name, version) {
        Lookup::Found(symbol) if flags == PER_THREAD => (symbols::with_stream_of_thread(symbol).address, FOUND),
        Lookup::Found(symbol) => (symbol.address, FOUND),
        Lookup::TooOld => (std::ptr::null(), VERSION_NOT_SUFFICIENT),
        Lookup::Unknown => (std::ptr::null(), SYMBOL_NOT_FOUND),
    };
    function.set(address)?;
    Ok(status)
}
