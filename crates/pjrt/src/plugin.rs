//! A loaded plugin, and how its functions are called.

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

/// The major version that this crate speaks.
const MAJOR: i32 = 0;
/// The oldest minor version that has every function and field that is used here.
const OLDEST_MINOR: i32 = 72;
/// `PJRT_Client_Create` and all before it: without them a table is none.
const FEWEST_FUNCTIONS: usize = 11;

/// Why there is no plugin.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not there, or is no library for this machine.
    #[error("load the PJRT plugin {path:?}")]
    Library {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: libloading::Error,
    },
    /// A library, but no plugin.
    #[error("{path:?} is no PJRT plugin: it has no function GetPjrtApi")]
    NoPlugin {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: libloading::Error,
    },
    /// A plugin of a version with which nothing can be agreed.
    #[error("the PJRT plugin {path:?} has API {major}.{minor}; {MAJOR}.{OLDEST_MINOR} or newer is needed, below {}.0", MAJOR + 1)]
    Version {
        /// Where.
        path: PathBuf,
        /// Its major version.
        major: i32,
        /// Its minor version.
        minor: i32,
    },
    /// It could not set itself up.
    #[error("initialise the PJRT plugin {path:?}")]
    Initialise {
        /// Where.
        path: PathBuf,
        /// Why.
        source: Error,
    },
}

/// A plugin: the functions that drive one kind of device. It is never unloaded.
#[derive(Debug)]
pub struct Plugin {
    api: *const Api,
    path: PathBuf,
    _library: ManuallyDrop<Library>,
}

// SAFETY: the table is constant and its functions may be called from any thread (pjrt_c_api.h).
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads a plugin, checks its version and initialises it.
    ///
    /// # Errors
    /// When it is missing, is none, is of another version, or fails to initialise.
    pub fn load(path: impl AsRef<Path>) -> Result<Arc<Self>, LoadError> {
        let path = path.as_ref().to_path_buf();
        // SAFETY: runs the library's initialisers. Whoever names a plugin trusts it like this program itself.
        let library = match unsafe { Library::new(&path) } {
            Ok(library) => ManuallyDrop::new(library),
            Err(source) => return Err(LoadError::Library { path, source }),
        };
        // SAFETY: the type is that of the header's `GetPjrtApi`.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const Api>(b"GetPjrtApi\0") };
        let api = match entry {
            // SAFETY: takes nothing, and returns a table that lives as long as the library, which stays.
            Ok(entry) => unsafe { entry() },
            Err(source) => return Err(LoadError::NoPlugin { path, source }),
        };
        // SAFETY: a table begins with its size and version; one that is null has none.
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
        match plugin.call(&mut abi::PluginInitialize::new()) {
            Ok(()) => Ok(Arc::new(plugin)),
            Err(source) => Err(LoadError::Initialise { path, source }),
        }
    }

    /// Where it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor version of its API.
    pub fn version(&self) -> (i32, i32) {
        // SAFETY: checked when loaded.
        let version = unsafe { &(*self.api).version };
        (version.major, version.minor)
    }

    /// What it says of itself: among others `stablehlo_current_version` and `stablehlo_minimum_version`, three numbers each.
    ///
    /// # Errors
    /// What the plugin reports.
    pub fn attributes(&self) -> Result<Vec<(String, Setting)>, Error> {
        let mut arguments = abi::PluginAttributes::new();
        self.call(&mut arguments)?;
        Ok(named_values(arguments.attributes, arguments.num_attributes))
    }

    /// Functions in its table.
    fn functions(&self) -> usize {
        // SAFETY: checked when loaded.
        let size = unsafe { (*self.api).struct_size };
        size.saturating_sub(size_of::<Api>()) / size_of::<usize>()
    }

    /// The pointer at a function's place.
    fn function<F: Function>(&self) -> Option<unsafe extern "C" fn(*mut F) -> *mut RawError> {
        if F::PLACE >= self.functions() {
            return None;
        }
        // SAFETY: the place lies within the table, whose entries are pointers to functions of this shape or null.
        unsafe {
            let table = self.api.add(1).cast::<Option<unsafe extern "C" fn(*mut F) -> *mut RawError>>();
            *table.add(F::PLACE)
        }
    }

    /// Calls the function that takes such arguments.
    pub(crate) fn call<F: Function>(&self, arguments: &mut F) -> Result<(), Error> {
        let Some(function) = self.function::<F>() else {
            let (major, minor) = self.version();
            return Err(Error {
                function: F::NAME,
                code: Code::Unimplemented,
                message: format!("the plugin {:?} of API {major}.{minor} does not have it", self.path),
            });
        };
        // SAFETY: the arguments are those of this function, sized and initialised.
        let error = unsafe { function(arguments) };
        self.check(F::NAME, error)
    }

    /// Takes an error over, if it is one.
    pub(crate) fn check(&self, function: &'static str, error: *mut RawError) -> Result<(), Error> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = abi::ErrorMessage::new();
        message.error = error;
        let mut code = abi::ErrorGetCode::new();
        code.error = error;
        let mut destroy = abi::ErrorDestroy::new();
        destroy.error = error;
        // `PJRT_Error_Message` and `_Destroy` return nothing: they are called by other types than the rest.
        let text = self.void::<abi::ErrorMessage>().map(|function| {
            // SAFETY: the error is alive, and the text lives as long as it.
            unsafe {
                function(&mut message);
                text(message.message, message.message_size)
            }
        });
        if let Some(function) = self.function::<abi::ErrorGetCode>() {
            // SAFETY: the error is alive. That its code cannot be had is no second error.
            unsafe { function(&mut code) };
        }
        if let Some(function) = self.void::<abi::ErrorDestroy>() {
            // SAFETY: the error is alive and is not used afterwards.
            unsafe { function(&mut destroy) };
        }
        Err(Error {
            function,
            code: Code::of(code.code),
            message: text.unwrap_or_default(),
        })
    }

    /// A function that returns nothing.
    fn void<F: Function>(&self) -> Option<unsafe extern "C" fn(*mut F)> {
        // SAFETY: same place and argument; only the result differs, which such a function does not have.
        self.function::<F>().map(|function| unsafe { std::mem::transmute(function) })
    }
}

/// A text of the plugin's.
///
/// # Safety
/// `start` must be null or point to `bytes` bytes.
pub(crate) unsafe fn text(start: *const c_char, bytes: usize) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: promised by the caller.
    let bytes = unsafe { slice::from_raw_parts(start.cast::<u8>(), bytes) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// Named values of the plugin's: those of types that are not known are left out.
pub(crate) fn named_values(start: *const NamedValue, count: usize) -> Vec<(String, Setting)> {
    let mut values = Vec::new();
    let mut at = start;
    for _ in 0..if start.is_null() { 0 } else { count } {
        // SAFETY: the plugin says that so many are there, each as long as it says itself.
        let value = unsafe { &*at };
        // SAFETY: the union is read as what `kind` says that it holds.
        let setting = unsafe {
            match value.kind {
                abi::STRING => Some(Setting::Text(text(value.value.string, value.value_size))),
                abi::INTEGER => Some(Setting::Integer(value.value.integer)),
                abi::INTEGERS if value.value.integers.is_null() => Some(Setting::Integers(Vec::new())),
                abi::INTEGERS => Some(Setting::Integers(
                    slice::from_raw_parts(value.value.integers, value.value_size).to_vec(),
                )),
                abi::FLOAT => Some(Setting::Float(value.value.float)),
                abi::BOOLEAN => Some(Setting::Boolean(value.value.boolean)),
                _ => None,
            }
        };
        // SAFETY: names are texts of so many bytes.
        let name = unsafe { text(value.name, value.name_size) };
        values.extend(setting.map(|setting| (name, setting)));
        // The header's array has elements of the header's size, which is this struct's.
        // SAFETY: stays within the array or one behind it.
        at = unsafe { at.add(1) };
    }
    values
}
