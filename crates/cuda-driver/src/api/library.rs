//! Libraries and their kernels.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::boundary::{Handle, HostPointer, In, Out, Text};
use crate::current;
use crate::driver;
use crate::image;
use crate::jit::Logs;
use crate::module::Entry;
use crate::status::Status;

use super::function::parameter;
use super::module::variable;

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
        library.require()?;
        let parts = image::parts_at(image, driver::get()?.target())?;
        load(library, parts, &Logs::read(count, options, values)?)
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
        library.require()?;
        let parts = image::parts_of_file(path, driver::get()?.target())?;
        load(library, parts, &Logs::read(count, options, values)?)
    }

    fn cuLibraryUnload(library: Handle) {
        driver::get()?.unload_library(library)
    }

    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: Text) {
        kernel.require()?;
        let driver = driver::get()?;
        let found = driver.libraries.get(library)?;
        kernel.set(driver.kernel_at(library, &found, found.entries.find(&name.get()?)?)?)
    }

    fn cuLibraryGetKernelCount(count: Out<c_uint>, library: Handle) {
        count.set(driver::get()?.libraries.get(library)?.entries.count() as c_uint)
    }

    fn cuLibraryEnumerateKernels(kernels: Out<Handle>, count: c_uint, library: Handle) {
        let driver = driver::get()?;
        let found = driver.libraries.get(library)?;
        for index in 0..found.entries.count().min(count as usize) {
            kernels.set_at(index, driver.kernel_at(library, &found, index)?)?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(module: Out<Handle>, library: Handle) {
        module.set(driver::get()?.module_of(library, &current::context()?)?.handle)
    }

    fn cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: Handle, name: Text) {
        variable(address, bytes, &*driver::get()?.module_of(library, &current::context()?)?, name)
    }

    /// PTX texts have no managed variables that are told apart from others.
    fn cuLibraryGetManaged(_address: Out<u64>, _bytes: Out<usize>, library: Handle, _name: Text) {
        driver::get()?.libraries.get(library)?;
        Err(Status::NOT_FOUND)
    }

    fn cuLibraryGetUnifiedFunction(_function: Out<*const c_void>, library: Handle, _name: Text) {
        driver::get()?.libraries.get(library)?;
        Err(Status::NOT_FOUND)
    }

    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) {
        let driver = driver::get()?;
        function.set(driver.function_of(&*driver.kernels.get(kernel)?, &current::context()?)?)
    }

    fn cuKernelGetLibrary(library: Out<Handle>, kernel: Handle) {
        library.set(driver::get()?.kernels.get(kernel)?.library)
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: Handle) {
        name.set(driver::get()?.kernels.get(kernel)?.entry.name.as_ptr())
    }

    fn cuKernelGetAttribute(value: Out<c_int>, attribute: c_uint, kernel: Handle, device: c_int) {
        let entry = entry_on(kernel, device)?;
        value.set(entry.attribute(attribute, driver::get()?.device.properties())?)
    }

    fn cuKernelSetAttribute(attribute: c_uint, value: c_int, kernel: Handle, device: c_int) {
        entry_on(kernel, device)?.set_attribute(attribute, value, driver::get()?.device.properties())
    }

    fn cuKernelSetCacheConfig(kernel: Handle, _preference: c_uint, device: c_int) {
        entry_on(kernel, device).map(|_| ())
    }

    fn cuKernelGetParamInfo(kernel: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        parameter(&driver::get()?.kernels.get(kernel)?.entry, index, offset, bytes)
    }

    fn cuKernelGetParamCount(kernel: Handle, count: Out<usize>) {
        count.set(driver::get()?.kernels.get(kernel)?.entry.description.parameters.len())
    }
}

/// Loads a library, also without a context, or in one that has failed.
fn load(library: Out<Handle>, images: Vec<Vec<u8>>, logs: &Logs) -> Result<(), Status> {
    let context = current::context().ok().filter(|context| context.check().is_ok());
    library.set(driver::get()?.load_library(context.as_ref(), images, logs)?)
}

/// The entry of a kernel on a device, of which there is one.
fn entry_on(kernel: Handle, device: c_int) -> Result<Arc<Entry>, Status> {
    let driver = driver::get()?;
    driver.check_device(device)?;
    Ok(Arc::clone(&driver.kernels.get(kernel)?.entry))
}
