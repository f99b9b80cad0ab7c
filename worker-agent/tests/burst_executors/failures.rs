//! A fault of a chunk or a program fails only that chunk or program, with a code and the position.

use sahasra_wire::burst::{FailureCode, Program};
use sahasra_worker::burst_executors::ProgramSpec;

use crate::harness::{Outcome, Work, all_succeeded, argument, collect, kernel, pool, range, spin, u32s};

#[tokio::test(flavor = "multi_thread")]
async fn faults_fail_their_chunk_alone_with_a_code_and_the_place() {
    let pool = pool().await;
    for (entry, code) in [("stray", FailureCode::IllegalAddress), ("snap", FailureCode::Trap)] {
        let work = kernel(
            entry,
            64,
            vec![argument::output(4), argument::index(4), argument::scalar(&40u32.to_le_bytes())],
        );
        let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
        run.set_concurrency(4);
        run.submit(vec![range(0, 41), range(41, 1)]).unwrap();
        let outcome = collect(&mut events, 42).await;
        let Outcome::Failed(seen, message) = &outcome[&40] else {
            panic!("{entry}: {:?}", outcome[&40])
        };
        assert_eq!(*seen, code);
        assert!(message.contains(entry) && message.contains("line"), "{message}");
        assert!((0..40).all(|index| outcome[&index] == Outcome::Succeeded(u32s(&[index as u32]))));
    }
    assert_eq!(pool.processes("cpu-0").len(), 1, "the same process went on");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_cannot_run_fail_every_chunk_with_the_cause() {
    let pool = pool().await;
    let good = || vec![argument::output(4), argument::index(4)];
    let cases: Vec<(Work, FailureCode, &str)> = vec![
        (kernel("missing", 10, good()), FailureCode::LaunchFailed, "missing"),
        (
            kernel("affine", 10, vec![argument::output(4)]),
            FailureCode::LaunchFailed,
            "parameters",
        ),
        (
            kernel("affine", 10, vec![argument::output(4), argument::index(8)]),
            FailureCode::LaunchFailed,
            "bytes",
        ),
        (kernel("affine", 10, good()).block([2048, 1, 1]), FailureCode::LaunchFailed, "block"),
        (
            kernel("affine", 10, good()).ptx(".version 7.0\n.target sm_70\nnonsense"),
            FailureCode::LoadFailed,
            "line 3",
        ),
        (
            kernel("affine", 10, good()).slice_bytes(255),
            FailureCode::SliceExceeded,
            "276 bytes",
        ),
        (kernel("affine", 10, good()).chunks("{}"), FailureCode::ParameterFailed, "count"),
    ];
    for (work, code, message) in cases {
        let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
        run.set_concurrency(4);
        run.submit(vec![range(0, 5)]).unwrap();
        let outcome = collect(&mut events, 5).await;
        run.submit(vec![range(5, 5)]).unwrap();
        let later = collect(&mut events, 5).await;
        for outcome in outcome.values().chain(later.values()) {
            let Outcome::Failed(seen, message) = outcome else {
                panic!("{message}: {outcome:?}")
            };
            assert_eq!(*seen, code, "{message}");
            assert!(message.contains(message), "{message} does not say {message}");
        }
    }
}

#[test]
fn programs_are_checked_before_they_are_sent() {
    let good = kernel("affine", 1, vec![argument::output(4), argument::index(4)]).program();
    assert!(ProgramSpec::new(good.clone()).is_ok());
    let bad = |change: fn(&mut Program)| {
        let mut program = good.clone();
        change(&mut program);
        ProgramSpec::new(program).unwrap_err().to_string()
    };
    assert!(bad(|program| program.grid = vec![1, 1]).contains("grid"));
    assert!(bad(|program| program.block[2] = 0).contains("block"));
    assert!(bad(|program| program.digest = vec![0; 32].into()).contains("digest"));
    assert!(bad(|program| program.arguments[0].kind = None).contains("argument 0"));
    assert!(bad(|program| program.arguments[1] = argument::index(3)).contains("argument 1"));
    assert!(bad(|program| program.arguments[0] = argument::output(1 << 40)).contains("outputs"));
    assert!(bad(|program| program.chunk_timeout_milliseconds = 0).contains("timeout"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_chunk_times_out_and_the_others_succeed() {
    let pool = pool().await;
    let work = spin(10, 9).timeout(300);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(4);
    run.submit(vec![range(0, 10)]).unwrap();
    let outcome = collect(&mut events, 10).await;
    let Outcome::Failed(FailureCode::ChunkTimeout, message) = &outcome[&9] else {
        panic!("{:?}", outcome[&9])
    };
    assert!(message.contains("300 ms"), "{message}");
    assert!((0..9).all(|index| outcome[&index] == Outcome::Succeeded(u32s(&[index as u32]))));
    run.submit(vec![range(0, 9)]).unwrap();
    assert!(all_succeeded(&collect(&mut events, 9).await));
}
