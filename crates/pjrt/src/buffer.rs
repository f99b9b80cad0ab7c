//! Arrays in the memory of a device.

use std::sync::Arc;

use sahasra_memory::{Filling, Region};

use crate::{
    abi::{self, Function, Handle, HostLayout, RawBuffer},
    client::Owned,
    error::{Code, Error},
    event::Event,
    executable::Shape,
    plugin::array,
};

/// An array in the memory of a device. It can be used before its content has been transferred or computed; operations that use it wait for
/// the content on the device.
#[derive(Debug)]
pub struct Buffer {
    client: Arc<Owned>,
    raw: Handle<RawBuffer>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A destructor cannot report errors.
        let _ = self.client.plugin.call(abi::BufferDestroy::of(self.raw.0));
    }
}

impl Buffer {
    pub(crate) fn new(client: &Arc<Owned>, raw: *mut RawBuffer) -> Self {
        Self {
            client: Arc::clone(client),
            raw: Handle(raw),
        }
    }

    pub(crate) fn raw(&self) -> *mut RawBuffer {
        self.raw.0
    }

    /// Returns the element type and dimensions.
    ///
    /// # Errors
    /// The plugin's error; [`Code::Unimplemented`] for an element type that this crate does not know.
    pub fn shape(&self) -> Result<Shape, Error> {
        let element = self.client.plugin.call(abi::BufferElementType::of(self.raw.0))?;
        let dimensions = self.client.plugin.call(abi::BufferDimensions::of(self.raw.0))?;
        // SAFETY: The array has this length and lives as long as the buffer.
        let sizes = unsafe { array(dimensions.dims, dimensions.num_dims) };
        Shape::new(abi::BufferElementType::NAME, element.element_type, sizes)
    }

    pub fn device_bytes(&self) -> Result<u64, Error> {
        let arguments = self.client.plugin.call(abi::BufferOnDeviceSizeInBytes::of(self.raw.0))?;
        Ok(arguments.bytes as u64)
    }

    /// Returns the event that reports when the content is available, or why it is not.
    pub fn ready(&self) -> Result<Event, Error> {
        let arguments = self.client.plugin.call(abi::BufferReadyEvent::of(self.raw.0))?;
        Ok(Event::new(&self.client.plugin, arguments.event, abi::BufferReadyEvent::NAME))
    }

    /// Returns a view of the bytes without a copy, elements in row-major order. Returns `None` unless the array is in host memory in this
    /// layout. The buffer must be [ready](Buffer::ready). The view keeps the memory alive.
    ///
    /// # Errors
    /// The plugin's error, also that of the computation of the content.
    ///
    /// # Safety
    /// While the view exists, the buffer must not be passed to a program that may reuse its memory for results, unless its index is in
    /// `kept` of [`Executable::execute`](crate::Executable::execute). Not every plugin ensures this itself.
    pub unsafe fn view(self: &Arc<Self>) -> Result<Option<View>, Error> {
        let plugin = &self.client.plugin;
        let place = plugin.call(abi::BufferIsOnCpu::of(self.raw.0))?;
        let shape = self.shape()?;
        let bytes = shape.host_bytes().unwrap_or(0);
        // Elements narrower than a byte may be packed in device memory.
        if !place.is_on_cpu || bytes == 0 || self.device_bytes()? != bytes as u64 || !self.is_row_major(shape.dimensions.len())? {
            return Ok(None);
        }
        plugin.call(abi::BufferIncreaseExternalReferenceCount::of(self.raw.0))?;
        // From here on, dropping `view` releases the reference in any case.
        let mut view = View {
            buffer: Arc::clone(self),
            start: std::ptr::null(),
            bytes,
        };
        let pointer = plugin.call(abi::BufferOpaqueDeviceMemoryDataPointer::of(self.raw.0))?;
        view.start = pointer.device_memory_ptr.cast();
        Ok((!view.start.is_null()).then_some(view))
    }

    fn is_row_major(&self, dimensions: usize) -> Result<bool, Error> {
        if dimensions < 2 {
            return Ok(true);
        }
        let arguments = self.client.plugin.call(abi::BufferGetMemoryLayout::of(self.raw.0))?;
        // SAFETY: The pointers in the layout are valid as long as the buffer.
        Ok(unsafe { arguments.layout.is_row_major(dimensions) })
    }

    /// Copies the array to host memory, elements in row-major order, and waits for the end of the copy.
    ///
    /// # Errors
    /// The plugin's error, also that of the computation of the content; [`Code::ResourceExhausted`] when the host has no memory for the
    /// copy.
    pub fn download(&self) -> Result<Region, Error> {
        self.start_download()?.finish()
    }

    /// Starts to copy the array to host memory, elements in row-major order.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] when the host has no memory for the copy; the plugin's error of this call. Later errors, also that of
    /// the computation of the content, are reported by [`Download::finish`].
    pub fn start_download(&self) -> Result<Download, Error> {
        let shape = self.shape()?;
        let refused = |code, message| Error::new(abi::BufferToHostBuffer::NAME, code, message);
        let bytes = shape
            .host_bytes()
            .ok_or_else(|| refused(Code::OutOfRange, format!("{shape} is larger than memory can be")))?;
        let mut host = Filling::new(bytes).map_err(|error| refused(Code::ResourceExhausted, error.to_string()))?;
        if bytes == 0 {
            // Even for an empty array, the computation may have failed.
            let done = self.ready()?;
            return Ok(Download { done, host: Some(host) });
        }
        let minor_to_major: Vec<i64> = (0..shape.dimensions.len() as i64).rev().collect();
        let mut layout = HostLayout::tiled(&minor_to_major);
        let mut arguments = abi::BufferToHostBuffer::of(self.raw.0);
        arguments.host_layout = &raw mut layout;
        arguments.dst = host.spare().as_mut_ptr().cast();
        arguments.dst_size = bytes;
        let arguments = self.client.plugin.call(arguments)?;
        let done = Event::new(&self.client.plugin, arguments.event, abi::BufferToHostBuffer::NAME);
        Ok(Download { done, host: Some(host) })
    }
}

/// Bytes of a buffer, without a copy; see [`Buffer::view`].
#[derive(Debug)]
pub struct View {
    buffer: Arc<Buffer>,
    start: *const u8,
    bytes: usize,
}

// SAFETY: Nobody writes to the memory while the view exists, as the caller of [`Buffer::view`] guarantees.
unsafe impl Send for View {}
// SAFETY: Nobody writes to the memory while the view exists, as the caller of [`Buffer::view`] guarantees.
unsafe impl Sync for View {}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: The array has this many bytes, and the reference keeps its memory alive. A buffer changes only by donation, which the
        // caller of [`Buffer::view`] excludes.
        unsafe { array(self.start, self.bytes) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // A destructor cannot report errors.
        let plugin = &self.buffer.client.plugin;
        let _ = plugin.call(abi::BufferDecreaseExternalReferenceCount::of(self.buffer.raw.0));
    }
}

/// A copy to host memory in progress.
#[derive(Debug)]
pub struct Download {
    done: Event,
    /// Memory to which the plugin writes until `done` has finished. `None` after [`Download::finish`] took it.
    host: Option<Filling>,
}

impl Download {
    pub fn done(&self) -> &Event {
        &self.done
    }

    /// Waits for the end of the copy, and returns the bytes.
    ///
    /// # Errors
    /// The plugin's error, also that of the computation of the array.
    pub fn finish(mut self) -> Result<Region, Error> {
        self.done.wait()?;
        let Some(mut host) = self.host.take() else {
            return Ok(Region::empty());
        };
        let bytes = host.missing();
        // SAFETY: The plugin has written all bytes.
        unsafe { host.advance(bytes) };
        Ok(host.finish())
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // The plugin writes to the memory until the copy has ended. Its outcome does not matter any more.
        let _ = self.done.wait();
    }
}
