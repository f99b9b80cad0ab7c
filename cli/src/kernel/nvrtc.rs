//! Bindings to NVRTC, NVIDIA's run-time compiler from CUDA C to PTX. It needs neither a GPU nor a driver.
//!
//! The library is located and loaded when a compilation needs it. Functions and error codes are those of `nvrtc.h` (NVRTC documentation, CUDA
//! 12 and 13; unchanged since CUDA 8).

use std::{
    ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    ptr,
};

use libloading::Library;

use crate::args::{cuda_homes, virtual_environment};

/// Names of the library for the dynamic linker, newest first.
const NAMES: [&str; 4] = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
/// Folders of the library in NVIDIA's Python packages `nvidia-cuda-nvrtc-cu12` and `nvidia-cuda-nvrtc`, relative to a folder of packages.
const PACKAGE_FOLDERS: [&str; 3] = ["nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib", "nvidia/cu12/lib"];
const NVRTC_SUCCESS: c_int = 0;
const NVRTC_ERROR_COMPILATION: c_int = 6;

type Program = *mut c_void;

#[derive(Debug, thiserror::Error)]
pub(super) enum NvrtcError {
    #[error("NVRTC was not found; looked for {looked}.\n{REMEDY}")]
    Missing { looked: String },
    #[error("failed to load NVRTC from {}, which --nvrtc-library names", path.display())]
    Load { path: PathBuf, source: libloading::Error },
    #[error("{0} contains a NUL byte")]
    Nul(&'static str),
    #[error("the source does not compile:\n{log}")]
    Compile { log: String },
    #[error("{call}: {reason}")]
    Call { call: &'static str, reason: String },
}

const REMEDY: &str = "\
Install the CUDA toolkit, or the Python packages alone (no GPU needed):
  python3 -m venv cuda && cuda/bin/pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12
  VIRTUAL_ENV=$PWD/cuda sahasra kernel compile FILE.cu
or name the library: --nvrtc-library PATH";

#[derive(Debug)]
pub(super) struct Compiled {
    pub ptx: String,
    pub log: String,
}

#[derive(Debug)]
pub(super) struct Nvrtc {
    functions: Functions,
    /// Path of the library; `None` if the dynamic linker found it.
    path: Option<PathBuf>,
}

type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// Functions of the library, which is loaded as long as they are.
#[derive(Debug)]
struct Functions {
    create: unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, *const c_void, *const c_void) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log: (Size, Text),
    ptx: (Size, Text),
    describe: unsafe extern "C" fn(c_int) -> *const c_char,
    _library: Library,
}

impl Functions {
    /// Loads a library, by its path or by a name for the dynamic linker.
    fn load(name: &OsStr) -> Result<Self, libloading::Error> {
        // SAFETY: loading runs the library's initialisers. The user named the library, or it is where NVIDIA's installers put theirs. The types
        // of the functions are those of `nvrtc.h`.
        unsafe {
            let library = Library::new(name)?;
            Ok(Self {
                create: *library.get(b"nvrtcCreateProgram\0")?,
                compile: *library.get(b"nvrtcCompileProgram\0")?,
                destroy: *library.get(b"nvrtcDestroyProgram\0")?,
                log: (*library.get(b"nvrtcGetProgramLogSize\0")?, *library.get(b"nvrtcGetProgramLog\0")?),
                ptx: (*library.get(b"nvrtcGetPTXSize\0")?, *library.get(b"nvrtcGetPTX\0")?),
                describe: *library.get(b"nvrtcGetErrorString\0")?,
                _library: library,
            })
        }
    }
}

impl Nvrtc {
    /// Loads the library at `named`, or the first one that is found.
    pub(super) fn find(named: Option<&Path>) -> Result<Self, NvrtcError> {
        if let Some(path) = named {
            let (functions, path) = (Functions::load(path.as_os_str()), path.to_owned());
            return match functions {
                Ok(functions) => Ok(Self {
                    functions,
                    path: Some(path),
                }),
                Err(source) => Err(NvrtcError::Load { path, source }),
            };
        }
        let folders = folders();
        let files = folders
            .iter()
            .flat_map(|folder| libraries(folder))
            .map(|path| (path.clone().into_os_string(), Some(path)));
        let mut candidates = files.chain(NAMES.map(|name| (name.into(), None)));
        let load = |(name, path): (OsString, _)| {
            Some(Self {
                functions: Functions::load(&name).ok()?,
                path,
            })
        };
        candidates.find_map(load).ok_or_else(|| {
            let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            let looked = if looked.is_empty() {
                "no other folder".to_owned()
            } else {
                looked.join(", ")
            };
            NvrtcError::Missing {
                looked: format!("{} among the system's libraries and in {looked}", NAMES[0]),
            }
        })
    }

    /// Folders with CUDA's headers (such as `cuda_fp16.h`) that belong to the library.
    pub(super) fn include_folders(&self) -> Vec<PathBuf> {
        let Some(path) = self.path.as_deref().and_then(Path::parent) else {
            return Vec::new();
        };
        let beside = ["../include", "../../cuda_runtime/include", "../../../include"];
        let candidates = beside.iter().map(|folder| path.join(folder));
        candidates
            .filter(|folder| folder.join("cuda_runtime.h").is_file())
            .take(1)
            .collect()
    }

    /// Compiles `source` with `options` such as `--gpu-architecture=compute_80`. Messages of the compiler call the source `name`.
    pub(super) fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<Compiled, NvrtcError> {
        let source = CString::new(source).map_err(|_| NvrtcError::Nul("the source"))?;
        let name = CString::new(name).map_err(|_| NvrtcError::Nul("the name"))?;
        let options: Vec<CString> = options
            .iter()
            .map(|option| CString::new(option.as_str()).map_err(|_| NvrtcError::Nul("an option")))
            .collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: nvrtcCreateProgram(nvrtcProgram*, const char *src, const char *name, int numHeaders, headers, names): both
        // texts are NUL-terminated and live through the call, which copies them; there are no headers.
        let created = unsafe { (self.functions.create)(&mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()) };
        self.check("nvrtcCreateProgram", created)?;
        let outcome = self.compile_program(program, &pointers);
        // SAFETY: nvrtcDestroyProgram(nvrtcProgram*): the program was created above and is not used afterwards.
        unsafe { (self.functions.destroy)(&mut program) };
        outcome
    }

    fn compile_program(&self, program: Program, options: &[*const c_char]) -> Result<Compiled, NvrtcError> {
        let count = c_int::try_from(options.len()).unwrap_or(c_int::MAX);
        // SAFETY: nvrtcCompileProgram(nvrtcProgram, int numOptions, const char *const *options): `options` has `count` NUL-terminated
        // strings, which live through the call.
        let compiled = unsafe { (self.functions.compile)(program, count, options.as_ptr()) };
        let log = self.text(program, self.functions.log).unwrap_or_default();
        if compiled == NVRTC_ERROR_COMPILATION {
            return Err(NvrtcError::Compile {
                log: log.trim_end().to_owned(),
            });
        }
        self.check("nvrtcCompileProgram", compiled)?;
        let ptx = self.text(program, self.functions.ptx)?;
        Ok(Compiled {
            ptx: format!("{}\n", ptx.trim_end()),
            log: log.trim_end().to_owned(),
        })
    }

    /// Calls a pair of functions that return the size of a text, NUL included, and the text.
    fn text(&self, program: Program, (size_of, read): (Size, Text)) -> Result<String, NvrtcError> {
        let mut size = 0usize;
        // SAFETY: nvrtcGet*Size(nvrtcProgram, size_t*): writes one size through the pointer.
        let sized = unsafe { size_of(program, &mut size) };
        self.check("reading a size", sized)?;
        let mut text = vec![0u8; size.max(1)];
        // SAFETY: nvrtcGet*(nvrtcProgram, char*): writes as many bytes as the size returned before, NUL included, into a buffer of that size.
        let copied = unsafe { read(program, text.as_mut_ptr().cast()) };
        self.check("reading a text", copied)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), NvrtcError> {
        if code == NVRTC_SUCCESS {
            return Ok(());
        }
        // SAFETY: nvrtcGetErrorString(nvrtcResult): returns, for any code, a NUL-terminated string that lives as long as the library.
        let reason = unsafe {
            let text = (self.functions.describe)(code);
            if text.is_null() {
                format!("code {code}")
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        Err(NvrtcError::Call { call, reason })
    }
}

/// Returns the NVRTC libraries in a folder, newest name first.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = entries(folder)
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("libnvrtc.so")
                || (name.starts_with("libnvrtc") && name.contains(".so") && !name.contains("builtins") && !name.contains("alt"))
        })
        .collect();
    found.sort_by(|left, right| right.cmp(left));
    found
}

/// Returns the existing folders that may contain the library: those of CUDA first, then those of Python packages.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for home in cuda_homes().into_iter().chain([PathBuf::from("/usr/local/cuda")]) {
        folders.extend([home.join("lib64"), home.join("targets/x86_64-linux/lib")]);
    }
    let packages = virtual_environment()
        .into_iter()
        .flat_map(|environment| site_packages(&environment.join("lib")));
    let packages = packages.chain(python_path());
    folders.extend(packages.flat_map(|folder| PACKAGE_FOLDERS.map(|below| folder.join(below))));
    folders.retain(|folder| folder.is_dir());
    folders
}

/// Returns the folders `python3.*/site-packages` below `library`.
fn site_packages(library: &Path) -> Vec<PathBuf> {
    let folders = entries(library).map(|version| version.join("site-packages"));
    folders.filter(|folder| folder.is_dir()).collect()
}

/// Returns what is in a folder; nothing if it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

/// Returns the folders in which the shell's `python3` searches for packages.
fn python_path() -> Vec<PathBuf> {
    let script = "import sys; print('\\n'.join(sys.path))";
    let output = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
}
