//! Functions.

use std::ffi::{c_char, c_int, c_uint};

use crate::boundary::{Handle, Out};
use crate::driver;
use crate::status::Status;

/// Writes the place of a parameter in the parameter block.
pub(crate) fn parameter(function: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>) -> Result<(), Status> {
    let function = driver::get()?.functions.get(function)?;
    let place = function.description.parameters.get(index).ok_or(Status::INVALID_VALUE)?;
    offset.set(place.offset as usize)?;
    bytes.set_if_wanted(place.bytes as usize);
    Ok(())
}

/// Writes the number of parameters.
pub(crate) fn parameter_count(function: Handle, count: Out<usize>) -> Result<(), Status> {
    count.set(driver::get()?.functions.get(function)?.description.parameters.len())
}

exports! {
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_uint, function: Handle) {
        value.set(driver::get()?.functions.get(function)?.attribute(attribute)?)
    }

    fn cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) {
        driver::get()?.functions.get(function)?.set_attribute(attribute, value)
    }

    fn cuFuncSetCacheConfig(function: Handle, _preference: c_uint) {
        driver::get()?.functions.get(function).map(|_| ())
    }

    fn cuFuncSetSharedMemConfig(function: Handle, _size: c_uint) {
        driver::get()?.functions.get(function).map(|_| ())
    }

    fn cuFuncGetModule(module: Out<Handle>, function: Handle) {
        module.set(driver::get()?.functions.get(function)?.module)
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: Handle) {
        name.set(driver::get()?.functions.get(function)?.name.as_ptr())
    }

    fn cuFuncGetParamInfo(function: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        parameter(function, index, offset, bytes)
    }

    fn cuFuncGetParamCount(function: Handle, count: Out<usize>) {
        parameter_count(function, count)
    }

    /// `CU_FUNCTION_LOADING_STATE_LOADED`.
    fn cuFuncIsLoaded(state: Out<c_uint>, function: Handle) {
        driver::get()?.functions.get(function)?;
        state.set(1)
    }

    fn cuFuncLoad(function: Handle) {
        driver::get()?.functions.get(function).map(|_| ())
    }
}
