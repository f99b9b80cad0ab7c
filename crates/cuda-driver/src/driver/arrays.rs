//! CUDA arrays, textures and surfaces as they come and go.

use std::sync::Arc;

use sahasra_cuda_boundary::missing::refuse;
use sahasra_cuda_device::{Extent, Operation, Region, Texture};

use crate::array::{Array, Description, Layout};
use crate::boundary::Handle;
use crate::context::Context;
use crate::ranges::Kind;
use crate::status::Status;
use crate::table::new_handle;
use crate::texture::{self, Resource, ResourceDescription, SamplingDescription, SurfaceObject, TextureObject, ViewDescription};

use super::Driver;

impl Driver {
    /// Creates an array of zeros.
    pub(crate) fn create_array(&self, context: &Arc<Context>, description: Description) -> Result<Handle, Status> {
        let layout = Layout::of(&description)?;
        let address = self.allocate(context, layout.bytes(), Kind::Array)?;
        let handle = new_handle();
        let array = Array {
            description,
            layout,
            address,
            context_id: context.id,
        };
        self.arrays.insert_unless(&context.is_destroyed, handle, Arc::new(array))?;
        Ok(handle)
    }

    /// Destroys an array, after everything that was submitted.
    pub(crate) fn destroy_array(&self, handle: Handle) -> Result<(), Status> {
        let array = self.arrays.remove(handle)?;
        self.free_range(array.address, |kind| kind == Kind::Array)
    }

    /// An array of a context.
    fn array_of(&self, context: &Context, handle: Handle) -> Result<Arc<Array>, Status> {
        let array = self.arrays.get(handle)?;
        match array.context_id == context.id {
            true => Ok(array),
            false => Err(Status::INVALID_HANDLE),
        }
    }

    /// Refuses memory that is not a context's.
    fn check_memory(&self, context: &Context, start: u64, bytes: u64) -> Result<(), Status> {
        let (mut address, end) = (start, start.checked_add(bytes).ok_or(Status::INVALID_VALUE)?);
        // The program may have mapped several memories behind each other.
        while address < end {
            let owner = self.owner(&Region::linear(address), &Extent::linear(1))?;
            if owner.id != context.id {
                return Err(Status::INVALID_VALUE);
            }
            address = address.checked_add(self.ranges.room(address)?).ok_or(Status::INVALID_VALUE)?;
        }
        Ok(())
    }

    /// The texture that programs describe, of an array or memory of a context.
    pub(crate) fn texture(
        &self,
        context: &Context,
        resource: &Resource,
        sampling: &SamplingDescription,
        view: Option<&ViewDescription>,
    ) -> Result<Texture, Status> {
        let array = match *resource {
            Resource::Array(handle) => Some(self.array_of(context, handle)?),
            _ => None,
        };
        let texture = texture::texture(resource, array.as_deref(), sampling, view)?;
        if let Some((address, bytes)) = resource.memory() {
            self.check_memory(context, address, bytes)?;
        }
        Ok(texture)
    }

    /// Creates a texture object. Returns its handle.
    pub(crate) fn create_texture(
        &self,
        context: &Arc<Context>,
        resource: ResourceDescription,
        sampling: SamplingDescription,
        view: Option<ViewDescription>,
    ) -> Result<u64, Status> {
        let texture = self.texture(context, &resource.resource()?, &sampling, view.as_ref())?;
        let address = self.create_descriptor(context, &texture)?;
        let object = TextureObject {
            resource,
            sampling,
            view,
            context_id: context.id,
        };
        self.textures
            .insert_unless(&context.is_destroyed, Handle(address), Arc::new(object))?;
        Ok(address)
    }

    /// Creates a surface object. Returns its handle.
    pub(crate) fn create_surface(&self, context: &Arc<Context>, resource: ResourceDescription) -> Result<u64, Status> {
        let Resource::Array(array) = resource.resource()? else {
            return Err(Status::INVALID_VALUE);
        };
        let surface = texture::surface(&*self.array_of(context, array)?)?;
        let address = self.create_descriptor(context, &surface)?;
        let object = SurfaceObject {
            resource,
            context_id: context.id,
        };
        self.surfaces
            .insert_unless(&context.is_destroyed, Handle(address), Arc::new(object))?;
        Ok(address)
    }

    /// Destroys a texture object, after everything that was submitted.
    pub(crate) fn destroy_texture(&self, address: u64) -> Result<(), Status> {
        self.textures.remove(Handle(address)).map_err(|_| Status::INVALID_VALUE)?;
        self.free_range(address, |kind| kind == Kind::Descriptor)
    }

    /// Destroys a surface object, after everything that was submitted.
    pub(crate) fn destroy_surface(&self, address: u64) -> Result<(), Status> {
        self.surfaces.remove(Handle(address)).map_err(|_| Status::INVALID_VALUE)?;
        self.free_range(address, |kind| kind == Kind::Descriptor)
    }

    /// Writes a descriptor for work that is submitted later. Returns its address, which kernels take as the handle.
    fn create_descriptor(&self, context: &Arc<Context>, texture: &Texture) -> Result<u64, Status> {
        if !self.device.properties().reads_descriptors {
            return refuse("a texture or surface object on a device whose kernels read no descriptors (a GPU, or an earlier executor)");
        }
        let address = self.allocate(context, Texture::DESCRIPTOR_BYTES, Kind::Descriptor)?;
        let written = context.submit(Operation::Write {
            to: Region::linear(address),
            extent: Extent::linear(Texture::DESCRIPTOR_BYTES),
            bytes: texture.descriptor().to_vec().into(),
        });
        match written {
            Ok(_) => Ok(address),
            Err(status) => {
                // Refused only after a fault, when nothing is mapped any more.
                let _ = self.free_range(address, |kind| kind == Kind::Descriptor);
                Err(status)
            }
        }
    }
}
