//! Calls of the library.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Result codes.
pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_IMAGE: u32 = 200;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const NO_BINARY_FOR_GPU: u32 = 209;
pub(crate) const INVALID_PTX: u32 = 218;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const NOT_FOUND: u32 = 500;
pub(crate) const NOT_READY: u32 = 600;
pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
pub(crate) const LAUNCH_FAILED: u32 = 719;
pub(crate) const COOPERATIVE_LAUNCH_TOO_LARGE: u32 = 720;
pub(crate) const NOT_SUPPORTED: u32 = 801;

/// Kernels of the tests, with a zero byte at the end.
pub(crate) const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Variable that marks the process in which a test runs.
const APART: &str = "SAHASRA_TEST_APART";
/// Variable with a session of 64Mi on which the tests run instead of on this process's CPU, as a value of `SAHASRA_CUDA`.
const SESSION: &str = "SAHASRA_TEST_SESSION";

/// Variable that says that the device of the session is a GPU.
const GPU: &str = "SAHASRA_TEST_GPU";

/// The library that Cargo built with this test.
pub(crate) fn path() -> PathBuf {
    let test = std::env::current_exe().expect("the test is a file");
    test.parent().expect("a file is in a folder").join("libsahasra_cuda_driver.so")
}

/// Keeps the driver of this machine, if it has one, from answering where a test names no device.
fn without_local_driver() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: called before the library is opened, so that no thread of the library reads the environment.
    ONCE.call_once(|| unsafe { std::env::set_var("SAHASRA_CUDA_DRIVER", "/nonexistent") });
}

pub(crate) fn open() -> libloading::Library {
    without_local_driver();
    // SAFETY: the library has no initialisers.
    unsafe { libloading::Library::new(path()).expect("Cargo built the library") }
}

/// A type that the compiler finds out from the argument.
macro_rules! infer {
    ($value:expr) => {
        _
    };
}

/// Calls a function of the library. Returns its result code.
macro_rules! cu {
    ($library:expr, $name:ident($($value:expr),* $(,)?)) => {{
        // SAFETY: the arguments are those that the CUDA driver API documents for the function, or wrong ones that it must refuse.
        unsafe {
            let function: libloading::Symbol<unsafe extern "C" fn($(crate::driver::infer!($value)),*) -> u32> =
                $library.get(concat!(stringify!($name), "\0").as_bytes()).unwrap();
            function($($value),*)
        }
    }};
}

/// Calls a function of the library, which must succeed.
macro_rules! ok {
    ($library:expr, $name:ident($($value:expr),* $(,)?)) => {
        assert_eq!(crate::driver::cu!($library, $name($($value),*)), 0, stringify!($name))
    };
}

pub(crate) use {cu, infer, ok};

/// Runs the body of a test in a process with these variables, and returns what the process wrote, or `None` in that process.
pub(crate) fn apart(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    if std::env::var_os(APART).is_some() {
        body();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().expect("the test is a file"));
    command.args(["--exact", test, "--nocapture"]);
    for name in ["SAHASRA_CUDA", "SAHASRA_CUDA_MEMORY", "SAHASRA_CUDA_THREADS"] {
        command.env_remove(name);
    }
    command.env(APART, "1").envs(variables.iter().copied());
    if variables == CPU
        && let Some(session) = std::env::var_os(SESSION)
    {
        command.env("SAHASRA_CUDA", session);
    }
    // SAFETY: only makes a system call. A test that hangs ends with SIGALRM instead.
    unsafe {
        command.pre_exec(|| {
            libc::alarm(60);
            Ok(())
        });
    }
    let output = command.output().expect("the test is a program");
    let texts = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{test}: {}\n{texts}", output.status);
    assert!(texts.contains("1 passed"), "{test} is not the name of the test:\n{texts}");
    Some(output)
}

/// Whether the tests run on a session.
pub(crate) fn is_on_session() -> bool {
    std::env::var_os(SESSION).is_some()
}

/// Whether a code refuses an ELF file that is cut: as machine code, or on a session of a GPU (`SAHASRA_TEST_GPU`) as a damaged image.
pub(crate) fn refuses_machine_code(code: u32) -> bool {
    code == NO_BINARY_FOR_GPU || (code == INVALID_IMAGE && std::env::var_os(GPU).is_some())
}

/// Whether kernels read textures and surfaces: not on a session of a GPU (`SAHASRA_TEST_GPU`).
pub(crate) fn has_textures() -> bool {
    !(is_on_session() && std::env::var_os(GPU).is_some())
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Variables of the CPU device.
pub(crate) const CPU: &[(&str, &str)] = &[
    ("SAHASRA_CUDA", "cpu:"),
    ("SAHASRA_CUDA_MEMORY", "64Mi"),
    ("SAHASRA_CUDA_THREADS", "2"),
];

/// An initialised library whose primary context is current, with the module of the tests.
pub(crate) struct Program {
    pub library: libloading::Library,
    pub module: u64,
}

impl Program {
    pub(crate) fn new() -> Self {
        let library = open();
        let (mut device, mut context, mut module) = (0i32, 0u64, 0u64);
        ok!(library, cuInit(0u32));
        ok!(library, cuDeviceGet(&raw mut device, 0i32));
        ok!(library, cuDevicePrimaryCtxRetain(&raw mut context, device));
        ok!(library, cuCtxSetCurrent(context));
        ok!(library, cuModuleLoadData(&raw mut module, KERNELS.as_ptr()));
        Self { library, module }
    }

    pub(crate) fn function(&self, name: &str) -> u64 {
        let mut function = 0u64;
        let name = format!("{name}\0");
        ok!(self.library, cuModuleGetFunction(&raw mut function, self.module, name.as_ptr()));
        function
    }

    pub(crate) fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0u64;
        ok!(self.library, cuMemAlloc_v2(&raw mut address, bytes));
        address
    }

    /// Launches blocks of 64 threads on a stream.
    pub(crate) fn launch(&self, function: u64, blocks: u32, stream: u64, parameters: &mut [*mut u8]) -> u32 {
        let none = std::ptr::null_mut::<u8>();
        cu!(
            self.library,
            cuLaunchKernel(
                function,
                blocks,
                1u32,
                1u32,
                64u32,
                1u32,
                1u32,
                0u32,
                stream,
                parameters.as_mut_ptr(),
                none
            )
        )
    }

    pub(crate) fn launch_one(&self, function: u64, parameters: &mut [*mut u8]) -> u32 {
        let none = std::ptr::null_mut::<u8>();
        cu!(
            self.library,
            cuLaunchKernel(
                function,
                1u32,
                1u32,
                1u32,
                1u32,
                1u32,
                1u32,
                0u32,
                0u64,
                parameters.as_mut_ptr(),
                none
            )
        )
    }

    pub(crate) fn word(&self, address: u64) -> Result<u32, u32> {
        let mut word = 0u32;
        match cu!(self.library, cuMemcpyDtoH_v2(&raw mut word, address, 4usize)) {
            SUCCESS => Ok(word),
            error => Err(error),
        }
    }
}

/// Pointer to a parameter.
pub(crate) fn parameter<T>(value: &mut T) -> *mut u8 {
    std::ptr::from_mut(value).cast()
}

/// One side of a [`Copy2d`].
#[repr(C)]
pub(crate) struct Side {
    pub x_bytes: usize,
    pub y: usize,
    pub kind: u32,
    pub host: u64,
    pub device: u64,
    pub array: u64,
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
pub(crate) struct Copy2d {
    pub from: Side,
    pub to: Side,
    pub width: usize,
    pub height: usize,
}
