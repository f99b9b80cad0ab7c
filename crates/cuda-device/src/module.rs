//! What a device says about a module that it loaded: enough to answer every question about the module without asking again.

use sahasra_ptx::{Kernel, LoadedModule};

/// Functions and variables of a loaded module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleDescription {
    /// Kernels in the order of the text.
    pub functions: Vec<FunctionDescription>,
    /// Module-scope variables in the order of the text.
    pub variables: Vec<VariableDescription>,
}

/// Place of a parameter in the parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterPlace {
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionDescription {
    /// Name in the text.
    pub name: String,
    /// Parameters in order.
    pub parameters: Vec<ParameterPlace>,
    /// Size of the parameter block in bytes.
    pub parameter_bytes: u32,
    /// Static shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Local memory of a thread in bytes.
    pub local_bytes: u32,
    /// Maximum threads of a block.
    pub max_threads: u32,
    /// Block shape that the text requires.
    pub required_block: Option<[u32; 3]>,
    /// Registers of a thread; `None` for the PTX engine, which has no limit.
    pub registers: Option<u32>,
    /// Constant memory in bytes, as far as it is known.
    pub constant_bytes: u32,
    /// Why the device does not run it, if it does not run it.
    pub refusal: Option<String>,
}

/// A module-scope variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableDescription {
    /// Name in the text.
    pub name: String,
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl FunctionDescription {
    fn of(kernel: &Kernel) -> Self {
        let small = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let places = kernel.parameters().iter().map(|parameter| ParameterPlace {
            offset: small(parameter.offset as u64),
            bytes: small(parameter.size as u64),
        });
        Self {
            name: kernel.name().to_owned(),
            parameters: places.collect(),
            parameter_bytes: small(kernel.parameter_bytes() as u64),
            shared_bytes: small(kernel.static_shared_bytes()),
            local_bytes: small(kernel.local_bytes()),
            max_threads: kernel.max_threads(),
            required_block: kernel.required_block(),
            registers: None,
            constant_bytes: 0,
            refusal: kernel.refusal().map(ToString::to_string),
        }
    }
}

impl ModuleDescription {
    pub(crate) fn of(loaded: &LoadedModule, kernels: &[Kernel]) -> Self {
        let variables = loaded.symbols().map(|(name, address, bytes)| VariableDescription {
            name: name.to_owned(),
            address: address.0,
            bytes,
        });
        Self {
            functions: kernels.iter().map(FunctionDescription::of).collect(),
            variables: variables.collect(),
        }
    }
}
