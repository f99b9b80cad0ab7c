//! Texture and surface objects, whose resources got flags and whose views got reserved words with version 13.

use sahasra_cuda_runtime::api::texture::{
    Resource, Sampling, create_surface, create_texture, resource_of_surface, resource_of_texture, view_of_texture,
};
use sahasra_cuda_runtime::boundary::{In, Out};
use sahasra_cuda_runtime::driver::structures::{DriverView, View};
use sahasra_cuda_runtime::exports;

exports! {
    fn cudaCreateTextureObject(object: Out<u64>, resource: In<Resource>, sampling: In<Sampling>, view: In<View>) {
        let view = if view.is_null() { None } else { Some(DriverView::new(view.get()?)) };
        create_texture(object, &resource.get()?, 0, sampling, view)
    }

    fn cudaCreateSurfaceObject(object: Out<u64>, resource: In<Resource>) {
        create_surface(object, &resource.get()?, 0)
    }

    fn cudaGetTextureObjectResourceDesc(resource: Out<Resource>, object: u64) {
        resource.require()?;
        resource.set(resource_of_texture(object)?)
    }

    fn cudaGetTextureObjectResourceViewDesc(view: Out<View>, object: u64) {
        view.require()?;
        view.set(view_of_texture(object)?.view())
    }

    fn cudaGetSurfaceObjectResourceDesc(resource: Out<Resource>, object: u64) {
        resource.require()?;
        resource.set(resource_of_surface(object)?)
    }
}
