//! Functions of the program between the work of streams.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::driver::{CPU, ILLEGAL_ADDRESS, NOT_READY, Program, SUCCESS, apart, cu, ok, parameter};

/// What a function of the program gets: a value to read, and where to say what it has read and on which thread.
struct Call {
    value: *const AtomicU32,
    go: Mutex<Receiver<()>>,
    read: Sender<(u32, ThreadId)>,
}

unsafe extern "C" fn read(data: *mut c_void) {
    // SAFETY: the test passes this and keeps it.
    let call = unsafe { &*data.cast::<Call>() };
    call.go.lock().recv().expect("the test sends");
    // SAFETY: the test passes this and keeps it.
    let value = unsafe { &*call.value }.load(Ordering::SeqCst);
    call.read.send((value, std::thread::current().id())).expect("the test receives");
}

static STATUS: AtomicU32 = AtomicU32::new(u32::MAX);

unsafe extern "C" fn note(_stream: u64, status: u32, _data: *mut c_void) {
    STATUS.store(status, Ordering::SeqCst);
}

#[test]
fn a_host_function_runs_between_the_work_before_and_after_it() {
    apart("callbacks::a_host_function_runs_between_the_work_before_and_after_it", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (mut stream, mut event, mut pinned) = (0u64, 0u64, 0u64);
        ok!(library, cuStreamCreate(&raw mut stream, 1u32));
        ok!(library, cuEventCreate(&raw mut event, 0u32));
        ok!(library, cuMemHostAlloc(&raw mut pinned, 4usize, 0u32));
        let function = program.function("add_step");
        let add = |stream| {
            let mut address = pinned;
            assert_eq!(program.launch(function, 1, stream, &mut [parameter(&mut address)]), SUCCESS);
        };
        let ((go, receiver), (sender, answers)) = (channel(), channel());
        let call = Call {
            value: pinned as *const AtomicU32,
            go: Mutex::new(receiver),
            read: sender,
        };
        ok!(library, cuMemsetD32Async(pinned, 0u32, 1usize, stream));
        add(stream);
        ok!(
            library,
            cuLaunchHostFunc(stream, read as unsafe extern "C" fn(*mut c_void), (&raw const call).cast_mut())
        );
        // The function waits for this thread, which would otherwise wait for the function.
        assert_eq!(cu!(library, cuStreamQuery(stream)), NOT_READY);
        let mut other = 0u64;
        ok!(library, cuStreamCreate(&raw mut other, 1u32));
        ok!(library, cuStreamSynchronize(other));
        go.send(()).unwrap();
        add(stream);
        ok!(library, cuEventRecord(event, stream));
        ok!(library, cuEventSynchronize(event));
        let (value, thread) = answers.try_recv().unwrap();
        // Each of 64 threads adds 3 to what it has read.
        assert!(value > 0 && value % 3 == 0, "{value}");
        assert_ne!(thread, std::thread::current().id());
        // SAFETY: the library allocated it, and no kernel runs.
        assert!(unsafe { &*call.value }.load(Ordering::SeqCst) > value);
        ok!(
            library,
            cuLaunchHostFunc(0u64, read as unsafe extern "C" fn(*mut c_void), (&raw const call).cast_mut())
        );
        assert_eq!(cu!(library, cuStreamQuery(stream)), NOT_READY, "all streams follow the default one");
        go.send(()).unwrap();
        ok!(library, cuCtxSynchronize());
        answers.try_recv().unwrap();
        ok!(library, cuMemFreeHost(pinned));
    });
}

#[test]
fn a_callback_gets_the_fault_before_it_and_a_host_function_does_not_run() {
    apart(
        "callbacks::a_callback_gets_the_fault_before_it_and_a_host_function_does_not_run",
        CPU,
        || {
            let program = Program::new();
            let library = &program.library;
            let mut nowhere = 0x1234_5678u64;
            assert_eq!(
                program.launch_one(program.function("stray"), &mut [parameter(&mut nowhere)]),
                SUCCESS
            );
            let null = std::ptr::null_mut::<c_void>();
            ok!(
                library,
                cuStreamAddCallback(0u64, note as unsafe extern "C" fn(u64, u32, *mut c_void), null, 0u32)
            );
            assert_eq!(cu!(library, cuCtxSynchronize()), ILLEGAL_ADDRESS);
            assert_eq!(STATUS.load(Ordering::SeqCst), ILLEGAL_ADDRESS);
            ok!(library, cuDevicePrimaryCtxReset_v2(0i32));
            ok!(
                library,
                cuStreamAddCallback(0u64, note as unsafe extern "C" fn(u64, u32, *mut c_void), null, 0u32)
            );
            ok!(library, cuCtxSynchronize());
            assert_eq!(STATUS.load(Ordering::SeqCst), SUCCESS);
        },
    );
}

unsafe extern "C" fn nothing(_data: *mut c_void) {}

#[test]
fn memory_of_a_destroyed_context_is_free_at_once_though_a_function_ran_in_it() {
    let variables = &[
        ("SAHASRA_CUDA", "cpu:"),
        ("SAHASRA_CUDA_MEMORY", "1Gi"),
        ("SAHASRA_CUDA_THREADS", "2"),
    ];
    apart(
        "callbacks::memory_of_a_destroyed_context_is_free_at_once_though_a_function_ran_in_it",
        variables,
        || {
            let program = Program::new();
            let library = &program.library;
            for _ in 0..200 {
                let (mut context, mut address) = (0u64, 0u64);
                ok!(library, cuCtxCreate_v2(&raw mut context, 0u32, 0i32));
                let null = std::ptr::null_mut::<c_void>();
                ok!(library, cuLaunchHostFunc(0u64, nothing as unsafe extern "C" fn(*mut c_void), null));
                ok!(library, cuMemAlloc_v2(&raw mut address, 1000usize << 20));
                ok!(library, cuCtxSynchronize());
                ok!(library, cuCtxDestroy_v2(context));
            }
        },
    );
}
