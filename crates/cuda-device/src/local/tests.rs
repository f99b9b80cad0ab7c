use bytes::Bytes;

use super::*;
use crate::{Extent, FailureKind, HostBlock, LaunchRequest, LoadFailure, ModuleId, Operation, Region, Ticket};

const KERNELS: &str = "
    .version 7.0 .target sm_70 .address_size 64
    .visible .global .u32 step = 3;
    .extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 values);
    .global .align 1 .b8 text[7] = {104, 101, 108, 108, 111, 10, 0};
    .visible .entry add(.param .u64 out) {
        .reg .b32 %r<4>; .reg .b64 %rd<4>;
        ld.param.u64 %rd1, [out];
        ld.global.u32 %r1, [%rd1];
        ld.global.u32 %r2, [step];
        add.u32 %r3, %r1, %r2;
        st.global.u32 [%rd1], %r3;
        ret;
    }
    .visible .entry snap() { trap; }
    .visible .entry spin() { L: bra L; }
    .visible .entry await(.param .u64 flag) {
        .reg .pred %p1; .reg .b32 %r1; .reg .b64 %rd1;
        ld.param.u64 %rd1, [flag];
        L: ld.volatile.global.u32 %r1, [%rd1];
        setp.eq.u32 %p1, %r1, 0;
        @%p1 bra L;
        ret;
    }
    .visible .entry roomy() {
        .local .align 4 .b8 room[32768];
        .reg .b32 %r1;
        mov.u32 %r1, %tid.x;
        st.local.u32 [room], %r1;
        ret;
    }
    .visible .entry greet() {
        .reg .b64 %rd<4>;
        .reg .b32 %r<2>;
        mov.u64 %rd1, text;
        cvta.global.u64 %rd2, %rd1;
        mov.u64 %rd3, 0;
        { .param .b64 a; .param .b64 b; .param .b32 c;
          st.param.b64 [a], %rd2; st.param.b64 [b], %rd3;
          call.uni (c), vprintf, (a, b);
          ld.param.b32 %r1, [c]; }
        ret;
    }";

fn queue() -> (CpuDevice, Arc<dyn Queue>) {
    let device = CpuDevice::new(1 << 20, NonZero::new(2).unwrap());
    let queue = device.open().unwrap();
    (device, queue)
}

fn launch(function: u32, parameters: &[u8]) -> Operation {
    Operation::Launch(Box::new(LaunchRequest {
        module: ModuleId(1),
        function,
        grid: [1, 1, 1],
        block: [1, 1, 1],
        dynamic_shared_bytes: 0,
        stack_bytes: 1024,
        cooperative: false,
        parameters: Bytes::copy_from_slice(parameters),
    }))
}

fn word(queue: &dyn Queue, address: u64) -> Result<u32, Failure> {
    let mut bytes = [0; 4];
    queue.read(Region::linear(address), Extent::linear(4), &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

#[test]
fn operations_run_in_order_and_variables_have_addresses() {
    let (device, queue) = queue();
    let address = device.properties().addresses.start;
    queue.submit(Operation::Map { address, bytes: 4096 });
    let description = queue.load(ModuleId(1), &[KERNELS]).unwrap();
    assert_eq!(description.functions[0].name, "add");
    assert_eq!(description.functions[0].parameter_bytes, 8);
    let step = description.variables.iter().find(|variable| variable.name == "step").unwrap();
    queue.write(Region::linear(address), Extent::linear(4), &4u32.to_le_bytes());
    for _ in 0..100 {
        queue.submit(launch(0, &address.to_le_bytes()));
    }
    queue.write(Region::linear(step.address), Extent::linear(4), &10u32.to_le_bytes());
    queue.submit(launch(0, &address.to_le_bytes()));
    assert_eq!(word(&*queue, address).unwrap(), 4 + 300 + 10);
    let last = queue.last();
    assert!(queue.is_done(last).unwrap());
    queue.submit(Operation::Unload(ModuleId(1)));
    queue.submit(Operation::Unmap { address });
    queue.wait(queue.last()).unwrap();
    assert_eq!(word(&*queue, address).unwrap_err().kind, FailureKind::IllegalAddress);
}

#[test]
fn rows_are_written_copied_filled_and_read() {
    let (device, queue) = queue();
    let address = device.properties().addresses.start;
    queue.submit(Operation::Map { address, bytes: 1024 });
    let region = |offset| Region {
        address: address + offset,
        row_pitch: 16,
        slice_pitch: 64,
    };
    let extent = Extent {
        width: 4,
        height: 2,
        depth: 2,
    };
    let bytes: Vec<u8> = (1..=16).collect();
    queue.write(region(0), extent, &bytes);
    queue.submit(Operation::Copy {
        from: region(0),
        to: region(512),
        extent,
    });
    queue.submit(Operation::Fill {
        to: region(516),
        extent,
        value: 0x0000_0201,
        element_bytes: 2,
    });
    let mut read = vec![0; 16];
    queue.read(region(512), extent, &mut read).unwrap();
    assert_eq!(read, bytes);
    queue.read(region(516), extent, &mut read).unwrap();
    assert_eq!(read, [1, 2].repeat(8));
    assert_eq!(extent.span(&region(0)), Some(64 + 16 + 4));
}

#[test]
fn a_fault_stays_and_its_successors_are_not_executed() {
    let (device, queue) = queue();
    let address = device.properties().addresses.start;
    queue.submit(Operation::Map { address, bytes: 4096 });
    queue.load(ModuleId(1), &[KERNELS]).unwrap();
    let ticket = queue.submit(launch(1, &[]));
    for _ in 0..2 {
        assert_eq!(queue.wait(ticket).unwrap_err().kind, FailureKind::Trap);
    }
    queue.submit(launch(0, &address.to_le_bytes()));
    assert_eq!(word(&*queue, address).unwrap_err().kind, FailureKind::Trap);
    assert!(queue.failure().unwrap().to_string().contains("snap: trap"));
    let other = device.open().unwrap();
    other.submit(Operation::Map { address, bytes: 4 });
    assert_eq!(word(&*other, address).unwrap(), 0, "another queue is another memory");
}

#[test]
fn an_endless_kernel_runs_beside_its_caller_and_ends_with_its_queue() {
    let (_, queue) = queue();
    queue.load(ModuleId(1), &[KERNELS]).unwrap();
    let ticket = queue.submit(launch(2, &[]));
    assert!(!queue.is_done(ticket).unwrap());
    drop(queue);
}

#[test]
fn a_launch_that_cannot_be_made_is_reported_once() {
    let (device, queue) = queue();
    queue.load(ModuleId(1), &[KERNELS]).unwrap();
    let ticket = queue.submit(launch(0, &[0; 3]));
    assert_eq!(queue.wait(ticket).unwrap_err().kind, FailureKind::Launch);
    queue.wait(ticket).unwrap();
    assert!(queue.failure().is_none());
    assert_eq!(queue.wait(Ticket(0)), Ok(()));
    drop(device);
}

#[test]
fn texts_are_refused_with_a_position_and_texts_are_printed() {
    let (_, queue) = queue();
    let refused = queue.load(ModuleId(1), &[".version 7.0 .target sm_70\n.entry k() { bogus.u32 %r1; }"]);
    assert!(
        matches!(refused, Err(LoadFailure::Invalid(_) | LoadFailure::Unsupported(_))),
        "{refused:?}"
    );
    queue.load(ModuleId(1), &[KERNELS]).unwrap();
    queue.submit(launch(5, &[]));
    queue.wait(queue.last()).unwrap();
    assert_eq!(queue.printed(), b"hello\n");
    assert!(queue.marked(1).is_none());
    queue.submit(Operation::Mark(1));
    queue.wait(queue.last()).unwrap();
    assert!(queue.marked(1).is_some());
}

#[test]
fn a_launch_with_much_local_memory_uses_fewer_threads() {
    let device = CpuDevice::new(1 << 20, NonZero::new(64).unwrap());
    let queue = device.open().unwrap();
    queue.load(ModuleId(1), &[KERNELS]).unwrap();
    let Operation::Launch(mut request) = launch(4, &[]) else {
        unreachable!()
    };
    // On 64 threads, 32 KiB of 1024 threads each are 2 GiB.
    (request.grid, request.block) = ([128, 1, 1], [1024, 1, 1]);
    queue.wait(queue.submit(Operation::Launch(request))).unwrap();
}

#[test]
fn memory_that_is_not_there_is_reported_once_and_unmapped_like_other_memory() {
    let (device, queue) = queue();
    let address = device.properties().addresses.start;
    let ticket = queue.submit(Operation::Map { address, bytes: 1 << 40 });
    assert_eq!(queue.wait(ticket).unwrap_err().kind, FailureKind::OutOfMemory);
    queue.submit(Operation::Unmap { address });
    queue.submit(Operation::Map { address, bytes: 8 });
    queue.wait(queue.last()).unwrap();
    assert_eq!(word(&*queue, address), Ok(0));
    queue.submit(Operation::Unmap { address });
    queue.submit(Operation::Unmap { address });
    assert_eq!(queue.wait(queue.last()).unwrap_err().kind, FailureKind::Protocol, "unmapped twice");
}

#[test]
fn each_queue_places_variables_at_addresses_of_its_own() {
    let (device, first) = queue();
    let second = device.open().unwrap();
    let address = |queue: &dyn Queue| queue.load(ModuleId(1), &[KERNELS]).unwrap().variables[0].address;
    let (first, second) = (address(&*first), address(&*second));
    assert!(first >= device.properties().placed_from);
    assert_eq!(second - first, QUEUE_ADDRESSES);
    device.opened.store(MAX_QUEUES - 1, Ordering::Relaxed);
    let last = device.open().unwrap();
    assert!(address(&*last) < 1 << 62);
    assert_eq!(device.open().err().unwrap().kind, FailureKind::OutOfMemory);
}

#[test]
fn a_mark_that_is_forgotten_before_it_is_noted_does_not_stay() {
    let (_, queue) = queue();
    let flag = Arc::new(HostBlock::new(4, 64).unwrap());
    queue.load(ModuleId(1), &[KERNELS]).unwrap();
    queue.share(&flag).unwrap();
    queue.submit(launch(3, &(flag.pointer() as u64).to_le_bytes()));
    queue.submit(Operation::Mark(1));
    queue.submit(Operation::Mark(2));
    queue.forget(1);
    // SAFETY: the block has 4 bytes, which the kernel only reads.
    unsafe { flag.pointer().cast::<u32>().write_volatile(1) };
    queue.wait(queue.last()).unwrap();
    assert_eq!((queue.marked(1), queue.marked(2).is_some()), (None, true));
    queue.forget(2);
    assert_eq!(queue.marked(2), None);
}

#[test]
fn rows_without_bytes_and_rows_without_end_take_no_time() {
    let (device, queue) = queue();
    let address = device.properties().addresses.start;
    queue.submit(Operation::Map { address, bytes: 512 });
    let rows = |width, height| Extent { width, height, depth: 1 };
    let region = Region::linear(address);
    let fill = |extent| Operation::Fill {
        to: region,
        extent,
        value: 1,
        element_bytes: 1,
    };
    let copy = |extent| Operation::Copy {
        from: region,
        to: region,
        extent,
    };
    for operation in [fill(rows(0, u64::MAX)), copy(rows(0, u64::MAX))] {
        queue.wait(queue.submit(operation)).unwrap();
    }
    for operation in [fill(rows(1, 1 << 60)), copy(rows(1, 1 << 60)), copy(rows(u64::MAX, 2))] {
        let queue = device.open().unwrap();
        let refused = queue.wait(queue.submit(operation)).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Protocol);
    }
}

#[test]
fn a_module_is_not_replaced_by_another_of_its_number() {
    let (_device, queue) = queue();
    queue.load(ModuleId(1), &[KERNELS]).unwrap();
    let refused = queue.load(ModuleId(1), &[KERNELS]).unwrap_err();
    assert!(matches!(refused, LoadFailure::Failed(failure) if failure.kind == FailureKind::Protocol));
}
