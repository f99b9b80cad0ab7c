//! Modules.

use std::ffi::c_uint;

use crate::boundary::{Handle, HostPointer, In, Out, Text};
use crate::current;
use crate::driver;
use crate::image;
use crate::jit::Logs;
use crate::status::Status;

/// Loads an image in the current context.
pub(crate) fn load(out: Out<Handle>, image: HostPointer, logs: &Logs) -> Result<(), Status> {
    out.require()?;
    let context = current::context()?;
    let texts = image::texts_at(image)?;
    out.set(driver::get()?.load_module(&context, &texts, logs)?)
}

/// Loads a file in the current context.
pub(crate) fn load_file(out: Out<Handle>, path: Text, logs: &Logs) -> Result<(), Status> {
    out.require()?;
    let context = current::context()?;
    let bytes = std::fs::read(path.path()?).map_err(|_| Status::FILE_NOT_FOUND)?;
    out.set(driver::get()?.load_module(&context, &image::texts(&bytes)?, logs)?)
}

exports! {
    fn cuModuleLoad(module: Out<Handle>, path: Text) {
        load_file(module, path, &Logs::default())
    }

    fn cuModuleLoadData(module: Out<Handle>, image: HostPointer) {
        load(module, image, &Logs::default())
    }

    fn cuModuleLoadDataEx(module: Out<Handle>, image: HostPointer, count: c_uint, options: In<c_uint>, values: Out<usize>) {
        load(module, image, &Logs::read(count, options, values)?)
    }

    fn cuModuleLoadFatBinary(module: Out<Handle>, image: HostPointer) {
        load(module, image, &Logs::default())
    }

    fn cuModuleUnload(module: Handle) {
        driver::get()?.unload_module(module)
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) {
        function.require()?;
        let driver = driver::get()?;
        function.set(driver.function(&*driver.modules.get(module)?, &name.get()?)?)
    }

    fn cuModuleGetFunctionCount(count: Out<c_uint>, module: Handle) {
        count.set(driver::get()?.modules.get(module)?.description.functions.len() as c_uint)
    }

    fn cuModuleEnumerateFunctions(functions: Out<Handle>, count: c_uint, module: Handle) {
        let driver = driver::get()?;
        let module = driver.modules.get(module)?;
        for index in 0..module.description.functions.len().min(count as usize) {
            functions.set_at(index, driver.function_at(&module, index)?)?;
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) {
        let (start, size) = driver::get()?.modules.get(module)?.variable(&name.get()?)?;
        address.set_if_wanted(start);
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    /// Modules are loaded when they are asked for: `CU_MODULE_EAGER_LOADING`.
    fn cuModuleGetLoadingMode(mode: Out<c_uint>) {
        mode.set(1)
    }
}
