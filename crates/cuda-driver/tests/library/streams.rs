//! What streams wait for besides their own work.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::{CPU, INVALID_VALUE, NOT_READY, Program, SUCCESS, apart, cu, ok, parameter};

/// Kernel that counts to a number, and then writes 7.
const SLOW: &str = ".version 7.0 .target sm_70 .address_size 64
    .visible .entry slow(.param .u64 out, .param .u32 count) {
        .reg .pred %p1; .reg .b32 %r<4>; .reg .b64 %rd1;
        ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [count]; mov.u32 %r2, 0;
    L:
        add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1; @%p1 bra L;
        mov.u32 %r3, 7; st.global.u32 [%rd1], %r3; ret;
    }\0";

/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIMES: u32 = 2;

/// Stream with which the legacy default stream is in order.
fn blocking_stream(program: &Program) -> u64 {
    let mut stream = 0u64;
    ok!(program.library, cuStreamCreate(&raw mut stream, 0u32));
    stream
}

fn event(program: &Program, flags: u32) -> u64 {
    let mut event = 0u64;
    ok!(program.library, cuEventCreate(&raw mut event, flags));
    event
}

/// Launches a kernel that never ends.
fn spin(program: &Program, stream: u64) {
    assert_eq!(program.launch(program.function("spin"), 1, stream, &mut []), SUCCESS);
}

fn is_ready(program: &Program, stream: u64) -> bool {
    match cu!(program.library, cuStreamQuery(stream)) {
        SUCCESS => true,
        NOT_READY => false,
        other => panic!("{other}"),
    }
}

/// Whether an event without times, recorded in a stream, is done.
fn records_what_is_done(program: &Program, stream: u64) -> bool {
    let recorded = event(program, WITHOUT_TIMES);
    ok!(program.library, cuEventRecord(recorded, stream));
    match cu!(program.library, cuEventQuery(recorded)) {
        SUCCESS => true,
        NOT_READY => false,
        other => panic!("{other}"),
    }
}

static SEEN: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn see(data: *mut c_void) {
    // SAFETY: the test passes a word that it keeps.
    let word = unsafe { &*data.cast::<AtomicU32>() };
    SEEN.store(word.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// Word that a host function of one stream reads after a kernel of another has written it.
fn seen_by_a_function(program: &Program, kernel: u64, order: impl FnOnce(), function: u64) -> u32 {
    let library = &program.library;
    let (mut word, mut module, mut slow, mut count) = (0u64, 0u64, 0u64, 2_000_000u32);
    // A device elsewhere has to know that kernels access it.
    ok!(library, cuMemHostAlloc(&raw mut word, 4usize, 2u32));
    ok!(library, cuModuleLoadData(&raw mut module, SLOW.as_ptr()));
    ok!(library, cuModuleGetFunction(&raw mut slow, module, c"slow".as_ptr()));
    let none = std::ptr::null_mut::<u8>();
    let mut parameters = [parameter(&mut word), parameter(&mut count)];
    ok!(
        library,
        cuLaunchKernel(
            slow,
            1u32,
            1u32,
            1u32,
            1u32,
            1u32,
            1u32,
            0u32,
            kernel,
            parameters.as_mut_ptr(),
            none
        )
    );
    order();
    let data = word as *mut c_void;
    ok!(library, cuLaunchHostFunc(function, see as unsafe extern "C" fn(*mut c_void), data));
    ok!(library, cuStreamSynchronize(function));
    let seen = SEEN.swap(0, Ordering::SeqCst);
    ok!(library, cuMemFreeHost(word));
    seen
}

#[test]
fn a_stream_that_waits_for_an_event_is_not_done_before_it() {
    apart("streams::a_stream_that_waits_for_an_event_is_not_done_before_it", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let [first, second, third, other] = [(); 4].map(|()| program.stream());
        let (timed, untimed) = (event(&program, 0), event(&program, WITHOUT_TIMES));
        let order = || {
            ok!(library, cuEventRecord(timed, first));
            ok!(library, cuStreamWaitEvent(second, timed, 0u32));
        };
        assert_eq!(seen_by_a_function(&program, first, order, second), 7);
        spin(&program, first);
        ok!(library, cuEventRecord(timed, first));
        ok!(library, cuStreamWaitEvent(second, timed, 0u32));
        assert!(!is_ready(&program, second));
        assert!(!records_what_is_done(&program, second));
        ok!(library, cuEventRecord(untimed, second));
        ok!(library, cuStreamWaitEvent(third, untimed, 0u32));
        assert!(!is_ready(&program, third), "through two events");
        assert!(is_ready(&program, other));
        assert!(records_what_is_done(&program, other));
    });
}

#[test]
fn a_stream_waits_for_the_events_of_a_graph_that_it_launches() {
    apart("streams::a_stream_waits_for_the_events_of_a_graph_that_it_launches", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let [first, second] = [(); 2].map(|()| program.stream());
        let waited = event(&program, 0);
        let (graph, mut node) = (program.graph(), 0u64);
        ok!(
            library,
            cuGraphAddEventWaitNode(&raw mut node, graph, std::ptr::null::<u64>(), 0usize, waited)
        );
        let executable = program.instantiate(graph);
        spin(&program, first);
        ok!(library, cuEventRecord(waited, first));
        ok!(library, cuGraphLaunch(executable, second));
        assert!(!is_ready(&program, second));
    });
}

#[test]
fn a_blocking_stream_is_not_done_before_the_legacy_stream() {
    apart("streams::a_blocking_stream_is_not_done_before_the_legacy_stream", CPU, || {
        let program = Program::new();
        let (blocking, other) = (blocking_stream(&program), program.stream());
        assert_eq!(seen_by_a_function(&program, 0, || (), blocking), 7);
        spin(&program, 0);
        assert!(!is_ready(&program, blocking));
        assert!(!records_what_is_done(&program, blocking));
        assert!(is_ready(&program, other), "a stream that does not wait for the legacy stream");
        assert!(records_what_is_done(&program, other));
    });
}

#[test]
fn the_legacy_stream_is_not_done_before_blocking_streams_and_lets_others_wait_for_them() {
    apart(
        "streams::the_legacy_stream_is_not_done_before_blocking_streams_and_lets_others_wait_for_them",
        CPU,
        || {
            let program = Program::new();
            let library = &program.library;
            let [first, second] = [(); 2].map(|()| blocking_stream(&program));
            assert_eq!(seen_by_a_function(&program, first, || (), 0), 7);
            spin(&program, first);
            assert!(is_ready(&program, second));
            assert!(!is_ready(&program, 0));
            // Not work, yet in the order of the legacy stream.
            let recorded = event(&program, WITHOUT_TIMES);
            ok!(library, cuEventRecord(recorded, 0u64));
            assert!(!is_ready(&program, second));
        },
    );
}

#[test]
fn the_default_stream_of_a_thread_is_not_waited_for() {
    apart("streams::the_default_stream_of_a_thread_is_not_waited_for", CPU, || {
        let program = Program::new();
        let blocking = blocking_stream(&program);
        spin(&program, 2);
        assert!(is_ready(&program, blocking));
        assert!(!is_ready(&program, 2));
    });
}

#[test]
fn managed_memory_is_attached_to_streams() {
    apart("streams::managed_memory_is_attached_to_streams", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (stream, memory, mut managed, mut graph) = (program.stream(), program.allocate(64), 0u64, 0u64);
        ok!(library, cuMemAllocManaged(&raw mut managed, 64usize, 1u32));
        let attach =
            |stream: u64, address: u64, bytes: usize, flags: u32| cu!(library, cuStreamAttachMemAsync(stream, address, bytes, flags));
        for (bytes, flags) in [(0, 1), (0, 2), (0, 4), (64, 4)] {
            assert_eq!(attach(stream, managed, bytes, flags), SUCCESS, "{bytes} {flags}");
        }
        assert_eq!(attach(0, managed, 0, 1), SUCCESS);
        assert_eq!(attach(0, managed, 0, 4), INVALID_VALUE, "to the legacy stream alone");
        assert_eq!(attach(stream, managed, 32, 4), INVALID_VALUE, "a part");
        assert_eq!(attach(stream, managed, 0, 3), INVALID_VALUE);
        assert_eq!(attach(stream, memory, 0, 4), INVALID_VALUE, "memory of the device");
        ok!(library, cuStreamBeginCapture_v2(stream, 0u32));
        assert_eq!(attach(stream, managed, 0, 4), 900, "in a capture");
        assert_eq!(cu!(library, cuStreamEndCapture(stream, &raw mut graph)), 901);
        ok!(library, cuMemFree_v2(managed));
        assert_eq!(attach(stream, managed, 0, 4), INVALID_VALUE, "freed");
    });
}

#[test]
fn a_capture_that_begins_in_a_stream_while_that_is_destroyed_is_not_left_over() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    let test = "streams::a_capture_that_begins_in_a_stream_while_that_is_destroyed_is_not_left_over";
    apart(test, CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (current, is_over) = (AtomicU64::new(program.stream()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let stream = current.load(Ordering::Relaxed);
                    let mut graph = 0u64;
                    if cu!(library, cuStreamBeginCapture_v2(stream, 2u32)) == SUCCESS {
                        cu!(library, cuStreamEndCapture(stream, &raw mut graph));
                    }
                }
            });
            let since = std::time::Instant::now();
            while since.elapsed() < std::time::Duration::from_secs(2) {
                let old = current.swap(program.stream(), Ordering::Relaxed);
                ok!(library, cuStreamDestroy_v2(old));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        ok!(library, cuStreamDestroy_v2(current.into_inner()));
        ok!(library, cuCtxSynchronize());
    });
}
