//! Compiled programs.

use std::{ffi::c_int, fmt, sync::Arc};

use crate::{
    abi::{self, Function, Handle, RawBuffer, RawEvent, RawExecutable, RawLoaded},
    buffer::Buffer,
    client::{Owned, Setting},
    element_type::ElementType,
    error::{Code, Error},
    event::Event,
    plugin::{array, named_values},
};

/// Element type and dimensions of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub element_type: ElementType,
    /// Number of elements along each dimension, outermost first; empty for a scalar.
    pub dimensions: Vec<i64>,
}

impl Shape {
    pub(crate) fn new(function: &'static str, element_type: c_int, dimensions: &[i64]) -> Result<Self, Error> {
        let unknown = || {
            Error::new(
                function,
                Code::Unimplemented,
                format!("elements of type {element_type} are unknown here"),
            )
        };
        Ok(Self {
            element_type: ElementType::of(element_type).ok_or_else(unknown)?,
            dimensions: dimensions.to_vec(),
        })
    }

    /// Returns the size in host memory in bytes, or `None` if it is too large for `usize` or a dimension is negative.
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

/// Device memory of an execution in bytes, as computed by the compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompiledMemory {
    pub code: u64,
    pub arguments: u64,
    pub outputs: u64,
    /// Results that reuse the memory of arguments.
    pub aliased: u64,
    /// Temporary memory during the execution.
    pub temporaries: u64,
}

/// A compiled program, loaded onto a device.
#[derive(Debug)]
pub struct Executable {
    client: Arc<Owned>,
    loaded: Handle<RawLoaded>,
    description: Handle<RawExecutable>,
    outputs: Vec<Shape>,
}

impl Drop for Executable {
    fn drop(&mut self) {
        // A destructor cannot report errors.
        if !self.description.0.is_null() {
            let _ = self.client.plugin.call(abi::ExecutableDestroy::of(self.description.0));
        }
        let _ = self.client.plugin.call(abi::LoadedExecutableDestroy::of(self.loaded.0));
    }
}

impl Executable {
    pub(crate) fn new(client: &Arc<Owned>, loaded: *mut RawLoaded) -> Result<Self, Error> {
        let mut executable = Self {
            client: Arc::clone(client),
            loaded: Handle(loaded),
            description: Handle(std::ptr::null_mut()),
            outputs: Vec::new(),
        };
        let arguments = client.plugin.call(abi::LoadedExecutableGetExecutable::of(loaded))?;
        executable.description.0 = arguments.executable;
        executable.outputs = executable.read_outputs()?;
        Ok(executable)
    }

    fn read_outputs(&self) -> Result<Vec<Shape>, Error> {
        let types = self.client.plugin.call(abi::ExecutableOutputElementTypes::of(self.description.0))?;
        let dimensions = self.client.plugin.call(abi::ExecutableOutputDimensions::of(self.description.0))?;
        // SAFETY: Both arrays have the given lengths and live as long as the executable.
        let (types, ranks) = unsafe {
            (
                array(types.output_types, types.num_output_types),
                array(dimensions.dim_sizes, dimensions.num_outputs),
            )
        };
        // SAFETY: The array holds the dimensions of all outputs in sequence; its length is the sum of the ranks.
        let mut rest = unsafe { array(dimensions.dims, ranks.iter().sum()) };
        types
            .iter()
            .zip(ranks)
            .map(|(element_type, rank)| {
                let (own, others) = rest.split_at(*rank);
                rest = others;
                Shape::new(abi::ExecutableOutputElementTypes::NAME, *element_type, own)
            })
            .collect()
    }

    pub fn outputs(&self) -> &[Shape] {
        &self.outputs
    }

    /// Returns the device memory that an execution needs. The program need not have run.
    ///
    /// # Errors
    /// The plugin's error: [`Code::Unimplemented`] if the compiler does not compute it.
    pub fn memory(&self) -> Result<CompiledMemory, Error> {
        let plugin = &self.client.plugin;
        let arguments = plugin.call(abi::ExecutableGetCompiledMemoryStats::of(self.description.0))?;
        let bytes = |count: i64| u64::try_from(count).unwrap_or_default();
        Ok(CompiledMemory {
            code: bytes(arguments.generated_code),
            arguments: bytes(arguments.arguments),
            outputs: bytes(arguments.outputs),
            aliased: bytes(arguments.aliased),
            temporaries: bytes(arguments.temporaries),
        })
    }

    /// Returns the compiler's cost estimates, such as `flops`.
    ///
    /// # Errors
    /// The plugin's error: [`Code::Unimplemented`] from many plugins.
    pub fn cost(&self) -> Result<Vec<(String, Setting)>, Error> {
        let arguments = self.client.plugin.call(abi::ExecutableGetCostAnalysis::of(self.description.0))?;
        Ok(named_values(arguments.properties, arguments.num_properties))
    }

    /// Returns the machine code, for [`Client::deserialize`](crate::Client::deserialize) with the same version of the plugin.
    pub fn serialize(&self) -> Result<Vec<u8>, Error> {
        let arguments = self.client.plugin.call(abi::ExecutableSerialize::of(self.description.0))?;
        // SAFETY: The bytes have this length and live until the deleter is called.
        let bytes = unsafe { array(arguments.serialized_bytes.cast::<u8>(), arguments.serialized_bytes_size) }.to_vec();
        if let Some(delete) = arguments.serialized_executable_deleter {
            // SAFETY: The deleter receives the object that came with the bytes, once.
            unsafe { delete(arguments.serialized_executable) };
        }
        Ok(bytes)
    }

    /// Starts an execution on the client's device. The results can be used at once; the event reports the end of the execution and its
    /// error. The program may reuse the memory of donated arguments for results. Arguments whose indices are in `kept` are not donated; all
    /// other arguments that the program donates cannot be used afterwards.
    ///
    /// # Errors
    /// The plugin's error: [`Code::InvalidArgument`] when the arguments do not match the program's parameters.
    pub fn execute(&self, arguments: &[&Buffer], kept: &[i64]) -> Result<(Vec<Buffer>, Event), Error> {
        let inputs: Vec<*mut RawBuffer> = arguments.iter().map(|buffer| buffer.raw()).collect();
        let mut outputs: Vec<*mut RawBuffer> = vec![std::ptr::null_mut(); self.outputs.len()];
        let mut done: *mut RawEvent = std::ptr::null_mut();
        let (input_list, output_list) = (inputs.as_ptr(), outputs.as_mut_ptr());
        let mut options = abi::ExecuteOptions::new();
        options.non_donatable_input_indices = kept.as_ptr();
        options.num_non_donatable_input_indices = kept.len();
        let mut execute = abi::LoadedExecutableExecute::of(self.loaded.0);
        execute.options = &raw mut options;
        execute.argument_lists = &raw const input_list;
        execute.num_devices = 1;
        execute.num_args = inputs.len();
        execute.output_lists = &raw const output_list;
        execute.device_complete_events = &raw mut done;
        self.client.plugin.call(execute)?;
        let buffers = outputs.into_iter().map(|raw| Buffer::new(&self.client, raw)).collect();
        Ok((buffers, Event::new(&self.client.plugin, done, abi::LoadedExecutableExecute::NAME)))
    }
}
