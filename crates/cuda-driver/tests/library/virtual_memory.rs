//! Memory at addresses that the program reserves.

use crate::driver::{CPU, ILLEGAL_ADDRESS, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Program, SUCCESS, apart, cu, ok, parameter};

/// `CUmemLocation` of the device, `CUmemAccessDesc` and `CUmemAllocationProp`.
const DEVICE: [u32; 2] = [1, 0];
const UNIT: usize = 2 << 20;

fn properties(handle_kinds: u32) -> [u32; 8] {
    [1, handle_kinds, 1, 0, 0, 0, 0, 0]
}

fn access(flags: u32) -> [u32; 3] {
    [DEVICE[0], DEVICE[1], flags]
}

fn reserve(program: &Program, bytes: usize) -> u64 {
    let mut address = 0u64;
    ok!(program.library, cuMemAddressReserve(&raw mut address, bytes, 0usize, 0u64, 0u64));
    address
}

fn create(program: &Program, bytes: usize) -> u64 {
    let mut handle = 0u64;
    ok!(program.library, cuMemCreate(&raw mut handle, bytes, properties(0).as_ptr(), 0u64));
    handle
}

fn set_access(program: &Program, address: u64, bytes: usize, flags: u32) {
    ok!(program.library, cuMemSetAccess(address, bytes, access(flags).as_ptr(), 1usize));
}

fn free(program: &Program) -> usize {
    let (mut free, mut total) = (0usize, 0usize);
    ok!(program.library, cuMemGetInfo_v2(&raw mut free, &raw mut total));
    free
}

#[test]
fn addresses_of_the_process_are_reserved_if_they_are_free() {
    apart(
        "virtual_memory::addresses_of_the_process_are_reserved_if_they_are_free",
        CPU,
        || {
            let program = Program::new();
            let library = &program.library;
            let wanted = 0x3d00_0000_0000u64;
            let reserve_wanted = |wanted: u64| {
                let mut address = 0u64;
                ok!(library, cuMemAddressReserve(&raw mut address, UNIT, 0usize, wanted, 0u64));
                address
            };
            assert_eq!(reserve_wanted(wanted), wanted);
            assert_ne!(reserve_wanted(wanted), wanted, "taken");
            let local = 7u32;
            let of_stack = (&raw const local) as u64 / UNIT as u64 * UNIT as u64;
            assert_ne!(reserve_wanted(of_stack), of_stack, "the stack is there");
            let memory = create(&program, UNIT);
            ok!(library, cuMemMap(wanted, UNIT, 0usize, memory, 0u64));
            set_access(&program, wanted, UNIT, 3);
            let mut first = wanted;
            assert_eq!(
                program.launch_one(program.function("add_step"), &mut [parameter(&mut first)]),
                SUCCESS
            );
            assert_eq!(program.word(wanted), Ok(3));
            ok!(library, cuMemUnmap(wanted, UNIT));
            ok!(library, cuMemAddressFree(wanted, UNIT));
            assert_eq!(reserve_wanted(wanted), wanted, "free again");
        },
    );
}

#[test]
fn a_program_grows_an_array_by_mapping_memory_behind_it() {
    apart("virtual_memory::a_program_grows_an_array_by_mapping_memory_behind_it", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (mut granularity, mut flags) = (0usize, 9u64);
        ok!(
            library,
            cuMemGetAllocationGranularity(&raw mut granularity, properties(0).as_ptr(), 0u32)
        );
        assert_eq!(granularity, UNIT);
        let before = free(&program);
        let address = reserve(&program, 4 * UNIT);
        let parts = [create(&program, UNIT), create(&program, 2 * UNIT)];
        assert_eq!(free(&program), before - 3 * UNIT);
        ok!(library, cuMemMap(address, UNIT, 0usize, parts[0], 0u64));
        assert_eq!(program.word(address), Err(INVALID_VALUE), "no access yet");
        set_access(&program, address, UNIT, 3);
        let mut first = address;
        assert_eq!(
            program.launch_one(program.function("add_step"), &mut [parameter(&mut first)]),
            SUCCESS
        );
        assert_eq!(program.word(address), Ok(3));
        ok!(library, cuMemMap(address + UNIT as u64, 2 * UNIT, 0usize, parts[1], 0u64));
        set_access(&program, address, 3 * UNIT, 3);
        for part in parts {
            ok!(library, cuMemRelease(part));
        }
        assert_eq!(free(&program), before - 3 * UNIT, "mapped still");
        assert_eq!(program.word(address), Ok(3), "what was there stays");
        // Fills and copies across the boundary, of rows and boxes.
        let middle = address + UNIT as u64 - 8;
        ok!(library, cuMemsetD32_v2(middle, 7u32, 4usize));
        let mut words = [0u32; 6];
        ok!(library, cuMemcpyDtoH_v2(words.as_mut_ptr(), middle - 4, 24usize));
        assert_eq!(words, [0, 7, 7, 7, 7, 0]);
        ok!(library, cuMemcpyHtoD_v2(middle, [1u32, 2, 3, 4].as_ptr(), 16usize));
        ok!(library, cuMemcpyDtoD_v2(address, middle, 16usize));
        ok!(library, cuMemcpyDtoH_v2(words.as_mut_ptr(), address, 24usize));
        assert_eq!(words, [1, 2, 3, 4, 0, 0]);
        ok!(library, cuMemsetD2D8_v2(middle, 12usize, 9u8, 2usize, 2usize));
        ok!(library, cuMemcpyDtoH_v2(words.as_mut_ptr(), middle, 16usize));
        assert_eq!(words[..4], [0x0909, 2, 3, 0x0909]);
        assert_eq!(
            cu!(library, cuMemsetD8_v2(address + 3 * UNIT as u64 - 1, 0u8, 2usize)),
            INVALID_VALUE,
            "beyond the end"
        );
        ok!(library, cuMemGetAccess(&raw mut flags, DEVICE.as_ptr(), middle));
        assert_eq!(flags, 3);
        assert_eq!(cu!(library, cuMemAddressFree(address, 4 * UNIT)), INVALID_VALUE, "mapped still");
        assert_eq!(cu!(library, cuMemFree_v2(address)), INVALID_VALUE, "no allocation");
        ok!(library, cuMemUnmap(address, 3 * UNIT));
        assert_eq!(cu!(library, cuMemcpy(address, middle, 4usize)), INVALID_VALUE);
        ok!(library, cuMemAddressFree(address, 4 * UNIT));
        assert_eq!(free(&program), before);
        let mut gone = address;
        assert_eq!(program.launch_one(program.function("stray"), &mut [parameter(&mut gone)]), SUCCESS);
        assert_eq!(cu!(library, cuCtxSynchronize()), ILLEGAL_ADDRESS);
    });
}

#[test]
fn memory_keeps_its_contents_wherever_it_is_mapped() {
    apart("virtual_memory::memory_keeps_its_contents_wherever_it_is_mapped", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let before = free(&program);
        let address = reserve(&program, 3 * UNIT);
        let (one, two) = (create(&program, 2 * UNIT), create(&program, 2 * UNIT));
        let at = |unit: u64| address + unit * UNIT as u64;
        let map = |handle: u64, unit: u64| {
            ok!(library, cuMemMap(at(unit), 2 * UNIT, 0usize, handle, 0u64));
            set_access(&program, at(unit), 2 * UNIT, 3);
        };
        let unmap = |unit: u64| ok!(library, cuMemUnmap(at(unit), 2 * UNIT));
        map(one, 0);
        ok!(library, cuMemsetD32_v2(at(0), 1u32, 2 * UNIT / 4));
        unmap(0);
        // Where the first is still, which moves away.
        map(two, 0);
        assert_eq!(program.word(at(0)), Ok(0));
        ok!(library, cuMemsetD32_v2(at(0), 2u32, 2 * UNIT / 4));
        unmap(0);
        // The first comes back, and moves by half of its size.
        map(one, 0);
        assert_eq!(program.word(at(2) - 4), Ok(1));
        unmap(0);
        map(one, 1);
        assert_eq!((program.word(at(1)), program.word(at(3) - 4)), (Ok(1), Ok(1)));
        set_access(&program, at(1), 2 * UNIT, 0);
        assert_eq!(program.word(at(1)), Err(INVALID_VALUE));
        set_access(&program, at(1), 2 * UNIT, 1);
        assert_eq!(program.word(at(1)), Ok(1));
        let mut retained = 0u64;
        ok!(library, cuMemRetainAllocationHandle(&raw mut retained, at(2)));
        assert_eq!(retained, one);
        for handle in [one, one] {
            ok!(library, cuMemRelease(handle));
        }
        assert_eq!(cu!(library, cuMemRelease(one)), INVALID_VALUE, "released twice");
        unmap(1);
        map(two, 1);
        assert_eq!(program.word(at(1)), Ok(2));
        unmap(1);
        ok!(library, cuMemRelease(two));
        assert_eq!(free(&program), before);
        ok!(library, cuMemAddressFree(address, 3 * UNIT));
        ok!(library, cuCtxSynchronize());
    });
}

#[test]
fn wrong_uses_of_virtual_memory_are_refused() {
    apart("virtual_memory::wrong_uses_of_virtual_memory_are_refused", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let mut handle = 0u64;
        let mut create_of = |bytes: usize, handle_kinds: u32| {
            cu!(
                library,
                cuMemCreate(&raw mut handle, bytes, properties(handle_kinds).as_ptr(), 0u64)
            )
        };
        assert_eq!(create_of(UNIT, 1), NOT_SUPPORTED, "for other processes");
        assert_eq!(create_of(UNIT + 1, 0), INVALID_VALUE);
        assert_eq!(create_of(64 * UNIT, 0), OUT_OF_MEMORY);
        assert_eq!(create_of(UNIT, 0), SUCCESS);
        let address = reserve(&program, 2 * UNIT);
        for (start, bytes, offset, memory) in [
            (address + 4096, UNIT, 0, handle),
            (address + 2 * UNIT as u64, UNIT, 0, handle),
            (address, 2 * UNIT, 0, handle),
            (address, UNIT, UNIT, handle),
            (address, UNIT, 0, 4711),
        ] {
            assert_eq!(
                cu!(library, cuMemMap(start, bytes, offset, memory, 0u64)),
                INVALID_VALUE,
                "{start:x}"
            );
        }
        assert_eq!(
            cu!(library, cuMemSetAccess(address, UNIT, access(3).as_ptr(), 1usize)),
            INVALID_VALUE,
            "nothing is mapped"
        );
        ok!(library, cuMemMap(address, UNIT, 0usize, handle, 0u64));
        assert_eq!(cu!(library, cuMemUnmap(address, 2 * UNIT)), INVALID_VALUE);
        set_access(&program, address, UNIT, 3);
        // The context takes its memory with it, and the mapping gets fresh memory in the next.
        ok!(library, cuMemsetD32_v2(address, 5u32, 1usize));
        ok!(library, cuDevicePrimaryCtxReset_v2(0i32));
        assert_eq!(program.word(address), Err(INVALID_VALUE));
        set_access(&program, address, UNIT, 3);
        assert_eq!(program.word(address), Ok(0));
        ok!(library, cuMemUnmap(address, UNIT));
        ok!(library, cuMemRelease(handle));
    });
}
