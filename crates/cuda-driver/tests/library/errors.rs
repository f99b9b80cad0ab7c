//! Calls that must be refused.

use crate::driver::{
    CPU, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, KERNELS, LAUNCH_FAILED, NO_DEVICE,
    NOT_FOUND, NOT_INITIALIZED, OUT_OF_MEMORY, Program, SUCCESS, apart, cu, ok, open, parameter, refuses_machine_code, text,
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
        let Some(errors) = refused(test, &[("SAHASRA_CUDA", device), (variable, value)]) else {
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
            assert_eq!(cu!(library, cuMemPoolDestroy(unknown)), INVALID_HANDLE);
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
