//! Surface objects. Handles are device addresses of descriptors.

use crate::boundary::{Handle, In, Out};
use crate::current;
use crate::driver;
use crate::status::Status;
use crate::texture::ResourceDescription;

exports! {
    fn cuSurfObjectCreate(object: Out<u64>, resource: In<ResourceDescription>) {
        let driver = driver::get()?;
        object.require()?;
        object.set(driver.create_surface(&current::context()?, resource.get()?)?)
    }

    fn cuSurfObjectDestroy(object: u64) {
        current::context()?.check()?;
        driver::get()?.destroy_surface(object)
    }

    fn cuSurfObjectGetResourceDesc(resource: Out<ResourceDescription>, object: u64) {
        let found = driver::get()?.surfaces.find(Handle(object)).ok_or(Status::INVALID_VALUE)?;
        resource.set(found.resource)
    }
}
