//! Functions.

use std::ffi::{c_char, c_int, c_uint};

use crate::boundary::{Handle, Out};
use crate::current;
use crate::driver;
use crate::module::Entry;
use crate::status::Status;

use super::context::{check_banks, check_cache};

/// Writes the place of a parameter in the parameter block.
pub(crate) fn parameter(entry: &Entry, index: usize, offset: Out<usize>, bytes: Out<usize>) -> Result<(), Status> {
    let (start, size) = entry.parameter(index)?;
    offset.set(start)?;
    bytes.set_if_wanted(size);
    Ok(())
}

exports! {
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_uint, function: Handle) {
        let driver = driver::get()?;
        value.set(driver.entry(function)?.attribute(attribute, driver.device.properties())?)
    }

    fn cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) {
        let driver = driver::get()?;
        driver.entry(function)?.set_attribute(attribute, value, driver.device.properties())
    }

    fn cuFuncSetCacheConfig(function: Handle, preference: c_uint) {
        check_cache(preference)?;
        driver::get()?.entry(function).map(|_| ())
    }

    fn cuFuncSetSharedMemConfig(function: Handle, size: c_uint) {
        check_banks(size)?;
        driver::get()?.entry(function).map(|_| ())
    }

    fn cuFuncGetModule(module: Out<Handle>, function: Handle) {
        let driver = driver::get()?;
        module.set(match driver.kernels.find(function) {
            Some(kernel) => driver.module_of(kernel.library, &current::context()?)?.handle,
            None => driver.functions.get(function)?.module,
        })
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: Handle) {
        name.set(driver::get()?.entry(function)?.name.as_ptr())
    }

    fn cuFuncGetParamInfo(function: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        parameter(&*driver::get()?.entry(function)?, index, offset, bytes)
    }

    fn cuFuncGetParamCount(function: Handle, count: Out<usize>) {
        count.set(driver::get()?.entry(function)?.description.parameters.len())
    }

    /// `CU_FUNCTION_LOADING_STATE_LOADED`.
    fn cuFuncIsLoaded(state: Out<c_uint>, function: Handle) {
        driver::get()?.entry(function)?;
        state.set(1)
    }

    fn cuFuncLoad(function: Handle) {
        driver::get()?.entry(function).map(|_| ())
    }
}
