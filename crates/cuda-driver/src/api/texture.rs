//! Texture objects. Handles are device addresses of descriptors.

use crate::boundary::{Handle, In, Out};
use crate::current;
use crate::driver;
use crate::status::Status;
use crate::texture::{ResourceDescription, SamplingDescription, TextureObject, ViewDescription};

/// The texture object of a handle.
fn of(object: u64) -> Result<std::sync::Arc<TextureObject>, Status> {
    driver::get()?.textures.find(Handle(object)).ok_or(Status::INVALID_VALUE)
}

exports! {
    fn cuTexObjectCreate(
        object: Out<u64>,
        resource: In<ResourceDescription>,
        sampling: In<SamplingDescription>,
        view: In<ViewDescription>,
    ) {
        let driver = driver::get()?;
        object.require()?;
        let view = if view.is_null() { None } else { Some(view.get()?) };
        let context = current::context()?;
        object.set(driver.create_texture(&context, resource.get()?, sampling.get()?, view)?)
    }

    fn cuTexObjectDestroy(object: u64) {
        current::context()?.check()?;
        driver::get()?.destroy_texture(object)
    }

    fn cuTexObjectGetResourceDesc(resource: Out<ResourceDescription>, object: u64) {
        resource.set(of(object)?.resource)
    }

    fn cuTexObjectGetTextureDesc(sampling: Out<SamplingDescription>, object: u64) {
        sampling.set(of(object)?.sampling)
    }

    fn cuTexObjectGetResourceViewDesc(view: Out<ViewDescription>, object: u64) {
        view.set(of(object)?.view.ok_or(Status::INVALID_VALUE)?)
    }
}
