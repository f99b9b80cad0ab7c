//! Resources that an executor may use.

use std::path::PathBuf;

/// Resources that an executor may use beyond those that every executor may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Whether GPUs are accessible through their driver.
    pub gpu: bool,
    pub plugin: Option<PathBuf>,
    /// Folder with compiled programs, for reading and writing.
    pub program_cache: Option<PathBuf>,
    /// Private folder for files that live as long as the process.
    pub scratch: Option<PathBuf>,
}

impl Reach {
    /// Whether the plugin may start the vendor's compilers inside the sandbox. They are programs of their own: XLA compiles its output for
    /// a GPU with `ptxas`.
    pub fn has_compilers(&self) -> bool {
        self.gpu && self.plugin.is_some()
    }
}
