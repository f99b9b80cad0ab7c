//! Loading of a plugin, and calls of its functions.

use std::{
    ffi::c_char,
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    slice,
    sync::Arc,
};

use libloading::Library;

use crate::{
    abi::{self, Api, Function, NamedValue, RawError},
    client::Setting,
    error::{Code, Error},
};

/// Major version of the API that this crate supports.
const MAJOR: i32 = 0;
/// Oldest minor version of the API with all functions and fields that this crate needs.
const OLDEST_MINOR: i32 = 72;
/// Minimum number of functions in a valid table: `PJRT_Client_Create` and all functions before it.
const FEWEST_FUNCTIONS: usize = 11;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file does not exist, or is no library for this machine.
    #[error("load the PJRT plugin {path:?}")]
    Library { path: PathBuf, source: libloading::Error },
    #[error("{path:?} is no PJRT plugin: it has no function GetPjrtApi")]
    NoPlugin { path: PathBuf, source: libloading::Error },
    #[error("the PJRT plugin {path:?} has API {major}.{minor}; {MAJOR}.{OLDEST_MINOR} or newer is needed, below {}.0", MAJOR + 1)]
    Version { path: PathBuf, major: i32, minor: i32 },
    #[error("initialise the PJRT plugin {path:?}")]
    Initialise { path: PathBuf, source: Error },
}

/// A PJRT plugin: the functions for one kind of device. It is never unloaded.
#[derive(Debug)]
pub struct Plugin {
    api: *const Api,
    path: PathBuf,
    _library: ManuallyDrop<Library>,
}

// SAFETY: The table is constant, and its functions may be called from any thread (pjrt_c_api.h).
unsafe impl Send for Plugin {}
// SAFETY: The table is constant, and its functions may be called from any thread (pjrt_c_api.h).
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads a plugin, checks its version and initializes it.
    ///
    /// # Errors
    /// When the file is missing, is not a plugin, has an unsupported version, or fails to initialize.
    pub fn load(path: impl AsRef<Path>) -> Result<Arc<Self>, LoadError> {
        let path = path.as_ref().to_path_buf();
        // SAFETY: Loading runs the library's initializers. A caller that names a plugin must trust it like this program itself.
        let library = match unsafe { Library::new(&path) } {
            Ok(library) => ManuallyDrop::new(library),
            Err(source) => return Err(LoadError::Library { path, source }),
        };
        // SAFETY: The type is that of `GetPjrtApi` in the header.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const Api>(b"GetPjrtApi\0") };
        let api = match entry {
            // SAFETY: The function has no parameters, and returns a table that lives as long as the library, which is never unloaded.
            Ok(entry) => unsafe { entry() },
            Err(source) => return Err(LoadError::NoPlugin { path, source }),
        };
        // SAFETY: A table that is not null begins with its size and version.
        let version = unsafe { api.as_ref() }.map_or((-1, -1), |api| (api.version.major, api.version.minor));
        let plugin = Self {
            api,
            path: path.clone(),
            _library: library,
        };
        let (major, minor) = version;
        if major != MAJOR || minor < OLDEST_MINOR || plugin.functions() < FEWEST_FUNCTIONS {
            return Err(LoadError::Version { path, major, minor });
        }
        match plugin.call(abi::PluginInitialize::new()) {
            Ok(_) => Ok(Arc::new(plugin)),
            Err(source) => Err(LoadError::Initialise { path, source }),
        }
    }

    /// Returns the major and minor version of the plugin's API.
    pub fn version(&self) -> (i32, i32) {
        // SAFETY: `load` checked the table.
        let version = unsafe { &(*self.api).version };
        (version.major, version.minor)
    }

    /// Returns the plugin's attributes, such as `stablehlo_current_version` and `stablehlo_minimum_version` with three numbers each.
    pub fn attributes(&self) -> Result<Vec<(String, Setting)>, Error> {
        let arguments = self.call(abi::PluginAttributes::of(std::ptr::null()))?;
        Ok(named_values(arguments.attributes, arguments.num_attributes))
    }

    fn functions(&self) -> usize {
        // SAFETY: `load` checked the table.
        let size = unsafe { (*self.api).struct_size };
        size.saturating_sub(size_of::<Api>()) / size_of::<usize>()
    }

    /// Returns the pointer to a function, or `None` if the plugin does not have it.
    fn function<F: Function>(&self) -> Option<unsafe extern "C" fn(*mut F) -> *mut RawError> {
        if F::PLACE >= self.functions() {
            return None;
        }
        // SAFETY: The index lies within the table, whose entries are null or pointers to functions with this signature.
        unsafe {
            let table = self.api.add(1).cast::<Option<unsafe extern "C" fn(*mut F) -> *mut RawError>>();
            *table.add(F::PLACE)
        }
    }

    /// Calls the function that takes these arguments. Returns them with the fields that the function has set.
    pub(crate) fn call<F: Function>(&self, mut arguments: F) -> Result<F, Error> {
        let Some(function) = self.function::<F>() else {
            let (major, minor) = self.version();
            let message = format!("the plugin {:?} of API {major}.{minor} does not have it", self.path);
            return Err(Error::new(F::NAME, Code::Unimplemented, message));
        };
        // SAFETY: The arguments are those of this function, and their size and fields are initialized.
        let error = unsafe { function(&raw mut arguments) };
        self.check(F::NAME, error).map(|()| arguments)
    }

    /// Converts an error of the plugin, and destroys the original.
    pub(crate) fn check(&self, function: &'static str, error: *mut RawError) -> Result<(), Error> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = abi::ErrorMessage::of(error);
        let mut code = abi::ErrorGetCode::of(error);
        let mut destroy = abi::ErrorDestroy::of(error);
        // `PJRT_Error_Message` and `PJRT_Error_Destroy` return nothing, so their type differs from that of the other functions.
        let text = self.void::<abi::ErrorMessage>().map(|function| {
            // SAFETY: The error is alive, and the text lives as long as the error.
            unsafe {
                function(&mut message);
                text(message.message, message.message_size)
            }
        });
        if let Some(function) = self.function::<abi::ErrorGetCode>() {
            // SAFETY: The error is alive. A failure to get its code is ignored.
            unsafe { function(&mut code) };
        }
        if let Some(function) = self.void::<abi::ErrorDestroy>() {
            // SAFETY: The error is alive and is not used afterwards.
            unsafe { function(&mut destroy) };
        }
        Err(Error::new(function, Code::of(code.code), text.unwrap_or_default()))
    }

    /// Returns the pointer to a function that returns nothing.
    fn void<F: Function>(&self) -> Option<unsafe extern "C" fn(*mut F)> {
        // SAFETY: The function at this index has this parameter and no result. Only the result differs in the type of `function`.
        self.function::<F>().map(|function| unsafe { std::mem::transmute(function) })
    }
}

/// Returns an array of the plugin; empty if `start` is null. The pointer to an empty array may be invalid.
///
/// # Safety
/// `start` must be null or point to `count` elements, which live and do not change as long as the slice.
pub(crate) unsafe fn array<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if start.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: Guaranteed by the caller.
    unsafe { slice::from_raw_parts(start, count) }
}

/// Copies a text of the plugin. Invalid UTF-8 is replaced.
///
/// # Safety
/// `start` must be null or point to `bytes` bytes.
pub(crate) unsafe fn text(start: *const c_char, bytes: usize) -> String {
    // SAFETY: Guaranteed by the caller.
    String::from_utf8_lossy(unsafe { array(start.cast::<u8>(), bytes) }).into_owned()
}

/// Copies named values of the plugin. Values of unknown types are skipped.
pub(crate) fn named_values(start: *const NamedValue, count: usize) -> Vec<(String, Setting)> {
    let mut values = Vec::new();
    // SAFETY: The plugin's array has `count` elements. The header defines their size, which is that of `NamedValue`.
    for value in unsafe { array(start, count) } {
        // SAFETY: `kind` says which field of the union is valid.
        let setting = unsafe {
            match value.kind {
                abi::STRING => Some(Setting::Text(text(value.value.string, value.value_size))),
                abi::INTEGER => Some(Setting::Integer(value.value.integer)),
                abi::INTEGERS => Some(Setting::Integers(array(value.value.integers, value.value_size).to_vec())),
                abi::FLOAT => Some(Setting::Float(value.value.float)),
                abi::BOOLEAN => Some(Setting::Boolean(value.value.boolean)),
                _ => None,
            }
        };
        // SAFETY: The name is a text of this length.
        let name = unsafe { text(value.name, value.name_size) };
        values.extend(setting.map(|setting| (name, setting)));
    }
    values
}
