//! Kernels and variables that a program registers, and their modules in each context.
//!
//! The host compiler emits an object of the host for each kernel and variable; its address names it. Registration happens before `main`,
//! thousands of times in large programs, so it only notes: an image is loaded in a context when something of it is used there.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use sahasra_cuda_boundary::log;

use crate::Error;
use crate::boundary::{Handle, Out, Pointer, Text};
use crate::driver::Driver;

/// What a program registered under an address of the host.
#[derive(Clone)]
struct Entry {
    binary: u64,
    name: Arc<CString>,
}

#[derive(Default)]
struct Registry {
    /// Images by number.
    binaries: HashMap<u64, usize>,
    /// Numbers of images with variables in managed memory.
    managed: HashSet<u64>,
    functions: HashMap<usize, Entry>,
    variables: HashMap<usize, Entry>,
    last_binary: u64,
}

/// Modules and functions by context and image, or context and address.
#[derive(Default)]
struct Loaded {
    modules: HashMap<(u64, u64), Result<Handle, Error>>,
    functions: HashMap<(u64, usize), Handle>,
}

static REGISTRY: RwLock<Option<Registry>> = RwLock::new(None);
static LOADED: RwLock<Option<Loaded>> = RwLock::new(None);
/// One image is loaded at a time: two threads that need the same one load it once.
static LOADING: Mutex<()> = Mutex::new(());
/// Kernels that the driver library gave a program, which it may launch in place of addresses.
static KERNELS: RwLock<Option<HashSet<Handle>>> = RwLock::new(None);

/// Notes an image. Returns its number, which is never 0.
pub(crate) fn add_binary(image: usize) -> u64 {
    let mut registry = REGISTRY.write();
    let registry = registry.get_or_insert_default();
    // Numbers look like addresses to programs that print them.
    registry.last_binary += 16;
    registry.binaries.insert(registry.last_binary, image);
    registry.last_binary
}

/// Forgets an image and what was registered with it. Modules stay until their context ends.
pub(crate) fn remove_binary(binary: u64) {
    let mut registry = REGISTRY.write();
    let registry = registry.get_or_insert_default();
    registry.binaries.remove(&binary);
    registry.managed.remove(&binary);
    registry.functions.retain(|_, entry| entry.binary != binary);
    registry.variables.retain(|_, entry| entry.binary != binary);
    if let Some(loaded) = LOADED.write().as_mut() {
        // The address may be given to another kernel by a library that is loaded in the place of this one.
        loaded.functions.clear();
    }
}

pub(crate) fn add_function(binary: u64, address: usize, name: CString) {
    let name = Arc::new(name);
    REGISTRY
        .write()
        .get_or_insert_default()
        .functions
        .insert(address, Entry { binary, name });
}

pub(crate) fn add_variable(binary: u64, address: usize, name: CString) {
    let name = Arc::new(name);
    REGISTRY
        .write()
        .get_or_insert_default()
        .variables
        .insert(address, Entry { binary, name });
}

/// Forgets modules of all contexts, after one was reset: they are loaded again where they are used.
pub(crate) fn forget_modules() {
    *LOADED.write() = None;
    *KERNELS.write() = None;
}

/// Notes a kernel that a program got from the driver library.
pub(crate) fn add_kernel(kernel: Handle) {
    KERNELS.write().get_or_insert_default().insert(kernel);
}

/// Refuses an address that is not registered as a kernel's.
pub(crate) fn check_function(address: usize) -> Result<(), Error> {
    let registry = REGISTRY.read();
    let is_known = registry.as_ref().is_some_and(|registry| registry.functions.contains_key(&address));
    if is_known { Ok(()) } else { Err(Error::INVALID_DEVICE_FUNCTION) }
}

/// The function in the current context of a registered address, or of a kernel of a library.
pub(crate) fn function(driver: &Driver, address: usize) -> Result<Handle, Error> {
    let context = context_id(driver)?;
    if let Some(loaded) = LOADED.read().as_ref()
        && let Some(function) = loaded.functions.get(&(context, address))
    {
        return Ok(*function);
    }
    let entry = REGISTRY
        .read()
        .as_ref()
        .and_then(|registry| registry.functions.get(&address).cloned());
    let Some(entry) = entry else {
        let kernel = Handle(address as u64);
        let is_known = KERNELS.read().as_ref().is_some_and(|kernels| kernels.contains(&kernel));
        return if is_known {
            Ok(kernel)
        } else {
            Err(Error::INVALID_DEVICE_FUNCTION)
        };
    };
    let module = module(driver, context, entry.binary)?;
    let mut function = Handle::NULL;
    let found = driver.cuModuleGetFunction(Out::new(&raw mut function), module, Text::new(entry.name.as_ptr()));
    found.map_err(|error| missing_name(error, Error::INVALID_DEVICE_FUNCTION))?;
    LOADED
        .write()
        .get_or_insert_default()
        .functions
        .insert((context, address), function);
    Ok(function)
}

/// Address and bytes in the current context of a registered variable.
pub(crate) fn variable(driver: &Driver, address: usize) -> Result<(u64, usize), Error> {
    let context = context_id(driver)?;
    let entry = REGISTRY
        .read()
        .as_ref()
        .and_then(|registry| registry.variables.get(&address).cloned());
    let entry = entry.ok_or(Error::INVALID_SYMBOL)?;
    let module = module(driver, context, entry.binary)?;
    let (mut start, mut bytes) = (0, 0);
    let found = driver.cuModuleGetGlobal_v2(
        Out::new(&raw mut start),
        Out::new(&raw mut bytes),
        module,
        Text::new(entry.name.as_ptr()),
    );
    found.map_err(|error| missing_name(error, Error::INVALID_SYMBOL))?;
    Ok((start, bytes))
}

/// The registered address of a function that the driver library knows, or its handle.
pub(crate) fn address_of(function: Handle) -> u64 {
    let loaded = LOADED.read();
    let functions = loaded.iter().flat_map(|loaded| &loaded.functions);
    let address = functions
        .filter(|(_, known)| **known == function)
        .map(|((_, address), _)| *address as u64);
    address.last().unwrap_or(function.0)
}

/// Number of the current context, which no other context has or had.
fn context_id(driver: &Driver) -> Result<u64, Error> {
    let mut id = 0;
    driver.cuCtxGetId(Handle::NULL, Out::new(&raw mut id))?;
    Ok(id)
}

fn missing_name(error: Error, name_error: Error) -> Error {
    if error == Error::SYMBOL_NOT_FOUND { name_error } else { error }
}

/// The module of an image in a context.
fn module(driver: &Driver, context: u64, binary: u64) -> Result<Handle, Error> {
    let known = || {
        LOADED
            .read()
            .as_ref()
            .and_then(|loaded| loaded.modules.get(&(context, binary)).copied())
    };
    if let Some(module) = known() {
        return module;
    }
    let _one_at_a_time = LOADING.lock();
    if let Some(module) = known() {
        return module;
    }
    let (image, is_managed) = {
        let registry = REGISTRY.read();
        let registry = registry.as_ref();
        (
            registry.and_then(|registry| registry.binaries.get(&binary).copied()),
            registry.is_some_and(|registry| registry.managed.contains(&binary)),
        )
    };
    if is_managed {
        return Err(Error::NOT_SUPPORTED);
    }
    let image = image.ok_or(Error::INVALID_DEVICE_FUNCTION)?;
    let mut module = Handle::NULL;
    let loaded = driver
        .cuModuleLoadData(Out::new(&raw mut module), Pointer::of_address(image))
        .map(|()| module);
    // What a fault of a kernel prevented is not the image's.
    if loaded.is_ok() || loaded.is_err_and(is_of_image) {
        LOADED.write().get_or_insert_default().modules.insert((context, binary), loaded);
    }
    loaded
}

/// Whether an error stays with its image: another attempt would fail too.
fn is_of_image(error: Error) -> bool {
    matches!(
        error,
        Error::NO_KERNEL_IMAGE_FOR_DEVICE
            | Error::INVALID_PTX
            | Error::INVALID_KERNEL_IMAGE
            | Error::UNSUPPORTED_PTX_VERSION
            | Error::NOT_SUPPORTED
    )
}

/// Refuses all kernels and variables of an image, because of a variable in managed memory: the host would read its shadow, which has no address.
pub(crate) fn refuse_managed(binary: u64, name: &CString) {
    REGISTRY.write().get_or_insert_default().managed.insert(binary);
    log::once(format!(
        "the managed variable {} is not supported, so no kernel or other variable of its image is used; use cudaMallocManaged",
        name.to_string_lossy()
    ));
}
