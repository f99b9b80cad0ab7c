//! Memory of graphs while the queue is full.

use crate::driver::{CPU, Program, SUCCESS, apart, cu, is_on_session, ok, open};

/// Captures a graph that allocates memory, and returns the graph and the memory's address.
fn capture_allocation(program: &Program, stream: u64) -> (u64, u64) {
    let library = &program.library;
    let (mut graph, mut address) = (0u64, 0u64);
    ok!(library, cuStreamBeginCapture_v2(stream, 0u32));
    ok!(library, cuMemAllocAsync(&raw mut address, 64usize, stream));
    ok!(library, cuStreamEndCapture(stream, &raw mut graph));
    (graph, address)
}

/// Submits a kernel without an end, and then as many operations as may wait. The last one waits until the kernel runs.
fn fill_queue(program: &Program, stream: u64) {
    let library = &program.library;
    let address = program.allocate(64);
    assert_eq!(program.launch(program.function("spin"), 1, stream, &mut []), SUCCESS);
    for _ in 0..4096 {
        ok!(library, cuMemsetD32Async(address, 1u32, 1usize, stream));
    }
}

#[test]
fn a_full_queue_does_not_hold_other_calls_about_memory_of_graphs() {
    apart(
        "graph_memory::a_full_queue_does_not_hold_other_calls_about_memory_of_graphs",
        CPU,
        || {
            let program = Program::new();
            let library = &program.library;
            let stream = program.stream();
            let (graph, _) = capture_allocation(&program, stream);
            let executable = program.instantiate(graph);
            fill_queue(&program, stream);
            std::thread::spawn(move || {
                let library = open();
                cu!(library, cuGraphLaunch(executable, stream));
            });
            let mut used = 0u64;
            while used == 0 {
                ok!(library, cuDeviceGetGraphMemAttribute(0i32, 0u32, &raw mut used));
            }
            assert_eq!(used, 512);
            ok!(library, cuDeviceGetGraphMemAttribute(0i32, 0u32, &raw mut used));
        },
    );
}

/// Waits until a thread of this process sleeps, by its number.
fn wait_until_asleep(thread: i32, meanwhile: impl Fn()) {
    let state = || {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("the thread lives");
        let state = status.lines().find_map(|line| line.strip_prefix("State:")).map(str::trim);
        state.expect("Linux has it").starts_with('S')
    };
    while !state() {
        meanwhile();
    }
    meanwhile();
}

#[test]
fn addresses_of_graphs_are_not_free_before_their_memory_is_unmapped() {
    // The queue of a session takes more operations than the test submits.
    if is_on_session() {
        return;
    }
    apart(
        "graph_memory::addresses_of_graphs_are_not_free_before_their_memory_is_unmapped",
        CPU,
        || {
            let program = Program::new();
            let library = &program.library;
            let stream = program.stream();
            let (graph, temporary) = capture_allocation(&program, stream);
            let executable = program.instantiate(graph);
            ok!(library, cuGraphLaunch(executable, stream));
            ok!(library, cuStreamSynchronize(stream));
            // The memory stays without its graph.
            ok!(library, cuGraphExecDestroy(executable));
            ok!(library, cuGraphDestroy(graph));
            fill_queue(&program, stream);
            let mut context = 0u64;
            ok!(library, cuCtxGetCurrent(&raw mut context));
            let (tell, thread) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let library = open();
                ok!(library, cuCtxSetCurrent(context));
                // SAFETY: only makes a system call.
                tell.send(unsafe { libc::gettid() }).expect("the test receives");
                cu!(library, cuMemFree_v2(temporary));
            });
            let is_taken = || {
                let mut start = 0u64;
                ok!(library, cuPointerGetAttribute(&raw mut start, 11u32, temporary));
                assert_eq!(start, temporary);
            };
            wait_until_asleep(thread.recv().unwrap(), is_taken);
        },
    );
}
