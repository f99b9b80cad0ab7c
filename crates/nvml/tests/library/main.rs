//! The built library, opened as programs open it. Each test runs in a process of its own, because the library's state is that of a process.

use std::ffi::{CStr, c_char};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};

const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const DRIVER_NOT_LOADED: u32 = 9;
const ARGUMENT_VERSION_MISMATCH: u32 = 25;

/// Names that the library must export.
const SYMBOLS: &str = include_str!("../../symbols.txt");
/// Variable that marks the process in which a test runs.
const APART: &str = "SAHASRA_TEST_APART";
/// Variables of the CPU device.
const CPU: &[(&str, &str)] = &[
    ("SAHASRA_CUDA", "cpu:"),
    ("SAHASRA_CUDA_MEMORY", "64Mi"),
    ("SAHASRA_CUDA_THREADS", "2"),
];

/// A library that Cargo built with this test.
fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test is a file");
    test.parent().expect("a file is in a folder").join(name)
}

/// Keeps the driver of this machine, if it has one, from answering where a test names no device.
fn without_local_driver() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: called before the library is opened, so that no thread of the library reads the environment.
    ONCE.call_once(|| unsafe { std::env::set_var("SAHASRA_CUDA_DRIVER", "/nonexistent") });
}

fn open() -> libloading::Library {
    without_local_driver();
    // SAFETY: the library has no initialisers.
    unsafe { libloading::Library::new(path("libsahasra_nvml.so")).expect("Cargo built the library") }
}

/// A type that the compiler finds out from the argument.
macro_rules! infer {
    ($value:expr) => {
        _
    };
}

/// Calls a function of a library. Returns its result code.
macro_rules! call {
    ($library:expr, $name:ident($($value:expr),* $(,)?)) => {{
        // SAFETY: the arguments are those that the API documents for the function, or wrong ones that it must refuse.
        unsafe {
            let function: libloading::Symbol<unsafe extern "C" fn($(infer!($value)),*) -> u32> =
                $library.get(concat!(stringify!($name), "\0").as_bytes()).unwrap();
            function($($value),*)
        }
    }};
}

/// Calls a function of a library, which must succeed.
macro_rules! ok {
    ($library:expr, $name:ident($($value:expr),* $(,)?)) => {
        assert_eq!(call!($library, $name($($value),*)), 0, stringify!($name))
    };
}

/// Runs the body of a test in a process with these variables, and returns what the process wrote, or `None` in that process.
fn apart(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    if std::env::var_os(APART).is_some() {
        body();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().expect("the test is a file"));
    command.args(["--exact", test, "--nocapture"]);
    for name in ["SAHASRA_CUDA", "SAHASRA_CUDA_MEMORY", "SAHASRA_CUDA_THREADS"] {
        command.env_remove(name);
    }
    let output = command.env(APART, "1").envs(variables.iter().copied()).output();
    let output = output.expect("the test is a program");
    let texts = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{test}: {}\n{texts}", output.status);
    assert!(texts.contains("1 passed"), "{test} is not the name of the test:\n{texts}");
    Some(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The text that a function of the library writes.
macro_rules! text_of {
    ($library:expr, $name:ident($($value:expr),*)) => {{
        let mut buffer = [0 as c_char; 96];
        ok!($library, $name($($value,)* buffer.as_mut_ptr(), 96u32));
        // SAFETY: the library wrote a text that ends with a zero byte.
        unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().unwrap().to_owned()
    }};
}

/// The initialised library and its device.
fn device() -> (libloading::Library, u64) {
    let library = open();
    let mut device = 0u64;
    ok!(library, nvmlInit_v2());
    ok!(library, nvmlDeviceGetHandleByIndex_v2(0u32, &raw mut device));
    (library, device)
}

#[test]
fn every_name_is_exported() {
    let library = open();
    let names = SYMBOLS.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 400);
    for name in names {
        // SAFETY: the symbol is not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        assert!(found.is_ok(), "{name}");
    }
}

#[test]
fn the_device_is_that_of_the_driver_library() {
    apart("the_device_is_that_of_the_driver_library", CPU, || {
        let (library, device) = device();
        let mut count = 0u32;
        ok!(library, nvmlDeviceGetCount_v2(&raw mut count));
        assert_eq!(count, 1);
        assert_eq!(text_of!(library, nvmlDeviceGetName(device)), "Sahasra CPU");
        let uuid = text_of!(library, nvmlDeviceGetUUID(device));
        assert_eq!(uuid, "GPU-73616861-7372-612d-6370-752d30303030");
        let mut found = 0u64;
        let uuid = std::ffi::CString::new(uuid).unwrap();
        ok!(library, nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &raw mut found));
        assert_eq!(found, device);
        ok!(library, nvmlDeviceGetHandleByPciBusId_v2(c"0000:01:00.0".as_ptr(), &raw mut found));
        assert_eq!(
            call!(library, nvmlDeviceGetHandleByPciBusId_v2(c"0000:02:00.0".as_ptr(), &raw mut found)),
            NOT_FOUND
        );
        let mut position = [0u8; 68];
        ok!(library, nvmlDeviceGetPciInfo_v3(device, position.as_mut_ptr()));
        assert_eq!(&position[..12], b"0000:01:00.0");
        assert_eq!(&position[36..52], b"00000000:01:00.0");
        let (mut major, mut minor) = (0i32, 0i32);
        ok!(library, nvmlDeviceGetCudaComputeCapability(device, &raw mut major, &raw mut minor));
        assert_eq!((major, minor), (8, 0));
    });
}

/// Compiles a library that is open under the name of the driver library once it is loaded.
fn driver_of_a_gpu() -> libloading::Library {
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libcuda-{}.so", std::process::id()));
    let output = Command::new("cc")
        .args(["-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
        .args([&library, &PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/library/driver.c")])
        .output()
        .expect("cc links Rust programs, so it is there");
    assert!(output.status.success(), "{}", text(&output.stderr));
    // SAFETY: the library has no initialisers.
    let driver = unsafe { libloading::Library::new(&library).expect("it was compiled") };
    std::fs::remove_file(library).expect("it was compiled");
    driver
}

#[test]
fn the_device_is_the_one_that_the_driver_library_has_opened() {
    apart("the_device_is_the_one_that_the_driver_library_has_opened", CPU, || {
        let (library, device) = device();
        let driver = driver_of_a_gpu();
        let capability = || {
            let (mut major, mut minor, mut architecture) = (0i32, 0i32, 0u32);
            ok!(library, nvmlDeviceGetCudaComputeCapability(device, &raw mut major, &raw mut minor));
            ok!(library, nvmlDeviceGetArchitecture(device, &raw mut architecture));
            (major, minor, architecture)
        };
        assert_eq!(text_of!(library, nvmlDeviceGetName(device)), "Sahasra CPU", "not initialised");
        assert_eq!(capability(), (8, 0, 7));
        ok!(driver, cuInit(0u32));
        assert_eq!(text_of!(library, nvmlDeviceGetName(device)), "Example GPU");
        assert_eq!(capability(), (8, 9, 8));
        let uuid = text_of!(library, nvmlDeviceGetUUID(device));
        assert_eq!(uuid, "GPU-abababab-abab-abab-abab-abababababab");
        let (uuid, mut found) = (std::ffi::CString::new(uuid).unwrap(), 0u64);
        ok!(library, nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &raw mut found));
        assert_eq!(found, device);
    });
}

#[test]
fn memory_in_use_is_that_of_this_process() {
    apart("memory_in_use_is_that_of_this_process", CPU, || {
        let (library, device) = device();
        let mut memory = [9u64; 3];
        ok!(library, nvmlDeviceGetMemoryInfo(device, memory.as_mut_ptr()));
        assert_eq!(memory, [64 << 20, 64 << 20, 0]);
        // SAFETY: the library has no initialisers.
        let driver = unsafe { libloading::Library::new(path("libsahasra_cuda_driver.so")).expect("Cargo built the library") };
        let (mut context, mut address) = (0u64, 0u64);
        ok!(driver, cuInit(0u32));
        ok!(library, nvmlDeviceGetMemoryInfo(device, memory.as_mut_ptr()));
        assert_eq!(memory[2], 0, "no context yet");
        ok!(driver, cuDevicePrimaryCtxRetain(&raw mut context, 0i32));
        ok!(driver, cuCtxSetCurrent(context));
        ok!(driver, cuMemAlloc_v2(&raw mut address, 16usize << 20));
        let mut versioned = [0x0200_0028u64, 0, 0, 0, 0];
        ok!(library, nvmlDeviceGetMemoryInfo_v2(device, versioned.as_mut_ptr()));
        assert_eq!(versioned[1..], [64 << 20, 0, 48 << 20, 16 << 20]);
        ok!(driver, cuMemFree_v2(address));
        ok!(library, nvmlDeviceGetMemoryInfo(device, memory.as_mut_ptr()));
        assert_eq!(memory[2], 0);
        versioned[0] = 0x0100_0028;
        assert_eq!(
            call!(library, nvmlDeviceGetMemoryInfo_v2(device, versioned.as_mut_ptr())),
            ARGUMENT_VERSION_MISMATCH
        );
    });
}

#[test]
fn calls_outside_of_an_initialisation_are_refused() {
    apart("calls_outside_of_an_initialisation_are_refused", CPU, || {
        let library = open();
        let mut count = 0u32;
        assert_eq!(call!(library, nvmlDeviceGetCount_v2(&raw mut count)), UNINITIALIZED);
        assert_eq!(
            call!(library, nvmlDeviceGetTemperature(0x5a10u64, 0u32, &raw mut count)),
            UNINITIALIZED
        );
        assert_eq!(call!(library, nvmlShutdown()), UNINITIALIZED);
        ok!(library, nvmlInit_v2());
        ok!(library, nvmlInit_v2());
        ok!(library, nvmlShutdown());
        ok!(library, nvmlDeviceGetCount_v2(&raw mut count));
        ok!(library, nvmlShutdown());
        assert_eq!(call!(library, nvmlDeviceGetCount_v2(&raw mut count)), UNINITIALIZED);
    });
}

#[test]
fn wrong_arguments_are_refused() {
    apart("wrong_arguments_are_refused", CPU, || {
        let (library, device) = device();
        let null = std::ptr::null_mut::<u32>();
        let mut handle = 0u64;
        assert_eq!(call!(library, nvmlDeviceGetCount_v2(null)), INVALID_ARGUMENT);
        assert_eq!(
            call!(library, nvmlDeviceGetHandleByIndex_v2(1u32, &raw mut handle)),
            INVALID_ARGUMENT
        );
        for unknown in [0u64, 1, u64::MAX] {
            assert_eq!(call!(library, nvmlDeviceGetIndex(unknown, &raw mut handle)), INVALID_ARGUMENT);
        }
        let mut short = [0 as c_char; 4];
        assert_eq!(
            call!(library, nvmlDeviceGetName(device, short.as_mut_ptr(), 4u32)),
            INSUFFICIENT_SIZE
        );
    });
}

#[test]
fn sensors_that_the_device_lacks_are_not_supported_without_a_word() {
    let test = "sensors_that_the_device_lacks_are_not_supported_without_a_word";
    let output = apart(test, CPU, || {
        let (library, device) = device();
        let mut value = 0u32;
        assert_eq!(
            call!(library, nvmlDeviceGetTemperature(device, 0u32, &raw mut value)),
            NOT_SUPPORTED
        );
        assert_eq!(call!(library, nvmlDeviceGetPowerUsage(device, &raw mut value)), NOT_SUPPORTED);
        assert_eq!(call!(library, nvmlDeviceGetFanSpeed(device, &raw mut value)), NOT_SUPPORTED);
        let mut count = 7u32;
        ok!(
            library,
            nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, std::ptr::null_mut::<u64>())
        );
        assert_eq!(count, 0);
        for _ in 0..2 {
            assert_eq!(call!(library, nvmlDeviceSetPowerManagementLimit(device, 1u32)), NOT_SUPPORTED);
        }
    });
    if let Some(output) = output {
        let errors = text(&output.stderr);
        let lines = errors.lines().filter(|line| line.starts_with("sahasra:"));
        assert_eq!(
            lines.collect::<Vec<_>>(),
            ["sahasra: nvmlDeviceSetPowerManagementLimit is not supported"]
        );
    }
}

#[test]
fn without_a_device_the_program_is_told_what_to_set() {
    let output = apart("without_a_device_the_program_is_told_what_to_set", &[], || {
        let library = open();
        for _ in 0..2 {
            assert_eq!(call!(library, nvmlInit_v2()), DRIVER_NOT_LOADED);
        }
        // A machine without devices is no error if the program says so.
        let mut count = 9u32;
        ok!(library, nvmlInitWithFlags(1u32));
        ok!(library, nvmlDeviceGetCount_v2(&raw mut count));
        assert_eq!(count, 0);
    });
    if let Some(output) = output {
        let errors = text(&output.stderr);
        assert_eq!(errors.matches("set SAHASRA_CUDA=cpu:").count(), 1, "{errors}");
    }
}

/// Runs a function in a forked child. Returns the exit status of the child.
fn forked(child: impl FnOnce() -> u32) -> u32 {
    // SAFETY: the child calls the library, which is what is tested, and ends without running anything of the test.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            // A child that hangs ends with SIGALRM.
            libc::alarm(20);
            libc::_exit(child() as i32);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert!(libc::WIFEXITED(status), "{status}");
        libc::WEXITSTATUS(status) as u32
    }
}

#[test]
fn a_forked_child_is_not_initialised() {
    apart("a_forked_child_is_not_initialised", CPU, || {
        let library = open();
        assert_eq!(forked(|| call!(library, nvmlInit_v2())), 0, "before the parent is initialised");
        ok!(library, nvmlInit_v2());
        let mut count = 0u32;
        assert_eq!(forked(|| call!(library, nvmlInit_v2())), UNINITIALIZED);
        assert_eq!(forked(|| call!(library, nvmlDeviceGetCount_v2(&raw mut count))), UNINITIALIZED);
        assert_eq!(forked(|| call!(library, nvmlShutdown())), UNINITIALIZED);
        ok!(library, nvmlShutdown());
    });
}

#[test]
fn a_child_that_is_forked_during_an_initialisation_is_refused() {
    apart("a_child_that_is_forked_during_an_initialisation_is_refused", &[], || {
        let gateway = TcpListener::bind("127.0.0.1:0").unwrap();
        let session = format!("http://{}/team/mine", gateway.local_addr().unwrap());
        // SAFETY: called before the library is opened, so that no thread of the library reads the environment.
        unsafe { std::env::set_var("SAHASRA_CUDA", session) };
        let library = open();
        std::thread::scope(|scope| {
            let initialised = scope.spawn(|| call!(library, nvmlInit_v2()));
            // The library waits for the answer to its request.
            let (connection, _) = gateway.accept().unwrap();
            let statuses = [forked(|| call!(library, nvmlInit_v2())), forked(|| call!(library, nvmlShutdown()))];
            drop((connection, gateway));
            assert_eq!(statuses, [UNINITIALIZED; 2]);
            assert_eq!(initialised.join().unwrap(), DRIVER_NOT_LOADED);
        });
        assert_eq!(forked(|| call!(library, nvmlInit_v2())), UNINITIALIZED, "the initialisation failed");
    });
}
