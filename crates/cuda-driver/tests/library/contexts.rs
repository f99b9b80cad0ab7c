//! Several contexts, and contexts that end while they are used.

use std::ffi::c_void;

use crate::driver::{
    CPU, Copy2d, ILLEGAL_ADDRESS, INVALID_VALUE, KERNELS, OUT_OF_MEMORY, Program, SUCCESS, Side, apart, cu, ok, open, parameter, text,
};

unsafe extern "C" {
    static stdin: *mut libc::FILE;
    fn ftrylockfile(stream: *mut libc::FILE) -> i32;
    fn funlockfile(stream: *mut libc::FILE);
}

/// Address of the variable `step` of a module that is loaded in the current context, and that module.
fn step(library: &libloading::Library) -> (u64, u64) {
    let (mut module, mut address, mut bytes) = (0u64, 0u64, 0usize);
    ok!(library, cuModuleLoadData(&raw mut module, KERNELS.as_ptr()));
    ok!(
        library,
        cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, c"step".as_ptr())
    );
    (address, module)
}

#[test]
fn variables_of_two_contexts_have_addresses_of_their_own() {
    apart("contexts::variables_of_two_contexts_have_addresses_of_their_own", CPU, || {
        let library = open();
        ok!(library, cuInit(0u32));
        let (mut first, mut second) = (0u64, 0u64);
        ok!(library, cuCtxCreate_v2(&raw mut first, 0u32, 0i32));
        let (of_first, module) = step(&library);
        ok!(library, cuCtxCreate_v2(&raw mut second, 0u32, 0i32));
        let (of_second, _) = step(&library);
        assert_ne!(of_first, of_second);
        ok!(library, cuMemsetD32_v2(of_second, 20u32, 1usize));
        ok!(library, cuCtxSetCurrent(first));
        ok!(library, cuMemsetD32_v2(of_first, 10u32, 1usize));
        let program = Program { library, module };
        assert_eq!((program.word(of_first), program.word(of_second)), (Ok(10), Ok(20)));
        let mut out = program.allocate(4);
        assert_eq!(
            program.launch_one(program.function("add_step"), &mut [parameter(&mut out)]),
            SUCCESS
        );
        assert_eq!(program.word(out), Ok(10));
        ok!(program.library, cuCtxDestroy_v2(second));
        assert_eq!(program.word(of_first), Ok(10), "it goes only with its own context");
        assert_eq!(program.word(of_second), Err(INVALID_VALUE));
    });
}

#[test]
fn copies_by_address_refuse_pointers_to_no_memory() {
    apart("contexts::copies_by_address_refuse_pointers_to_no_memory", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (step, _) = step(library);
        let (kept, freed) = (program.allocate(512), program.allocate(512));
        ok!(library, cuMemFree_v2(freed));
        let host = [7u8; 512];
        for nowhere in [freed, freed + 100, kept + 512, step + (1 << 40), 1 << 61] {
            assert_eq!(
                cu!(library, cuMemcpy(nowhere, host.as_ptr() as u64, 4usize)),
                INVALID_VALUE,
                "{nowhere:x}"
            );
            assert_eq!(
                cu!(library, cuMemcpyAsync(kept, nowhere, 4usize, 0u64)),
                INVALID_VALUE,
                "{nowhere:x}"
            );
        }
        assert_eq!(cu!(library, cuMemcpy(kept, host.as_ptr() as u64, 513usize)), INVALID_VALUE);
        ok!(library, cuMemcpy(kept, host.as_ptr() as u64, 512usize));
        assert_eq!(program.word(kept), Ok(0x0707_0707));
    });
}

#[test]
fn memory_is_counted_right_while_the_primary_context_is_reset() {
    apart("contexts::memory_is_counted_right_while_the_primary_context_is_reset", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let mut context = 0u64;
        ok!(library, cuCtxGetCurrent(&raw mut context));
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|number| {
                    scope.spawn(move || {
                        ok!(library, cuCtxSetCurrent(context));
                        for round in 0..3000usize {
                            let (mut address, mut module) = (0u64, 0u64);
                            // Any of these may find the context destroyed.
                            let made = match (number + round) % 3 {
                                0 => cu!(library, cuMemAlloc_v2(&raw mut address, 4096usize)),
                                1 => cu!(library, cuMemAllocAsync(&raw mut address, 4096usize, 0u64)),
                                _ => cu!(library, cuMemAllocManaged(&raw mut address, 4096usize, 1u32)),
                            };
                            if made == SUCCESS {
                                cu!(library, cuMemFree_v2(address));
                            }
                            if round % 100 == 0 && cu!(library, cuModuleLoadData(&raw mut module, KERNELS.as_ptr())) == SUCCESS {
                                cu!(library, cuModuleUnload(module));
                            }
                        }
                    })
                })
                .collect();
            while workers.iter().any(|worker| !worker.is_finished()) {
                ok!(library, cuDevicePrimaryCtxReset_v2(0i32));
            }
        });
        ok!(library, cuDevicePrimaryCtxReset_v2(0i32));
        let (mut free, mut total, mut pool, mut used) = (0usize, 0usize, 0u64, 1u64);
        ok!(library, cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(free, total);
        ok!(library, cuDeviceGetDefaultMemPool(&raw mut pool, 0i32));
        ok!(library, cuMemPoolGetAttribute(pool, 7u32, &raw mut used));
        assert_eq!(used, 0);
    });
}

#[test]
fn memory_that_the_host_lacks_is_refused_and_nothing_else_is() {
    let variables = &[("SAHASRA_CUDA", "cpu:"), ("SAHASRA_CUDA_MEMORY", "64Ti")];
    apart(
        "contexts::memory_that_the_host_lacks_is_refused_and_nothing_else_is",
        variables,
        || {
            let program = Program::new();
            let library = &program.library;
            let kept = program.allocate(4);
            let (mut before, mut after, mut total) = (0usize, 0usize, 0usize);
            ok!(library, cuMemGetInfo_v2(&raw mut before, &raw mut total));
            let limit = libc::rlimit {
                rlim_cur: 16 << 30,
                rlim_max: libc::RLIM_INFINITY,
            };
            // SAFETY: limits the addresses of this process.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
            let mut address = 0u64;
            for _ in 0..3 {
                assert_eq!(cu!(library, cuMemAlloc_v2(&raw mut address, 1usize << 40)), OUT_OF_MEMORY);
            }
            assert_eq!(address, 0);
            ok!(library, cuMemGetInfo_v2(&raw mut after, &raw mut total));
            assert_eq!(before, after);
            ok!(library, cuCtxSynchronize());
            assert_eq!(program.word(kept), Ok(0));
            let large = program.allocate(2 << 20);
            assert_eq!(program.word(large), Ok(0));
        },
    );
}

#[test]
fn sizes_beyond_all_memory_are_refused() {
    apart("contexts::sizes_beyond_all_memory_are_refused", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let null = std::ptr::null_mut::<c_void>();
        let function = program.function("snap");
        // Their product is 0 in 64 bits.
        for [x, y, z] in [[1 << 31, 1 << 31, 4], [u32::MAX, u32::MAX, 64], [1 << 30, 1 << 30, 16]] {
            let launched = cu!(library, cuLaunchKernel(function, 1u32, 1u32, 1u32, x, y, z, 0u32, 0u64, null, null));
            assert_eq!(launched, INVALID_VALUE, "{x} {y} {z}");
        }
        let memory = program.allocate(64);
        let host = [0u8; 64];
        let side = |kind, address: u64, x_bytes, y, pitch| Side {
            x_bytes,
            y,
            kind,
            host: address,
            device: address,
            array: 0,
            pitch,
        };
        for (x_bytes, y, pitch, width, height) in [
            (usize::MAX, 0, 0, 4, 1),
            (usize::MAX - 1, 0, 0, 4, 4),
            (0, usize::MAX, 8, 4, 4),
            (8, usize::MAX, usize::MAX, 4, 4),
            (0, 0, usize::MAX, usize::MAX, usize::MAX),
        ] {
            let copy = Copy2d {
                from: side(1, host.as_ptr() as u64, 0, 0, 0),
                to: side(2, memory, x_bytes, y, pitch),
                width,
                height,
            };
            assert_eq!(cu!(library, cuMemcpy2D_v2(&raw const copy)), INVALID_VALUE, "{x_bytes} {y} {pitch}");
        }
        let mut count = 9i32;
        ok!(
            library,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut count, function, 32i32, usize::MAX)
        );
        assert_eq!(count, 0);
        for threads in [1025, i32::MAX] {
            count = 9;
            ok!(
                library,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut count, function, threads, 0usize)
            );
            assert_eq!(count, 0, "{threads}");
        }
        ok!(library, cuCtxSynchronize());
    });
}

#[test]
fn printing_does_not_wait_for_a_thread_that_waits_for_input() {
    let test = "contexts::printing_does_not_wait_for_a_thread_that_waits_for_input";
    let output = apart(test, CPU, || {
        let program = Program::new();
        let mut ends = [0i32; 2];
        // SAFETY: makes a pipe without a writer standard input, for which a second thread waits with the stream locked. The process
        // ends without that thread.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            assert_eq!(libc::dup2(ends[0], 0), 0);
            std::thread::spawn(|| libc::fgetc(stdin));
            while ftrylockfile(stdin) == 0 {
                funlockfile(stdin);
                std::thread::yield_now();
            }
        }
        assert_eq!(program.launch_one(program.function("greet"), &mut []), SUCCESS);
        ok!(program.library, cuCtxSynchronize());
    });
    if let Some(output) = output {
        assert!(text(&output.stdout).contains("hello\n"));
    }
}

#[test]
fn a_faulty_launch_that_is_done_has_its_fault() {
    apart("contexts::a_faulty_launch_that_is_done_has_its_fault", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let mut nowhere = 0x1234_5678u64;
        for _ in 0..200 {
            let (mut module, mut function) = (0u64, 0u64);
            ok!(library, cuModuleLoadData(&raw mut module, KERNELS.as_ptr()));
            ok!(library, cuModuleGetFunction(&raw mut function, module, c"stray".as_ptr()));
            assert_eq!(program.launch_one(function, &mut [parameter(&mut nowhere)]), SUCCESS);
            let found = loop {
                match cu!(library, cuStreamQuery(0u64)) {
                    600 => std::hint::spin_loop(),
                    found => break found,
                }
            };
            assert_eq!(found, ILLEGAL_ADDRESS);
            ok!(library, cuDevicePrimaryCtxReset_v2(0i32));
        }
    });
}
