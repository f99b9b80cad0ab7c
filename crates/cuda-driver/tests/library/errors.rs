//! Calls that must be refused.

use crate::driver::{
    COOPERATIVE_LAUNCH_TOO_LARGE, CPU, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE,
    KERNELS, LAUNCH_FAILED, NO_DEVICE, NOT_FOUND, NOT_INITIALIZED, NOT_SUPPORTED, OUT_OF_MEMORY, Program, SUCCESS, apart, cu, has_textures,
    ok, open, parameter, refuses_machine_code, text,
};

#[test]
fn without_a_device_the_program_is_told_what_to_set() {
    let output = apart("errors::without_a_device_the_program_is_told_what_to_set", &[], || {
        let library = open();
        let mut count = 0i32;
        assert_eq!(cu!(library, cuDeviceGetCount(&raw mut count)), NOT_INITIALIZED);
        assert_eq!(cu!(library, cuTexObjectCreate(0u64, 0u64, 0u64, 0u64)), NOT_INITIALIZED);
        assert_eq!(cu!(library, cuSurfObjectCreate(0u64, 0u64)), NOT_INITIALIZED);
        for _ in 0..2 {
            assert_eq!(cu!(library, cuInit(0u32)), NO_DEVICE);
        }
    });
    if let Some(output) = output {
        let errors = text(&output.stderr);
        assert_eq!(errors.matches("set SAHASRA_CUDA=cpu:").count(), 1, "{errors}");
    }
}

/// Runs `cuInit` with these variables, which it must refuse. Returns what the process wrote to stderr.
fn refused(test: &str, variables: &[(&str, &str)]) -> Option<String> {
    let output = apart(test, variables, || {
        let library = open();
        assert_eq!(cu!(library, cuInit(0u32)), NO_DEVICE);
    });
    output.map(|output| text(&output.stderr))
}

#[test]
fn an_invalid_variable_is_named_before_a_session_is_created() {
    let test = "errors::an_invalid_variable_is_named_before_a_session_is_created";
    let session = "127.0.0.1:1";
    for (device, variable, value, expected) in [
        (session, "SAHASRA_CUDA_WAIT", "18446744073709551615s", "the maximum is 876000h"),
        (session, "SAHASRA_CUDA_WAIT", "300", "such as 30s or 5m"),
        (session, "SAHASRA_CUDA_MEMORY", "much", "such as 8Gi"),
        (session, "SAHASRA_CUDA_MEMORY", "1024", "such as 8Gi"),
        ("cpu:", "SAHASRA_CUDA_MEMORY", "much", "such as 8Gi"),
        (session, "SAHASRA_CUDA_SHARED_MEMORY", "off", "expected 0 or 1"),
        ("cpu:", "SAHASRA_CUDA_SUMMARY", "yes", "expected 0 or 1"),
        (session, "SAHASRA_TOKEN_FILE", "/nonexistent", "name a file with a token"),
        (session, "SAHASRA_CA_FILE", "/nonexistent", "CA certificates in PEM format"),
        (session, "SAHASRA_CA_FILE", "/dev/null", "CA certificates in PEM format"),
    ] {
        let Some(errors) = refused(test, &[("SAHASRA_CUDA", device), ("SAHASRA_TOKEN", ""), (variable, value)]) else {
            return;
        };
        let named = format!("{variable}={value:?}");
        assert!(errors.contains(&named) && errors.contains(expected), "{named}: {errors}");
    }
}

#[test]
fn the_cpu_of_this_process_takes_nothing_after_its_name() {
    let test = "errors::the_cpu_of_this_process_takes_nothing_after_its_name";
    if let Some(errors) = refused(test, &[("SAHASRA_CUDA", "cpu:1")]) {
        assert!(
            errors.contains(r#"SAHASRA_CUDA="cpu:1""#) && errors.contains("set cpu:"),
            "{errors}"
        );
    }
}

#[test]
fn a_cooperative_launch_with_more_blocks_than_the_device_takes_is_refused() {
    let test = "errors::a_cooperative_launch_with_more_blocks_than_the_device_takes_is_refused";
    apart(test, CPU, || {
        let program = Program::new();
        let library = &program.library;
        let function = program.function("saxpy");
        let (mut of_one, mut multiprocessors) = (0i32, 0i32);
        ok!(
            library,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut of_one, function, 64i32, 0usize)
        );
        ok!(library, cuDeviceGetAttribute(&raw mut multiprocessors, 16u32, 0i32));
        let most = (of_one * multiprocessors) as u32;
        let mut stream = 0u64;
        ok!(library, cuStreamCreate(&raw mut stream, 1u32));
        let launch = |blocks: u32| {
            let (mut out, mut x, mut a, mut n) = (0u64, 0u64, 0.0f32, 0u32);
            let mut parameters = [parameter(&mut out), parameter(&mut x), parameter(&mut a), parameter(&mut n)];
            let pointers = parameters.as_mut_ptr();
            cu!(
                library,
                cuLaunchCooperativeKernel(function, blocks, 1u32, 1u32, 64u32, 1u32, 1u32, 0u32, stream, pointers)
            )
        };
        assert_eq!(launch(most), SUCCESS);
        assert_eq!(launch(most + 1), COOPERATIVE_LAUNCH_TOO_LARGE);
        assert_eq!(launch(1 << 30), COOPERATIVE_LAUNCH_TOO_LARGE);
        ok!(library, cuStreamSynchronize(stream));
        let (mut graph, mode) = (0u64, 0u32);
        ok!(library, cuStreamBeginCapture_v2(stream, mode));
        assert_eq!(launch(most), SUCCESS);
        assert_eq!(launch(most + 1), COOPERATIVE_LAUNCH_TOO_LARGE);
        cu!(library, cuStreamEndCapture(stream, &raw mut graph));
    });
}

#[test]
fn unknown_flags_are_refused() {
    apart("errors::unknown_flags_are_refused", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let null = std::ptr::null_mut::<u64>();
        let mut handle = 0u64;
        // Bits beyond CU_CTX_FLAGS_MASK, and several ways to wait.
        for unknown in [0x100u32, 0x8000_0000, u32::MAX, 3, 5, 6, 7] {
            assert_eq!(cu!(library, cuCtxCreate_v2(&raw mut handle, unknown, 0i32)), INVALID_VALUE);
            assert_eq!(
                cu!(library, cuCtxCreate_v3(&raw mut handle, null, 0i32, unknown, 0i32)),
                INVALID_VALUE
            );
            assert_eq!(cu!(library, cuCtxCreate_v4(&raw mut handle, null, unknown, 0i32)), INVALID_VALUE);
            assert_eq!(cu!(library, cuDevicePrimaryCtxSetFlags_v2(0i32, unknown)), INVALID_VALUE);
            assert_eq!(cu!(library, cuCtxSetFlags(unknown)), INVALID_VALUE);
        }
        assert_eq!(handle, 0);
        for known in [0u32, 1, 2, 4, 8 | 16, 32 | 64 | 128] {
            ok!(library, cuCtxCreate_v2(&raw mut handle, known, 0i32));
            ok!(library, cuCtxDestroy_v2(handle));
            ok!(library, cuDevicePrimaryCtxSetFlags_v2(0i32, known));
        }
        // Events for other processes have no times.
        for unknown in [8u32, 0xff, u32::MAX, 4, 4 | 1] {
            assert_eq!(cu!(library, cuEventCreate(&raw mut handle, unknown)), INVALID_VALUE, "{unknown}");
        }
        assert_eq!(cu!(library, cuEventCreate(&raw mut handle, 4u32 | 2)), NOT_SUPPORTED);
        for known in [0u32, 1, 2, 3] {
            ok!(library, cuEventCreate(&raw mut handle, known));
        }
    });
}

#[test]
fn memory_beyond_the_device_is_refused() {
    apart("errors::memory_beyond_the_device_is_refused", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let mut address = 0u64;
        for bytes in [65usize << 20, 1 << 50, usize::MAX] {
            assert_eq!(cu!(library, cuMemAlloc_v2(&raw mut address, bytes)), OUT_OF_MEMORY, "{bytes}");
        }
        assert_eq!(address, 0);
        let first = program.allocate(40 << 20);
        assert_eq!(cu!(library, cuMemAlloc_v2(&raw mut address, 40usize << 20)), OUT_OF_MEMORY);
        ok!(library, cuMemFree_v2(first));
        assert_eq!(cu!(library, cuMemFree_v2(first)), INVALID_VALUE, "freed twice");
        let second = program.allocate(40 << 20);
        assert_ne!(first, second, "addresses are not used again at once");
        assert_eq!(program.word(first), Err(INVALID_VALUE), "a pointer to freed memory");
        assert_eq!(program.word(second), Ok(0));
    });
}

/// Launches a kernel that faults. Every later call of the context must report it.
fn fault(entry: &str, parameters: &mut [*mut u8], code: u32) {
    let program = Program::new();
    let library = &program.library;
    let kept = program.allocate(4);
    assert_eq!(program.launch_one(program.function(entry), parameters), SUCCESS);
    assert_eq!(cu!(library, cuCtxSynchronize()), code);
    let mut address = 0u64;
    assert_eq!(cu!(library, cuCtxSynchronize()), code);
    assert_eq!(cu!(library, cuMemAlloc_v2(&raw mut address, 4usize)), code);
    assert_eq!(program.word(kept), Err(code));
    assert_eq!(program.launch_one(program.function("greet"), &mut []), code);
    // The primary context starts afresh, with nothing of what was in it.
    ok!(library, cuDevicePrimaryCtxReset_v2(0i32));
    assert_eq!(program.word(kept), Err(INVALID_VALUE));
    assert_eq!(cu!(library, cuModuleUnload(program.module)), INVALID_HANDLE);
    let fresh = program.allocate(4);
    assert_eq!(program.word(fresh), Ok(0));
}

#[test]
fn a_trap_stays_until_the_context_is_reset() {
    let output = apart("errors::a_trap_stays_until_the_context_is_reset", CPU, || {
        fault("snap", &mut [], LAUNCH_FAILED)
    });
    if let Some(output) = output {
        let errors = text(&output.stderr);
        assert_eq!(errors.matches("snap: trap").count(), 1, "{errors}");
    }
}

#[test]
fn a_stray_access_stays_until_the_context_is_reset() {
    apart("errors::a_stray_access_stays_until_the_context_is_reset", CPU, || {
        let mut nowhere = 0x1234_5678u64;
        fault("stray", &mut [parameter(&mut nowhere)], ILLEGAL_ADDRESS);
    });
}

#[test]
fn wrong_arguments_are_refused() {
    apart("errors::wrong_arguments_are_refused", CPU, || {
        let library = open();
        let null = std::ptr::null_mut::<u64>();
        let (mut address, mut handle) = (0u64, 0u64);
        assert_eq!(cu!(library, cuMemAlloc_v2(&raw mut address, 4usize)), NOT_INITIALIZED);
        assert_eq!(cu!(library, cuInit(1u32)), INVALID_VALUE);
        ok!(library, cuInit(0u32));
        ok!(library, cuInit(0u32));
        assert_eq!(cu!(library, cuMemAlloc_v2(&raw mut address, 4usize)), INVALID_CONTEXT);
        assert_eq!(cu!(library, cuModuleLoadData(&raw mut handle, KERNELS.as_ptr())), INVALID_CONTEXT);
        assert_eq!(cu!(library, cuDeviceGet(null, 0i32)), INVALID_VALUE);
        assert_eq!(cu!(library, cuDeviceGet(&raw mut handle, 1i32)), INVALID_DEVICE);
        assert_eq!(cu!(library, cuCtxSetCurrent(4711u64)), INVALID_CONTEXT);
        let program = Program::new();
        for unknown in [0u64, 3, 16, 0x1000_0000, u64::MAX] {
            assert_eq!(cu!(library, cuModuleUnload(unknown)), INVALID_HANDLE);
            assert_eq!(cu!(library, cuEventSynchronize(unknown)), INVALID_HANDLE);
            assert_eq!(program.launch_one(unknown, &mut []), INVALID_HANDLE);
            assert_eq!(cu!(library, cuLinkDestroy(unknown)), INVALID_HANDLE);
            assert_eq!(cu!(library, cuMemPoolDestroy(unknown)), INVALID_VALUE);
            assert_eq!(cu!(library, cuGraphDestroy(unknown)), INVALID_VALUE);
            assert_eq!(cu!(library, cuGraphExecDestroy(unknown)), INVALID_VALUE);
            assert_eq!(cu!(library, cuGraphLaunch(unknown, 0u64)), INVALID_VALUE);
            if unknown > 2 {
                assert_eq!(cu!(library, cuStreamSynchronize(unknown)), INVALID_HANDLE);
                assert_eq!(cu!(library, cuMemFree_v2(unknown)), INVALID_VALUE);
            }
        }
        let function = program.function("saxpy");
        assert_eq!(
            cu!(library, cuStreamSynchronize(function)),
            INVALID_HANDLE,
            "a handle of something else"
        );
        assert_eq!(
            cu!(library, cuModuleGetFunction(&raw mut handle, program.module, c"missing".as_ptr())),
            NOT_FOUND
        );
        assert_eq!(
            cu!(library, cuModuleGetFunction(&raw mut handle, program.module, null)),
            INVALID_VALUE
        );
        assert_eq!(cu!(library, cuModuleLoadData(&raw mut handle, null)), INVALID_VALUE);
        assert_eq!(cu!(library, cuModuleLoadData(&raw mut handle, c"nonsense".as_ptr())), INVALID_PTX);
        // With room for the header of the file, all zeros.
        let mut elf = [0u8; 64];
        elf[..4].copy_from_slice(b"\x7fELF");
        // A section behind the end of all addresses.
        elf[40..48].fill(0xff);
        elf[60] = 1;
        assert!(refuses_machine_code(cu!(library, cuModuleLoadData(&raw mut handle, elf.as_ptr()))));
        assert_eq!(cu!(library, cuMemAlloc_v2(null, 4usize)), INVALID_VALUE);
        assert_eq!(cu!(library, cuMemAlloc_v2(&raw mut address, 0usize)), INVALID_VALUE);
        let memory = program.allocate(16);
        assert_eq!(cu!(library, cuMemcpyHtoD_v2(memory, null, 4usize)), INVALID_VALUE);
        assert_eq!(cu!(library, cuMemcpyHtoD_v2(memory, &raw const address, 17usize)), INVALID_VALUE);
        assert_eq!(cu!(library, cuMemcpyDtoD_v2(memory + 8, memory, 9usize)), INVALID_VALUE);
        assert_eq!(cu!(library, cuMemsetD32_v2(memory + 2, 0u32, 1usize)), INVALID_VALUE, "not aligned");
        assert_eq!(cu!(library, cuMemFree_v2(memory + 8)), INVALID_VALUE);
        let shapes: [([u32; 6], u32); 7] = [
            ([0, 1, 1, 1, 1, 1], 0),
            ([1, 1, 1, 0, 1, 1], 0),
            ([1, 1, 1, 1025, 1, 1], 0),
            ([1, 1, 1, 1, 1, 65], 0),
            ([1, 65_536, 1, 1, 1, 1], 0),
            ([1, 1, 1, 1, 1, 1], 64 << 20),
            ([1, 1, 1, 1, 1, 1], 0),
        ];
        for ([x, y, z, block_x, block_y, block_z], shared) in shapes {
            // The last shape is right; its parameters are missing.
            let launched = cu!(
                library,
                cuLaunchKernel(function, x, y, z, block_x, block_y, block_z, shared, 0u64, null, null)
            );
            assert_eq!(launched, INVALID_VALUE, "{x} {y} {z} {block_x} {block_y} {block_z} {shared}");
        }
        ok!(library, cuCtxSynchronize());
    });
}

#[test]
fn a_kernel_that_the_engine_does_not_run_is_refused_at_its_launch() {
    const TEXT: &std::ffi::CStr = c".version 7.0 .target sm_80 .address_size 64
        .visible .entry cube(.param .u64 t) { .reg .b32 %r<5>; .reg .f32 %f<5>; .reg .b64 %rd<2>; ld.param.u64 %rd1, [t];
          tex.cube.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2, %f3, %f4}]; ret; }
        .visible .entry seven(.param .u64 out) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], 7; ret; }";
    let output = apart(
        "errors::a_kernel_that_the_engine_does_not_run_is_refused_at_its_launch",
        CPU,
        || {
            let mut program = Program::new();
            if !has_textures() {
                return;
            }
            ok!(program.library, cuModuleLoadData(&raw mut program.module, TEXT.as_ptr()));
            let (cube, seven) = (program.function("cube"), program.function("seven"));
            let mut out = program.allocate(4);
            for _ in 0..2 {
                assert_eq!(program.launch_one(cube, &mut [parameter(&mut out)]), NOT_SUPPORTED);
            }
            assert_eq!(program.launch_one(seven, &mut [parameter(&mut out)]), SUCCESS);
            assert_eq!(program.word(out), Ok(7));
        },
    );
    if let Some(output) = output.filter(|_| has_textures()) {
        let errors = text(&output.stderr);
        assert_eq!(errors.matches("kernel cube is not launched: line 3").count(), 1, "{errors}");
        assert!(errors.contains("tex.cube"), "{errors}");
    }
}
