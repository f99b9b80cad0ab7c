//! `mbarrier` objects, elected threads, and parameters at generic addresses, in complete kernels.

use sahasra_ptx::{ArgumentList, Cancel, Fault, FaultKind, Launch, Memory, Module};

/// Runs one block of a kernel `k` that takes a pointer to `words` results (in `%rd1`) and eight numbers. `%tid.x` is in `%r1`, and the
/// address of the thread's own result in `%rd3`.
fn run(threads: u32, words: usize, body: &str) -> Result<Vec<u32>, Fault> {
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out, .param .align 8 .b8 numbers[32])\n{{\n\
         .reg .pred %p<9>; .reg .b32 %r<32>; .reg .b64 %rd<32>;\n\
         .shared .align 8 .b64 full; .shared .align 8 .b64 empty; .shared .align 16 .b8 slots[2048];\n\
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; setp.eq.u32 %p1, %r1, 0;\n\
         {body}\nret;\n}}\n"
    );
    let module = Module::load(&text).unwrap_or_else(|error| panic!("{error}"));
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(4 * words as u64).expect("fits");
    let mut arguments = ArgumentList::new().pointer(out).bytes().to_vec();
    arguments.extend((0..8u32).flat_map(|number| (100 + number).to_le_bytes()));
    let kernel = module.entry("k").expect("the kernel");
    let mut launch = Launch::new([1, 1, 1], [threads, 1, 1]);
    launch.step_limit = Some(1 << 22);
    kernel.launch(&launch, &arguments, &memory, &Cancel::new())?;
    let mut bytes = vec![0; 4 * words];
    memory.read(out, &mut bytes).expect("inside");
    Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[test]
fn producers_and_consumers_hand_a_slot_to_and_fro() {
    let found = run(
        224,
        192,
        "@%p1 mbarrier.init.shared::cta.b64 [full], 32; @%p1 mbarrier.init.shared.b64 [empty], 192; bar.sync 0;
        and.b32 %r2, %r1, 31; mul.wide.u32 %rd4, %r2, 4; mov.u64 %rd5, slots; add.s64 %rd5, %rd5, %rd4;
        mov.u32 %r5, 0; mov.u32 %r6, 0; setp.ge.u32 %p2, %r1, 192; @%p2 bra PRODUCE;
    CONSUME:
        and.b32 %r7, %r5, 1;
    FULL:
        mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [full], %r7, 1000; @!%p3 bra FULL;
        ld.shared.u32 %r8, [%rd5]; mad.lo.u32 %r6, %r6, 3, %r8;
        mbarrier.arrive.shared.b64 %rd6, [empty];
        add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 10; @%p4 bra CONSUME;
        st.global.u32 [%rd3], %r6; ret;
    PRODUCE:
        and.b32 %r7, %r5, 1; xor.b32 %r7, %r7, 1;
    EMPTY:
        mbarrier.test_wait.parity.shared.b64 %p3, [empty], %r7; @!%p3 bra EMPTY;
        mad.lo.u32 %r8, %r5, 100, %r2; st.shared.u32 [%rd5], %r8;
        mbarrier.arrive.release.cta.shared::cta.b64 _, [full];
        add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 10; @%p4 bra PRODUCE;",
    );
    let expected: Vec<u32> = (0..192)
        .map(|thread| (0..10).fold(0u32, |sum, round| sum.wrapping_mul(3).wrapping_add(100 * round + thread % 32)))
        .collect();
    assert_eq!(found.expect("runs"), expected);
}

#[test]
fn a_state_contains_its_phase_and_the_pending_count() {
    let found = run(
        100,
        100,
        "mov.u64 %rd7, full; cvta.shared.u64 %rd8, %rd7; @%p1 mbarrier.init.b64 [%rd8], 100; bar.sync 0;
        mbarrier.arrive.b64 %rd5, [%rd8];
    WAIT:
        mbarrier.test_wait.b64 %p3, [%rd8], %rd5; @!%p3 bra WAIT;
        mbarrier.pending_count.b64 %r5, %rd5; st.global.u32 [%rd3], %r5;",
    );
    let mut counts = found.expect("runs");
    counts.sort_unstable();
    assert_eq!(counts, (1..=100).collect::<Vec<u32>>());
}

#[test]
fn phases_wait_for_bytes_and_not_for_dropped_arrivals() {
    let test = |place: u32, parity: u32| {
        format!(
            "mbarrier.test_wait.parity.shared.b64 %p3, [full], {parity}; selp.u32 %r5, 1, 0, %p3; st.global.u32 [%rd1+{}], %r5;\n",
            4 * place
        )
    };
    let steps = [
        ("mbarrier.init.shared.b64 [full], 2;", 0, 0),
        ("mbarrier.arrive.expect_tx.shared.b64 %rd5, [full], 48;", 0, 0),
        ("mbarrier.arrive_drop.shared.b64 %rd5, [full];", 0, 0),
        ("mbarrier.complete_tx.shared.b64 [full], 32;", 0, 0),
        ("mbarrier.complete_tx.relaxed.cta.shared.b64 [full], 16;", 0, 1),
        // One thread is left, so each arrival completes a phase.
        ("mbarrier.arrive.shared.b64 %rd5, [full];", 1, 1),
        ("mbarrier.expect_tx.shared.b64 [full], 4;", 0, 0),
        ("mbarrier.arrive.shared.b64 %rd5, [full], 1;", 0, 0),
        ("mbarrier.complete_tx.shared.b64 [full], 4;", 0, 1),
        (
            "mbarrier.inval.shared.b64 [full]; mbarrier.init.shared.b64 [full], 5; mbarrier.arrive.noComplete.shared.b64 %rd5, [full], 4;",
            0,
            0,
        ),
        ("mbarrier.arrive_drop.release.cta.shared.b64 %rd5, [full];", 0, 1),
    ];
    let body: String = steps
        .iter()
        .zip(0..)
        .map(|((statements, parity, _), place)| format!("{statements}\n{}", test(place, *parity)))
        .collect();
    let expected: Vec<u32> = steps.iter().map(|(_, _, complete)| *complete).collect();
    assert_eq!(run(1, steps.len(), &body).expect("runs"), expected);
}

#[test]
fn asynchronous_copies_arrive_at_barriers() {
    for (count, arrive) in [
        (96, "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [full];"),
        (
            96,
            "cp.async.mbarrier.arrive.shared.b64 [full]; mbarrier.arrive.shared.b64 %rd9, [full];",
        ),
    ] {
        let found = run(
            96,
            192,
            &format!(
                "@%p1 mbarrier.init.shared.b64 [full], {count}; add.u32 %r2, %r1, 1000; st.global.u32 [%rd3], %r2; bar.sync 0;
                mov.u64 %rd5, slots; add.s64 %rd5, %rd5, %rd2; cp.async.ca.shared.global [%rd5], [%rd3], 4; {arrive}
            WAIT:
                mbarrier.try_wait.parity.shared.b64 %p3, [full], 0; @!%p3 bra WAIT;
                sub.u32 %r3, 95, %r1; mul.wide.u32 %rd6, %r3, 4; mov.u64 %rd5, slots; add.s64 %rd6, %rd5, %rd6; ld.shared.u32 %r4, [%rd6];
                st.global.u32 [%rd3+384], %r4;"
            ),
        );
        let reversed: Vec<u32> = (0..96).rev().map(|thread| 1000 + thread).collect();
        assert_eq!(found.expect("runs")[96..], reversed);
    }
}

#[test]
fn an_object_that_is_not_aligned_is_a_fault() {
    let fault = run(1, 1, "mov.u64 %rd4, slots; mbarrier.arrive.shared.b64 %rd5, [%rd4+4];").expect_err("a fault");
    assert_eq!(fault.kind, FaultKind::Misaligned { alignment: 8 });
}

#[test]
fn a_phase_that_never_completes_ends_at_the_step_limit() {
    let fault = run(
        64,
        1,
        "@%p1 mbarrier.init.shared.b64 [full], 65; bar.sync 0; mbarrier.arrive.shared.b64 %rd5, [full];
        WAIT: mbarrier.try_wait.shared.b64 %p3, [full], %rd5; @!%p3 bra WAIT;",
    )
    .expect_err("a fault");
    assert!(matches!(fault.kind, FaultKind::StepLimit { .. }), "{:?}", fault.kind);
}

#[test]
fn the_lowest_thread_of_a_mask_is_elected() {
    // All lanes; then odd and even lanes separately; then only the lanes for which a predicate holds.
    let found = run(
        64,
        64,
        "elect.sync %r5|%p2, -1; selp.u32 %r6, 100, 0, %p2; add.u32 %r6, %r6, %r5;
        and.b32 %r7, %r1, 1; setp.eq.u32 %p3, %r7, 0; mov.u32 %r9, 0; mov.u32 %r8, 50;
        @%p3 elect.sync %r8|%p4, 0x55555555; @!%p3 elect.sync %r8|%p4, 0xaaaaaaaa; selp.u32 %r9, 1000, 0, %p4; add.u32 %r9, %r9, %r8;
        mov.u32 %r12, 7; setp.ge.u32 %p5, %r7, 1; mov.pred %p6, 0; @%p5 elect.sync _|%p6, 0xaaaaaaaa; selp.u32 %r12, 1, 0, %p6;
        mul.lo.u32 %r9, %r9, 1000; add.u32 %r6, %r6, %r9; mad.lo.u32 %r6, %r12, 100000000, %r6; st.global.u32 [%rd3], %r6;",
    );
    let expected: Vec<u32> = (0..64)
        .map(|thread| {
            let (lane, odd) = (thread % 32, thread % 2);
            let whole = if lane == 0 { 100 } else { 0 };
            let half = if lane == odd { 1000 } else { 0 } + odd;
            let third = u32::from(lane == 1);
            whole + 1000 * half + 100_000_000 * third
        })
        .collect();
    assert_eq!(found.expect("runs"), expected);
}

#[test]
fn parameters_are_read_at_generic_addresses() {
    let found = run(
        8,
        8,
        "mov.b64 %rd4, numbers; cvta.param.u64 %rd5, %rd4; add.s64 %rd5, %rd5, %rd2; ld.u32 %r2, [%rd5];
        isspacep.param %p2, %rd5; isspacep.local %p3, %rd5; isspacep.global %p4, %rd5; isspacep.shared %p5, %rd5;
        selp.u32 %r3, 1000, 0, %p2; selp.u32 %r4, 5, 0, %p3; selp.u32 %r5, 7, 0, %p4; selp.u32 %r6, 9, 0, %p5;
        add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; add.u32 %r2, %r2, %r5; add.u32 %r2, %r2, %r6; st.global.u32 [%rd3], %r2;",
    );
    assert_eq!(found.expect("runs"), (0..8).map(|number| 1100 + number).collect::<Vec<u32>>());
}

#[test]
fn parameters_cannot_be_written_or_passed() {
    let address = "mov.b64 %rd4, numbers; cvta.param.u64 %rd5, %rd4; ld.u32 %r2, [%rd5];";
    // The same address register is first read, and the pattern remembered for it must not admit the store.
    for access in ["st.u32 [%rd5], %r2;", "atom.add.u32 %r3, [%rd5], 1;", "ld.u64 %rd6, [%rd5+32];"] {
        let fault = run(8, 8, &format!("{address} {access}")).expect_err(access);
        assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{access} {:?}", fault.kind);
    }
}
