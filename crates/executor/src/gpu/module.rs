//! Modules on the GPU, with what the driver says about them.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute, CUjit_option, CUjitInputType, CUresult};
use sahasra_cuda_device::{Failure, FunctionDescription, LoadFailure, ModuleDescription, ParameterPlace, VariableDescription};

use super::outcome::{check, check_launch, check_load};
use super::symbols::{Form, Symbols};

/// Size of the buffer for the compiler's error log, in bytes.
const LOG: usize = 8 << 10;
/// Dynamic shared memory of a block that a kernel may have without asking for it, in bytes, with its static shared memory (CUDA C++
/// Programming Guide, "Compute Capabilities").
const SHARED_BYTES: u32 = 48 << 10;

/// A kernel of a loaded module.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) function: sys::CUfunction,
    pub(super) name: String,
    pub(super) parameter_bytes: u32,
    /// Maximum dynamic shared memory that was set, in bytes.
    dynamic_shared: AtomicU32,
}

/// A loaded module of the current context. Nothing unloads it but [`Module::unload`] and the end of the context.
#[derive(Debug)]
pub(super) struct Module {
    module: sys::CUmodule,
    pub(super) functions: Vec<Function>,
    /// Sizes of variables in bytes by their addresses.
    pub(super) variables: BTreeMap<u64, u64>,
    pub(super) description: ModuleDescription,
    /// Bytes with which the module counts.
    pub(super) bytes: u64,
    pub(super) prints: bool,
}

// SAFETY: handles may be used by any thread in which their context is current; the driver locks.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// Link state; destroyed on drop.
struct Linker(sys::CUlinkState);

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: created by `Linker::link` and destroyed once.
        let _ = unsafe { sys::cuLinkDestroy(self.0) };
    }
}

/// Buffer for the compiler's errors, and the options that name it.
struct Log {
    buffer: Vec<u8>,
    options: [CUjit_option; 2],
    values: [*mut c_void; 2],
}

impl Log {
    fn new() -> Self {
        let mut buffer = vec![0u8; LOG];
        let values = [buffer.as_mut_ptr().cast::<c_void>(), LOG as *mut c_void];
        Self {
            buffer,
            options: [
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            ],
            values,
        }
    }

    fn text(&self) -> String {
        let end = self.buffer.iter().position(|byte| *byte == 0).unwrap_or(self.buffer.len());
        String::from_utf8_lossy(&self.buffer[..end]).into_owned()
    }
}

/// Loads one image, whose text ends with a zero byte.
fn load_one(image: &[u8]) -> Result<sys::CUmodule, LoadFailure> {
    let mut log = Log::new();
    let mut module = std::ptr::null_mut();
    // SAFETY: options and log outlive the call. A text ends with a zero byte, and machine code was checked to have the length it announces.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast(),
            2,
            log.options.as_mut_ptr(),
            log.values.as_mut_ptr(),
        )
    };
    check_load("cuModuleLoadDataEx", result, &log.text())?;
    Ok(module)
}

/// Links images and loads the result.
fn link(images: &[Vec<u8>]) -> Result<sys::CUmodule, LoadFailure> {
    let mut log = Log::new();
    let mut state = std::ptr::null_mut();
    let (mut image, mut length, mut module) = (std::ptr::null_mut(), 0usize, std::ptr::null_mut());
    // SAFETY: options and log outlive the link state, which is destroyed at the end of this function after the driver has loaded its image.
    unsafe {
        check(
            "cuLinkCreate",
            sys::cuLinkCreate_v2(2, log.options.as_mut_ptr(), log.values.as_mut_ptr(), &mut state),
        )?;
        let linker = Linker(state);
        for bytes in images {
            let kind = match Form::of(bytes) {
                Form::Text => CUjitInputType::CU_JIT_INPUT_PTX,
                Form::Cubin => CUjitInputType::CU_JIT_INPUT_CUBIN,
                Form::FatBinary => CUjitInputType::CU_JIT_INPUT_FATBINARY,
                Form::Object => CUjitInputType::CU_JIT_INPUT_OBJECT,
                Form::Archive => CUjitInputType::CU_JIT_INPUT_LIBRARY,
            };
            let data = bytes.as_ptr().cast_mut().cast();
            let (name, none, nothing) = (c"image".as_ptr(), std::ptr::null_mut(), std::ptr::null_mut());
            let added = sys::cuLinkAddData_v2(linker.0, kind, data, bytes.len(), name, 0, none, nothing);
            check_load("cuLinkAddData", added, &log.text())?;
        }
        let completed = sys::cuLinkComplete(linker.0, &mut image, &mut length);
        check_load("cuLinkComplete", completed, &log.text())?;
        check_load("cuModuleLoadData", sys::cuModuleLoadData(&mut module, image), "")?;
    }
    Ok(module)
}

impl Module {
    /// Loads images, linked if there are several, in the current context.
    pub(super) fn load(images: &[&[u8]], symbols: &Symbols, bytes: u64) -> Result<Self, LoadFailure> {
        let owned = |image: &&[u8]| {
            let mut owned = image.to_vec();
            if Form::of(image) == Form::Text {
                owned.push(0);
            }
            owned
        };
        let has_zero = |image: &&[u8]| Form::of(image) == Form::Text && image.contains(&0);
        if images.iter().any(has_zero) {
            return Err(LoadFailure::Invalid("the text has a zero byte".to_owned()));
        }
        let images: Vec<Vec<u8>> = images.iter().map(owned).collect();
        let module = match &images[..] {
            [] => return Err(LoadFailure::Invalid("a module without images".to_owned())),
            // Objects and archives are inputs of the linker only.
            [image] if !matches!(Form::of(image), Form::Object | Form::Archive) => load_one(image)?,
            images => link(images)?,
        };
        Self::describe(module, symbols, bytes).map_err(|failure| {
            // SAFETY: loaded above, and nothing uses it.
            let _ = unsafe { sys::cuModuleUnload(module) };
            failure.into()
        })
    }

    fn describe(module: sys::CUmodule, symbols: &Symbols, bytes: u64) -> Result<Self, Failure> {
        let mut count = 0;
        // SAFETY: the module is loaded; the driver writes a number, and as many handles.
        let mut handles = unsafe {
            check("cuModuleGetFunctionCount", sys::cuModuleGetFunctionCount(&mut count, module))?;
            let mut handles = vec![std::ptr::null_mut(); count as usize];
            check(
                "cuModuleEnumerateFunctions",
                sys::cuModuleEnumerateFunctions(handles.as_mut_ptr(), count, module),
            )?;
            handles
        };
        let mut described = Vec::with_capacity(handles.len());
        for function in handles.drain(..) {
            let mut description = describe_function(function)?;
            // The driver has no attribute for it, and refuses a launch in another shape.
            description.required_block = symbols.required_blocks.get(&description.name).copied();
            described.push((description, function));
        }
        // The order of the texts, or else of the names: the driver documents none, and every load of an image must have the same.
        let place = |name: &str| symbols.kernels.iter().position(|known| known == name).unwrap_or(usize::MAX);
        described.sort_by_cached_key(|(function, _)| (place(&function.name), function.name.clone()));
        let functions = described.iter().map(|(description, function)| Function {
            function: *function,
            name: description.name.clone(),
            parameter_bytes: description.parameter_bytes,
            dynamic_shared: AtomicU32::new(SHARED_BYTES.saturating_sub(description.shared_bytes)),
        });
        let functions = functions.collect();
        let mut variables = Vec::new();
        for name in &symbols.variables {
            variables.extend(find_variable(module, name)?);
        }
        Ok(Self {
            module,
            functions,
            variables: variables.iter().map(|variable| (variable.address, variable.bytes)).collect(),
            description: ModuleDescription {
                functions: described.into_iter().map(|(description, _)| description).collect(),
                variables,
            },
            bytes,
            prints: symbols.prints,
        })
    }

    /// Unloads the module from the current context.
    pub(super) fn unload(&self) -> Result<(), Failure> {
        // SAFETY: loaded in this context, and the caller has waited for its launches.
        check("cuModuleUnload", unsafe { sys::cuModuleUnload(self.module) })
    }
}

impl Function {
    /// Allows launches with this much dynamic shared memory.
    pub(super) fn allow_dynamic_shared(&self, bytes: u32) -> Result<(), Failure> {
        if bytes <= self.dynamic_shared.load(Ordering::Relaxed) {
            return Ok(());
        }
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded; the driver reads a number.
        let set = unsafe { sys::cuFuncSetAttribute(self.function, attribute, value) };
        check_launch("dynamic shared memory", set)?;
        self.dynamic_shared.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

fn describe_function(function: sys::CUfunction) -> Result<FunctionDescription, Failure> {
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: the function is loaded; the driver writes a number.
        let result = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) };
        check("cuFuncGetAttribute", result).map(|()| u32::try_from(value).unwrap_or(0))
    };
    let mut name = std::ptr::null();
    // SAFETY: the function is loaded; the driver writes a pointer to its name, which lives as long as it.
    let name = unsafe {
        check("cuFuncGetName", sys::cuFuncGetName(&mut name, function))?;
        CStr::from_ptr(name).to_string_lossy().into_owned()
    };
    let mut parameters = Vec::new();
    loop {
        let (mut offset, mut size) = (0usize, 0usize);
        // SAFETY: the function is loaded; the driver writes two numbers.
        let result = unsafe { sys::cuFuncGetParamInfo(function, parameters.len(), &mut offset, &mut size) };
        if result == CUresult::CUDA_ERROR_INVALID_VALUE {
            break;
        }
        check("cuFuncGetParamInfo", result)?;
        parameters.push(ParameterPlace {
            offset: offset as u32,
            bytes: size as u32,
        });
    }
    Ok(FunctionDescription {
        name,
        parameter_bytes: parameters.iter().map(|place| place.offset + place.bytes).max().unwrap_or(0),
        parameters,
        shared_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        local_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        max_threads: attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        required_block: None,
        registers: Some(attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?).filter(|registers| *registers > 0),
        constant_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?,
        refusal: None,
    })
}

/// A variable, unless the driver does not know it: compilers leave unused ones out.
fn find_variable(module: sys::CUmodule, name: &str) -> Result<Option<VariableDescription>, Failure> {
    let Ok(text) = CString::new(name) else { return Ok(None) };
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the module is loaded; the driver writes an address and a number.
    let found = unsafe { sys::cuModuleGetGlobal_v2(&mut address, &mut bytes, module, text.as_ptr()) };
    if found == CUresult::CUDA_ERROR_NOT_FOUND {
        return Ok(None);
    }
    check("cuModuleGetGlobal", found)?;
    Ok(Some(VariableDescription {
        name: name.to_owned(),
        address,
        bytes: bytes as u64,
    }))
}
