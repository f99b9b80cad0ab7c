//! Contract of devices: one test suite, run unchanged against each. A device that is passed is new, and no other has its queues.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Device, Extent, Failure, FailureKind, LaunchRequest, LoadFailure, ModuleId, Operation, Queue, Region, SequenceId, Ticket,
    is_machine_code,
};

/// Calls a macro with the name of every part of the suite.
#[macro_export]
macro_rules! for_each_part {
    ($tests:ident) => {
        $tests! {
            operations_run_in_order_and_variables_have_addresses,
            rows_are_written_copied_filled_and_read,
            rows_that_overlap_are_copied_as_if_at_once,
            elements_are_filled_wherever_they_are,
            a_fault_stays_and_its_successors_are_not_executed,
            a_launch_that_cannot_be_made_is_reported_once,
            texts_are_refused_with_a_position,
            texts_are_printed,
            several_texts_are_linked,
            machine_code_is_refused_unless_the_device_takes_it,
            marks_have_times_in_order,
            memory_that_is_not_there_is_reported_once_and_unmapped_like_other_memory,
            memory_is_zeroed_when_it_is_mapped_again,
            accesses_beyond_an_allocation_are_refused,
            rows_without_bytes_and_rows_without_end_take_no_time,
            a_module_is_not_replaced_by_another_of_its_number,
            a_module_that_was_unloaded_is_unknown,
            a_sequence_is_replayed_as_one_operation,
            a_queue_that_was_closed_executes_nothing_more,
        }
    };
}

/// Memory of the devices, in bytes.
pub const MEMORY_BYTES: u64 = 16 << 20;
/// Distance of the memory of different queues in bytes, beyond the page of any device.
const APART: u64 = 1 << 30;

/// Kernels of the suite, by their indices: add, snap, spin, await, roomy, greet.
pub const KERNELS: &str = include_str!("contract/kernels.ptx");

/// Launch of one thread of a kernel of module 1.
pub fn launch(function: u32, parameters: &[u8]) -> Operation {
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

fn open(device: &dyn Device) -> (u64, Arc<dyn Queue>) {
    (device.properties().addresses.start, device.open().unwrap())
}

/// Launches, writes and reads are in order.
pub fn operations_run_in_order_and_variables_have_addresses(device: &dyn Device) {
    let (address, queue) = open(device);
    queue.submit(Operation::Map { address, bytes: 4096 });
    let description = queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
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

/// Boxes of up to three dimensions, with pitches.
pub fn rows_are_written_copied_filled_and_read(device: &dyn Device) {
    let (address, queue) = open(device);
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

/// Source and target of a copy within one allocation.
pub fn rows_that_overlap_are_copied_as_if_at_once(device: &dyn Device) {
    let (address, queue) = open(device);
    queue.submit(Operation::Map { address, bytes: 1 << 20 });
    let pattern: Vec<u8> = (0..300_000u32).map(|at| (at * 7 + at / 251) as u8).collect();
    for (from, to, height) in [(0, 100, 1), (100, 0, 1), (0, 0, 1), (0, 100, 1000), (100, 0, 1000)] {
        let region = |start| Region {
            address: address + start,
            row_pitch: 512,
            slice_pitch: 0,
        };
        let (width, depth) = (pattern.len() as u64 / height, 1);
        let extent = Extent { width, height, depth };
        queue.write(region(from), extent, &pattern);
        let (from, to) = (region(from), region(to));
        queue.submit(Operation::Copy { from, to, extent });
        let mut read = vec![0; pattern.len()];
        queue.read(to, extent, &mut read).unwrap();
        assert!(read == pattern, "{from:?} {to:?} {height}");
    }
}

/// Fills of every size, aligned or not, of one row and of several.
pub fn elements_are_filled_wherever_they_are(device: &dyn Device) {
    let (address, queue) = open(device);
    queue.submit(Operation::Map { address, bytes: 4096 });
    for (element_bytes, offset) in [(1, 0), (1, 3), (2, 0), (2, 1), (4, 0), (4, 2)] {
        for (height, row_pitch) in [(1, 0), (3, 64), (3, 65)] {
            queue.submit(Operation::Fill {
                to: Region::linear(address),
                extent: Extent::linear(512),
                value: 0xee,
                element_bytes: 1,
            });
            let to = Region {
                address: address + offset,
                row_pitch,
                slice_pitch: 0,
            };
            let extent = Extent {
                width: 16,
                height,
                depth: 1,
            };
            queue.submit(Operation::Fill {
                to,
                extent,
                value: 0x0403_0201,
                element_bytes,
            });
            let mut read = [0; 512];
            queue.read(Region::linear(address), Extent::linear(512), &mut read).unwrap();
            let mut expected = [0xee; 512];
            for row in 0..height {
                let start = (offset + row * row_pitch) as usize;
                for (at, byte) in expected[start..start + 16].iter_mut().enumerate() {
                    *byte = 1 + (at % usize::from(element_bytes)) as u8;
                }
            }
            assert_eq!(read, expected, "{element_bytes} {offset} {height} {row_pitch}");
        }
    }
}

/// A trap: every later call returns it.
pub fn a_fault_stays_and_its_successors_are_not_executed(device: &dyn Device) {
    let (address, queue) = open(device);
    queue.submit(Operation::Map { address, bytes: 4096 });
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    let ticket = queue.submit(launch(1, &[]));
    for _ in 0..2 {
        assert_eq!(queue.wait(ticket).unwrap_err().kind, FailureKind::Trap);
    }
    queue.submit(launch(0, &address.to_le_bytes()));
    assert_eq!(word(&*queue, address).unwrap_err().kind, FailureKind::Trap);
    assert!(queue.failure().unwrap().to_string().contains("snap"));
    // A GPU's driver may make no context any more. Then the device is lost.
    let Ok(other) = device.open() else { return };
    let address = address + APART;
    other.submit(Operation::Map { address, bytes: 4 });
    match word(&*other, address) {
        Ok(word) => assert_eq!(word, 0, "another queue is another memory"),
        Err(failure) => assert!(device.properties().takes_machine_code, "{failure}"),
    }
}

/// A launch with wrong parameters.
pub fn a_launch_that_cannot_be_made_is_reported_once(device: &dyn Device) {
    let (_, queue) = open(device);
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    let ticket = queue.submit(launch(0, &[0; 3]));
    assert_eq!(queue.wait(ticket).unwrap_err().kind, FailureKind::Launch);
    queue.wait(ticket).unwrap();
    assert!(queue.failure().is_none());
    assert_eq!(queue.wait(Ticket(0)), Ok(()));
}

/// A text with an unknown instruction.
pub fn texts_are_refused_with_a_position(device: &dyn Device) {
    let (_, queue) = open(device);
    let refused = queue.load(
        ModuleId(1),
        &[b".version 7.0 .target sm_70 .address_size 64\n.entry k() { bogus.u32 %r1; }"],
    );
    match &refused {
        Err(LoadFailure::Invalid(text) | LoadFailure::Unsupported(text)) => assert!(text.contains("bogus") || text.contains('2'), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        queue.load(ModuleId(1), &[b"no PTX"]),
        Err(LoadFailure::Invalid(_) | LoadFailure::Unsupported(_))
    ));
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
}

/// `printf` arrives before the wait for its kernel returns, once.
pub fn texts_are_printed(device: &dyn Device) {
    let (_, queue) = open(device);
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    queue.submit(launch(5, &[]));
    queue.wait(queue.last()).unwrap();
    // The output of a process may have other texts too.
    let printed = String::from_utf8_lossy(&queue.printed()).into_owned();
    assert_eq!(printed.matches("hello\n").count(), 1, "{printed}");
    assert!(!String::from_utf8_lossy(&queue.printed()).contains("hello"));
}

/// A function of one text that a kernel of another calls.
pub fn several_texts_are_linked(device: &dyn Device) {
    const HEAD: &str = ".version 7.0 .target sm_70 .address_size 64\n";
    let (address, queue) = open(device);
    let callee = format!("{HEAD}.visible .global .u32 base = 40; .visible .func (.param .b32 r) two() {{ st.param.b32 [r], 2; ret; }}");
    let caller = format!(
        "{HEAD}.extern .global .u32 base; .extern .func (.param .b32 r) two();
         .visible .entry sum(.param .u64 out) {{
            .reg .b32 %r<4>; .reg .b64 %rd<2>;
            {{ .param .b32 v; call.uni (v), two; ld.param.b32 %r1, [v]; }}
            ld.global.u32 %r2, [base]; add.u32 %r3, %r1, %r2;
            ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], %r3; ret; }}"
    );
    queue.submit(Operation::Map { address, bytes: 512 });
    let description = queue.load(ModuleId(1), &[callee.as_bytes(), caller.as_bytes()]).unwrap();
    assert_eq!(description.functions.len(), 1);
    assert_eq!(description.variables.iter().filter(|variable| variable.name == "base").count(), 1);
    queue.submit(launch(0, &address.to_le_bytes()));
    assert_eq!(word(&*queue, address), Ok(42));
}

/// Machine code on devices with and without `takes_machine_code`.
pub fn machine_code_is_refused_unless_the_device_takes_it(device: &dyn Device) {
    let (_, queue) = open(device);
    let image = b"\x7fELF is no cubin";
    assert!(is_machine_code(image));
    match queue.load(ModuleId(1), &[image]) {
        Err(LoadFailure::NoBinary(text)) => assert!(!device.properties().takes_machine_code && text.contains("compute_80"), "{text}"),
        Err(LoadFailure::Invalid(_)) => assert!(device.properties().takes_machine_code),
        other => panic!("{other:?}"),
    }
}

pub fn marks_have_times_in_order(device: &dyn Device) {
    let (address, queue) = open(device);
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    queue.submit(Operation::Map { address, bytes: 512 });
    assert!(queue.marked(1).is_none());
    for mark in 1..=20 {
        queue.submit(Operation::Mark(mark));
        queue.submit(launch(0, &address.to_le_bytes()));
    }
    queue.wait(queue.last()).unwrap();
    let times: Vec<_> = (1..=20).map(|mark| queue.marked(mark).unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    queue.forget(1);
    assert_eq!(queue.marked(1), None);
    assert_eq!(queue.executed(), Ok(queue.last()));
}

/// More memory than there is.
pub fn memory_that_is_not_there_is_reported_once_and_unmapped_like_other_memory(device: &dyn Device) {
    let (address, queue) = open(device);
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

/// Memory that other allocations had.
pub fn memory_is_zeroed_when_it_is_mapped_again(device: &dyn Device) {
    let (address, queue) = open(device);
    let sizes = [512, 512, 4096, 3 << 20, 1024];
    for _ in 0..3 {
        let mut at = address;
        for bytes in sizes {
            queue.submit(Operation::Map { address: at, bytes });
            let mut read = vec![7; bytes as usize];
            queue.read(Region::linear(at), Extent::linear(bytes), &mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == 0), "{bytes}");
            let to = Region::linear(at);
            let extent = Extent::linear(bytes);
            queue.submit(Operation::Fill {
                to,
                extent,
                value: 0xee,
                element_bytes: 1,
            });
            at += bytes + 512;
        }
        let mut at = address;
        for bytes in sizes {
            queue.submit(Operation::Unmap { address: at });
            at += bytes + 512;
        }
        queue.wait(queue.last()).unwrap();
    }
}

/// Reads and writes that begin in an allocation and end beyond it, or are in none.
pub fn accesses_beyond_an_allocation_are_refused(device: &dyn Device) {
    let (address, queue) = open(device);
    queue.submit(Operation::Map { address, bytes: 1024 });
    let mut read = [0; 1024];
    let mut refused = |start: u64, bytes: usize| {
        let read = queue.read(Region::linear(start), Extent::linear(bytes as u64), &mut read[..bytes]);
        read.err().map(|failure| failure.kind)
    };
    assert_eq!(refused(address, 1024), None);
    assert_eq!(refused(address + 1000, 24), None);
    for (start, bytes) in [(address + 1000, 25), (address + 2048, 1), (address - 1, 2), (16, 4), (u64::MAX, 1)] {
        assert_eq!(refused(start, bytes), Some(FailureKind::IllegalAddress), "{start:#x} {bytes}");
    }
    let host = [7u8; 16];
    let on_host = refused(host.as_ptr() as u64, 16);
    assert_eq!(on_host, Some(FailureKind::IllegalAddress), "memory of this process");
    let ticket = queue.submit(Operation::Fill {
        to: Region::linear(address + 1020),
        extent: Extent::linear(8),
        value: 0,
        element_bytes: 1,
    });
    assert_eq!(queue.wait(ticket).unwrap_err().kind, FailureKind::IllegalAddress);
}

/// Boxes without bytes, and of more bytes than there are.
pub fn rows_without_bytes_and_rows_without_end_take_no_time(device: &dyn Device) {
    let (address, queue) = open(device);
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

/// A number of a module that is used twice.
pub fn a_module_is_not_replaced_by_another_of_its_number(device: &dyn Device) {
    let (_, queue) = open(device);
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    let refused = queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap_err();
    assert!(matches!(refused, LoadFailure::Failed(failure) if failure.kind == FailureKind::Protocol));
}

/// A launch of a module that is not there any more.
pub fn a_module_that_was_unloaded_is_unknown(device: &dyn Device) {
    let (_, queue) = open(device);
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    queue.submit(Operation::Unload(ModuleId(1)));
    queue.wait(queue.last()).unwrap();
    let ticket = queue.submit(launch(0, &[0; 8]));
    let failure = queue.wait(ticket).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Protocol);
    assert!(failure.message.contains("module 1 not found"), "{failure}");
}

/// Sequences grow, change, print, count as memory and end.
pub fn a_sequence_is_replayed_as_one_operation(device: &dyn Device) {
    let (address, queue) = open(device);
    queue.submit(Operation::Map { address, bytes: 4096 });
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    let (sequence, add) = (SequenceId(1), |offset: u64| launch(0, &(address + offset).to_le_bytes()));
    let extend = |operations| Operation::Extend { sequence, operations };
    queue.submit(extend(vec![add(0), add(0)]));
    queue.submit(extend(vec![launch(5, &[])]));
    let before = queue.last();
    for _ in 0..10 {
        queue.submit(Operation::Replay(sequence));
    }
    let (index, operations) = (1, vec![add(4)]);
    queue.submit(Operation::Amend {
        sequence,
        index,
        operations,
    });
    assert_eq!(queue.submit(Operation::Replay(sequence)), Ticket(before.0 + 12));
    queue.submit(Operation::Erase(sequence));
    assert_eq!((word(&*queue, address).unwrap(), word(&*queue, address + 4).unwrap()), (63, 3));
    assert_eq!(String::from_utf8_lossy(&queue.printed()).matches("hello\n").count(), 11);
    queue.submit(Operation::Replay(sequence));
    assert_eq!(queue.wait(queue.last()).unwrap_err().kind, FailureKind::Protocol);
}

/// A queue that other threads still have when it is closed.
pub fn a_queue_that_was_closed_executes_nothing_more(device: &dyn Device) {
    let (address, queue) = open(device);
    queue.submit(Operation::Map { address, bytes: 4096 });
    queue.load(ModuleId(1), &[KERNELS.as_bytes()]).unwrap();
    for _ in 0..2 {
        queue.close();
        let ticket = queue.submit(launch(0, &address.to_le_bytes()));
        assert_eq!(queue.wait(ticket).unwrap_err(), Failure::closed());
        assert_eq!(word(&*queue, address).unwrap_err(), Failure::closed());
        assert_eq!(queue.executed(), Err(Failure::closed()));
        assert_eq!(queue.failure(), Some(Failure::closed()));
        let refused = queue.load(ModuleId(2), &[KERNELS.as_bytes()]).unwrap_err();
        assert_eq!(refused, LoadFailure::Failed(Failure::closed()));
    }
}
