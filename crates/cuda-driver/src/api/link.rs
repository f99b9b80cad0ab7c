//! Linking of PTX texts, and of machine code if the device takes it.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use parking_lot::Mutex;
use sahasra_cuda_device::{ModuleId, Operation};

use crate::boundary::{Handle, HostPointer, In, Out, Text};
use crate::current;
use crate::driver;
use crate::image::{self, Link};
use crate::jit::Logs;
use crate::status::Status;
use crate::table::new_handle;

fn create(count: c_uint, options: In<c_uint>, values: Out<usize>, link: Out<Handle>) -> Result<(), Status> {
    link.require()?;
    current::context()?.check()?;
    let state = Link::new(Logs::read(count, options, values)?);
    let handle = new_handle();
    driver::get()?.links.insert(handle, Arc::new(Mutex::new(state)));
    link.set(handle)
}

fn add_file(link: Handle, kind: c_uint, path: Text) -> Result<(), Status> {
    let link = driver::get()?.links.get(link)?;
    link.lock().add(kind, &image::file(path)?, driver::get()?.target())
}

exports! {
    fn cuLinkCreate(count: c_uint, options: In<c_uint>, values: Out<usize>, link: Out<Handle>) {
        create(count, options, values, link)
    }

    fn cuLinkCreate_v2(count: c_uint, options: In<c_uint>, values: Out<usize>, link: Out<Handle>) {
        create(count, options, values, link)
    }

    fn cuLinkAddData_v2(
        link: Handle,
        kind: c_uint,
        data: HostPointer,
        bytes: usize,
        _name: In<u8>,
        _count: c_uint,
        _options: In<c_uint>,
        _values: Out<usize>,
    ) {
        let driver = driver::get()?;
        let link = driver.links.get(link)?;
        data.with_bytes(bytes, |bytes| link.lock().add(kind, bytes, driver.target()))?
    }

    fn cuLinkAddFile_v2(link: Handle, kind: c_uint, path: Text, _count: c_uint, _options: In<c_uint>, _values: Out<usize>) {
        add_file(link, kind, path)
    }

    /// Loads the parts to check them. The device keeps the translation for the load that follows.
    fn cuLinkComplete(link: Handle, image: Out<*mut c_void>, bytes: Out<usize>) {
        image.require()?;
        let link = driver::get()?.links.get(link)?;
        let context = current::context()?;
        context.check()?;
        let mut link = link.lock();
        if link.parts.is_empty() {
            return Err(Status::INVALID_VALUE);
        }
        let parts: Vec<&[u8]> = link.parts.iter().map(Vec::as_slice).collect();
        let id = ModuleId(new_handle().0);
        let description = context.queue.load(id, &parts).map_err(|failure| link.logs.report(&failure))?;
        context.submit(Operation::Unload(id))?;
        link.logs.finish(&description);
        let (start, length) = link.complete();
        image.set(start.cast())?;
        bytes.set_if_wanted(length);
        Ok(())
    }

    fn cuLinkDestroy(link: Handle) {
        driver::get()?.links.remove(link).map(|_| ())
    }
}
