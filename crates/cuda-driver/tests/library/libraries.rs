//! Libraries, which belong to no context.

use crate::driver::{
    CPU, INVALID_CONTEXT, INVALID_HANDLE, INVALID_PTX, KERNELS, NOT_FOUND, Program, SUCCESS, apart, cu, ok, open, parameter,
};

/// A library of the tests' kernels, and its kernel `add_step`.
fn load(library: &libloading::Library) -> (u64, u64) {
    let null = std::ptr::null_mut::<u64>();
    let (mut loaded, mut kernel) = (0u64, 0u64);
    ok!(
        library,
        cuLibraryLoadData(&raw mut loaded, KERNELS.as_ptr(), null, null, 0u32, null, null, 0u32)
    );
    ok!(library, cuLibraryGetKernel(&raw mut kernel, loaded, c"add_step".as_ptr()));
    (loaded, kernel)
}

#[test]
fn a_library_is_loaded_without_a_context_and_used_in_several() {
    apart("libraries::a_library_is_loaded_without_a_context_and_used_in_several", CPU, || {
        let library = open();
        let null = std::ptr::null_mut::<u64>();
        ok!(library, cuInit(0u32));
        let (loaded, kernel) = load(&library);
        let (mut count, mut value, mut address, mut bytes) = (0u32, 0i32, 0u64, 0usize);
        ok!(library, cuLibraryGetKernelCount(&raw mut count, loaded));
        assert_eq!(count, 6);
        ok!(library, cuKernelGetAttribute(&raw mut value, 0u32, kernel, 0i32));
        assert_eq!(value, 1024);
        let mut refused = 0u64;
        assert_eq!(
            cu!(
                library,
                cuLibraryLoadData(&raw mut refused, c"nonsense".as_ptr(), null, null, 0u32, null, null, 0u32)
            ),
            INVALID_PTX
        );
        assert_eq!(
            cu!(
                library,
                cuLibraryGetGlobal(&raw mut address, &raw mut bytes, loaded, c"step".as_ptr())
            ),
            INVALID_CONTEXT,
            "an address is that of a context"
        );
        // A variable of its own in each context, and one kernel for all.
        let mut program = Program { library, module: 0 };
        let mut contexts = [0u64; 2];
        for (number, context) in contexts.iter_mut().enumerate() {
            ok!(program.library, cuCtxCreate_v2(&raw mut *context, 0u32, 0i32));
            ok!(
                program.library,
                cuLibraryGetGlobal(&raw mut address, &raw mut bytes, loaded, c"step".as_ptr())
            );
            ok!(program.library, cuMemsetD32_v2(address, 100 + number as u32, 1usize));
        }
        for (number, context) in contexts.iter().enumerate() {
            ok!(program.library, cuCtxSetCurrent(*context));
            let mut out = program.allocate(4);
            assert_eq!(program.launch_one(kernel, &mut [parameter(&mut out)]), SUCCESS);
            assert_eq!(program.word(out), Ok(100 + number as u32));
            let mut function = 0u64;
            ok!(program.library, cuKernelGetFunction(&raw mut function, kernel));
            assert_ne!(function, kernel);
            assert_eq!(program.launch_one(function, &mut [parameter(&mut out)]), SUCCESS);
            ok!(program.library, cuLibraryGetModule(&raw mut program.module, loaded));
            assert_eq!(cu!(program.library, cuModuleUnload(program.module)), INVALID_HANDLE);
            ok!(program.library, cuFuncGetModule(&raw mut address, kernel));
            assert_eq!(address, program.module);
        }
        ok!(program.library, cuCtxDestroy_v2(contexts[0]));
        let mut out = program.allocate(4);
        assert_eq!(program.launch_one(kernel, &mut [parameter(&mut out)]), SUCCESS);
        assert_eq!(program.word(out), Ok(101));
        ok!(program.library, cuMemFree_v2(out));
        ok!(program.library, cuLibraryUnload(loaded));
        assert_eq!(program.launch_one(kernel, &mut [parameter(&mut out)]), INVALID_HANDLE);
        assert_eq!(cu!(program.library, cuLibraryUnload(loaded)), INVALID_HANDLE);
    });
}

#[test]
fn a_library_outlives_the_reset_of_the_primary_context() {
    apart("libraries::a_library_outlives_the_reset_of_the_primary_context", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (loaded, kernel) = load(library);
        ok!(library, cuKernelSetAttribute(8u32, 100_000i32, kernel, 0i32));
        ok!(library, cuDevicePrimaryCtxReset_v2(0i32));
        let mut out = program.allocate(4);
        assert_eq!(program.launch_one(kernel, &mut [parameter(&mut out)]), SUCCESS);
        assert_eq!(program.word(out), Ok(3));
        let mut value = 0i32;
        ok!(library, cuFuncGetAttribute(&raw mut value, 8u32, kernel));
        assert_eq!(value, 100_000, "settings are those of the kernel");
        let mut name = 0u64;
        assert_eq!(
            cu!(library, cuLibraryGetKernel(&raw mut name, loaded, c"missing".as_ptr())),
            NOT_FOUND
        );
        ok!(library, cuMemFree_v2(out));
        ok!(library, cuLibraryUnload(loaded));
        let (mut free, mut total) = (0usize, 0usize);
        ok!(library, cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(free, total);
    });
}

#[test]
fn threads_that_use_a_library_first_at_once_use_one_module() {
    apart("libraries::threads_that_use_a_library_first_at_once_use_one_module", CPU, || {
        let library = open();
        ok!(library, cuInit(0u32));
        let (_, kernel) = load(&library);
        let (mut context, program) = (0u64, Program { library, module: 0 });
        ok!(program.library, cuDevicePrimaryCtxRetain(&raw mut context, 0i32));
        ok!(program.library, cuCtxSetCurrent(context));
        let out = program.allocate(4);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    ok!(program.library, cuCtxSetCurrent(context));
                    let mut out = out;
                    assert_eq!(program.launch_one(kernel, &mut [parameter(&mut out)]), SUCCESS);
                });
            }
        });
        assert_eq!(program.word(out), Ok(24));
        let (mut free, mut total) = (0usize, 0usize);
        ok!(program.library, cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(total - free, 3 * 512, "the memory and two variables");
    });
}
