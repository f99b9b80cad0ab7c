//! Programs that work.

use crate::driver::{CPU, Copy2d, KERNELS, NOT_READY, Program, SUCCESS, Side, apart, cu, ok, parameter, text};

fn saxpy(program: &Program, stream: u64, count: u32) {
    let bytes = count as usize * 4;
    let (mut out, mut x, mut a, mut n) = (program.allocate(bytes), program.allocate(bytes), 2.0f32, count);
    let values: Vec<f32> = (0..count).map(|index| index as f32).collect();
    ok!(program.library, cuMemcpyHtoDAsync_v2(x, values.as_ptr(), bytes, stream));
    ok!(program.library, cuMemsetD32Async(out, 1.0f32.to_bits(), count as usize, stream));
    let function = program.function("saxpy");
    let mut parameters = [parameter(&mut out), parameter(&mut x), parameter(&mut a), parameter(&mut n)];
    assert_eq!(program.launch(function, count.div_ceil(64), stream, &mut parameters), SUCCESS);
    let mut result = vec![0.0f32; count as usize];
    ok!(program.library, cuMemcpyDtoHAsync_v2(result.as_mut_ptr(), out, bytes, stream));
    ok!(program.library, cuStreamSynchronize(stream));
    for (index, value) in result.iter().enumerate() {
        assert_eq!(*value, 2.0 * index as f32 + 1.0);
    }
    ok!(program.library, cuMemFree_v2(out));
    ok!(program.library, cuMemFree_v2(x));
}

#[test]
fn a_program_computes_on_streams_and_takes_times() {
    apart("programs::a_program_computes_on_streams_and_takes_times", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (mut stream, mut start, mut end, mut milliseconds) = (0u64, 0u64, 0u64, -1.0f32);
        ok!(library, cuStreamCreate(&raw mut stream, 1u32));
        ok!(library, cuEventCreate(&raw mut start, 0u32));
        ok!(library, cuEventCreate(&raw mut end, 0u32));
        ok!(library, cuEventRecord(start, stream));
        saxpy(&program, 0, 1000);
        saxpy(&program, stream, 100_000);
        ok!(library, cuEventRecord(end, stream));
        ok!(library, cuStreamWaitEvent(0u64, end, 0u32));
        ok!(library, cuEventSynchronize(end));
        ok!(library, cuEventQuery(end));
        ok!(library, cuEventElapsedTime(&raw mut milliseconds, start, end));
        assert!(milliseconds > 0.0, "{milliseconds}");
        // Recorded again, with a read that has waited for both.
        ok!(library, cuEventRecord(start, stream));
        ok!(library, cuEventRecord(end, stream));
        let word = program.allocate(4);
        assert_eq!(program.word(word), Ok(0));
        let mut again = -1.0f32;
        ok!(library, cuEventSynchronize(end));
        ok!(library, cuEventElapsedTime(&raw mut again, start, end));
        assert!(again >= 0.0 && again != milliseconds, "{again}");
        ok!(library, cuMemFree_v2(word));
        let (mut free, mut total) = (0usize, 0usize);
        ok!(library, cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(total, 64 << 20);
        assert!(
            free < total && free > total - 4096,
            "only the module's variables: {free} of {total}"
        );
        ok!(library, cuEventDestroy_v2(start));
        ok!(library, cuStreamDestroy_v2(stream));
        ok!(library, cuModuleUnload(program.module));
        ok!(library, cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(free, total);
    });
}

#[test]
fn variables_persist_and_have_addresses() {
    apart("programs::variables_persist_and_have_addresses", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (mut step, mut bytes) = (0u64, 0usize);
        ok!(
            library,
            cuModuleGetGlobal_v2(&raw mut step, &raw mut bytes, program.module, c"step".as_ptr())
        );
        assert_eq!(bytes, 4);
        assert_eq!(program.word(step), Ok(3));
        let mut out = program.allocate(4);
        let function = program.function("add_step");
        assert_eq!(program.launch_one(function, &mut [parameter(&mut out)]), SUCCESS);
        ok!(library, cuMemsetD32_v2(step, 10u32, 1usize));
        assert_eq!(program.launch_one(function, &mut [parameter(&mut out)]), SUCCESS);
        assert_eq!(program.word(out), Ok(13));
    });
}

#[test]
fn kernels_print_on_the_programs_standard_output() {
    let output = apart("programs::kernels_print_on_the_programs_standard_output", CPU, || {
        let program = Program::new();
        assert_eq!(program.launch_one(program.function("greet"), &mut []), SUCCESS);
        ok!(program.library, cuCtxSynchronize());
    });
    if let Some(output) = output {
        assert!(text(&output.stdout).contains("hello\n"));
    }
}

#[test]
fn linked_texts_are_a_module() {
    apart("programs::linked_texts_are_a_module", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let texts = [
            ".version 7.0 .target sm_70 .address_size 64
             .extern .global .u32 shared;
             .visible .entry get(.param .u64 out) {
                 .reg .b32 %r1; .reg .b64 %rd1;
                 ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [shared]; st.global.u32 [%rd1], %r1; ret;
             }\0",
            ".version 7.0 .target sm_70 .address_size 64 .visible .global .u32 shared = 77;\0",
        ];
        let null = std::ptr::null_mut::<u64>();
        let (mut link, mut image, mut bytes) = (0u64, std::ptr::null_mut::<u8>(), 0usize);
        ok!(library, cuLinkCreate_v2(0u32, null, null, &raw mut link));
        for text in texts {
            ok!(
                library,
                cuLinkAddData_v2(link, 1u32, text.as_ptr(), text.len(), c"name".as_ptr(), 0u32, null, null)
            );
        }
        ok!(library, cuLinkComplete(link, &raw mut image, &raw mut bytes));
        assert!(bytes > texts[0].len());
        let (mut loaded, mut kernel) = (0u64, 0u64);
        ok!(
            library,
            cuLibraryLoadData(&raw mut loaded, image, null, null, 0u32, null, null, 0u32)
        );
        ok!(library, cuLinkDestroy(link));
        ok!(library, cuLibraryGetKernel(&raw mut kernel, loaded, c"get".as_ptr()));
        let mut out = program.allocate(4);
        assert_eq!(program.launch_one(kernel, &mut [parameter(&mut out)]), SUCCESS);
        assert_eq!(program.word(out), Ok(77));
        ok!(library, cuLibraryUnload(loaded));
    });
}

#[test]
fn planes_are_copied_between_host_and_device() {
    apart("programs::planes_are_copied_between_host_and_device", CPU, || {
        let side = |kind, address: u64, pitch, x_bytes, y| Side {
            x_bytes,
            y,
            kind,
            host: if kind == 1 { address } else { 0 },
            device: if kind == 2 { address } else { 0 },
            array: 0,
            pitch,
        };
        let program = Program::new();
        let library = &program.library;
        let (mut address, mut pitch) = (0u64, 0usize);
        ok!(library, cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, 8usize, 4usize, 4u32));
        assert!(pitch >= 8);
        let source: Vec<u8> = (0..32).collect();
        let up = Copy2d {
            from: side(1, source.as_ptr() as u64, 8, 0, 0),
            to: side(2, address, pitch, 0, 0),
            width: 8,
            height: 4,
        };
        ok!(library, cuMemcpy2D_v2(&raw const up));
        let mut target = [0u8; 16];
        let down = Copy2d {
            from: side(2, address, pitch, 2, 1),
            to: side(1, target.as_mut_ptr() as u64, 4, 0, 0),
            width: 4,
            height: 3,
        };
        ok!(library, cuMemcpy2D_v2(&raw const down));
        assert_eq!(target, [10, 11, 12, 13, 18, 19, 20, 21, 26, 27, 28, 29, 0, 0, 0, 0]);
    });
}

#[test]
fn an_endless_kernel_runs_beside_the_program() {
    apart("programs::an_endless_kernel_runs_beside_the_program", CPU, || {
        let program = Program::new();
        let mut stream = 0u64;
        ok!(program.library, cuStreamCreate(&raw mut stream, 1u32));
        assert_eq!(program.launch(program.function("spin"), 1, stream, &mut []), SUCCESS);
        assert_eq!(cu!(program.library, cuStreamQuery(stream)), NOT_READY);
    });
}

#[test]
fn sixty_four_threads_compute_at_once() {
    apart("programs::sixty_four_threads_compute_at_once", CPU, || {
        let program = Program::new();
        let mut context = 0u64;
        ok!(program.library, cuCtxGetCurrent(&raw mut context));
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    ok!(program.library, cuCtxSetCurrent(context));
                    let mut stream = 0u64;
                    ok!(program.library, cuStreamCreate(&raw mut stream, 1u32));
                    let mut module = 0u64;
                    ok!(program.library, cuModuleLoadData(&raw mut module, KERNELS.as_ptr()));
                    for _ in 0..20 {
                        saxpy(&program, stream, 500);
                    }
                    ok!(program.library, cuModuleUnload(module));
                    ok!(program.library, cuStreamDestroy_v2(stream));
                });
            }
        });
        ok!(program.library, cuCtxSynchronize());
    });
}

#[test]
fn kernels_and_host_share_memory_that_was_asked_for() {
    apart("programs::kernels_and_host_share_memory_that_was_asked_for", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let function = program.function("add_step");
        let add = |mut address: u64| {
            assert_eq!(program.launch_one(function, &mut [parameter(&mut address)]), SUCCESS);
            ok!(library, cuCtxSynchronize());
        };
        let kind = |address: u64| {
            let mut kind = 0u32;
            ok!(library, cuPointerGetAttribute(&raw mut kind, 2u32, address));
            kind
        };
        let (mut pinned, mut address) = (std::ptr::null_mut::<u32>(), 0u64);
        ok!(library, cuMemHostAlloc(&raw mut pinned, 64usize, 0u32));
        ok!(library, cuMemHostGetDevicePointer_v2(&raw mut address, pinned, 0u32));
        add(address);
        // SAFETY: the library allocated it, and no kernel runs.
        assert_eq!(unsafe { pinned.read() }, 3);
        assert_eq!(kind(address), 1, "memory of the host");
        ok!(library, cuMemsetD32_v2(address, 0x0101_0101u32, 1usize));
        // SAFETY: the library allocated it, and the fill has returned.
        assert_eq!(unsafe { pinned.read() }, 0x0101_0101, "a fill is there when it returns");
        ok!(library, cuMemsetD32_v2(address, 3u32, 1usize));
        // Copies from and to such memory keep the order of the stream.
        let out = program.allocate(4);
        for _ in 0..10 {
            assert_eq!(program.launch_one(function, &mut [parameter(&mut address)]), SUCCESS);
        }
        ok!(library, cuMemcpyHtoDAsync_v2(out, pinned, 4usize, 0u64));
        assert_eq!(program.word(out), Ok(33));
        ok!(library, cuMemsetD32_v2(out, 9u32, 1usize));
        ok!(library, cuMemcpyDtoH_v2(pinned, out, 4usize));
        // SAFETY: the library allocated it, and no kernel runs.
        assert_eq!(unsafe { pinned.read() }, 9);
        ok!(library, cuMemFreeHost(pinned));

        let mut managed = 0u64;
        ok!(library, cuMemAllocManaged(&raw mut managed, 64usize, 1u32));
        // SAFETY: managed memory is at its address in the host, and no kernel runs.
        unsafe { (managed as *mut u32).write(7) };
        add(managed);
        // SAFETY: managed memory is at its address in the host, and no kernel runs.
        assert_eq!(unsafe { (managed as *const u32).read() }, 10);
        assert_eq!(kind(managed), 2);
        ok!(library, cuMemFree_v2(managed));

        let mut own = Box::new(5u32);
        // A device elsewhere has to know that kernels access it.
        let flags = if crate::driver::is_on_session() { 2u32 } else { 0 };
        ok!(library, cuMemHostRegister_v2(&raw mut *own, 4usize, flags));
        add(&raw mut *own as u64);
        ok!(library, cuMemHostUnregister(&raw mut *own));
        assert_eq!(*own, 8);
        assert_eq!(cu!(library, cuMemHostUnregister(&raw mut *own)), 713);
    });
}
