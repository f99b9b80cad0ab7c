//! Libraries and their kernels. A library is a module of the context that is current when it is loaded.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::boundary::{Handle, HostPointer, In, Out, Text};
use crate::driver;
use crate::jit::Logs;
use crate::status::Status;

use super::function::{parameter, parameter_count};
use super::module::{load, load_file};

exports! {
    fn cuLibraryLoadData(
        library: Out<Handle>,
        image: HostPointer,
        options: In<c_uint>,
        values: Out<usize>,
        count: c_uint,
        _library_options: In<c_uint>,
        _library_values: In<*const c_void>,
        _library_count: c_uint,
    ) {
        load(library, image, &Logs::read(count, options, values)?)
    }

    fn cuLibraryLoadFromFile(
        library: Out<Handle>,
        path: Text,
        options: In<c_uint>,
        values: Out<usize>,
        count: c_uint,
        _library_options: In<c_uint>,
        _library_values: In<*const c_void>,
        _library_count: c_uint,
    ) {
        load_file(library, path, &Logs::read(count, options, values)?)
    }

    fn cuLibraryUnload(library: Handle) {
        driver::get()?.unload_module(library)
    }

    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: Text) {
        kernel.require()?;
        let driver = driver::get()?;
        kernel.set(driver.function(&*driver.modules.get(library)?, &name.get()?)?)
    }

    fn cuLibraryGetKernelCount(count: Out<c_uint>, library: Handle) {
        count.set(driver::get()?.modules.get(library)?.description.functions.len() as c_uint)
    }

    fn cuLibraryEnumerateKernels(kernels: Out<Handle>, count: c_uint, library: Handle) {
        let driver = driver::get()?;
        let library = driver.modules.get(library)?;
        for index in 0..library.description.functions.len().min(count as usize) {
            kernels.set_at(index, driver.function_at(&library, index)?)?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(module: Out<Handle>, library: Handle) {
        module.set(driver::get()?.modules.get(library)?.handle)
    }

    fn cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: Handle, name: Text) {
        let (start, size) = driver::get()?.modules.get(library)?.variable(&name.get()?)?;
        address.set_if_wanted(start);
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    /// PTX texts have no managed variables that are told apart from others.
    fn cuLibraryGetManaged(_address: Out<u64>, _bytes: Out<usize>, library: Handle, _name: Text) {
        driver::get()?.modules.get(library)?;
        Err(Status::NOT_FOUND)
    }

    fn cuLibraryGetUnifiedFunction(_function: Out<*const c_void>, library: Handle, _name: Text) {
        driver::get()?.modules.get(library)?;
        Err(Status::NOT_FOUND)
    }

    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) {
        driver::get()?.functions.get(kernel)?;
        function.set(kernel)
    }

    fn cuKernelGetLibrary(library: Out<Handle>, kernel: Handle) {
        library.set(driver::get()?.functions.get(kernel)?.module)
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: Handle) {
        name.set(driver::get()?.functions.get(kernel)?.name.as_ptr())
    }

    fn cuKernelGetAttribute(value: Out<c_int>, attribute: c_uint, kernel: Handle, device: c_int) {
        let driver = driver::get()?;
        driver.check_device(device)?;
        value.set(driver.functions.get(kernel)?.attribute(attribute)?)
    }

    fn cuKernelSetAttribute(attribute: c_uint, value: c_int, kernel: Handle, device: c_int) {
        let driver = driver::get()?;
        driver.check_device(device)?;
        driver.functions.get(kernel)?.set_attribute(attribute, value)
    }

    fn cuKernelSetCacheConfig(kernel: Handle, _preference: c_uint, device: c_int) {
        let driver = driver::get()?;
        driver.check_device(device)?;
        driver.functions.get(kernel).map(|_| ())
    }

    fn cuKernelGetParamInfo(kernel: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        parameter(kernel, index, offset, bytes)
    }

    fn cuKernelGetParamCount(kernel: Handle, count: Out<usize>) {
        parameter_count(kernel, count)
    }
}
