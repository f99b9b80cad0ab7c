//! Texture and surface objects, whose resources got flags and whose views got reserved words with version 13.

use std::ffi::c_uint;

use sahasra_cuda_runtime::api::texture::{
    Resource, Sampling, create_surface, create_texture, resource_of_surface, resource_of_texture, view_of_texture,
};
use sahasra_cuda_runtime::boundary::{In, Out};
use sahasra_cuda_runtime::driver::structures::DriverView;
use sahasra_cuda_runtime::exports;

/// Words of `cudaResourceDesc` between what version 12 has and the flags.
const RESERVED_WORDS: usize = 9;

/// `cudaResourceDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct FlaggedResource {
    resource: Resource,
    reserved: [u64; RESERVED_WORDS],
    flags: c_uint,
}

const _: () = assert!(size_of::<FlaggedResource>() == 144);

impl FlaggedResource {
    fn new(resource: Resource) -> Self {
        Self {
            resource,
            reserved: [0; RESERVED_WORDS],
            flags: 0,
        }
    }
}

exports! {
    fn cudaCreateTextureObject(object: Out<u64>, resource: In<FlaggedResource>, sampling: In<Sampling>, view: In<DriverView>) {
        let FlaggedResource { resource, flags, .. } = resource.get()?;
        let view = if view.is_null() { None } else { Some(view.get()?) };
        create_texture(object, &resource, flags, sampling, view)
    }

    fn cudaCreateSurfaceObject(object: Out<u64>, resource: In<FlaggedResource>) {
        let FlaggedResource { resource, flags, .. } = resource.get()?;
        create_surface(object, &resource, flags)
    }

    fn cudaGetTextureObjectResourceDesc(resource: Out<FlaggedResource>, object: u64) {
        resource.require()?;
        resource.set(FlaggedResource::new(resource_of_texture(object)?))
    }

    fn cudaGetTextureObjectResourceViewDesc(view: Out<DriverView>, object: u64) {
        view.require()?;
        view.set(view_of_texture(object)?)
    }

    fn cudaGetSurfaceObjectResourceDesc(resource: Out<FlaggedResource>, object: u64) {
        resource.require()?;
        resource.set(FlaggedResource::new(resource_of_surface(object)?))
    }
}
