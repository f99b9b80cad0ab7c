//! Streams whose work becomes a graph.

use crate::driver::{CPU, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Program, SUCCESS, apart, cu, ok, parameter};

const ILLEGAL_STATE: u32 = 401;
const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const MERGE: u32 = 902;
const UNMATCHED: u32 = 903;
const UNJOINED: u32 = 904;
const ISOLATION: u32 = 905;
const IMPLICIT: u32 = 906;
const CAPTURED_EVENT: u32 = 907;
const WRONG_THREAD: u32 = 908;

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

impl Program {
    pub(crate) fn stream(&self) -> u64 {
        let mut stream = 0u64;
        ok!(self.library, cuStreamCreate(&raw mut stream, 1u32));
        stream
    }

    fn event(&self) -> u64 {
        let mut event = 0u64;
        ok!(self.library, cuEventCreate(&raw mut event, 2u32));
        event
    }

    /// Adds 3 to a word, with one thread.
    pub(crate) fn add_step(&self, function: u64, stream: u64, address: u64) -> u32 {
        let mut address = address;
        let none = std::ptr::null_mut::<u8>();
        let mut parameters = [parameter(&mut address)];
        cu!(
            self.library,
            cuLaunchKernel(
                function,
                1u32,
                1u32,
                1u32,
                1u32,
                1u32,
                1u32,
                0u32,
                stream,
                parameters.as_mut_ptr(),
                none
            )
        )
    }

    fn begin(&self, stream: u64, mode: u32) {
        ok!(self.library, cuStreamBeginCapture_v2(stream, mode));
    }

    fn end(&self, stream: u64) -> u64 {
        let mut graph = 0u64;
        ok!(self.library, cuStreamEndCapture(stream, &raw mut graph));
        graph
    }

    pub(crate) fn instantiate(&self, graph: u64) -> u64 {
        let mut executable = 0u64;
        ok!(self.library, cuGraphInstantiateWithFlags(&raw mut executable, graph, 0u64));
        executable
    }

    pub(crate) fn nodes(&self, graph: u64) -> Vec<u64> {
        let mut count = 0usize;
        ok!(self.library, cuGraphGetNodes(graph, std::ptr::null_mut::<u64>(), &raw mut count));
        let mut nodes = vec![0u64; count];
        ok!(self.library, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count));
        nodes
    }

    fn status(&self, stream: u64) -> u32 {
        let mut status = 9u32;
        ok!(self.library, cuStreamIsCapturing(stream, &raw mut status));
        status
    }
}

#[test]
fn captured_work_is_done_by_each_launch() {
    apart("captures::captured_work_is_done_by_each_launch", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (function, stream, address) = (program.function("add_step"), program.stream(), program.allocate(64));
        ok!(library, cuMemsetD32_v2(address, 5u32, 2usize));
        program.begin(stream, GLOBAL);
        assert_eq!(program.status(stream), 1);
        assert_eq!(program.add_step(function, stream, address), SUCCESS);
        ok!(library, cuMemcpyDtoDAsync_v2(address + 4, address, 4usize, stream));
        assert_eq!(program.add_step(function, stream, address), SUCCESS);
        ok!(library, cuMemsetD32Async(address + 8, 7u32, 2usize, stream));
        let (mut status, mut id, mut inner, mut count) = (0u32, 0u64, 0u64, 0usize);
        let mut before = std::ptr::null::<u64>();
        ok!(
            library,
            cuStreamGetCaptureInfo_v2(
                stream,
                &raw mut status,
                &raw mut id,
                &raw mut inner,
                &raw mut before,
                &raw mut count
            )
        );
        assert!((status, count) == (1, 1) && id != 0);
        // SAFETY: the library gives as many nodes as it says.
        let last = unsafe { *before };
        let graph = program.end(stream);
        assert_eq!((graph, program.status(stream)), (inner, 0));
        let nodes = program.nodes(graph);
        assert_eq!((nodes.len(), nodes[3]), (4, last));
        for (node, expected) in nodes.iter().zip([0u32, 1, 0, 2]) {
            let mut kind = 9u32;
            ok!(library, cuGraphNodeGetType(*node, &raw mut kind));
            assert_eq!(kind, expected);
        }
        assert_eq!(program.word(address), Ok(5), "nothing was done");
        let executable = program.instantiate(graph);
        ok!(library, cuGraphDestroy(graph));
        for launches in 1..=100 {
            ok!(library, cuGraphLaunch(executable, stream));
            if launches % 25 == 0 {
                ok!(library, cuStreamSynchronize(stream));
                assert_eq!(program.word(address), Ok(5 + launches * 6));
                assert_eq!(program.word(address + 4), Ok(5 + launches * 6 - 3));
                assert_eq!(program.word(address + 12), Ok(7));
            }
        }
        ok!(library, cuGraphExecDestroy(executable));
        assert_eq!(cu!(library, cuGraphLaunch(executable, stream)), INVALID_VALUE);
    });
}

#[test]
fn streams_fork_and_join_by_events() {
    apart("captures::streams_fork_and_join_by_events", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let function = program.function("add_step");
        let (first, second) = (program.stream(), program.stream());
        let (forked, joined) = (program.event(), program.event());
        let address = program.allocate(64);
        ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
        program.begin(first, RELAXED);
        assert_eq!(program.add_step(function, first, address), SUCCESS);
        ok!(library, cuEventRecord(forked, first));
        assert_eq!(program.status(second), 0);
        ok!(library, cuStreamWaitEvent(second, forked, 0u32));
        assert_eq!(program.status(second), 1);
        assert_eq!(program.add_step(function, second, address + 4), SUCCESS);
        assert_eq!(program.add_step(function, first, address + 8), SUCCESS);
        ok!(library, cuEventRecord(joined, second));
        ok!(library, cuStreamWaitEvent(first, joined, 0u32));
        ok!(library, cuStreamDestroy_v2(second));
        ok!(library, cuMemcpyDtoDAsync_v2(address + 12, address, 4usize, first));
        let graph = program.end(first);
        let nodes = program.nodes(graph);
        let mut edges = 0usize;
        let none = std::ptr::null_mut::<u64>();
        ok!(library, cuGraphGetEdges(graph, none, none, &raw mut edges));
        assert_eq!((nodes.len(), edges), (4, 4));
        let (mut before, mut count) = ([0u64; 3], 3usize);
        ok!(library, cuGraphNodeGetDependencies(nodes[3], before.as_mut_ptr(), &raw mut count));
        assert_eq!((before, count), ([nodes[2], nodes[1], 0], 2));
        let mut roots = 0usize;
        ok!(library, cuGraphGetRootNodes(graph, none, &raw mut roots));
        assert_eq!(roots, 1);
        let executable = program.instantiate(graph);
        ok!(library, cuGraphLaunch(executable, 0u64));
        for word in 0..4 {
            assert_eq!(program.word(address + word * 4), Ok(3));
        }
    });
}

#[test]
fn wrong_captures_are_refused_with_the_documented_codes() {
    apart("captures::wrong_captures_are_refused_with_the_documented_codes", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let function = program.function("add_step");
        let (first, second) = (program.stream(), program.stream());
        let event = program.event();
        let address = program.allocate(64);
        let mut graph = 1u64;
        let end = |stream, graph: &mut u64| cu!(library, cuStreamEndCapture(stream, std::ptr::from_mut(graph)));
        assert_eq!(end(first, &mut graph), ILLEGAL_STATE);
        for stream in [0u64, 1] {
            assert_eq!(cu!(library, cuStreamBeginCapture_v2(stream, GLOBAL)), UNSUPPORTED);
        }
        assert_eq!(cu!(library, cuStreamBeginCapture_v2(first, 3u32)), INVALID_VALUE);
        program.begin(first, RELAXED);
        assert_eq!(cu!(library, cuStreamBeginCapture_v2(first, RELAXED)), ILLEGAL_STATE);
        // A stream of another capture, and work outside of it.
        ok!(library, cuEventRecord(event, second));
        assert_eq!(cu!(library, cuStreamWaitEvent(first, event, 0u32)), ISOLATION);
        assert_eq!(program.status(first), 2);
        assert_eq!(program.add_step(function, first, address), INVALIDATED);
        assert_eq!((end(first, &mut graph), graph), (INVALIDATED, 0));
        program.begin(first, RELAXED);
        program.begin(second, RELAXED);
        ok!(library, cuEventRecord(event, second));
        assert_eq!(cu!(library, cuStreamWaitEvent(first, event, 0u32)), MERGE);
        assert_eq!(end(first, &mut graph), INVALIDATED);
        assert_eq!(end(second, &mut graph), INVALIDATED);
        // What waits.
        for wait in [0, 1] {
            program.begin(first, RELAXED);
            let code = match wait {
                0 => cu!(library, cuStreamSynchronize(first)),
                _ => cu!(library, cuStreamQuery(first)),
            };
            assert_eq!((code, end(first, &mut graph)), (UNSUPPORTED, INVALIDATED));
        }
        program.begin(first, RELAXED);
        assert_eq!(cu!(library, cuCtxSynchronize()), UNSUPPORTED);
        assert_eq!(end(first, &mut graph), INVALIDATED);
        program.begin(first, RELAXED);
        assert_eq!(program.add_step(function, first, address), SUCCESS);
        ok!(library, cuEventRecord(event, first));
        assert_eq!(cu!(library, cuEventQuery(event)), CAPTURED_EVENT);
        assert_eq!(end(first, &mut graph), INVALIDATED);
        assert_eq!(cu!(library, cuEventSynchronize(event)), CAPTURED_EVENT, "the capture has ended");
        assert_eq!(cu!(library, cuStreamWaitEvent(second, event, 0u32)), CAPTURED_EVENT);
        ok!(library, cuEventRecord(event, first));
        ok!(library, cuEventSynchronize(event));
        // A fork that is not joined, and an end in another stream.
        program.begin(first, RELAXED);
        ok!(library, cuEventRecord(event, first));
        ok!(library, cuStreamWaitEvent(second, event, 0u32));
        assert_eq!(program.add_step(function, second, address), SUCCESS);
        assert_eq!(end(second, &mut graph), UNMATCHED);
        assert_eq!((end(first, &mut graph), graph), (UNJOINED, 0));
        assert_eq!(program.status(second), 0);
        // The legacy stream waits for streams that are not non-blocking.
        let mut blocking = 0u64;
        ok!(library, cuStreamCreate(&raw mut blocking, 0u32));
        program.begin(blocking, RELAXED);
        let mut status = 0u32;
        assert_eq!(cu!(library, cuStreamIsCapturing(0u64, &raw mut status)), IMPLICIT);
        assert_eq!(program.status(blocking), 1, "a question changes nothing");
        assert_eq!(program.add_step(function, 2, address), SUCCESS, "that of the thread");
        assert_eq!(program.add_step(function, 0, address), IMPLICIT);
        assert_eq!(end(blocking, &mut graph), INVALIDATED);
        program.begin(first, RELAXED);
        assert_eq!(program.add_step(function, 0, address), SUCCESS);
        ok!(library, cuStreamDestroy_v2(second));
        ok!(library, cuGraphDestroy(program.end(first)));
        program.begin(first, RELAXED);
        ok!(library, cuStreamDestroy_v2(first));
        ok!(library, cuCtxSynchronize());
    });
}

#[test]
fn modes_decide_which_calls_a_capture_forbids() {
    apart("captures::modes_decide_which_calls_a_capture_forbids", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (stream, mut graph) = (program.stream(), 0u64);
        let mut context = 0u64;
        ok!(library, cuCtxGetCurrent(&raw mut context));
        let allocate = || {
            let mut address = 0u64;
            cu!(library, cuMemAlloc_v2(&raw mut address, 64usize))
        };
        let elsewhere = |call: &(dyn Fn() -> u32 + Sync)| {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    ok!(library, cuCtxSetCurrent(context));
                    call()
                });
                thread.join().unwrap()
            })
        };
        let relaxed_allocate = || {
            let mut mode = RELAXED;
            ok!(library, cuThreadExchangeStreamCaptureMode(&raw mut mode));
            assert_eq!(mode, GLOBAL);
            let code = allocate();
            ok!(library, cuThreadExchangeStreamCaptureMode(&raw mut mode));
            assert_eq!(mode, RELAXED);
            code
        };
        for (mode, here, there) in [
            (GLOBAL, UNSUPPORTED, UNSUPPORTED),
            (THREAD_LOCAL, UNSUPPORTED, SUCCESS),
            (RELAXED, SUCCESS, SUCCESS),
        ] {
            for (is_here, expected) in [(true, here), (false, there)] {
                program.begin(stream, mode);
                assert_eq!(relaxed_allocate(), SUCCESS);
                let code = if is_here { allocate() } else { elsewhere(&allocate) };
                assert_eq!(code, expected, "mode {mode}");
                let ended = cu!(library, cuStreamEndCapture(stream, &raw mut graph));
                assert_eq!(ended, if expected == SUCCESS { SUCCESS } else { INVALIDATED });
            }
        }
        let end = || {
            let mut graph = 0u64;
            cu!(library, cuStreamEndCapture(stream, &raw mut graph))
        };
        program.begin(stream, THREAD_LOCAL);
        assert_eq!((elsewhere(&end), end()), (WRONG_THREAD, SUCCESS));
        program.begin(stream, RELAXED);
        assert_eq!(elsewhere(&end), SUCCESS);
    });
}

#[test]
fn each_launch_reads_and_writes_host_memory_as_it_is_then() {
    apart("captures::each_launch_reads_and_writes_host_memory_as_it_is_then", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (function, stream, address) = (program.function("add_step"), program.stream(), program.allocate(64));
        let (mut pinned, mut pageable) = (0u64, Box::new([0u32; 16]));
        ok!(library, cuMemHostAlloc(&raw mut pinned, 64usize, 0u32));
        let pinned = pinned as *mut u32;
        let mut result = Box::new([0u32; 2]);
        program.begin(stream, GLOBAL);
        ok!(library, cuMemcpyHtoDAsync_v2(address, pinned, 4usize, stream));
        ok!(library, cuMemcpyHtoDAsync_v2(address + 4, pageable.as_ptr(), 4usize, stream));
        assert_eq!(program.add_step(function, stream, address), SUCCESS);
        assert_eq!(program.add_step(function, stream, address + 4), SUCCESS);
        ok!(library, cuMemcpyDtoHAsync_v2(result.as_mut_ptr(), address, 8usize, stream));
        let executable = program.instantiate(program.end(stream));
        for round in 0..20u32 {
            // SAFETY: the library allocated it, and the last launch has ended.
            unsafe { pinned.write_volatile(round * 10) };
            pageable[0] = round * 1000;
            ok!(library, cuGraphLaunch(executable, stream));
            ok!(library, cuStreamSynchronize(stream));
            assert_eq!(*result, [round * 10 + 3, round * 1000 + 3]);
        }
    });
}

#[test]
fn dependencies_of_a_capture_can_be_replaced() {
    apart("captures::dependencies_of_a_capture_can_be_replaced", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (stream, address) = (program.stream(), program.allocate(64));
        let (mut graph, mut own, mut ended) = (0u64, 0u64, 0u64);
        ok!(library, cuGraphCreate(&raw mut graph, 0u32));
        ok!(library, cuGraphAddEmptyNode(&raw mut own, graph, std::ptr::null::<u64>(), 0usize));
        let none = std::ptr::null::<u8>();
        ok!(
            library,
            cuStreamBeginCaptureToGraph(stream, graph, &raw const own, none, 1usize, RELAXED)
        );
        ok!(library, cuMemsetD32Async(address, 1u32, 1usize, stream));
        let replaced = [own];
        ok!(library, cuStreamUpdateCaptureDependencies(stream, replaced.as_ptr(), 1usize, 1u32));
        ok!(library, cuMemsetD32Async(address + 4, 1u32, 1usize, stream));
        let wrong = [own + 16_000_000];
        assert_eq!(
            cu!(library, cuStreamUpdateCaptureDependencies(stream, wrong.as_ptr(), 1usize, 0u32)),
            INVALID_VALUE
        );
        ok!(library, cuStreamEndCapture(stream, &raw mut ended));
        assert_eq!(ended, graph);
        let (mut behind, mut count) = ([0u64; 2], 2usize);
        ok!(library, cuGraphNodeGetDependentNodes(own, behind.as_mut_ptr(), &raw mut count));
        assert_eq!((behind.to_vec(), count), (program.nodes(graph)[1..].to_vec(), 2));
        assert_eq!(
            cu!(library, cuStreamUpdateCaptureDependencies(stream, replaced.as_ptr(), 1usize, 0u32)),
            ILLEGAL_STATE
        );
    });
}

#[test]
fn a_call_that_is_refused_in_a_capture_makes_it_invalid() {
    apart("captures::a_call_that_is_refused_in_a_capture_makes_it_invalid", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (function, stream) = (program.function("add_step"), program.stream());
        let freed = program.allocate(64);
        ok!(library, cuMemFree_v2(freed));
        let none = std::ptr::null_mut::<u8>();
        let with_memory = {
            let mut temporary = 0u64;
            program.begin(stream, GLOBAL);
            ok!(library, cuMemAllocAsync(&raw mut temporary, 64usize, stream));
            program.instantiate(program.end(stream))
        };
        let calls: [(&str, u32, &dyn Fn() -> u32); 6] = [
            ("empty grid", INVALID_VALUE, &|| {
                cu!(
                    library,
                    cuLaunchKernel(function, 0u32, 1u32, 1u32, 1u32, 1u32, 1u32, 0u32, stream, none, none)
                )
            }),
            ("unknown function", INVALID_HANDLE, &|| {
                cu!(
                    library,
                    cuLaunchKernel(1u64, 1u32, 1u32, 1u32, 1u32, 1u32, 1u32, 0u32, stream, none, none)
                )
            }),
            ("fill of freed memory", INVALID_VALUE, &|| {
                cu!(library, cuMemsetD32Async(freed, 1u32, 1usize, stream))
            }),
            ("copy of freed memory", INVALID_VALUE, &|| {
                cu!(library, cuMemcpyDtoDAsync_v2(freed, freed, 4usize, stream))
            }),
            ("free of other memory", INVALID_VALUE, &|| {
                cu!(library, cuMemFreeAsync(freed, stream))
            }),
            ("graph with memory", NOT_SUPPORTED, &|| {
                cu!(library, cuGraphLaunch(with_memory, stream))
            }),
        ];
        for (name, expected, call) in calls {
            let mut graph = 1u64;
            program.begin(stream, GLOBAL);
            assert_eq!(call(), expected, "{name}");
            assert_eq!(program.status(stream), 2, "{name}");
            assert_eq!(cu!(library, cuStreamEndCapture(stream, &raw mut graph)), INVALIDATED, "{name}");
        }
    });
}

#[test]
fn default_streams_of_threads_do_not_wait_for_captures() {
    apart("captures::default_streams_of_threads_do_not_wait_for_captures", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (mut stream, mut status) = (0u64, 9u32);
        let (address, source) = (program.allocate(64), [7u32; 2]);
        ok!(library, cuStreamCreate(&raw mut stream, 0u32));
        program.begin(stream, RELAXED);
        ok!(library, cuMemsetD32Async_ptsz(address, 5u32, 1usize, 0u64));
        ok!(library, cuMemcpyHtoDAsync_v2_ptsz(address + 4, source.as_ptr(), 4usize, 0u64));
        ok!(library, cuMemcpyHtoD_v2_ptds(address + 8, source.as_ptr(), 4usize));
        ok!(library, cuStreamIsCapturing_ptsz(0u64, &raw mut status));
        assert_eq!((status, program.status(stream)), (0, 1));
        assert_eq!(cu!(library, cuStreamIsCapturing(0u64, &raw mut status)), IMPLICIT, "as before");
        ok!(library, cuGraphDestroy(program.end(stream)));
        assert_eq!([0, 4, 8].map(|offset| program.word(address + offset)), [Ok(5), Ok(7), Ok(7)]);
        program.begin(stream, RELAXED);
        assert_eq!(
            cu!(library, cuMemsetD32Async_ptsz(address, 5u32, 1usize, 1u64)),
            IMPLICIT,
            "by its name"
        );
    });
}

#[test]
fn external_records_and_waits_are_for_captures() {
    apart("captures::external_records_and_waits_are_for_captures", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (stream, event) = (program.stream(), program.event());
        for flags in [1u32, 2, 3] {
            assert_eq!(cu!(library, cuEventRecordWithFlags(event, stream, flags)), INVALID_VALUE);
            assert_eq!(cu!(library, cuStreamWaitEvent(stream, event, flags)), INVALID_VALUE);
        }
        ok!(library, cuEventRecordWithFlags(event, stream, 0u32));
        program.begin(stream, GLOBAL);
        ok!(library, cuStreamWaitEvent(stream, event, 1u32));
        ok!(library, cuEventRecordWithFlags(event, stream, 1u32));
        assert_eq!(cu!(library, cuEventRecordWithFlags(event, stream, 2u32)), INVALID_VALUE);
        assert_eq!(program.nodes(program.end(stream)).len(), 2);
    });
}
