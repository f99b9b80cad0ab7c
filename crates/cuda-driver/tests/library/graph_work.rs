//! What nodes of graphs do besides kernels, and what graphs need.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::{CPU, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, Program, SUCCESS, apart, cu, ok, text};
use crate::nodes::{Allocation, Call};

const NONE: *const u64 = std::ptr::null();

static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: the test passes a word that it keeps.
    let word = unsafe { &*data.cast::<AtomicU32>() };
    word.fetch_add(100, Ordering::SeqCst);
    CALLS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn functions_and_events_of_the_host_have_their_place_between_kernels() {
    apart(
        "graph_work::functions_and_events_of_the_host_have_their_place_between_kernels",
        CPU,
        || {
            let program = Program::new();
            let library = &program.library;
            let address = program.allocate(64);
            ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
            let (mut stream, mut start, mut end) = (0u64, 0u64, 0u64);
            ok!(library, cuStreamCreate(&raw mut stream, 1u32));
            ok!(library, cuEventCreate(&raw mut start, 0u32));
            ok!(library, cuEventCreate(&raw mut end, 0u32));
            let value = Box::new(AtomicU32::new(0));
            let pointer = (&raw const *value).cast_mut().cast::<c_void>();
            ok!(library, cuStreamBeginCapture_v2(stream, 0u32));
            ok!(library, cuEventRecordWithFlags(start, stream, 1u32));
            ok!(library, cuMemcpyDtoHAsync_v2(pointer, address, 4usize, stream));
            ok!(
                library,
                cuLaunchHostFunc(stream, count as unsafe extern "C" fn(*mut c_void), pointer)
            );
            ok!(library, cuMemcpyHtoDAsync_v2(address, pointer, 4usize, stream));
            assert_eq!(program.add_step(program.function("add_step"), stream, address), SUCCESS);
            ok!(library, cuEventRecordWithFlags(end, stream, 1u32));
            let mut graph = 0u64;
            ok!(library, cuStreamEndCapture(stream, &raw mut graph));
            let kinds = program.nodes(graph).into_iter().map(|node| {
                let mut kind = 0u32;
                ok!(library, cuGraphNodeGetType(node, &raw mut kind));
                kind
            });
            assert_eq!(kinds.collect::<Vec<_>>(), [7, 1, 3, 1, 0, 7]);
            let executable = program.instantiate(graph);
            for _ in 0..5 {
                ok!(library, cuGraphLaunch(executable, stream));
            }
            ok!(library, cuEventSynchronize(end));
            let mut milliseconds = -1f32;
            ok!(library, cuEventElapsedTime(&raw mut milliseconds, start, end));
            assert!(milliseconds >= 0.0);
            assert_eq!(program.word(address), Ok(5 * 103));
            assert_eq!(CALLS.load(Ordering::SeqCst), 5);
            // Another function takes its place.
            let call = Call {
                function: count,
                data: pointer,
            };
            let node = program.nodes(graph)[2];
            ok!(library, cuGraphExecHostNodeSetParams(executable, node, &raw const call));
            ok!(library, cuGraphLaunch(executable, stream));
            ok!(library, cuStreamSynchronize(stream));
            assert_eq!(program.word(address), Ok(6 * 103));
        },
    );
}

#[test]
fn memory_of_a_graph_exists_from_its_allocation_to_its_end() {
    apart("graph_work::memory_of_a_graph_exists_from_its_allocation_to_its_end", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let free = || {
            let (mut free, mut total) = (0usize, 0usize);
            ok!(library, cuMemGetInfo_v2(&raw mut free, &raw mut total));
            free
        };
        let graph = program.graph();
        let mut allocation = Allocation {
            kind: 1,
            handles: 0,
            location: [1, 0],
            rest: [0; 9],
            access: 0,
            access_count: 0,
            bytes: 1 << 20,
            address: 0,
        };
        let mut allocated = 0u64;
        ok!(
            library,
            cuGraphAddMemAllocNode(&raw mut allocated, graph, NONE, 0usize, &raw mut allocation)
        );
        let address = allocation.address;
        assert_ne!(address, 0);
        let kernel = program.add_kernel(graph, &[allocated], address);
        let executable = program.instantiate(graph);
        let mut second = 0u64;
        assert_eq!(
            cu!(library, cuGraphInstantiateWithFlags(&raw mut second, graph, 0u64)),
            NOT_SUPPORTED
        );
        assert_eq!(cu!(library, cuGraphClone(&raw mut second, graph)), NOT_SUPPORTED);
        let before = free();
        program.run(executable);
        assert_eq!(program.word(address), Ok(3));
        assert_eq!(before - free(), 1 << 20);
        assert_eq!(cu!(library, cuGraphLaunch(executable, 0u64)), INVALID_VALUE, "not freed");
        ok!(library, cuMemFree_v2(address));
        assert_eq!(cu!(library, cuMemFree_v2(address)), INVALID_VALUE);
        assert_eq!(free(), before);
        program.run(executable);
        assert_eq!(program.word(address), Ok(3));
        ok!(library, cuMemFreeAsync(address, 0u64));
        ok!(library, cuGraphExecDestroy(executable));
        // Freed by the graph itself.
        let mut node = 0u64;
        ok!(
            library,
            cuGraphAddMemFreeNode(&raw mut node, graph, &raw const kernel, 1usize, address)
        );
        assert_eq!(
            cu!(
                library,
                cuGraphAddMemFreeNode(&raw mut node, graph, &raw const kernel, 1usize, address)
            ),
            INVALID_VALUE
        );
        let executable = program.instantiate(graph);
        for _ in 0..20 {
            program.run(executable);
        }
        ok!(library, cuCtxSynchronize());
        let (mut used, mut most) = (1u64, 0u64);
        ok!(library, cuDeviceGetGraphMemAttribute(0i32, 0u32, &raw mut used));
        ok!(library, cuDeviceGetGraphMemAttribute(0i32, 1u32, &raw mut most));
        assert_eq!((used, most), (0, 1 << 20));
        ok!(library, cuGraphDestroy(graph));
        ok!(library, cuGraphExecDestroy(executable));
        let mut information = 0usize;
        assert_ne!(
            cu!(
                library,
                cuMemGetAddressRange_v2(std::ptr::null_mut::<u64>(), &raw mut information, address)
            ),
            SUCCESS
        );
        // A capture allocates in the same way.
        let (stream, mut temporary) = (program.stream(), 0u64);
        ok!(library, cuStreamBeginCapture_v2(stream, 0u32));
        ok!(library, cuMemAllocAsync(&raw mut temporary, 64usize, stream));
        ok!(library, cuMemsetD32Async(temporary, 4u32, 16usize, stream));
        ok!(library, cuMemFreeAsync(temporary, stream));
        let mut captured = 0u64;
        ok!(library, cuStreamEndCapture(stream, &raw mut captured));
        let executable = program.instantiate(captured);
        for _ in 0..3 {
            ok!(library, cuGraphLaunch(executable, stream));
        }
        ok!(library, cuStreamSynchronize(stream));
        assert_eq!(cu!(library, cuGraphDestroyNode(program.nodes(captured)[0])), NOT_SUPPORTED);
    });
}

#[test]
fn a_graph_that_is_destroyed_while_it_runs_ends_its_launches() {
    apart("graph_work::a_graph_that_is_destroyed_while_it_runs_ends_its_launches", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let address = program.allocate(64);
        ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
        let graph = program.graph();
        let mut last = program.add_kernel(graph, &[], address);
        for _ in 1..200 {
            last = program.add_kernel(graph, &[last], address);
        }
        for round in 1..=20 {
            let executable = program.instantiate(graph);
            for _ in 0..10 {
                program.run(executable);
            }
            ok!(library, cuGraphExecDestroy(executable));
            if round % 10 == 0 {
                assert_eq!(program.word(address), Ok(round * 10 * 200 * 3));
            }
        }
    });
}

#[test]
fn what_graphs_count_with_is_given_back_and_limited() {
    apart("graph_work::what_graphs_count_with_is_given_back_and_limited", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let free = || {
            let (mut free, mut total) = (0usize, 0usize);
            ok!(library, cuMemGetInfo_v2(&raw mut free, &raw mut total));
            free
        };
        let (graph, address) = (program.graph(), program.allocate(64));
        let before = free();
        for _ in 0..1000 {
            program.add_fill(graph, &[], address, 1);
        }
        let executable = program.instantiate(graph);
        assert_eq!(before - free(), 256_000);
        program.run(executable);
        ok!(library, cuGraphExecDestroy(executable));
        assert_eq!(free(), before);
        for _ in 1000..=131_072 {
            program.add_fill(graph, &[], address, 1);
        }
        let mut refused = 0u64;
        assert_eq!(
            cu!(library, cuGraphInstantiateWithFlags(&raw mut refused, graph, 0u64)),
            OUT_OF_MEMORY
        );
        ok!(library, cuGraphDestroyNode(program.nodes(graph)[0]));
        program.run(program.instantiate(graph));
        assert_eq!(program.word(address), Ok(1));
    });
}

#[test]
fn a_fault_in_a_graph_stays() {
    apart("graph_work::a_fault_in_a_graph_stays", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (graph, address) = (program.graph(), program.allocate(64));
        let kernel = program.add_kernel(graph, &[], address);
        program.add_kernel(graph, &[kernel], 0x10);
        let executable = program.instantiate(graph);
        program.run(executable);
        assert_eq!(cu!(library, cuCtxSynchronize()), 700);
        assert_eq!(cu!(library, cuGraphLaunch(executable, 0u64)), 700);
    });
}

#[test]
fn other_nodes_are_refused_by_name() {
    let output = apart("graph_work::other_nodes_are_refused_by_name", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (graph, mut node) = (program.graph(), 0u64);
        for kind in [8u64, 9, 12, 13] {
            let mut parameters = [0u64; 32];
            parameters[0] = kind;
            assert_eq!(
                cu!(
                    library,
                    cuGraphAddNode_v2(&raw mut node, graph, NONE, NONE, 0usize, parameters.as_mut_ptr())
                ),
                NOT_SUPPORTED
            );
        }
        assert_eq!(
            cu!(library, cuGraphAddBatchMemOpNode(&raw mut node, graph, NONE, 0usize, NONE)),
            NOT_SUPPORTED
        );
        // A node that is described by the general structure.
        let address = program.allocate(64);
        let mut parameters = [0u64; 32];
        parameters[0] = 2;
        parameters[2..8].copy_from_slice(&[address, 0, 9 | 4 << 32, 1, 1, 0]);
        ok!(
            library,
            cuGraphAddNode_v2(&raw mut node, graph, NONE, NONE, 0usize, parameters.as_mut_ptr())
        );
        let mut read = [0u64; 32];
        ok!(library, cuGraphNodeGetParams(node, read.as_mut_ptr()));
        assert_eq!(read[..7], parameters[..7]);
        program.run(program.instantiate(graph));
        assert_eq!(program.word(address), Ok(9));
        let edges = [1u8, 0, 0, 0, 0, 0, 0, 0];
        let mut second = 0u64;
        assert_eq!(
            cu!(
                library,
                cuGraphAddNode_v2(
                    &raw mut second,
                    graph,
                    &raw const node,
                    edges.as_ptr(),
                    1usize,
                    parameters.as_mut_ptr()
                )
            ),
            NOT_SUPPORTED
        );
    });
    let Some(output) = output else { return };
    let said = text(&output.stderr);
    for name in [
        "a conditional node",
        "external semaphores",
        "batched memory operations",
        "cuGraphAddBatchMemOpNode",
    ] {
        assert!(said.contains(name), "{name}: {said}");
    }
}

static ENDED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn end(_data: *mut c_void) {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn objects_of_the_program_end_with_the_last_graph() {
    apart("graph_work::objects_of_the_program_end_with_the_last_graph", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (graph, mut object, mut clone) = (program.graph(), 0u64, 0u64);
        let data = std::ptr::null_mut::<c_void>();
        ok!(
            library,
            cuUserObjectCreate(&raw mut object, data, end as unsafe extern "C" fn(*mut c_void), 1u32, 1u32)
        );
        ok!(library, cuGraphRetainUserObject(graph, object, 1u32, 1u32));
        ok!(library, cuGraphClone(&raw mut clone, graph));
        let executable = program.instantiate(clone);
        ok!(library, cuGraphDestroy(graph));
        ok!(library, cuGraphDestroy(clone));
        ok!(library, cuCtxSynchronize());
        assert_eq!(ENDED.load(Ordering::SeqCst), 0);
        ok!(library, cuGraphExecDestroy(executable));
        // No call waits for the end. The test ends by an alarm.
        while ENDED.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(cu!(library, cuUserObjectRelease(object, 1u32)), INVALID_VALUE);
    });
}

#[test]
fn no_call_waits_for_the_end_of_an_object() {
    apart("graph_work::no_call_waits_for_the_end_of_an_object", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (stream, address, mut object) = (program.stream(), program.allocate(64), 0u64);
        let data = std::ptr::null_mut::<c_void>();
        ok!(
            library,
            cuUserObjectCreate(&raw mut object, data, end as unsafe extern "C" fn(*mut c_void), 1u32, 1u32)
        );
        assert_eq!(program.launch(program.function("spin"), 1, stream, &mut []), SUCCESS);
        ok!(library, cuUserObjectRelease(object, 1u32));
        // The default stream takes work although the object does not end before the kernel does.
        ok!(library, cuMemsetD32Async(address, 1u32, 1usize, 0u64));
        assert_eq!(cu!(library, cuStreamQuery(0u64)), NOT_READY);
        assert_eq!(ENDED.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_node_that_is_not_added_leaves_nothing_behind() {
    apart("graph_work::a_node_that_is_not_added_leaves_nothing_behind", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (graph, child, wrong) = (program.graph(), program.graph(), 4711u64);
        let (mut node, mut object) = (0u64, 0u64);
        let data = std::ptr::null_mut::<c_void>();
        ok!(
            library,
            cuUserObjectCreate(&raw mut object, data, end as unsafe extern "C" fn(*mut c_void), 1u32, 1u32)
        );
        ok!(library, cuGraphRetainUserObject(child, object, 1u32, 1u32));
        assert_eq!(
            cu!(
                library,
                cuGraphAddChildGraphNode(&raw mut node, graph, &raw const wrong, 1usize, child)
            ),
            INVALID_VALUE
        );
        let mut allocation = Allocation {
            kind: 1,
            handles: 0,
            location: [1, 0],
            rest: [0; 9],
            access: 0,
            access_count: 0,
            bytes: 1 << 20,
            address: 0,
        };
        assert_eq!(
            cu!(
                library,
                cuGraphAddMemAllocNode(&raw mut node, graph, &raw const wrong, 1usize, &raw mut allocation)
            ),
            INVALID_VALUE
        );
        assert_eq!(allocation.address, 0);
        // A launch that becomes a node behind one that was removed.
        let executable = program.instantiate(child);
        let (stream, address, mut captured) = (program.stream(), program.allocate(64), 0u64);
        ok!(library, cuStreamBeginCaptureToGraph(stream, graph, NONE, NONE, 0usize, 2u32));
        ok!(library, cuMemsetD32Async(address, 1u32, 1usize, stream));
        ok!(library, cuGraphDestroyNode(program.nodes(graph)[0]));
        assert_eq!(cu!(library, cuGraphLaunch(executable, stream)), INVALID_VALUE);
        assert_eq!(cu!(library, cuStreamEndCapture(stream, &raw mut captured)), 901);
        ok!(library, cuGraphExecDestroy(executable));
        assert_eq!(ENDED.load(Ordering::SeqCst), 0);
        ok!(library, cuGraphDestroy(child));
        while ENDED.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    });
}
