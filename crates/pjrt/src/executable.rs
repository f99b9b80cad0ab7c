//! A compiled program.

use std::{ffi::c_int, fmt, slice, sync::Arc};

use crate::{
    abi::{self, RawBuffer, RawEvent, RawExecutable, RawLoaded},
    buffer::Buffer,
    client::{Owned, Setting},
    element_type::ElementType,
    error::{Code, Error},
    event::Event,
    plugin::named_values,
};

/// Type and dimensions of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Of its elements.
    pub element_type: ElementType,
    /// Elements along each dimension, outermost first; none for a scalar.
    pub dimensions: Vec<i64>,
}

impl Shape {
    pub(crate) fn new(function: &'static str, element_type: c_int, dimensions: &[i64]) -> Result<Self, Error> {
        let known = ElementType::of(element_type).ok_or_else(|| Error {
            function,
            code: Code::Unimplemented,
            message: format!("elements of type {element_type} are unknown here"),
        })?;
        Ok(Self {
            element_type: known,
            dimensions: dimensions.to_vec(),
        })
    }

    /// Bytes in host memory, if so many can be.
    pub fn host_bytes(&self) -> Option<usize> {
        self.dimensions.iter().try_fold(self.element_type.bytes(), |bytes, dimension| {
            bytes.checked_mul(usize::try_from(*dimension).ok()?)
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.element_type, self.dimensions)
    }
}

/// Bytes of device memory that a program takes when it runs, as the compiler counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompiledMemory {
    /// The program itself.
    pub code: u64,
    /// Its arguments.
    pub arguments: u64,
    /// Its results.
    pub outputs: u64,
    /// Results that take the place of arguments.
    pub aliased: u64,
    /// What is needed in between.
    pub temporaries: u64,
}

/// A compiled program, loaded onto a device.
#[derive(Debug)]
pub struct Executable {
    client: Arc<Owned>,
    loaded: *mut RawLoaded,
    description: *mut RawExecutable,
    outputs: Vec<Shape>,
}

// SAFETY: executables may be used from any thread (pjrt_c_api.h).
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        // Nobody is there to be told.
        if !self.description.is_null() {
            let mut arguments = abi::ExecutableDestroy::new();
            arguments.executable = self.description;
            let _ = self.client.plugin.call(&mut arguments);
        }
        let mut arguments = abi::LoadedExecutableDestroy::new();
        arguments.executable = self.loaded;
        let _ = self.client.plugin.call(&mut arguments);
    }
}

impl Executable {
    pub(crate) fn new(client: &Arc<Owned>, loaded: *mut RawLoaded) -> Result<Self, Error> {
        let mut executable = Self {
            client: Arc::clone(client),
            loaded,
            description: std::ptr::null_mut(),
            outputs: Vec::new(),
        };
        let mut arguments = abi::LoadedExecutableGetExecutable::new();
        arguments.loaded_executable = loaded;
        client.plugin.call(&mut arguments)?;
        executable.description = arguments.executable;
        executable.outputs = executable.read_outputs()?;
        Ok(executable)
    }

    fn read_outputs(&self) -> Result<Vec<Shape>, Error> {
        let mut types = abi::ExecutableOutputElementTypes::new();
        types.executable = self.description;
        self.client.plugin.call(&mut types)?;
        let mut dimensions = abi::ExecutableOutputDimensions::new();
        dimensions.executable = self.description;
        self.client.plugin.call(&mut dimensions)?;
        if types.num_output_types == 0 || dimensions.num_outputs == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: arrays of so many that live as long as the executable.
        let (types, ranks) = unsafe {
            (
                slice::from_raw_parts(types.output_types, types.num_output_types),
                slice::from_raw_parts(dimensions.dim_sizes, dimensions.num_outputs),
            )
        };
        let all = ranks.iter().sum();
        let sizes = if all == 0 {
            &[]
        } else {
            // SAFETY: the dimensions of all outputs one after the other: the sum of the ranks.
            unsafe { slice::from_raw_parts(dimensions.dims, all) }
        };
        let mut rest = sizes;
        types
            .iter()
            .zip(ranks)
            .map(|(element_type, rank)| {
                let (own, others) = rest.split_at(*rank);
                rest = others;
                Shape::new("PJRT_Executable_OutputElementTypes", *element_type, own)
            })
            .collect()
    }

    /// Shapes of its results, in their order.
    pub fn outputs(&self) -> &[Shape] {
        &self.outputs
    }

    /// Memory that it takes, before it has ever run.
    ///
    /// # Errors
    /// What the plugin reports: [`Code::Unimplemented`] where the compiler does not count.
    pub fn memory(&self) -> Result<CompiledMemory, Error> {
        let mut arguments = abi::ExecutableGetCompiledMemoryStats::new();
        arguments.executable = self.description;
        self.client.plugin.call(&mut arguments)?;
        let bytes = |count: i64| u64::try_from(count).unwrap_or_default();
        Ok(CompiledMemory {
            code: bytes(arguments.generated_code),
            arguments: bytes(arguments.arguments),
            outputs: bytes(arguments.outputs),
            aliased: bytes(arguments.aliased),
            temporaries: bytes(arguments.temporaries),
        })
    }

    /// What the compiler thinks that it costs, such as `flops`.
    ///
    /// # Errors
    /// What the plugin reports: [`Code::Unimplemented`] of many plugins.
    pub fn cost(&self) -> Result<Vec<(String, Setting)>, Error> {
        let mut arguments = abi::ExecutableGetCostAnalysis::new();
        arguments.executable = self.description;
        self.client.plugin.call(&mut arguments)?;
        Ok(named_values(arguments.properties, arguments.num_properties))
    }

    /// Its machine code, for [`Client::deserialize`](crate::Client::deserialize) by the same version of the plugin.
    ///
    /// # Errors
    /// What the plugin reports.
    pub fn serialize(&self) -> Result<Vec<u8>, Error> {
        let mut arguments = abi::ExecutableSerialize::new();
        arguments.executable = self.description;
        self.client.plugin.call(&mut arguments)?;
        // SAFETY: so many bytes that live until the deleter is called.
        let bytes = unsafe { slice::from_raw_parts(arguments.serialized_bytes.cast::<u8>(), arguments.serialized_bytes_size) }.to_vec();
        if let Some(delete) = arguments.serialized_executable_deleter {
            // SAFETY: the object that was given with the bytes, once.
            unsafe { delete(arguments.serialized_executable) };
        }
        Ok(bytes)
    }

    /// Starts it on the client's device. The results can be used at once; the event says when all is computed, and whether it went
    /// well. Arguments whose places stand in `kept` are left as they are even where the program would take their memory for
    /// results (donation); of the others those that it takes cannot be used afterwards.
    ///
    /// # Errors
    /// What the plugin reports: [`Code::InvalidArgument`] when arguments are not those of the program.
    pub fn execute(&self, arguments: &[&Buffer], kept: &[i64]) -> Result<(Vec<Buffer>, Event), Error> {
        let inputs: Vec<*mut RawBuffer> = arguments.iter().map(|buffer| buffer.raw()).collect();
        let mut outputs: Vec<*mut RawBuffer> = vec![std::ptr::null_mut(); self.outputs.len()];
        let mut done: *mut RawEvent = std::ptr::null_mut();
        let (input_list, output_list) = (inputs.as_ptr(), outputs.as_mut_ptr());
        let mut options = abi::ExecuteOptions::new();
        options.non_donatable_input_indices = kept.as_ptr();
        options.num_non_donatable_input_indices = kept.len();
        let mut execute = abi::LoadedExecutableExecute::new();
        execute.executable = self.loaded;
        execute.options = &raw mut options;
        execute.argument_lists = &raw const input_list;
        execute.num_devices = 1;
        execute.num_args = inputs.len();
        execute.output_lists = &raw const output_list;
        execute.device_complete_events = &raw mut done;
        self.client.plugin.call(&mut execute)?;
        let buffers = outputs.into_iter().map(|raw| Buffer::new(&self.client, raw)).collect();
        Ok((buffers, Event::new(&self.client.plugin, done, "PJRT_LoadedExecutable_Execute")))
    }
}
