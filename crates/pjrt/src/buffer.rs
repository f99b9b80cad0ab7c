//! An array in a device's memory.

use std::{slice, sync::Arc};

use sahasra_memory::{Filling, Region};

use crate::{
    abi::{self, HostLayout, RawBuffer},
    client::Owned,
    error::{Code, Error},
    event::Event,
    executable::Shape,
};

/// An array in a device's memory, or one that is on its way there: it may be used at once, and whoever uses it waits for it
/// on the device.
#[derive(Debug)]
pub struct Buffer {
    client: Arc<Owned>,
    raw: *mut RawBuffer,
}

// SAFETY: buffers may be used from any thread (pjrt_c_api.h).
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut arguments = abi::BufferDestroy::new();
        arguments.buffer = self.raw;
        // Nobody is there to be told.
        let _ = self.client.plugin.call(&mut arguments);
    }
}

impl Buffer {
    pub(crate) fn new(client: &Arc<Owned>, raw: *mut RawBuffer) -> Self {
        Self {
            client: Arc::clone(client),
            raw,
        }
    }

    pub(crate) fn raw(&self) -> *mut RawBuffer {
        self.raw
    }

    /// Type and dimensions.
    ///
    /// # Errors
    /// What the plugin reports; a type that this crate does not know is [`Code::Unimplemented`].
    pub fn shape(&self) -> Result<Shape, Error> {
        let mut element = abi::BufferElementType::new();
        element.buffer = self.raw;
        self.client.plugin.call(&mut element)?;
        let mut dimensions = abi::BufferDimensions::new();
        dimensions.buffer = self.raw;
        self.client.plugin.call(&mut dimensions)?;
        let sizes = if dimensions.num_dims == 0 {
            &[]
        } else {
            // SAFETY: an array of so many that lives as long as the buffer.
            unsafe { slice::from_raw_parts(dimensions.dims, dimensions.num_dims) }
        };
        Shape::new("PJRT_Buffer_ElementType", element.element_type, sizes)
    }

    /// Bytes that it takes on the device.
    ///
    /// # Errors
    /// What the plugin reports.
    pub fn device_bytes(&self) -> Result<u64, Error> {
        let mut arguments = abi::BufferOnDeviceSizeInBytes::new();
        arguments.buffer = self.raw;
        self.client.plugin.call(&mut arguments)?;
        Ok(arguments.bytes as u64)
    }

    /// When its contents are there, or what became of them.
    ///
    /// # Errors
    /// What the plugin reports of the question.
    pub fn ready(&self) -> Result<Event, Error> {
        let mut arguments = abi::BufferReadyEvent::new();
        arguments.buffer = self.raw;
        self.client.plugin.call(&mut arguments)?;
        Ok(Event::new(&self.client.plugin, arguments.event, "PJRT_Buffer_ReadyEvent"))
    }

    /// Its bytes where they lie, elements in row-major order: where the device's memory is the host's and the array lies there
    /// so. `None` where it does not. It must be [ready](Buffer::ready). As long as the view is there the memory is.
    ///
    /// # Errors
    /// What the plugin reports, also of what was to compute it.
    ///
    /// # Safety
    /// While the view is there no program is given the buffer that may take its memory for results: it stands among those kept
    /// in [`Executable::execute`](crate::Executable::execute). Not every plugin sees to that itself.
    pub unsafe fn view(self: &Arc<Self>) -> Result<Option<View>, Error> {
        let plugin = &self.client.plugin;
        let mut place = abi::BufferIsOnCpu::new();
        place.buffer = self.raw;
        plugin.call(&mut place)?;
        let shape = self.shape()?;
        let bytes = shape.host_bytes().unwrap_or(0);
        // Elements of less than a byte may be packed there.
        if !place.is_on_cpu || bytes == 0 || self.device_bytes()? != bytes as u64 || !self.is_row_major(shape.dimensions.len())? {
            return Ok(None);
        }
        let mut reference = abi::BufferIncreaseExternalReferenceCount::new();
        reference.buffer = self.raw;
        plugin.call(&mut reference)?;
        // It gives the reference back, whatever comes.
        let mut view = View {
            buffer: Arc::clone(self),
            start: std::ptr::null(),
            bytes,
        };
        let mut pointer = abi::BufferOpaqueDeviceMemoryDataPointer::new();
        pointer.buffer = self.raw;
        plugin.call(&mut pointer)?;
        view.start = pointer.device_memory_ptr.cast();
        Ok((!view.start.is_null()).then_some(view))
    }

    fn is_row_major(&self, dimensions: usize) -> Result<bool, Error> {
        if dimensions < 2 {
            return Ok(true);
        }
        let mut arguments = abi::BufferGetMemoryLayout::new();
        arguments.buffer = self.raw;
        self.client.plugin.call(&mut arguments)?;
        // SAFETY: what the layout points to lives as long as the buffer.
        Ok(unsafe { arguments.layout.is_row_major(dimensions) })
    }

    /// Copies it into host memory, elements in row-major order, and waits for it.
    ///
    /// # Errors
    /// What the plugin reports, also of what was to compute it; [`Code::ResourceExhausted`] when the host has no memory for it.
    pub fn download(&self) -> Result<Region, Error> {
        self.start_download()?.finish()
    }

    /// Starts to copy it into host memory, elements in row-major order.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] when the host has no memory for it; what the plugin reports of the wish. What comes later, also
    /// of what was to compute it, [`Download::finish`] tells.
    pub fn start_download(&self) -> Result<Download, Error> {
        let shape = self.shape()?;
        let refused = |code, message| Error {
            function: "PJRT_Buffer_ToHostBuffer",
            code,
            message,
        };
        let bytes = shape
            .host_bytes()
            .ok_or_else(|| refused(Code::OutOfRange, format!("{shape} is larger than memory can be")))?;
        let mut host = Filling::new(bytes).map_err(|error| refused(Code::ResourceExhausted, error.to_string()))?;
        if bytes == 0 {
            // What was to compute it may have failed all the same.
            let done = self.ready()?;
            return Ok(Download { done, host: Some(host) });
        }
        let minor_to_major: Vec<i64> = (0..shape.dimensions.len() as i64).rev().collect();
        let mut layout = HostLayout::tiled(&minor_to_major);
        let mut arguments = abi::BufferToHostBuffer::new();
        arguments.src = self.raw;
        arguments.host_layout = &raw mut layout;
        arguments.dst = host.spare().as_mut_ptr().cast();
        arguments.dst_size = bytes;
        self.client.plugin.call(&mut arguments)?;
        let done = Event::new(&self.client.plugin, arguments.event, "PJRT_Buffer_ToHostBuffer");
        Ok(Download { done, host: Some(host) })
    }
}

/// The bytes of a buffer where they lie: see [`Buffer::view`].
#[derive(Debug)]
pub struct View {
    buffer: Arc<Buffer>,
    start: *const u8,
    bytes: usize,
}

// SAFETY: memory that nobody writes to while the view is there, as its maker promised.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        if self.start.is_null() {
            return &[];
        }
        // SAFETY: the array's bytes, of which there are so many, in memory that stays while the reference is held. Buffers do not
        // change but by donation, which whoever made the view forbids.
        unsafe { slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let mut arguments = abi::BufferDecreaseExternalReferenceCount::new();
        arguments.buffer = self.buffer.raw;
        // Nobody is there to be told.
        let _ = self.buffer.client.plugin.call(&mut arguments);
    }
}

/// A copy to host memory that is under way.
#[derive(Debug)]
pub struct Download {
    done: Event,
    /// The plugin writes here until `done` is; none once it was taken.
    host: Option<Filling>,
}

impl Download {
    /// When it is done.
    pub fn done(&self) -> &Event {
        &self.done
    }

    /// Waits for it and gives the bytes.
    ///
    /// # Errors
    /// What the plugin reports, also of what was to compute the array.
    pub fn finish(mut self) -> Result<Region, Error> {
        self.done.wait()?;
        let Some(mut host) = self.host.take() else {
            return Ok(Region::empty());
        };
        let bytes = host.missing();
        // SAFETY: the plugin has written all of it.
        unsafe { host.advance(bytes) };
        Ok(host.finish())
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // The plugin writes until then. How it went is nobody's concern any more.
        let _ = self.done.wait();
    }
}
