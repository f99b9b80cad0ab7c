//! Barriers with a thread count (PTX ISA §9.7.13.1), which counts whole warps, even if a warp has fewer threads.

use sahasra_ptx::{ArgumentList, Cancel, DevicePointer, FaultKind, Launch, Memory, Module};

/// Runs a kernel in which each thread writes its index to shared memory, executes the statements, and returns the value of the thread with
/// index `n - 1 - %tid.x`.
fn mirrored(threads: u32, statements: &str) -> Result<Vec<u32>, FaultKind> {
    let last = threads - 1;
    let text = format!(
        ".version 8.6 .target sm_80 .address_size 64
         .visible .entry k(.param .u64 out) {{
             .reg .b32 %r<9>; .reg .b64 %rd<5>; .reg .pred %p<3>;
             .shared .align 4 .b8 numbers[4096];
             ld.param.u64 %rd1, [out];
             mov.u32 %r1, %tid.x;
             mov.u64 %rd2, numbers;
             mad.wide.u32 %rd3, %r1, 4, %rd2;
             st.shared.u32 [%rd3], %r1;
             {statements}
             sub.u32 %r2, {last}, %r1;
             mad.wide.u32 %rd3, %r2, 4, %rd2;
             ld.shared.u32 %r3, [%rd3];
             mad.wide.u32 %rd4, %r1, 4, %rd1;
             st.global.u32 [%rd4], %r3;
             ret;
         }}"
    );
    let memory = Memory::new(1 << 20);
    let out: DevicePointer = memory.allocate(u64::from(threads) * 4).expect("fits");
    let module = Module::load(&text).expect("loads");
    let kernel = module.entry("k").expect("the kernel");
    kernel
        .launch(
            &Launch::new([1, 1, 1], [threads, 1, 1]),
            ArgumentList::new().pointer(out).bytes(),
            &memory,
            &Cancel::new(),
        )
        .map_err(|fault| fault.kind.clone())?;
    let mut bytes = vec![0; threads as usize * 4];
    memory.read(out, &mut bytes).expect("inside");
    Ok(bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")))
        .collect())
}

fn all(threads: u32) -> Vec<u32> {
    (0..threads).rev().collect()
}

#[test]
fn a_last_warp_that_is_not_full_arrives_as_a_warp() {
    for threads in [1u32, 33, 40, 70, 97, 130] {
        let count = threads.next_multiple_of(32);
        assert_eq!(mirrored(threads, &format!("bar.sync 1, {count};")), Ok(all(threads)), "{threads}");
    }
}

#[test]
fn threads_that_have_ended_count_with_their_warp() {
    // Of 96 threads, those from 90 on end, either before the others arrive or while they wait.
    let expected: Vec<u32> = (0..96).map(|thread| if thread < 90 { 95 - thread } else { 0 }).collect();
    let ends = "setp.ge.u32 %p1, %r1, 90;\n@%p1 exit;\n";
    assert_eq!(mirrored(96, &format!("{ends}bar.sync 2, 96;")).as_ref(), Ok(&expected));
    let late = "setp.lt.u32 %p1, %r1, 90;\n@%p1 bra WAIT;\nmov.u32 %r4, 50;\nAGAIN:\nsub.u32 %r4, %r4, 1;\nsetp.ne.u32 %p2, %r4, 0;\n\
                @%p2 bra AGAIN;\nexit;\nWAIT:\nbar.sync 2, 96;";
    assert_eq!(mirrored(96, late).as_ref(), Ok(&expected));
}

#[test]
fn threads_that_end_after_their_arrival_are_not_counted_twice() {
    // The second warp arrives and ends. The first warp alone must not pass a barrier for three warps.
    let statements = "setp.ge.u32 %p1, %r1, 64;\n@%p1 bra LAST;\nsetp.ge.u32 %p1, %r1, 32;\n@%p1 bra SECOND;\nbar.sync 3, 96;\nbra ON;\n\
                      SECOND:\nbar.arrive 3, 96;\nexit;\nLAST:\nexit;\nON:";
    let fault = mirrored(96, statements).expect_err("the third warp never comes");
    assert!(matches!(fault, FaultKind::Deadlock(_)), "{fault}");
}

#[test]
fn a_reduction_completes_while_other_warps_wait_elsewhere() {
    // The first warp reduces alone, while half of the second warp waits for the other half at its third shuffle, or for the cluster.
    for waits in [
        "shfl.sync.idx.b32 %r6, %r1, 0, 31, -1;",
        "barrier.cluster.arrive; barrier.cluster.wait;",
    ] {
        let statements = format!(
            "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra FIRST;\nshfl.sync.idx.b32 %r6, %r1, 0, 31, -1;\nshfl.sync.idx.b32 %r6, %r1, 0, 31, -1;\n\
             setp.ge.u32 %p2, %r1, 48;\n@%p2 bra LATE;\nJOIN:\n{waits}\nbra ON;\n\
             FIRST:\nbar.red.popc.u32 %r5, 1, 32, %p1;\nsetp.ne.u32 %p2, %r5, 32;\n@%p2 trap;\nbra ON;\nLATE:\nbra JOIN;\nON:"
        );
        assert_eq!(mirrored(64, &statements), Ok(all(64)), "{waits}");
    }
}
