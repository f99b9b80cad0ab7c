//! An array in a device's memory.

use std::{slice, sync::Arc};

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

    /// Copies it into host memory, elements in row-major order, and waits for it.
    ///
    /// # Errors
    /// What the plugin reports, also of what was to compute it.
    pub fn download(&self) -> Result<Vec<u8>, Error> {
        let bytes = self.shape()?.host_bytes().unwrap_or(0);
        self.start_download(vec![0; bytes])?.finish()
    }

    /// Starts to copy it into host memory that is as long as it, elements in row-major order.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] when the memory is not as long as the shape says; what the plugin reports of the wish. What
    /// comes later, also of what was to compute it, [`Download::finish`] tells.
    pub fn start_download(&self, mut host: Vec<u8>) -> Result<Download, Error> {
        let shape = self.shape()?;
        let bytes = shape.host_bytes().ok_or_else(|| Error {
            function: "PJRT_Buffer_ToHostBuffer",
            code: Code::OutOfRange,
            message: format!("{shape} is larger than memory can be"),
        })?;
        if host.len() != bytes {
            return Err(Error {
                function: "PJRT_Buffer_ToHostBuffer",
                code: Code::InvalidArgument,
                message: format!("{} bytes are given for {shape}", host.len()),
            });
        }
        if bytes == 0 {
            // What was to compute it may have failed all the same.
            let done = self.ready()?;
            return Ok(Download { done, host });
        }
        let minor_to_major: Vec<i64> = (0..shape.dimensions.len() as i64).rev().collect();
        let mut layout = HostLayout::tiled(&minor_to_major);
        let mut arguments = abi::BufferToHostBuffer::new();
        arguments.src = self.raw;
        arguments.host_layout = &raw mut layout;
        arguments.dst = host.as_mut_ptr().cast();
        arguments.dst_size = bytes;
        self.client.plugin.call(&mut arguments)?;
        let done = Event::new(&self.client.plugin, arguments.event, "PJRT_Buffer_ToHostBuffer");
        Ok(Download { done, host })
    }
}

/// A copy to host memory that is under way.
#[derive(Debug)]
pub struct Download {
    done: Event,
    /// The plugin writes here until `done` is.
    host: Vec<u8>,
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
    pub fn finish(mut self) -> Result<Vec<u8>, Error> {
        self.done.wait()?;
        Ok(std::mem::take(&mut self.host))
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // The plugin writes until then. How it went is nobody's concern any more.
        let _ = self.done.wait();
    }
}
