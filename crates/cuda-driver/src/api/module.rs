//! Modules.

use std::ffi::c_uint;

use crate::boundary::{Handle, HostPointer, In, Out, Text};
use crate::current;
use crate::driver;
use crate::image;
use crate::jit::Logs;
use crate::module::Module;
use crate::status::Status;

/// Loads an image in the current context.
fn load(out: Out<Handle>, image: HostPointer, logs: &Logs) -> Result<(), Status> {
    out.require()?;
    let context = current::context()?;
    let driver = driver::get()?;
    let parts = image::parts_at(image, driver.target())?;
    out.set(driver.load_module(&context, &parts, logs)?)
}

/// Writes address and size of a variable.
pub(crate) fn variable(address: Out<u64>, bytes: Out<usize>, module: &Module, name: Text) -> Result<(), Status> {
    let (start, size) = module.variable(&name.get()?)?;
    address.set_if_wanted(start);
    bytes.set_if_wanted(size as usize);
    Ok(())
}

exports! {
    fn cuModuleLoad(module: Out<Handle>, path: Text) {
        module.require()?;
        let context = current::context()?;
        let driver = driver::get()?;
        let parts = image::parts_of_file(path, driver.target())?;
        module.set(driver.load_module(&context, &parts, &Logs::default())?)
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
        let module = driver.modules.get(module)?;
        function.set(driver.function_at(&module, module.entries.find(&name.get()?)?)?)
    }

    fn cuModuleGetFunctionCount(count: Out<c_uint>, module: Handle) {
        count.set(driver::get()?.modules.get(module)?.entries.count() as c_uint)
    }

    fn cuModuleEnumerateFunctions(functions: Out<Handle>, count: c_uint, module: Handle) {
        let driver = driver::get()?;
        let module = driver.modules.get(module)?;
        for index in 0..module.entries.count().min(count as usize) {
            functions.set_at(index, driver.function_at(&module, index)?)?;
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) {
        variable(address, bytes, &*driver::get()?.modules.get(module)?, name)
    }

    /// Modules are loaded when they are asked for: `CU_MODULE_EAGER_LOADING`.
    fn cuModuleGetLoadingMode(mode: Out<c_uint>) {
        mode.set(1)
    }
}
