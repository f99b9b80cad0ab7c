//! Libraries that a program loads itself. Their handles and options are the driver's.

use std::ffi::{c_int, c_uint};

use crate::boundary::{Handle, In, Out, Pointer, Text};
use crate::registry;
use crate::{context, exports};

exports! {
    fn cudaLibraryLoadData(
        library: Out<Handle>,
        image: Pointer,
        options: In<c_uint>,
        values: Out<usize>,
        count: c_uint,
        library_options: In<c_uint>,
        library_values: Out<usize>,
        library_count: c_uint,
    ) {
        let driver = context::ready()?;
        driver.cuLibraryLoadData(library, image, options, values, count, library_options, library_values, library_count)
    }

    fn cudaLibraryLoadFromFile(
        library: Out<Handle>,
        path: Text,
        options: In<c_uint>,
        values: Out<usize>,
        count: c_uint,
        library_options: In<c_uint>,
        library_values: Out<usize>,
        library_count: c_uint,
    ) {
        let driver = context::ready()?;
        driver.cuLibraryLoadFromFile(library, path, options, values, count, library_options, library_values, library_count)
    }

    fn cudaLibraryUnload(library: Handle) {
        context::ready()?.cuLibraryUnload(library)
    }

    fn cudaLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: Text) {
        kernel.require()?;
        context::ready()?.cuLibraryGetKernel(kernel, library, name)?;
        registry::add_kernel(kernel.get()?);
        Ok(())
    }

    fn cudaLibraryGetKernelCount(count: Out<c_uint>, library: Handle) {
        context::ready()?.cuLibraryGetKernelCount(count, library)
    }

    fn cudaLibraryEnumerateKernels(kernels: Out<Handle>, count: c_uint, library: Handle) {
        let driver = context::ready()?;
        let mut known = 0;
        driver.cuLibraryGetKernelCount(Out::new(&raw mut known), library)?;
        driver.cuLibraryEnumerateKernels(kernels, count, library)?;
        for index in 0..count.min(known) as usize {
            registry::add_kernel(kernels.element(index).get()?);
        }
        Ok(())
    }

    fn cudaLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: Handle, name: Text) {
        context::ready()?.cuLibraryGetGlobal(address, bytes, library, name)
    }

    fn cudaLibraryGetManaged(address: Out<u64>, bytes: Out<usize>, library: Handle, name: Text) {
        context::ready()?.cuLibraryGetManaged(address, bytes, library, name)
    }

    fn cudaLibraryGetUnifiedFunction(function: Out<usize>, library: Handle, name: Text) {
        context::ready()?.cuLibraryGetUnifiedFunction(function, library, name)
    }

    fn cudaKernelSetAttributeForDevice(kernel: Handle, attribute: c_uint, value: c_int, device: c_int) {
        context::ready()?.cuKernelSetAttribute(attribute, value, kernel, device)
    }
}
