//! CUDA arrays.

use std::ffi::{c_int, c_uint};

use crate::array::{Description, Format, PlaneDescription};
use crate::attributes;
use crate::boundary::{Handle, In, Out};
use crate::current;
use crate::driver;
use crate::status::Status;

fn create(array: Out<Handle>, description: Description) -> Result<(), Status> {
    driver::get()?.captures.check_call()?;
    array.require()?;
    array.set(driver::get()?.create_array(&current::context()?, description)?)
}

/// Returns `INVALID_VALUE` for a property that arrays lack: planes, sparse or deferred mapping.
fn without(array: Handle) -> Result<(), Status> {
    driver::get()?.arrays.get(array)?;
    Err(Status::INVALID_VALUE)
}

exports! {
    fn cuArrayCreate_v2(array: Out<Handle>, description: In<PlaneDescription>) {
        let PlaneDescription { width, height, format, channels } = description.get()?;
        create(array, Description { width, height, depth: 0, format, channels, flags: 0 })
    }

    fn cuArray3DCreate_v2(array: Out<Handle>, description: In<Description>) {
        create(array, description.get()?)
    }

    fn cuArrayGetDescriptor_v2(description: Out<PlaneDescription>, array: Handle) {
        let Description { width, height, format, channels, .. } = driver::get()?.arrays.get(array)?.description;
        description.set(PlaneDescription { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(description: Out<Description>, array: Handle) {
        description.set(driver::get()?.arrays.get(array)?.description)
    }

    fn cuArrayDestroy(array: Handle) {
        driver::get()?.captures.check_call()?;
        current::context()?.check()?;
        driver::get()?.destroy_array(array)
    }

    /// No array is sparse.
    fn cuArrayGetSparseProperties(_properties: Out<[u32; 12]>, array: Handle) {
        without(array)
    }

    /// The mapping of no array is deferred.
    fn cuArrayGetMemoryRequirements(_requirements: Out<[u64; 4]>, array: Handle, device: c_int) {
        driver::get()?.check_device(device)?;
        without(array)
    }

    /// No array has several planes.
    fn cuArrayGetPlane(_plane: Out<Handle>, array: Handle, _index: c_uint) {
        without(array)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(texels: Out<usize>, format: c_uint, channels: c_uint, device: c_int) {
        let driver = driver::get()?;
        driver.check_device(device)?;
        Format::of(format, channels)?;
        texels.set(attributes::size(69, driver.device.properties()) as usize)
    }
}
