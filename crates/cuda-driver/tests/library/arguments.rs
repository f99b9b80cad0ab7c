//! Arguments at the edge of what the driver API documents.

use std::os::unix::ffi::OsStrExt;

use crate::driver::{
    CPU, INVALID_VALUE, KERNELS, NOT_INITIALIZED, NOT_SUPPORTED, Program, SUCCESS, apart, cu, has_textures, is_on_session, ok, open,
    parameter, refuses_machine_code, text,
};

#[test]
fn calls_before_initialisation_say_so_whatever_their_arguments_are() {
    apart(
        "arguments::calls_before_initialisation_say_so_whatever_their_arguments_are",
        CPU,
        || {
            let library = open();
            let null = std::ptr::null_mut::<u64>();
            for code in [
                cu!(library, cuMemAlloc_v2(null, 0usize)),
                cu!(library, cuMemHostAlloc(null, 0usize, 999u32)),
                cu!(library, cuStreamCreate(null, 999u32)),
                cu!(library, cuLaunchHostFunc(0u64, null, null)),
                cu!(library, cuMemsetD2D32_v2(0u64, 0usize, 0u32, usize::MAX, 2usize)),
                cu!(library, cuModuleLoad(null, null)),
                cu!(library, cuCtxCreate_v3(null, null, 1i32, 0u32, 0i32)),
                cu!(library, cuProfilerStart()),
            ] {
                assert_eq!(code, NOT_INITIALIZED);
            }
            let mut version = 0i32;
            ok!(library, cuDriverGetVersion(&raw mut version));
            assert_eq!(version, 12_080);
        },
    );
}

#[test]
fn flags_and_structures_are_read_as_documented() {
    apart("arguments::flags_and_structures_are_read_as_documented", CPU, || {
        #[repr(C)]
        struct ContextParameters {
            affinities: u64,
            count: i32,
            padding: u32,
            graphics: u64,
        }
        let program = Program::new();
        let library = &program.library;
        let (mut context, mut pointer, mut pool, mut value) = (0u64, 0u64, 0u64, 0i32);
        let mut parameters = ContextParameters {
            affinities: 0,
            count: 0,
            padding: 0xdead_beef,
            graphics: 0,
        };
        ok!(library, cuCtxCreate_v4(&raw mut context, &raw const parameters, 0u32, 0i32));
        ok!(library, cuCtxDestroy_v2(context));
        parameters.count = 1;
        assert_eq!(
            cu!(library, cuCtxCreate_v4(&raw mut context, &raw const parameters, 0u32, 0i32)),
            NOT_SUPPORTED
        );
        assert_eq!(cu!(library, cuMemHostAlloc(&raw mut pointer, 64usize, 8u32)), INVALID_VALUE);
        ok!(library, cuMemHostAlloc(&raw mut pointer, 64usize, 7u32));
        let mut address = 0u64;
        assert_eq!(
            cu!(library, cuMemHostGetDevicePointer_v2(&raw mut address, pointer, 1u32)),
            INVALID_VALUE
        );
        let mut own = [0u8; 64];
        assert_eq!(cu!(library, cuMemHostRegister_v2(own.as_mut_ptr(), 64usize, 16u32)), INVALID_VALUE);
        assert_eq!(cu!(library, cuMemHostRegister_v2(own.as_mut_ptr(), 64usize, 4u32)), NOT_SUPPORTED);
        ok!(library, cuDeviceGetDefaultMemPool(&raw mut pool, 0i32));
        for attribute in 1..=3u32 {
            ok!(library, cuMemPoolGetAttribute(pool, attribute, &raw mut value));
            assert_eq!(value, 1, "{attribute}");
            value = 0;
            ok!(library, cuMemPoolSetAttribute(pool, attribute, &raw mut value));
            value = 7;
            ok!(library, cuMemPoolGetAttribute(pool, attribute, &raw mut value));
            assert_eq!(value, 0, "{attribute}");
        }
        ok!(library, cuDeviceGetAttribute(&raw mut value, 31u32, 0i32));
        assert_eq!(value, 0, "kernels do not run concurrently");
    });
}

#[test]
fn host_memory_and_pools_outlive_the_primary_context() {
    apart("arguments::host_memory_and_pools_outlive_the_primary_context", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (mut pinned, mut pool) = (std::ptr::null_mut::<u32>(), 0u64);
        ok!(library, cuMemHostAlloc(&raw mut pinned, 64usize, 0u32));
        let properties = [1u32, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        ok!(library, cuMemPoolCreate(&raw mut pool, properties.as_ptr()));
        ok!(library, cuDevicePrimaryCtxReset_v2(0i32));
        // SAFETY: the library allocated it.
        unsafe { pinned.write(5) };
        let memory = program.allocate(4);
        ok!(library, cuMemcpyHtoD_v2(memory, pinned, 4usize));
        assert_eq!(program.word(memory), Ok(5));
        let mut address = 0u64;
        ok!(library, cuMemAllocFromPoolAsync(&raw mut address, 64usize, pool, 0u64));
        ok!(library, cuMemFreeAsync(address, 0u64));
        ok!(library, cuMemPoolDestroy(pool));
        ok!(library, cuMemFreeHost(pinned));
        assert_eq!(cu!(library, cuMemFreeHost(pinned)), INVALID_VALUE);
    });
}

#[test]
fn a_launch_records_the_events_among_its_attributes() {
    apart("arguments::a_launch_records_the_events_among_its_attributes", CPU, || {
        #[repr(C)]
        struct Attribute {
            id: u32,
            padding: u32,
            event: u64,
            rest: [u64; 7],
        }
        #[repr(C)]
        struct Configuration {
            grid: [u32; 3],
            block: [u32; 3],
            shared_bytes: u32,
            stream: u64,
            attributes: *const Attribute,
            count: u32,
        }
        let program = Program::new();
        let library = &program.library;
        let (mut first, mut second, mut timed) = (0u64, 0u64, 0u64);
        ok!(library, cuEventCreate(&raw mut first, 2u32));
        ok!(library, cuEventCreate(&raw mut second, 2u32));
        ok!(library, cuEventCreate(&raw mut timed, 0u32));
        let launch = |entry: &str, events: &[(u32, u64)], pointers: &mut [*mut u8]| {
            let attributes: Vec<Attribute> = events
                .iter()
                .map(|(id, event)| Attribute {
                    id: *id,
                    padding: 0,
                    event: *event,
                    rest: [0; 7],
                })
                .collect();
            let configuration = Configuration {
                grid: [1; 3],
                block: [1; 3],
                shared_bytes: 0,
                stream: 0,
                attributes: attributes.as_ptr(),
                count: attributes.len() as u32,
            };
            let none = std::ptr::null_mut::<u8>();
            cu!(
                library,
                cuLaunchKernelEx(&raw const configuration, program.function(entry), pointers.as_mut_ptr(), none)
            )
        };
        let mut memory = program.allocate(4);
        assert_eq!(
            launch("add_step", &[(7, first), (12, second)], &mut [parameter(&mut memory)]),
            SUCCESS
        );
        ok!(library, cuEventSynchronize(first));
        ok!(library, cuEventQuery(second));
        assert_eq!(launch("snap", &[(12, timed)], &mut []), INVALID_VALUE, "an event that takes times");
        assert_eq!(launch("snap", &[(7, 4711)], &mut []), 400);
        assert_eq!(program.word(memory), Ok(3));
        assert_eq!(launch("spin", &[(12, first)], &mut []), SUCCESS);
        assert_eq!(cu!(library, cuEventQuery(first)), 600, "the kernel runs");
    });
}

#[test]
fn files_have_any_name_and_are_read_to_their_end_only() {
    apart("arguments::files_have_any_name_and_are_read_to_their_end_only", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let folder = tempfile::tempdir().unwrap();
        let mut module = 0u64;
        let mut load = |name: &[u8], contents: &[u8]| {
            let path = folder.path().join(std::ffi::OsStr::from_bytes(name));
            std::fs::write(&path, contents).unwrap();
            let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
            cu!(library, cuModuleLoad(&raw mut module, path.as_ptr()))
        };
        let text = KERNELS.trim_end_matches('\0').as_bytes();
        assert_eq!(load(b"\xff\xfe.ptx", text), SUCCESS);
        assert!(refuses_machine_code(load(b"cubin", b"\x7fELF")));
        // An image of cuLinkComplete whose lengths are beyond the file.
        let magic = b"\x7fSAHASRA-PTX\0\x02\0\0";
        assert_eq!(load(b"short", magic), 200);
        assert_eq!(load(b"count", &[magic.as_slice(), &[0xff; 16]].concat()), 200);
        let one = [
            magic.as_slice(),
            &40u64.to_le_bytes(),
            &1u64.to_le_bytes(),
            &(1u64 << 40).to_le_bytes(),
        ]
        .concat();
        assert_eq!(load(b"length", &one), 200);
    });
}

#[test]
fn compilations_write_both_logs() {
    apart("arguments::compilations_write_both_logs", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let load = |text: &str| {
            let (mut info, mut error, mut module) = ([b'x'; 64], [b'x'; 64], 0u64);
            let options = [3u32, 4, 5, 6];
            let mut values = [info.as_mut_ptr() as usize, 64, error.as_mut_ptr() as usize, 64];
            let code = cu!(
                library,
                cuModuleLoadDataEx(&raw mut module, text.as_ptr(), 4u32, options.as_ptr(), values.as_mut_ptr())
            );
            let text = |bytes: &[u8], length: usize| String::from_utf8(bytes[..length].to_vec()).unwrap();
            (code, text(&info, values[1]), text(&error, values[3]))
        };
        let (code, info, error) = load(KERNELS);
        assert_eq!((code, error.as_str()), (SUCCESS, ""));
        assert!(info.contains("kernels: 6"), "{info}");
        let (code, _, error) = load("nonsense\0");
        assert_eq!(code, 218);
        assert!(!error.is_empty());
    });
}

#[test]
fn pointers_without_memory_have_no_attributes() {
    apart("arguments::pointers_without_memory_have_no_attributes", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (memory, freed, local, unit) = (program.allocate(64), program.allocate(64), 7u32, 2usize << 20);
        ok!(library, cuMemFree_v2(freed));
        let attribute = |attribute: u32, address: u64| {
            let mut value = 0xffu64;
            match cu!(library, cuPointerGetAttribute(&raw mut value, attribute, address)) {
                SUCCESS => Ok(value as u8),
                error => Err(error),
            }
        };
        // Whether it is managed, and whether it is mapped.
        assert_eq!([8, 13].map(|number| attribute(number, memory)), [Ok(0), Ok(1)]);
        for unknown in [freed, 16, (&raw const local) as u64] {
            for number in 1..=17 {
                assert_eq!(attribute(number, unknown), Err(INVALID_VALUE), "{number}");
            }
            let (mut managed, mut mapped, mut kind) = (9u8, 9u8, 9u32);
            let places = [(&raw mut managed).cast::<u32>(), (&raw mut mapped).cast(), &raw mut kind];
            let numbers = [8u32, 13, 2];
            ok!(library, cuPointerGetAttributes(3u32, numbers.as_ptr(), places.as_ptr(), unknown));
            assert_eq!((managed, mapped, kind), (0, 0, 0));
        }
        let (mut reserved, mut physical) = (0u64, 0u64);
        ok!(library, cuMemAddressReserve(&raw mut reserved, unit, 0usize, 0u64, 0u64));
        assert_eq!(attribute(13, reserved), Ok(0));
        ok!(
            library,
            cuMemCreate(&raw mut physical, unit, [1u32, 0, 1, 0, 0, 0, 0, 0].as_ptr(), 0u64)
        );
        ok!(library, cuMemMap(reserved, unit, 0usize, physical, 0u64));
        assert_eq!(attribute(13, reserved), Ok(1));
        ok!(library, cuMemUnmap(reserved, unit));
        ok!(library, cuMemAddressFree(reserved, unit));
        assert_eq!(attribute(13, reserved), Err(INVALID_VALUE));
    });
}

#[test]
fn values_that_do_not_exist_are_refused() {
    apart("arguments::values_that_do_not_exist_are_refused", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (mut managed, mut pool, mut limit) = (0u64, 0u64, 0usize);
        ok!(library, cuMemAllocManaged(&raw mut managed, 64usize, 1u32));
        let location = |kind: u64, id: u64| id << 32 | kind;
        for (advice, device, code) in [(1, 77, 0), (3, 0, 0), (5, -1, 0), (3, 3, 101), (6, -2, 101), (7, 0, 1), (0, 0, 1)] {
            let advised = cu!(library, cuMemAdvise(managed, 64usize, advice as u32, device));
            assert_eq!(advised, code, "{advice} {device}");
        }
        for (place, code) in [
            (location(1, 0), 0),
            (location(2, 0), 0),
            (location(3, 1), 0),
            (location(1, 7), 101),
            (location(77, 0), 1),
            (0, 1),
        ] {
            assert_eq!(cu!(library, cuMemAdvise_v2(managed, 64usize, 3u32, place)), code, "{place:x}");
            let prefetched = cu!(library, cuMemPrefetchAsync_v2(managed, 64usize, place, 0u32, 0u64));
            assert_eq!(prefetched, code, "{place:x}");
        }
        assert_eq!(
            cu!(library, cuMemPrefetchAsync_v2(managed, 64usize, 2u64, 1u32, 0u64)),
            INVALID_VALUE
        );
        assert_eq!(cu!(library, cuMemPrefetchAsync(managed, 64usize, 3i32, 0u64)), 101);
        assert_eq!(cu!(library, cuCtxSetCacheConfig(77u32)), INVALID_VALUE);
        assert_eq!(cu!(library, cuCtxSetSharedMemConfig(3u32)), INVALID_VALUE);
        ok!(library, cuCtxSetLimit(1u32, 8usize << 20));
        ok!(library, cuCtxGetLimit(&raw mut limit, 1u32));
        assert_eq!(limit, 1 << 20, "what holds");
        extern "C" fn never(_: u64, _: u32, _: *mut u8) {
            unreachable!("it was refused");
        }
        let callback = never as extern "C" fn(u64, u32, *mut u8);
        assert_eq!(
            cu!(library, cuStreamAddCallback(0u64, callback, std::ptr::null_mut::<u8>(), 1u32)),
            INVALID_VALUE
        );
        let properties = [1u64, 1, 0, 1 << 20, 0, 0, 0, 0, 0, 0, 0];
        ok!(library, cuMemPoolCreate(&raw mut pool, properties.as_ptr()));
        let mut memory = [0u64; 2];
        let allocate = |place: &mut u64, bytes: usize| cu!(library, cuMemAllocFromPoolAsync(std::ptr::from_mut(place), bytes, pool, 0u64));
        assert_eq!(allocate(&mut memory[0], 1 << 20), 0);
        assert_eq!(allocate(&mut memory[1], 512), 2, "the pool is full");
        ok!(library, cuMemFreeAsync(memory[0], 0u64));
        assert_eq!(allocate(&mut memory[1], 512), 0);
        let (mut registers, mut blocks) = (0i32, 0i32);
        let function = program.function("saxpy");
        assert_eq!(cu!(library, cuFuncSetCacheConfig(function, 4u32)), INVALID_VALUE);
        assert_eq!(cu!(library, cuFuncSetSharedMemConfig(function, 3u32)), INVALID_VALUE);
        ok!(library, cuFuncGetAttribute(&raw mut registers, 4u32, function));
        ok!(
            library,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, function, 128i32, 0usize)
        );
        // A GPU counts its own.
        if has_textures() {
            assert_eq!((registers, blocks), (32, 65536 / (32 * 128)));
        }
    });
}

#[test]
fn a_fault_in_pinned_memory_of_the_program_says_what_to_do() {
    if !is_on_session() {
        return;
    }
    let test = "arguments::a_fault_in_pinned_memory_of_the_program_says_what_to_do";
    let output = apart(test, CPU, || {
        let program = Program::new();
        let mut pinned = 0u64;
        ok!(program.library, cuMemHostAlloc(&raw mut pinned, 64usize, 0u32));
        let stray = program.function("stray");
        assert_eq!(program.launch_one(stray, &mut [parameter(&mut pinned)]), 0);
        assert_eq!(cu!(program.library, cuCtxSynchronize()), 700);
    });
    if let Some(output) = output.filter(|_| has_textures()) {
        let errors = text(&output.stderr);
        assert_eq!(errors.matches("CU_MEMHOSTALLOC_DEVICEMAP").count(), 1, "{errors}");
    }
}
