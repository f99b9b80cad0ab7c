//! Loaded modules, their kernels, and the arguments of a launch.

mod arguments;
mod link;
mod variable;

use std::fmt;
use std::sync::Arc;

pub use arguments::ArgumentList;
pub use link::LinkError;
use variable::Variable;

use crate::cancel::Cancel;
use crate::compile::code::Code;
use crate::execute::{self, Launch, LaunchStatistics, Program, volume};
use crate::fault::Fault;
use crate::memory::{DevicePointer, Memory, MemoryError};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::ThreadLimit;
use sahasra_ptx_syntax::types::ScalarType;

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in the PTX text.
    pub name: String,
    /// Type of one element.
    pub scalar: ScalarType,
    /// Size in the parameter buffer, in bytes.
    pub size: usize,
    /// Alignment in the parameter buffer, in bytes.
    pub align: usize,
    /// Offset in the parameter buffer, in bytes.
    pub offset: usize,
    /// Whether the text declares the parameter as a pointer (`.ptr`). Many compilers omit this.
    pub is_pointer: bool,
}

struct Entry {
    name: String,
    parameters: Vec<Parameter>,
    parameter_bytes: usize,
    thread_limit: Option<ThreadLimit>,
    /// Without code, why the engine does not run the kernel, and the index of the text.
    code: Result<Code, (usize, LoadError)>,
}

struct Inner {
    entries: Vec<Entry>,
    variables: Vec<Option<Variable>>,
    /// Whether the module has `.global` variables, whose values persist from launch to launch.
    has_globals: bool,
    declares_malloc: bool,
    declares_printf: bool,
    files: Vec<(u64, String)>,
}

/// A checked and compiled PTX module. Clones share it.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

impl fmt::Debug for Module {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_list()
            .entries(self.0.entries.iter().map(|entry| &entry.name))
            .finish()
    }
}

impl Module {
    /// Parses, checks and compiles PTX text. A trailing NUL is ignored.
    ///
    /// # Errors
    /// The first error or unsupported feature in the text, with its position.
    pub fn load(ptx: &str) -> Result<Self, LoadError> {
        let inner = link::link(&[ptx], false).map_err(|(_, error)| error)?;
        Ok(Self(Arc::new(inner)))
    }

    /// Links texts to one module: what a text declares `.extern`, or declares without defining it, is what another text defines as
    /// `.visible`, `.weak` or `.common` (PTX ISA §11.6). Of several weak definitions, the first one is taken.
    ///
    /// A kernel that has, or may call, what this engine does not support is refused when it is launched, as long as other kernels run: see
    /// [`Kernel::refusal`].
    ///
    /// # Errors
    /// The first error, and the text that has it. The first unsupported feature, if no kernel runs.
    pub fn link(texts: &[&str]) -> Result<Self, LinkError> {
        let inner = link::link(texts, true).map_err(|(text, error)| LinkError { text, error, kernel: None })?;
        let module = Self(Arc::new(inner));
        let entries = &module.0.entries;
        match entries.first().map(|entry| (&entry.name, &entry.code)) {
            Some((name, Err((text, error)))) if entries.iter().all(|entry| entry.code.is_err()) => Err(LinkError {
                text: *text,
                error: error.clone(),
                kernel: Some(name.clone()),
            }),
            _ => Ok(module),
        }
    }

    /// Returns the module's kernels in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = Kernel> + '_ {
        (0..self.0.entries.len()).map(|index| Kernel {
            module: self.clone(),
            index,
            symbols: None,
        })
    }

    /// Returns the kernel of this name.
    pub fn entry(&self, name: &str) -> Option<Kernel> {
        self.entries().find(|kernel| kernel.name() == name)
    }

    /// Returns the approximate host memory of the compiled code in bytes.
    pub fn code_bytes(&self) -> u64 {
        let variables = self.0.variables.iter().flatten();
        let initial = variables
            .flat_map(|variable| &variable.initial)
            .map(|(_, bytes)| bytes.len() as u64)
            .sum::<u64>();
        let code = self
            .0
            .entries
            .iter()
            .map(|entry| (size_of::<Entry>() + entry.code.as_ref().map_or(0, Code::bytes)) as u64)
            .sum::<u64>();
        size_of::<Inner>() as u64 + initial + code
    }

    /// Returns whether both are clones of one loaded module.
    #[cfg(test)]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the bytes that [`instantiate`](Self::instantiate) allocates, before rounding.
    pub fn variable_bytes(&self) -> u64 {
        self.0
            .variables
            .iter()
            .flatten()
            .map(|variable| variable.bytes)
            .fold(0, u64::saturating_add)
    }

    /// Allocates and initialises the module's `.global` and `.const` variables in `memory`. [`LoadedModule::unload`] frees them; dropping
    /// the value does not.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`]. In this case, nothing stays allocated.
    pub fn instantiate(&self, memory: &Memory) -> Result<LoadedModule, MemoryError> {
        let mut symbols = Vec::with_capacity(self.0.variables.len());
        for variable in &self.0.variables {
            let address = match variable {
                None => Ok(DevicePointer(0)),
                Some(variable) => memory.allocate(variable.bytes),
            };
            match address {
                Ok(address) => symbols.push(address.0),
                Err(error) => {
                    release(memory, &symbols);
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.initialise(memory, &symbols) {
            release(memory, &symbols);
            return Err(error);
        }
        Ok(LoadedModule {
            module: self.clone(),
            symbols: symbols.into(),
        })
    }

    /// Writes the initial values of the variables at these addresses.
    fn initialise(&self, memory: &Memory, symbols: &[u64]) -> Result<(), MemoryError> {
        for (variable, address) in self.0.variables.iter().zip(symbols) {
            let Some(variable) = variable else { continue };
            let start = DevicePointer(*address);
            for (offset, bytes) in &variable.initial {
                memory.write(start.offset(*offset), bytes)?;
            }
            for address in &variable.addresses {
                let value = address.value(symbols[address.target]);
                memory.write(start.offset(address.offset), &value.to_le_bytes()[..address.bytes])?;
            }
        }
        Ok(())
    }
}

fn release(memory: &Memory, symbols: &[u64]) {
    for address in symbols.iter().filter(|address| **address != 0) {
        // Fails only if the variable is already freed.
        let _ = memory.free(DevicePointer(*address));
    }
}

/// A module whose variables have storage in a [`Memory`]. Clones share it.
#[derive(Clone, Debug)]
pub struct LoadedModule {
    module: Module,
    symbols: Arc<[u64]>,
}

impl LoadedModule {
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Returns the kernel of this name, bound to the variables of this instance.
    pub fn entry(&self, name: &str) -> Option<Kernel> {
        self.module.entry(name).map(|kernel| Kernel {
            symbols: Some(Arc::clone(&self.symbols)),
            ..kernel
        })
    }

    /// Returns the address, and the size in bytes, of a module-scope variable.
    pub fn symbol(&self, name: &str) -> Option<(DevicePointer, u64)> {
        let position = self
            .module
            .0
            .variables
            .iter()
            .position(|variable| variable.as_ref().is_some_and(|variable| variable.name == name))?;
        let bytes = self.module.0.variables[position].as_ref()?.bytes;
        Some((DevicePointer(self.symbols[position]), bytes))
    }

    /// Returns the variables in the order of the text: name, address, and size in bytes. Their values persist from launch to launch, until
    /// the module is unloaded.
    pub fn symbols(&self) -> impl Iterator<Item = (&str, DevicePointer, u64)> {
        let variables = self.module.0.variables.iter().zip(self.symbols.iter());
        variables.filter_map(|(variable, address)| {
            let variable = variable.as_ref()?;
            Some((variable.name.as_str(), DevicePointer(*address), variable.bytes))
        })
    }

    /// Frees the variables' storage.
    pub fn unload(self, memory: &Memory) {
        release(memory, &self.symbols);
    }
}

/// A kernel of a module. Cheap to clone.
#[derive(Clone)]
pub struct Kernel {
    module: Module,
    index: usize,
    symbols: Option<Arc<[u64]>>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Kernel").field(&self.name()).finish()
    }
}

impl Kernel {
    fn entry(&self) -> &Entry {
        &self.module.0.entries[self.index]
    }

    fn code(&self) -> Option<&Code> {
        self.entry().code.as_ref().ok()
    }

    /// Returns why the engine does not run the kernel: the first unsupported feature.
    pub fn refusal(&self) -> Option<&LoadError> {
        self.entry().code.as_ref().err().map(|(_, error)| error)
    }

    /// Returns the name in the PTX text.
    pub fn name(&self) -> &str {
        &self.entry().name
    }

    /// Returns the parameters in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.entry().parameters
    }

    /// Returns the size of the packed parameter buffer in bytes.
    pub fn parameter_bytes(&self) -> usize {
        self.entry().parameter_bytes
    }

    /// Returns the static shared memory of a block in bytes.
    pub fn static_shared_bytes(&self) -> u64 {
        self.code().map_or(0, |code| code.static_shared_bytes)
    }

    /// Returns the local memory of a thread in bytes.
    pub fn local_bytes(&self) -> u64 {
        self.code().map_or(0, |code| code.local_bytes)
    }

    /// Returns the maximum number of threads of a block: `.maxntid` or `.reqntid`, else 1024.
    pub fn max_threads(&self) -> u32 {
        let limit = self
            .entry()
            .thread_limit
            .map_or(u64::from(execute::BLOCK_LIMIT), |limit| volume(limit.extent));
        limit.min(u64::from(execute::BLOCK_LIMIT)) as u32
    }

    /// Returns the block shape that `.reqntid` requires.
    pub fn required_block(&self) -> Option<[u32; 3]> {
        self.entry().thread_limit.filter(|limit| limit.required).map(|limit| limit.extent)
    }

    /// Returns whether the kernel uses module-scope variables, and therefore must come from a [`LoadedModule`].
    pub fn needs_instance(&self) -> bool {
        self.code().is_some_and(|code| code.uses_symbols)
    }

    /// Returns whether a launch may leave state for later launches of the same instance, in `.global` variables or on the heap.
    pub fn keeps_state(&self) -> bool {
        (self.needs_instance() && self.module.0.has_globals) || self.module.0.declares_malloc
    }

    /// Returns whether a launch may print, because its module declares `vprintf`.
    pub fn prints(&self) -> bool {
        self.module.0.declares_printf
    }

    /// Runs the kernel to completion. `arguments` is the packed parameter buffer, exactly [`parameter_bytes`](Self::parameter_bytes) long;
    /// see [`ArgumentList`].
    ///
    /// # Errors
    /// The fault of the lowest block that faulted. Data that was written before the fault stays written.
    pub fn launch(&self, launch: &Launch, arguments: &[u8], memory: &Memory, cancel: &Cancel) -> Result<LaunchStatistics, Fault> {
        let entry = self.entry();
        let refuse = |reason: String| Err(Fault::invalid_launch(&entry.name, reason));
        let code = match &entry.code {
            Ok(code) => code,
            Err((_, error)) => return refuse(error.to_string()),
        };
        if arguments.len() != entry.parameter_bytes {
            return refuse(format!(
                "{} bytes of arguments for {} bytes of parameters",
                arguments.len(),
                entry.parameter_bytes
            ));
        }
        if code.uses_symbols && self.symbols.is_none() {
            return refuse("the kernel uses module-scope variables and the module was not instantiated".into());
        }
        if let Some(limit) = entry.thread_limit {
            let threads = volume(launch.block);
            if limit.required && launch.block != limit.extent {
                return refuse(format!("block {:?} is not the required {:?}", launch.block, limit.extent));
            }
            if threads > u64::from(self.max_threads()) {
                return refuse(format!("{threads} threads in a block, at most {}", self.max_threads()));
            }
        }
        let program = Program {
            name: &entry.name,
            code,
            files: &self.module.0.files,
            symbols: self.symbols.as_deref().unwrap_or_default(),
        };
        execute::run(&program, launch, arguments, memory, cancel)
    }
}
