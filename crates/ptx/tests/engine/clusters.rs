//! Clusters of one block: their barrier, ranks, and addresses.

use sahasra_ptx::{ArgumentList, Cancel, Fault, FaultKind, Launch, Memory, Module};

const THREADS: u32 = 160;

/// Runs one block whose threads store `%r9`. `%r1` is the thread, and `%rd4` the address of its word in `shared`; `%rd5` is that of the
/// thread behind it.
fn run(directives: &str, body: &str) -> Result<Vec<u32>, Fault> {
    let text = format!(
        ".version 8.6\n.target sm_100\n.address_size 64\n.visible .entry k(.param .u64 out) {directives}\n{{\n\
         .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .shared .align 16 .b8 shared[1024];\n\
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd1, %r1, 4, %rd1; mov.u32 %r9, 0; mov.u64 %rd3, shared;\n\
         mad.wide.u32 %rd4, %r1, 4, %rd3; add.u32 %r2, %r1, 1; rem.u32 %r2, %r2, {THREADS}; mad.wide.u32 %rd5, %r2, 4, %rd3;\n\
         {body}\nst.global.u32 [%rd1], %r9;\nret;\n}}\n"
    );
    let module = Module::load(&text).unwrap_or_else(|error| panic!("{error}"));
    let memory = Memory::new(1 << 20);
    let out = memory.allocate(4 * u64::from(THREADS)).expect("fits");
    let mut launch = Launch::new([1, 1, 1], [THREADS, 1, 1]);
    launch.step_limit = Some(1 << 20);
    let kernel = module.entry("k").expect("the kernel");
    kernel.launch(&launch, ArgumentList::new().pointer(out).bytes(), &memory, &Cancel::new())?;
    let mut bytes = vec![0; 4 * THREADS as usize];
    memory.read(out, &mut bytes).expect("inside");
    Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[test]
fn the_barrier_separates_writes_from_reads_in_every_phase() {
    // In each round a thread writes its word, and after the barrier it reads that of its neighbour. A second barrier protects the word.
    let found = run(
        "",
        "mov.u32 %r3, 0;
    ROUND:
        mad.lo.u32 %r4, %r3, 1000, %r1; st.shared.u32 [%rd4], %r4;
        barrier.cluster.arrive.release.aligned; mul.lo.u32 %r9, %r9, 3; barrier.cluster.wait.acquire.aligned;
        ld.shared.u32 %r5, [%rd5]; add.u32 %r9, %r9, %r5;
        barrier.cluster.arrive.relaxed; barrier.cluster.wait;
        add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 5; @%p1 bra ROUND;",
    );
    let expected: Vec<u32> = (0..THREADS)
        .map(|thread| (0..5).fold(0, |sum, round| 3 * sum + 1000 * round + (thread + 1) % THREADS))
        .collect();
    assert_eq!(found.expect("runs"), expected);
}

#[test]
fn divergent_threads_arrive_and_wait_separately() {
    // Odd threads arrive early and wait late; every third thread ends without an arrival.
    let found = run(
        "",
        "rem.u32 %r3, %r1, 3; setp.eq.u32 %p1, %r3, 1; @%p1 ret;
        and.b32 %r4, %r1, 1; setp.eq.u32 %p2, %r4, 1; st.shared.u32 [%rd4], %r1;
        @%p2 bra ODD;
        barrier.cluster.arrive; barrier.cluster.wait; bra READ;
    ODD:
        barrier.cluster.arrive; mov.u32 %r5, 0;
    SPIN:
        add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 50; @%p3 bra SPIN;
        barrier.cluster.wait;
    READ:
        atom.shared::cluster.add.u32 %r6, [shared+1000], 1; add.u32 %r2, %r1, 2; rem.u32 %r7, %r2, 3; setp.eq.u32 %p4, %r7, 1;
        @%p4 add.u32 %r2, %r2, 2; rem.u32 %r2, %r2, 159; mad.wide.u32 %rd5, %r2, 4, %rd3; ld.shared.u32 %r9, [%rd5];",
    )
    .expect("runs");
    for thread in (0..THREADS).filter(|thread| thread % 3 != 1) {
        let neighbour = (if (thread + 2) % 3 == 1 { thread + 4 } else { thread + 2 }) % 159;
        assert_eq!(found[thread as usize], neighbour, "{thread}");
    }
}

#[test]
fn a_barrier_that_cannot_complete_is_a_fault() {
    let fault = run(
        "",
        "setp.lt.u32 %p1, %r1, 64; @%p1 bar.sync 0; @%p1 bra DONE; barrier.cluster.arrive; barrier.cluster.wait; DONE:",
    )
    .expect_err("a fault");
    assert!(
        matches!(&fault.kind, FaultKind::DivergentBarrier(text) if text.contains("64 at barrier 0") && text.contains("96 at the barrier of the cluster")),
        "{fault}"
    );
    let fault = run(
        "",
        "setp.lt.u32 %p1, %r1, 64; @%p1 bra SPIN; barrier.cluster.arrive; barrier.cluster.wait; ret; SPIN: bra SPIN;",
    )
    .expect_err("a fault");
    assert!(matches!(fault.kind, FaultKind::StepLimit(_)), "{fault}");
}

#[test]
fn addresses_of_the_only_block_are_its_own() {
    let found = run(
        "",
        "cvta.shared.u64 %rd6, %rd4; mapa.u64 %rd7, %rd6, 0; st.u32 [%rd7], %r1; barrier.cluster.arrive; barrier.cluster.wait;
        mov.u32 %r3, %cluster_ctarank; cvt.u32.u64 %r4, %rd5; mapa.shared::cluster.u32 %r5, %r4, %r3; ld.shared::cluster.u32 %r9, [%r5];
        mapa.shared::cluster.u64 %rd8, shared, 0; setp.ne.u64 %p1, %rd8, %rd3; @%p1 trap;
        getctarank.u64 %r6, %rd7; getctarank.shared::cluster.u32 %r7, %r5; add.u32 %r6, %r6, %r7; mad.lo.u32 %r9, %r6, 1000, %r9;",
    );
    assert_eq!(
        found.expect("runs"),
        (0..THREADS).map(|thread| (thread + 1) % THREADS).collect::<Vec<u32>>()
    );
    let fault = run("", "setp.eq.u32 %p1, %r1, 99; selp.u32 %r3, 1, 0, %p1; mapa.u64 %rd7, %rd4, %r3;").expect_err("there is no block 1");
    assert_eq!(
        (&fault.kind, fault.thread),
        (&FaultKind::InvalidRank { rank: 1 }, Some([99, 0, 0])),
        "{fault}"
    );
}

#[test]
fn no_block_takes_the_work_of_another() {
    let found = run(
        "",
        "setp.ne.u32 %p1, %r1, 0; @%p1 bra WAIT; mbarrier.init.shared::cta.b64 [shared+1008], 2; st.shared.v2.u64 [shared+992], {-1, -1};
        mbarrier.arrive.expect_tx.shared::cta.b64 %rd6, [shared+1008], 32;
        clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [shared+992], [shared+1008];
        mov.u64 %rd7, shared; cvta.shared.u64 %rd7, %rd7;
        clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [%rd7+992], [%rd7+1008];
        mbarrier.arrive.shared::cta.b64 %rd6, [shared+1008];
    WAIT:
        bar.sync 0;
    AGAIN:
        mbarrier.try_wait.parity.shared::cta.b64 %p2, [shared+1008], 0; @!%p2 bra AGAIN;
        .reg .b128 response; ld.shared.b128 response, [shared+992]; mov.b128 {%rd8, %rd9}, response; or.b64 %rd8, %rd8, %rd9; cvt.u32.u64 %r9, %rd8;
        clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, response; @%p3 trap;
        clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r3, %r4, %r5, _}, response;
        clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r6, response;
        add.u32 %r9, %r9, %r3; add.u32 %r9, %r9, %r4; add.u32 %r9, %r9, %r5; add.u32 %r9, %r9, %r6; add.u32 %r9, %r9, 5;",
    );
    assert_eq!(found.expect("runs"), vec![5; THREADS as usize]);
}

#[test]
fn kernels_may_declare_a_cluster_of_one_block() {
    let body = "mov.pred %p1, %is_explicit_cluster; selp.u32 %r9, 1, 0, %p1; mov.u32 %r3, %cluster_nctarank; mad.lo.u32 %r9, %r3, 10, %r9;";
    for (directives, expected) in [
        ("", 10),
        (".maxclusterrank 8", 10),
        (".explicitcluster", 11),
        (".explicitcluster .reqnctapercluster 1, 1, 1", 11),
        (".reqntid 160 .reqnctapercluster 1 .blocksareclusters", 11),
    ] {
        assert_eq!(run(directives, body).expect("runs")[0], expected, "{directives}");
    }
    let text = ".version 8.0 .target sm_90 .address_size 64 .entry k() .reqnctapercluster 2 { ret; }";
    assert!(Module::load(text).expect_err("two blocks").to_string().contains("clusters"));
}
