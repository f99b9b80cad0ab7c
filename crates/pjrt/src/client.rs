//! Client of a plugin: its first device, opened.

use std::{
    ffi::{CString, c_char},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    abi::{self, Function, Handle, NamedValue, RawClient, RawDevice},
    buffer::Buffer,
    element_type::ElementType,
    error::{Code, Error},
    event::Event,
    executable::{Executable, Shape},
    plugin::{Plugin, array, text},
    program::{CompileOptions, Program},
};

/// Value with a name: an attribute of a plugin, or an option for the creation of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    Text(String),
    Integer(i64),
    Integers(Vec<i64>),
    Float(f32),
    Boolean(bool),
}

#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) plugin: Arc<Plugin>,
    pub(crate) raw: Handle<RawClient>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A destructor cannot report errors.
        let _ = self.plugin.call(abi::ClientDestroy::of(self.raw.0));
    }
}

/// Client of the first device that the plugin shows (the option `visible_devices` of the CUDA plugin selects devices). Objects created by a
/// client keep the client alive.
#[derive(Clone, Debug)]
pub struct Client {
    owned: Arc<Owned>,
    device: Handle<RawDevice>,
    device_kind: Arc<str>,
}

impl Client {
    /// Opens the plugin's first device. The options depend on the plugin; the CUDA plugin supports `allocator`, `memory_fraction`,
    /// `preallocate` and `visible_devices`.
    ///
    /// # Errors
    /// The plugin's error; [`Code::InvalidArgument`] when the name of an option contains a zero byte.
    pub fn create(plugin: &Arc<Plugin>, options: &[(&str, Setting)]) -> Result<Self, Error> {
        let mut texts = Vec::new();
        let mut values = Vec::new();
        for (name, setting) in options {
            let c_name = CString::new(*name).map_err(|_| {
                let message = format!("option {name:?} has a zero byte in its name");
                Error::new(abi::ClientCreate::NAME, Code::InvalidArgument, message)
            })?;
            let (kind, value, value_size) = match setting {
                Setting::Text(text) => {
                    let string = text.as_ptr().cast();
                    (abi::STRING, abi::Value { string }, text.len())
                }
                Setting::Integer(integer) => (abi::INTEGER, abi::Value { integer: *integer }, 1),
                Setting::Integers(list) => {
                    let integers = list.as_ptr();
                    (abi::INTEGERS, abi::Value { integers }, list.len())
                }
                Setting::Float(float) => (abi::FLOAT, abi::Value { float: *float }, 1),
                Setting::Boolean(boolean) => (abi::BOOLEAN, abi::Value { boolean: *boolean }, 1),
            };
            values.push(NamedValue {
                struct_size: size_of::<NamedValue>(),
                extension_start: std::ptr::null_mut(),
                name: c_name.as_ptr(),
                name_size: name.len(),
                kind,
                value,
                value_size,
            });
            texts.push(c_name);
        }
        let mut arguments = abi::ClientCreate::of(values.as_ptr());
        arguments.num_options = values.len();
        let arguments = plugin.call(arguments)?;
        drop(texts);
        let owned = Arc::new(Owned {
            plugin: Arc::clone(plugin),
            raw: Handle(arguments.client),
        });
        let devices = plugin.call(abi::ClientAddressableDevices::of(owned.raw.0))?;
        // SAFETY: The array has this length and lives as long as the client.
        let first = unsafe { array(devices.devices, devices.num_devices) }.first();
        let none = || Error::new(abi::ClientAddressableDevices::NAME, Code::NotFound, "the plugin found no device");
        let device = *first.ok_or_else(none)?;
        let description = plugin.call(abi::DeviceGetDescription::of(device))?;
        let kind = plugin.call(abi::DeviceDescriptionKind::of(description.description))?;
        Ok(Self {
            owned,
            device: Handle(device),
            // SAFETY: The text lives as long as the description.
            device_kind: unsafe { text(kind.kind, kind.kind_size) }.into(),
        })
    }

    /// Returns the name of the platform, such as `cpu` or `cuda`.
    pub fn platform_name(&self) -> Result<String, Error> {
        let arguments = self.owned.plugin.call(abi::ClientPlatformName::of(self.owned.raw.0))?;
        // SAFETY: The text lives as long as the client.
        Ok(unsafe { text(arguments.name, arguments.name_size) })
    }

    /// Returns the version of the platform, as reported by the plugin.
    pub fn platform_version(&self) -> Result<String, Error> {
        let arguments = self.owned.plugin.call(abi::ClientPlatformVersion::of(self.owned.raw.0))?;
        // SAFETY: The text lives as long as the client.
        Ok(unsafe { text(arguments.version, arguments.version_size) })
    }

    /// Returns the vendor's name for the device.
    pub fn device_kind(&self) -> &str {
        &self.device_kind
    }

    /// Compiles a program for the device. The plugin compiles on this thread, which may take seconds. If the plugin's XLA does not have one
    /// of the debug options, the program is compiled without debug options.
    ///
    /// # Errors
    /// The plugin's error, with the compiler's message.
    pub fn compile(&self, program: &Program, options: &CompileOptions) -> Result<Executable, Error> {
        match self.compile_with(program, options) {
            Err(error) if options.debug_options.keys().any(|name| error.message.contains(name.as_str())) => {
                self.compile_with(program, &CompileOptions::default())
            }
            outcome => outcome,
        }
    }

    fn compile_with(&self, program: &Program, options: &CompileOptions) -> Result<Executable, Error> {
        let mut code = program.code.clone();
        let format = program.format.name();
        let mut text = abi::ProgramText::new();
        // The header declares the code mutable, so the plugin receives a copy of its own.
        text.code = code.as_mut_ptr().cast::<c_char>();
        text.code_size = code.len();
        text.format = format.as_ptr().cast();
        text.format_size = format.len();
        let encoded = options.encode();
        let mut arguments = abi::ClientCompile::of(self.owned.raw.0);
        arguments.program = &raw const text;
        arguments.compile_options = encoded.as_ptr().cast();
        arguments.compile_options_size = encoded.len();
        let arguments = self.owned.plugin.call(arguments)?;
        Executable::new(&self.owned, arguments.executable)
    }

    /// Loads an executable that [`Executable::serialize`] returned, from the same version of the plugin and the same kind of device.
    ///
    /// # Errors
    /// The plugin's error, for example when another version wrote the executable.
    pub fn deserialize(&self, serialized: &[u8]) -> Result<Executable, Error> {
        let mut arguments = abi::ExecutableDeserializeAndLoad::of(self.owned.raw.0);
        arguments.serialized_executable = serialized.as_ptr().cast();
        arguments.serialized_executable_size = serialized.len();
        let arguments = self.owned.plugin.call(arguments)?;
        Executable::new(&self.owned, arguments.loaded_executable)
    }

    /// Creates a buffer from host memory with the elements in row-major order. If the device uses host memory, the buffer may share the
    /// memory of `data`. `data` is kept as long as the plugin needs it.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] when the length of `data` does not match the shape; the plugin's error, such as
    /// [`Code::ResourceExhausted`]. Later errors are reported by [`Buffer::ready`].
    pub fn upload(&self, element_type: ElementType, dimensions: &[i64], data: Bytes) -> Result<Buffer, Error> {
        let shape = Shape {
            element_type,
            dimensions: dimensions.to_vec(),
        };
        if shape.host_bytes() != Some(data.len()) {
            let message = format!("{} bytes are given for {shape}", data.len());
            return Err(Error::new(abi::ClientBufferFromHostBuffer::NAME, Code::InvalidArgument, message));
        }
        let mut arguments = abi::ClientBufferFromHostBuffer::of(self.owned.raw.0);
        arguments.data = data.as_ptr().cast();
        arguments.element_type = element_type as i32;
        arguments.dims = dimensions.as_ptr();
        arguments.num_dims = dimensions.len();
        arguments.host_buffer_semantics = abi::IMMUTABLE_ZERO_COPY;
        arguments.device = self.device.0;
        let plugin = &self.owned.plugin;
        let arguments = plugin.call(arguments)?;
        let done = Event::new(plugin, arguments.done_with_host_buffer, abi::ClientBufferFromHostBuffer::NAME);
        let buffer = Buffer::new(&self.owned, arguments.buffer);
        let kept = data.clone();
        if let Err(error) = done.on_ready(move |_| drop(kept)) {
            // The plugin will not report when it no longer needs the memory, so the memory is leaked.
            std::mem::forget(data);
            return Err(error);
        }
        Ok(buffer)
    }
}
