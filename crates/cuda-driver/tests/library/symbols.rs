//! Names of the library.

use crate::driver::{CPU, NOT_FOUND, NOT_SUPPORTED, Program, apart, cu, ok, open, parameter, text};

/// Names that the library must export.
const SYMBOLS: &str = include_str!("../../symbols.txt");

#[test]
fn every_name_is_exported() {
    let library = open();
    let names = SYMBOLS.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 500);
    for name in names {
        // SAFETY: the symbol is not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        assert!(found.is_ok(), "{name}");
    }
}

#[test]
fn a_call_that_is_not_supported_names_itself_once() {
    let output = apart("symbols::a_call_that_is_not_supported_names_itself_once", CPU, || {
        let library = open();
        let mut handle = 0u64;
        for _ in 0..3 {
            assert_eq!(
                cu!(library, cuGraphConditionalHandleCreate(&raw mut handle, 0u64, 0u64, 0u32, 0u32)),
                NOT_SUPPORTED
            );
        }
    });
    if let Some(output) = output {
        let errors = text(&output.stderr);
        assert_eq!(
            errors.matches("cuGraphConditionalHandleCreate is not supported").count(),
            1,
            "{errors}"
        );
    }
}

#[test]
fn entry_points_are_found_by_version() {
    let library = open();
    let (mut function, mut status) = (0usize, 9u32);
    let address = |name: &str| {
        // SAFETY: the symbol is not called.
        let symbol = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.unwrap();
        *symbol as usize
    };
    ok!(
        library,
        cuGetProcAddress_v2(c"cuMemAlloc".as_ptr(), &raw mut function, 12_080i32, 0u64, &raw mut status)
    );
    assert_eq!((function, status), (address("cuMemAlloc_v2"), 0));
    ok!(
        library,
        cuGetProcAddress(c"cuCtxCreate".as_ptr(), &raw mut function, 11_040i32, 0u64)
    );
    assert_eq!(function, address("cuCtxCreate_v3"));
    let found = cu!(
        library,
        cuGetProcAddress_v2(c"cuNothing".as_ptr(), &raw mut function, 12_080i32, 0u64, &raw mut status)
    );
    assert_eq!((found, function, status), (0, 0, 1));
    let found = cu!(library, cuGetProcAddress(c"cuNothing".as_ptr(), &raw mut function, 12_080i32, 0u64));
    assert_eq!((found, function), (NOT_FOUND, 0));
    ok!(
        library,
        cuGetProcAddress_v2(c"cuCtxCreate".as_ptr(), &raw mut function, 1000i32, 0u64, &raw mut status)
    );
    assert_ne!((function, status), (0, 1));
    let mut table = 1usize;
    let id = [0u8; 16];
    assert_eq!(cu!(library, cuGetExportTable(&raw mut table, id.as_ptr())), NOT_FOUND);
}

#[test]
fn functions_of_the_default_stream_of_a_thread_are_those_of_the_context() {
    apart(
        "symbols::functions_of_the_default_stream_of_a_thread_are_those_of_the_context",
        CPU,
        || {
            let program = Program::new();
            let library = &program.library;
            let memory = program.allocate(32);
            let (source, mut target) = ([1u32, 2, 3, 4], [0u32; 4]);
            ok!(library, cuMemsetD32_v2_ptds(memory, 7u32, 8usize));
            ok!(library, cuMemcpyHtoDAsync_v2_ptsz(memory, source.as_ptr(), 16usize, 0u64));
            ok!(library, cuMemcpyDtoH_v2_ptds(target.as_mut_ptr(), memory + 4, 16usize));
            assert_eq!(target, [2, 3, 4, 7]);
            // Arguments beyond those in registers.
            let (function, mut address, none) = (program.function("add_step"), memory, std::ptr::null_mut::<u8>());
            let mut parameters = [parameter(&mut address)];
            ok!(
                library,
                cuLaunchKernel_ptsz(
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
            );
            ok!(library, cuStreamSynchronize_ptsz(0u64));
            assert_eq!(program.word(memory), Ok(4));
            assert_eq!(cu!(library, cuMemBatchDecompressAsync_ptsz()), NOT_SUPPORTED);
            assert_eq!(cu!(library, cuCheckpointProcessLock(1i32)), NOT_SUPPORTED);
        },
    );
}

#[test]
fn results_have_names() {
    let library = open();
    let mut text = std::ptr::null::<std::ffi::c_char>();
    ok!(library, cuGetErrorName(700u32, &raw mut text));
    // SAFETY: the library wrote a pointer to a static text.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(text) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    ok!(library, cuGetErrorName(907u32, &raw mut text));
    // SAFETY: the library wrote a pointer to a static text.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(text) }, c"CUDA_ERROR_CAPTURED_EVENT");
    assert_eq!(cu!(library, cuGetErrorString(12_345u32, &raw mut text)), 1);
    assert!(text.is_null());
}
