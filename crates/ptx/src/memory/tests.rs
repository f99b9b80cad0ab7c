use super::*;

#[test]
fn allocations_are_zeroed_aligned_and_counted() {
    let memory = Memory::new(4096);
    let pointer = memory.allocate(1000).expect("fits");
    assert_ne!(pointer.0, 0);
    assert_eq!(pointer.0 % 256, 0);
    assert_eq!(memory.used(), 1024);
    let mut bytes = vec![1; 1000];
    memory.read(pointer, &mut bytes).expect("reads");
    assert!(bytes.iter().all(|byte| *byte == 0));
    memory.free(pointer).expect("frees");
    assert_eq!(memory.used(), 0);
    assert_eq!(memory.free(pointer), Err(MemoryError::NotAllocated(pointer)));
}

#[test]
fn capacity_is_a_hard_limit() {
    let memory = Memory::new(1024);
    assert!(memory.allocate(1025).is_err());
    let first = memory.allocate(512).expect("fits");
    assert!(matches!(memory.allocate(513), Err(MemoryError::OutOfMemory { available: 512, .. })));
    memory.allocate(512).expect("fits");
    memory.free(first).expect("frees");
    memory.allocate(1).expect("fits again");
    assert!(memory.allocate(u64::MAX).is_err());
}

#[test]
fn ranges_stay_inside_one_allocation() {
    let memory = Memory::new(1 << 20);
    let first = memory.allocate(100).expect("fits");
    let second = memory.allocate(100).expect("fits");
    assert!(second.0 >= first.0 + 512, "a gap lies between allocations");
    memory.write(first.offset(96), &[1, 2, 3, 4]).expect("inside");
    assert!(memory.write(first.offset(97), &[1, 2, 3, 4]).is_err());
    assert!(memory.read(DevicePointer(0), &mut [0]).is_err());
    memory.fill(first, 7, 100).expect("inside");
    assert!(memory.fill(first, 7, 101).is_err());
    let mut bytes = [0; 2];
    memory.read(first.offset(98), &mut bytes).expect("inside");
    assert_eq!(bytes, [7, 7]);
}

#[test]
fn callers_choose_free_addresses_below_the_first() {
    let memory = Memory::with_addresses(1 << 20, DevicePointer(1 << 48)..DevicePointer(u64::MAX));
    assert_eq!(memory.allocate(8).expect("fits"), DevicePointer(1 << 48));
    let chosen = DevicePointer(1 << 47);
    memory.allocate_at(chosen, 1000).expect("free");
    memory.write(chosen.offset(999), &[7]).expect("inside");
    for taken in [
        chosen,
        chosen.offset(768),
        chosen.offset(1),
        DevicePointer(0),
        DevicePointer((1 << 48) - 256),
        DevicePointer(1 << 48),
    ] {
        assert!(
            matches!(memory.allocate_at(taken, 512), Err(MemoryError::AddressTaken { .. })),
            "{taken}"
        );
    }
    assert!(
        memory.allocate_at(DevicePointer((1 << 47) - 256), 512).is_err(),
        "ends in another allocation"
    );
    assert!(matches!(
        memory.allocate_at(chosen.offset(4096), 1 << 20),
        Err(MemoryError::OutOfMemory { .. })
    ));
    assert_eq!(memory.used(), 256 + 1024, "what was refused is not counted");
    memory.free(chosen).expect("frees");
    memory.allocate_at(chosen, 1000).expect("free again");
    let mut byte = [1];
    memory.read(chosen.offset(999), &mut byte).expect("inside");
    assert_eq!(byte, [0], "zeroed");
}

#[test]
fn copies_may_overlap_and_stay_inside() {
    let memory = Memory::new(1 << 20);
    let pointer = memory.allocate(8).expect("fits");
    memory.write(pointer, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("inside");
    memory.copy(pointer, pointer.offset(2), 6).expect("inside");
    let mut bytes = [0; 8];
    memory.read(pointer, &mut bytes).expect("inside");
    assert_eq!(bytes, [1, 2, 1, 2, 3, 4, 5, 6]);
    assert!(memory.copy(pointer, pointer.offset(3), 6).is_err());
}

#[test]
fn addresses_stay_within_those_of_the_memory() {
    let memory = Memory::with_addresses(1 << 20, DevicePointer(1 << 48)..DevicePointer((1 << 48) + 2048));
    let mut last = DevicePointer(0);
    let error = loop {
        match memory.allocate(256) {
            Ok(pointer) => last = pointer,
            Err(error) => break error,
        }
    };
    assert_eq!((last.0, error), ((1 << 48) + 1024, MemoryError::AddressesExhausted));
    assert_eq!(memory.used(), 3 * 256);
}

#[test]
fn host_memory_is_shared_at_its_own_address() {
    let memory = Memory::with_addresses(1024, DevicePointer(1 << 48)..DevicePointer(u64::MAX));
    let block = Arc::new(HostBlock::new(4096, 4096).expect("the host has room"));
    assert_eq!(block.pointer() as usize % 4096, 0);
    let pointer = memory.share(Arc::clone(&block)).expect("free");
    assert_eq!(pointer.0, block.pointer() as u64);
    memory.write(pointer.offset(8), &[1, 2, 3]).expect("inside");
    // SAFETY: inside the block.
    assert_eq!(unsafe { block.pointer().add(9).read() }, 2);
    assert_eq!(memory.used(), 0);
    assert!(memory.share(Arc::clone(&block)).is_err(), "shared already");
    memory.free(pointer).expect("frees");
    assert!(memory.read(pointer, &mut [0]).is_err());
    assert_eq!(Arc::strong_count(&block), 1);
    assert!(
        Memory::with_addresses(1024, DevicePointer(1 << 32)..DevicePointer(u64::MAX))
            .share(block)
            .is_err(),
        "not an address of callers"
    );
}

#[test]
fn memories_beside_each_other_share_a_capacity() {
    let first = Memory::new(1024);
    let second = first.beside(DevicePointer(1 << 40)..DevicePointer(1 << 50));
    let kept = first.allocate(512).unwrap();
    second.allocate(256).unwrap();
    assert!(matches!(second.allocate(512), Err(MemoryError::OutOfMemory { available: 256, .. })));
    assert!(second.write(kept, &[1]).is_err(), "addresses are not shared");
    drop(second);
    assert_eq!(first.used(), 512);
    first.allocate(512).unwrap();
}
