//! Faults that end a launch early, and their reports.

use std::sync::mpsc;
use std::time::Duration;

use sahasra_ptx::{ArgumentList, Cancel, DevicePointer, Fault, FaultKind, Launch, LaunchStatistics, LoadErrorKind, Memory, Module};

const HEADER: &str = ".version 7.8\n.target sm_80\n.address_size 64\n";

/// Returns a module with one kernel `k` that takes a pointer in `%rd1`, and has `%tid.x` in `%r1`, its byte offset in `%rd2` and the
/// address of the thread's own word in `%rd3`. The body begins on line 15.
fn module(body: &str) -> Module {
    let text = format!(
        "{HEADER}.file 1 \"kernel.cu\"\n.visible .entry k(.param .u64 out)\n{{\n.reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>;\n\
         .shared .align 4 .b8 s[256];\nld.param.u64 %rd1, [out];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n\
         add.s64 %rd3, %rd1, %rd2;\nmov.u32 %r2, 1;\nmov.u64 %rd4, s;\n{body}\nret;\n}}\n"
    );
    Module::load(&text).unwrap_or_else(|error| panic!("{error}"))
}

struct Run {
    memory: Memory,
    out: DevicePointer,
}

impl Run {
    fn new() -> Self {
        let memory = Memory::new(1 << 20);
        let out = memory.allocate(4 * 100).expect("fits");
        Self { memory, out }
    }

    fn launch(&self, body: &str, launch: &Launch) -> Result<LaunchStatistics, Fault> {
        let kernel = module(body).entry("k").expect("the kernel");
        kernel.launch(launch, ArgumentList::new().pointer(self.out).bytes(), &self.memory, &Cancel::new())
    }

    fn fault(&self, body: &str, threads: u32) -> Fault {
        self.launch(body, &Launch::new([1, 1, 1], [threads, 1, 1])).expect_err("a fault")
    }

    fn words(&self, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; 4 * count];
        self.memory.read(self.out, &mut bytes).expect("inside");
        bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect()
    }
}

#[test]
fn an_access_past_the_end_names_thread_address_instruction_and_line() {
    let run = Run::new();
    let fault = run.fault(".loc 1 42 7\nst.global.u32 [%rd3], %r2;", 128);
    assert_eq!(fault.kind, FaultKind::OutOfBounds { bytes: 4 });
    assert_eq!(fault.thread, Some([100, 0, 0]));
    assert_eq!(fault.block, Some([0, 0, 0]));
    assert_eq!(fault.address, Some(run.out.0 + 400));
    assert_eq!(fault.instruction, "st.global.u32 [%rd3], %r2");
    assert_eq!(fault.line, 16);
    assert_eq!(fault.source, Some(("kernel.cu".to_owned(), 42)));
    let text = fault.to_string();
    for part in [
        "k: access of 4 bytes is out of bounds",
        "st.global.u32 [%rd3], %r2",
        "PTX line 16",
        "kernel.cu:42",
        "thread (100, 0, 0)",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn the_last_element_is_in_bounds_and_the_next_is_not() {
    let run = Run::new();
    run.launch("st.global.u32 [%rd3], %r2;", &Launch::new([1, 1, 1], [100, 1, 1]))
        .expect("inside");
    assert_eq!(run.words(100), vec![1; 100]);
    assert_eq!(run.fault("ld.global.u32 %r3, [%rd3+396];", 2).thread, Some([1, 0, 0]));
    assert_eq!(
        run.fault("ld.global.u32 %r3, [%rd3+-4];", 1).kind,
        FaultKind::OutOfBounds { bytes: 4 }
    );
}

#[test]
fn thread_indices_of_faults_are_three_dimensional() {
    let run = Run::new();
    let body = "mov.u32 %r3, %tid.z; setp.eq.u32 %p1, %r3, 2; mov.u32 %r4, %tid.y; setp.eq.and.u32 %p2, %r4, 3, %p1; @%p2 trap;";
    let fault = run.launch(body, &Launch::new([1, 1, 1], [4, 5, 3])).expect_err("a trap");
    assert_eq!((fault.kind.clone(), fault.thread), (FaultKind::Trap, Some([0, 3, 2])));
}

#[test]
fn misaligned_and_null_accesses_are_distinguished() {
    let run = Run::new();
    assert_eq!(
        run.fault("ld.global.u32 %r3, [%rd1+2];", 1).kind,
        FaultKind::Misaligned { alignment: 4 }
    );
    assert_eq!(
        run.fault("ld.global.v2.u32 {%r3, %r4}, [%rd1+4];", 1).kind,
        FaultKind::Misaligned { alignment: 8 }
    );
    assert_eq!(
        run.fault("mov.u64 %rd5, 0; ld.global.u32 %r3, [%rd5];", 1).kind,
        FaultKind::NullAccess
    );
    assert_eq!(run.fault("mov.u64 %rd5, 8; st.u32 [%rd5], %r2;", 1).kind, FaultKind::NullAccess);
    assert_eq!(
        run.fault("atom.global.add.u32 %r3, [%rd1+1], 1;", 40).kind,
        FaultKind::Misaligned { alignment: 4 }
    );
}

#[test]
fn shared_memory_ends_with_its_variables() {
    let run = Run::new();
    let fault = run.fault("add.s64 %rd5, %rd4, %rd2; st.shared.u32 [%rd5], %r2;", 65);
    assert_eq!(
        (fault.kind.clone(), fault.thread, fault.address),
        (FaultKind::OutOfBounds { bytes: 4 }, Some([64, 0, 0]), Some(256))
    );
    let dynamic = Launch {
        dynamic_shared_bytes: 16,
        ..Launch::new([1, 1, 1], [68, 1, 1])
    };
    run.launch("add.s64 %rd5, %rd4, %rd2; st.shared.u32 [%rd5], %r2;", &dynamic)
        .expect("inside");
}

#[test]
fn memory_freed_before_the_launch_is_out_of_bounds() {
    let run = Run::new();
    run.memory.free(run.out).expect("frees");
    assert_eq!(run.fault("ld.global.u32 %r3, [%rd3];", 1).kind, FaultKind::OutOfBounds { bytes: 4 });
}

#[test]
fn a_faulting_block_keeps_what_others_wrote() {
    let run = Run::new();
    let body = "mov.u32 %r3, %ctaid.x; mul.wide.u32 %rd5, %r3, 4; add.s64 %rd6, %rd1, %rd5; st.global.u32 [%rd6], %r2; setp.eq.u32 %p1, %r3, 7; @%p1 trap;";
    let fault = run.launch(body, &Launch::new([50, 1, 1], [1, 1, 1])).expect_err("a trap");
    assert_eq!(fault.block, Some([7, 0, 0]));
    assert_eq!(run.words(9), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn threads_at_different_barriers_are_a_divergent_barrier() {
    let run = Run::new();
    let body = "setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW; bar.sync 1; bra END; LOW: bar.sync 2; END:";
    let fault = run.fault(body, 64);
    assert!(
        matches!(&fault.kind, FaultKind::DivergentBarrier(text) if text.contains("16 at barrier 2") && text.contains("48 at barrier 1")),
        "{fault}"
    );
    assert!(matches!(run.fault("bar.sync 16;", 1).kind, FaultKind::DivergentBarrier(_)));
}

#[test]
fn a_barrier_that_cannot_complete_is_a_deadlock() {
    let run = Run::new();
    let fault = run.fault("bar.sync 0, 96;", 64);
    assert!(
        matches!(&fault.kind, FaultKind::Deadlock(text) if text.contains("64 at barrier 0")),
        "{fault}"
    );
    assert_eq!(fault.instruction, "bar.sync 0, 96");
}

#[test]
fn lanes_of_a_warp_operation_wait_for_the_mask_they_name() {
    let run = Run::new();
    // The upper half of the warp waits at the barrier, and the mask of the lower half names all lanes.
    let body = "setp.lt.u32 %p1, %r1, 16; @!%p1 bra HIGH; shfl.sync.bfly.b32 %r3, %r1, 1, 31, 0xffffffff; HIGH: bar.sync 0;";
    let fault = run.fault(body, 32);
    assert!(
        matches!(&fault.kind, FaultKind::Deadlock(text) if text.contains("16 threads wait for others of their warp")),
        "{fault}"
    );
    // With a mask of its own half only, the lower half continues.
    let body = body.replace("0xffffffff", "0x0000ffff");
    run.launch(&body, &Launch::new([1, 1, 1], [32, 1, 1])).expect("no deadlock");
}

#[test]
fn threads_that_ended_are_not_waited_for() {
    let run = Run::new();
    let body = "setp.ge.u32 %p1, %r1, 40; @%p1 ret; bar.sync 0; shfl.sync.down.b32 %r3, %r1, 1, 31, 0xffffffff; st.global.u32 [%rd3], %r3;";
    run.launch(body, &Launch::new([1, 1, 1], [96, 1, 1])).expect("completes");
    assert_eq!(
        run.words(39),
        (1..40)
            .collect::<Vec<u32>>()
            .iter()
            .enumerate()
            .map(|(lane, next)| if lane == 31 { 31 } else { *next })
            .collect::<Vec<_>>()
    );
}

#[test]
fn a_lock_that_lanes_of_one_warp_spin_on_is_passed_around() {
    // Every thread takes the lock, increments a counter without atomics and releases the lock. Running only the lowest path would spin.
    let run = Run::new();
    let body = "SPIN: atom.global.cas.b32 %r3, [%rd1], 0, 1; setp.ne.u32 %p1, %r3, 0; @%p1 bra SPIN;\n\
                ld.volatile.global.u32 %r4, [%rd1+4]; add.u32 %r4, %r4, 1; st.volatile.global.u32 [%rd1+4], %r4;\n\
                membar.gl; atom.global.exch.b32 %r5, [%rd1], 0;";
    for threads in [1, 4] {
        let launch = Launch {
            threads: threads.try_into().expect("not zero"),
            step_limit: Some(200_000_000),
            ..Launch::new([3, 1, 1], [96, 1, 1])
        };
        run.launch(body, &launch).unwrap_or_else(|fault| panic!("{fault}"));
    }
    assert_eq!(run.words(2), [0, 2 * 3 * 96]);
}

#[test]
fn a_flag_set_by_a_later_warp_ends_the_wait_of_an_earlier_one() {
    let run = Run::new();
    let body = "setp.eq.u32 %p1, %r1, 200; @%p1 bra SET;\n\
                WAIT: ld.volatile.shared.u32 %r3, [%rd4]; setp.eq.u32 %p2, %r3, 0; @%p2 bra WAIT; bra END;\n\
                SET: st.volatile.shared.u32 [%rd4], %r2; END: st.global.u32 [%rd1], %r2;";
    let launch = Launch {
        step_limit: Some(50_000_000),
        ..Launch::new([1, 1, 1], [256, 1, 1])
    };
    run.launch(body, &launch).unwrap_or_else(|fault| panic!("{fault}"));
}

#[test]
fn the_step_limit_ends_endless_loops() {
    let run = Run::new();
    for threads in [1, 3] {
        let launch = Launch {
            step_limit: Some(100_000),
            threads: threads.try_into().expect("not zero"),
            ..Launch::new([4, 1, 1], [64, 1, 1])
        };
        let fault = run.launch("LOOP: bra LOOP;", &launch).expect_err("endless");
        assert_eq!(fault.kind, FaultKind::StepLimit(100_000));
        assert_eq!(fault.instruction, "bra LOOP");
    }
}

#[test]
fn steps_are_counted_once_a_group() {
    let run = Run::new();
    let one = run.launch("", &Launch::new([1, 1, 1], [64, 1, 1])).expect("runs");
    let two = run.launch("", &Launch::new([1, 1, 1], [65, 1, 1])).expect("runs");
    assert_eq!((one.blocks, one.threads), (1, 64));
    assert_eq!(two.steps, 2 * one.steps);
    assert!(one.steps >= 1);
    let exact = Launch {
        step_limit: Some(one.steps),
        ..Launch::new([1, 1, 1], [64, 1, 1])
    };
    run.launch("", &exact).expect("just enough");
    let short = Launch {
        step_limit: Some(one.steps),
        ..Launch::new([2, 1, 1], [64, 1, 1])
    };
    assert_eq!(
        run.launch("", &short).expect_err("one block too many").kind,
        FaultKind::StepLimit(one.steps)
    );
}

#[test]
fn cancelling_ends_a_running_launch() {
    let (started, cancel) = (mpsc::channel(), Cancel::new());
    let other = cancel.clone();
    let launched = std::thread::spawn(move || {
        let run = Run::new();
        let kernel = module("LOOP: bra LOOP;").entry("k").expect("the kernel");
        started.0.send(()).expect("someone listens");
        kernel.launch(
            &Launch::new([1, 1, 1], [64, 1, 1]),
            ArgumentList::new().pointer(run.out).bytes(),
            &run.memory,
            &other,
        )
    });
    started.1.recv_timeout(Duration::from_secs(10)).expect("started");
    cancel.cancel();
    assert_eq!(
        launched.join().expect("no panic").expect_err("cancelled").kind,
        FaultKind::Cancelled
    );
    let run = Run::new();
    let kernel = module("").entry("k").expect("the kernel");
    let outcome = kernel.launch(
        &Launch::new([1, 1, 1], [1, 1, 1]),
        ArgumentList::new().pointer(run.out).bytes(),
        &run.memory,
        &cancel,
    );
    assert_eq!(outcome.expect_err("cancelled before").kind, FaultKind::Cancelled);
}

#[test]
fn invalid_launches_are_rejected() {
    let run = Run::new();
    let refused = |launch: Launch| run.launch("", &launch).expect_err("refused").to_string();
    assert!(refused(Launch::new([0, 1, 1], [1, 1, 1])).contains("grid (0, 1, 1)"));
    assert!(refused(Launch::new([1, 65_536, 1], [1, 1, 1])).contains("grid"));
    assert!(refused(Launch::new([1, 1, 1], [1025, 1, 1])).contains("block (1025, 1, 1)"));
    assert!(refused(Launch::new([1, 1, 1], [1, 1, 65])).contains("block"));
    let shared = Launch {
        dynamic_shared_bytes: 1 << 20,
        ..Launch::new([1, 1, 1], [1, 1, 1])
    };
    assert!(refused(shared).contains("bytes of shared memory"));
    let kernel = module("").entry("k").expect("the kernel");
    let fault = kernel
        .launch(&Launch::new([1, 1, 1], [1, 1, 1]), &[0; 7], &run.memory, &Cancel::new())
        .expect_err("refused");
    assert!(fault.to_string().contains("7 bytes of arguments for 8 bytes of parameters"));
}

#[test]
fn required_and_largest_block_shapes_are_kept() {
    let text = format!("{HEADER}.entry a() .reqntid 8, 4, 1 {{ ret; }} .entry b() .maxntid 64 {{ ret; }}");
    let module = Module::load(&text).expect("loads");
    let memory = Memory::new(1 << 16);
    let (a, b) = (module.entry("a").expect("a"), module.entry("b").expect("b"));
    assert_eq!((a.max_threads(), a.required_block(), b.max_threads()), (32, Some([8, 4, 1]), 64));
    let launch = |kernel: &sahasra_ptx::Kernel, block| kernel.launch(&Launch::new([1, 1, 1], block), &[], &memory, &Cancel::new());
    launch(&a, [8, 4, 1]).expect("as required");
    assert!(matches!(
        launch(&a, [4, 8, 1]).expect_err("other shape").kind,
        FaultKind::InvalidLaunch(_)
    ));
    launch(&b, [64, 1, 1]).expect("small enough");
    assert!(matches!(
        launch(&b, [65, 1, 1]).expect_err("too large").kind,
        FaultKind::InvalidLaunch(_)
    ));
}

#[test]
fn a_kernel_with_module_variables_needs_an_instance() {
    let text = format!("{HEADER}.global .u32 counter = 5;\n.entry k() {{ .reg .b32 %r<2>; atom.global.add.u32 %r1, [counter], 1; ret; }}");
    let module = Module::load(&text).expect("loads");
    let memory = Memory::new(1 << 16);
    let kernel = module.entry("k").expect("the kernel");
    assert!(kernel.needs_instance());
    let launch = Launch::new([1, 1, 1], [3, 1, 1]);
    assert!(matches!(
        kernel.launch(&launch, &[], &memory, &Cancel::new()).expect_err("refused").kind,
        FaultKind::InvalidLaunch(_)
    ));
    let instance = module.instantiate(&memory).expect("fits");
    instance
        .entry("k")
        .expect("the kernel")
        .launch(&launch, &[], &memory, &Cancel::new())
        .expect("runs");
    let (address, bytes) = instance.symbol("counter").expect("a variable");
    let mut value = [0; 4];
    memory.read(address, &mut value).expect("inside");
    assert_eq!((bytes, u32::from_le_bytes(value)), (4, 8));
    instance.unload(&memory);
    assert_eq!(memory.used(), 0);
}

#[test]
fn deterministic_launches_repeat_their_float_atomics() {
    let body = "cvt.rn.f32.u32 %r3, %r1; add.f32 %r3, %r3, 0f3DCCCCCD; mov.u32 %r4, %ctaid.x; cvt.rn.f32.u32 %r5, %r4; div.rn.f32 %r3, %r3, 0f40400000;\n\
                fma.rn.f32 %r3, %r5, 0f3F8147AE, %r3; atom.global.add.f32 %r6, [%rd1], %r3;";
    let results: Vec<u32> = (0..3)
        .map(|_| {
            let run = Run::new();
            let launch = Launch {
                deterministic: true,
                threads: 4.try_into().expect("not zero"),
                ..Launch::new([64, 1, 1], [96, 1, 1])
            };
            run.launch(body, &launch).expect("runs");
            run.words(1)[0]
        })
        .collect();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
    assert_ne!(results[0], 0);
}

#[test]
fn unsupported_features_are_rejected_with_their_line() {
    let load = |body: &str| {
        Module::load(&format!(
            "{HEADER}.entry k()\n{{\n.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;\n{body}\n}}"
        ))
        .expect_err("refused")
    };
    let error = load("ret;\n  wgmma.fence.sync.aligned;");
    assert_eq!((error.line, error.column), (8, 3));
    assert_eq!(error.instruction, "wgmma.fence.sync.aligned");
    assert!(matches!(error.kind, LoadErrorKind::Unsupported(_)));
    assert!(
        error
            .to_string()
            .starts_with("line 8, column 3: `wgmma.fence.sync.aligned`: unsupported")
    );
    assert_eq!(load("mov.u32 %r1, %r77;").kind, LoadErrorKind::Undeclared("%r77".into()));
    assert_eq!(load("bra NOWHERE;").kind, LoadErrorKind::Undeclared("NOWHERE".into()));
    assert!(matches!(load("add.u32 %r1, %rd1, %r2;").kind, LoadErrorKind::Invalid(_)));
    assert!(matches!(load("add.u32 %r1, %r2;").kind, LoadErrorKind::Invalid(_)));
    assert!(matches!(load("add.u32 %r1, %r2, %r3").kind, LoadErrorKind::Syntax(_)));
    assert!(matches!(load("@%r1 add.u32 %r1, %r2, %r3;").kind, LoadErrorKind::Invalid(_)));
    let predicate = load("tex.2d.v4.u32.f32 {%r1, %r2, %r3, %r4}|%p1, [%rd1, {%r1, %r2}];");
    assert!(matches!(predicate.kind, LoadErrorKind::Unsupported(_)), "{predicate}");
    assert!(matches!(
        load("tex.cube.v4.f32.f32 {%r1, %r2, %r3, %r4}, [t, {%r1, %r2}];").kind,
        LoadErrorKind::Unsupported(_) | LoadErrorKind::Syntax(_)
    ));
}

#[test]
fn special_registers_have_components_by_position_and_by_color() {
    let run = Run::new();
    let launch = Launch::new([1, 1, 1], [1, 4, 1]);
    let body = "mov.u32 %r1, %ntid.g; mov.u32 %r2, %ntid.r; mov.u32 %r3, %ntid.a; mad.lo.u32 %r1, %r1, 10, %r2; add.u32 %r2, %r1, %r3;\n\
                st.global.u32 [%rd1], %r2;";
    run.launch(body, &launch).expect("runs");
    assert_eq!(run.words(1)[0], 41);
}

#[test]
fn extents_whose_product_overflows_are_rejected() {
    let run = Run::new();
    let fault = run.launch("", &Launch::new([1, 1, 1], [u32::MAX; 3])).expect_err("refused");
    assert!(matches!(fault.kind, FaultKind::InvalidLaunch(_)));
    let text = format!("{HEADER}.entry a() .maxntid 4294967295, 4294967295, 4294967295 {{ ret; }}");
    assert_eq!(Module::load(&text).expect("loads").entry("a").expect("a").max_threads(), 1024);
}

#[test]
fn a_local_address_far_outside_is_out_of_bounds() {
    let run = Run::new();
    let body = ".local .align 4 .b8 l[64]; mov.u64 %rd5, 0x7ffffffffffffff0; st.local.u32 [%rd5], %r2;";
    assert_eq!(run.fault(body, 33).kind, FaultKind::OutOfBounds { bytes: 4 });
    let body = ".local .align 4 .b8 l[64]; mov.u64 %rd5, l; cvta.local.u64 %rd6, %rd5; st.u32 [%rd6+64], %r2;";
    assert_eq!(run.fault(body, 33).kind, FaultKind::OutOfBounds { bytes: 4 });
}

#[test]
fn a_launch_does_not_see_registers_or_memory_of_the_one_before() {
    let run = Run::new();
    let launch = Launch::new([1, 1, 1], [70, 1, 1]);
    let spaces = ".local .align 4 .b8 l[64]; mov.u64 %rd5, l;";
    run.launch(
        &format!("{spaces} mov.u32 %r9, 77; @%p1 mov.u32 %r9, 3; st.local.u32 [%rd5+8], %r9; st.shared.u32 [%rd4+8], %r9;"),
        &launch,
    )
    .expect("runs");
    // %r9 is never written where %p1, which is never written itself, does not hold.
    run.launch(
        &format!("{spaces} @%p1 mov.u32 %r9, 3; ld.local.u32 %r10, [%rd5+8]; ld.shared.u32 %r11, [%rd4+8]; or.b32 %r9, %r9, %r10; or.b32 %r9, %r9, %r11; st.global.u32 [%rd3], %r9;"),
        &launch,
    )
    .expect("runs");
    assert_eq!(run.words(70), vec![0; 70]);
}

#[test]
fn a_group_that_is_not_full_reads_below_its_address() {
    let run = Run::new();
    run.launch(
        "st.global.u32 [%rd3], %r1; bar.sync 0; add.s64 %rd5, %rd3, 16; ld.global.u32 %r5, [%rd5+-16]; add.u32 %r5, %r5, 5; st.global.u32 [%rd5+-16], %r5;",
        &Launch::new([1, 1, 1], [33, 1, 1]),
    )
    .expect("runs");
    assert_eq!(run.words(33), (5..38).collect::<Vec<u32>>());
}
