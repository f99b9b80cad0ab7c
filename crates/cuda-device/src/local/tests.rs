use super::*;
use crate::contract::{self, KERNELS, launch};
use crate::{Extent, HostBlock, MAX_SEQUENCE_OPERATIONS, ModuleId, Operation, Region, SequenceId};

macro_rules! keeps {
    ($($part:ident,)*) => {
        $(
            #[test]
            fn $part() {
                contract::$part(&CpuDevice::new(contract::MEMORY_BYTES, NonZero::new(2).unwrap()));
            }
        )*
    };
}

crate::for_each_part!(keeps);

fn queue() -> (CpuDevice, Arc<dyn Queue>) {
    let device = CpuDevice::new(1 << 20, NonZero::new(2).unwrap());
    let queue = device.open().unwrap();
    (device, queue)
}

#[test]
fn an_endless_kernel_runs_beside_its_caller_and_ends_with_its_queue() {
    let (_, queue) = queue();
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    let ticket = queue.submit(launch(2, &[]));
    assert!(!queue.is_done(ticket).unwrap());
    drop(queue);
}

#[test]
fn a_copy_of_very_many_rows_runs_beside_its_caller_and_ends_with_its_queue() {
    let device = CpuDevice::new(1 << 40, NonZero::new(2).unwrap());
    let queue = device.open().unwrap();
    let address = device.properties().addresses.start;
    queue.submit(Operation::Map { address, bytes: 512 });
    let region = Region::linear(address);
    let (width, height, depth) = (1, 1 << 20, 1 << 19);
    let ticket = queue.submit(Operation::Copy {
        from: region,
        to: region,
        extent: Extent { width, height, depth },
    });
    assert!(!queue.is_done(ticket).unwrap());
    drop(queue);
}

#[test]
fn a_launch_with_much_local_memory_uses_fewer_threads() {
    let device = CpuDevice::new(1 << 20, NonZero::new(64).unwrap());
    let queue = device.open().unwrap();
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    let Operation::Launch(mut request) = launch(4, &[]) else {
        unreachable!()
    };
    // On 64 threads, 32 KiB of 1024 threads each are 2 GiB.
    (request.grid, request.block) = ([128, 1, 1], [1024, 1, 1]);
    queue.wait(queue.submit(Operation::Launch(request))).unwrap();
}

#[test]
fn each_queue_places_variables_at_addresses_of_its_own() {
    let (device, first) = queue();
    let second = device.open().unwrap();
    let address = |queue: &dyn Queue| queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap().variables[0].address;
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
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
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
fn operations_within_waiting_operations_take_room_of_the_queue() {
    let (_, queue) = queue();
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    queue.submit(launch(2, &[]));
    let fill = Operation::Fill {
        to: Region::linear(0),
        extent: Extent::linear(1),
        value: 0,
        element_bytes: 1,
    };
    for sequence in 0..8 {
        assert!(queue.has_room(), "{sequence}");
        queue.submit(Operation::Extend {
            sequence: SequenceId(sequence),
            operations: vec![fill.clone(); MAX_SEQUENCE_OPERATIONS],
        });
    }
    // 256 bytes each are 256 MiB.
    assert!(!queue.has_room());
}

#[test]
fn a_queue_that_is_closed_ends_its_kernel_and_frees_everything_though_there_are_references_to_it() {
    let (device, queue) = queue();
    let address = device.properties().addresses.start;
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    queue.submit(Operation::Map { address, bytes: 4096 });
    queue.submit(Operation::Extend {
        sequence: SequenceId(1),
        operations: vec![launch(2, &[])],
    });
    let ticket = queue.submit(Operation::Replay(SequenceId(1)));
    assert!(!queue.is_done(ticket).unwrap() && device.used_bytes() > 4096);
    queue.close();
    assert_eq!(device.used_bytes(), 0);
    assert_eq!(queue.wait(ticket), Err(Failure::closed()));
}
