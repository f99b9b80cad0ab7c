//! Chunks receive their own arguments, and each returns exactly one result.

use std::collections::BTreeMap;

use sahasra_wire::burst::FailureCode;
use sahasra_worker::burst_executors::{PoolConfig, SubmitError};

use crate::harness::{self, Outcome, affine, all_succeeded, argument, collect, kernel, pool, pool_with, range, spin, u32s};

#[tokio::test(flavor = "multi_thread")]
async fn chunks_come_back_once_with_their_outputs() {
    let pool = pool().await;
    let (run, mut events) = pool.open("cpu-0", "default", affine(10_000)).unwrap();
    run.set_concurrency(8);
    run.submit(vec![range(0, 5000), range(7000, 1000)]).unwrap();
    let outcome = collect(&mut events, 6000).await;
    let expected: BTreeMap<u64, Outcome> = (0..5000)
        .chain(7000..8000)
        .map(|index: u64| (index, Outcome::Succeeded(u32s(&[3 * index as u32 + 1]))))
        .collect();
    assert!(
        outcome == expected,
        "{:?}",
        outcome.iter().find(|(index, outcome)| expected[index] != **outcome)
    );
    assert_eq!(run.outstanding(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_cannot_be_outstanding_twice() {
    let pool = pool().await;
    let (run, _events) = pool.open("cpu-0", "default", affine(100)).unwrap();
    run.submit(vec![range(0, 10)]).unwrap();
    assert_eq!(
        run.submit(vec![range(20, 5), range(9, 2)]),
        Err(SubmitError::Overlap { first: 9, last: 10 })
    );
    assert_eq!(run.outstanding(), 10, "nothing of the refused submission was taken");
    run.submit(vec![range(20, 5)]).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_inputs_and_constants_reach_the_kernel() {
    let pool = pool().await;
    let work = kernel(
        "inputs",
        3,
        vec![
            argument::output(4),
            argument::constant(u32s(&[1000])),
            argument::input_per_chunk(u32s(&[1, 2, 3]), 4),
            argument::index(8),
        ],
    );
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(2);
    // Twice, to detect an output that was not zeroed or an input that was not copied again.
    for _ in 0..2 {
        run.submit(vec![range(0, 3)]).unwrap();
        let outcome = collect(&mut events, 3).await;
        let expected: BTreeMap<u64, Outcome> = (0..3)
            .map(|index| (index, Outcome::Succeeded(u32s(&[1001 + index as u32]))))
            .collect();
        assert_eq!(outcome, expected);
    }
    let work = kernel("work", 4, vec![argument::output(4), argument::parameter("rounds")])
        .chunks(r#"{"count": 4, "parameters": {"rounds": {"type": "u32", "cel": "10 / (2 - index)"}}}"#);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(2);
    run.submit(vec![range(0, 4)]).unwrap();
    let outcome = collect(&mut events, 4).await;
    assert!(
        outcome
            .values()
            .all(|outcome| matches!(outcome, Outcome::Failed(FailureCode::ParameterFailed, _))),
        "a formula that divides by zero for one chunk is refused whole: {outcome:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_chunk_gets_the_parameters_of_its_own_index() {
    const CHUNKS: u64 = 5000;
    let pool = pool().await;
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let arguments = std::iter::once(argument::output(56)).chain(names.map(argument::parameter));
    let work = kernel("echo", CHUNKS, arguments.collect()).chunks(
        r#"{"count": 5000, "parameters": {
            "a": {"type": "u8", "cel": "index % 256"}, "b": {"type": "s32", "cel": "-index"},
            "c": {"type": "u32", "cel": "32 * (1 + index / 100)"}, "d": {"type": "s64", "cel": "index * -1000000007"},
            "e": {"type": "u64", "cel": "index * index"}, "f": {"type": "f32", "cel": "0.1 + double(index % 10) * 0.05"},
            "g": {"type": "f64", "cel": "0.0001 * (1.0 + double(index % 100) * 0.01)"}}}"#,
    );
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(8);
    run.submit(vec![range(0, CHUNKS)]).unwrap();
    for (index, outcome) in collect(&mut events, CHUNKS).await {
        let Outcome::Succeeded(bytes) = outcome else {
            panic!("{index}: {outcome:?}")
        };
        let (signed, tenth, hundredth) = (index as i64, (index % 10) as f64, (index % 100) as f64);
        assert_eq!(bytes[0], (index % 256) as u8);
        assert_eq!(bytes[8..12], (-signed as i32).to_le_bytes());
        assert_eq!(bytes[16..20], (32 * (1 + index as u32 / 100)).to_le_bytes());
        assert_eq!(bytes[24..32], (signed * -1_000_000_007).to_le_bytes());
        assert_eq!(bytes[32..40], (index * index).to_le_bytes());
        assert_eq!(bytes[40..44], ((0.1 + tenth * 0.05) as f32).to_le_bytes());
        assert_eq!(bytes[48..56], (0.0001 * (1.0 + hundredth * 0.01)).to_le_bytes());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_outputs_come_whole_and_wait_for_a_slow_taker() {
    const BYTES: u64 = 4 << 20;
    let config = PoolConfig {
        max_event_bytes: 8 << 20,
        ..harness::config()
    };
    let pool = pool_with(config).await;
    let work = kernel("ramp", 40, vec![argument::output(BYTES)])
        .grid([(BYTES / 4 / 256) as u32, 1, 1])
        .block([256, 1, 1])
        .slice_bytes(2 * BYTES);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(2);
    run.submit(vec![range(0, 40)]).unwrap();
    // The events are taken late: meanwhile the executor must pause instead of filling the agent's memory.
    let has_paused = || pool.load("cpu-0").unwrap().active_executions == 0 && run.outstanding() <= 37;
    harness::until("it pauses", has_paused).await;
    let settled = run.outstanding();
    assert!(settled >= 40 - 8, "{settled} are outstanding: the rest would be more than may wait");
    let expected: Vec<u8> = (1..=BYTES as u32 / 4).flat_map(u32::to_le_bytes).collect();
    let outcome = collect(&mut events, 40).await;
    assert!(outcome.values().all(|outcome| *outcome == Outcome::Succeeded(expected.clone())));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_give_the_same_twice_and_what_they_should() {
    let pool = pool().await;
    let ptx = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../examples/hyperparameter-search/eval_config.ptx"
    ))
    .unwrap();
    let work = kernel(
        "eval_config",
        1000,
        vec![
            argument::output(4),
            argument::parameter("learningRate"),
            argument::parameter("batchSize"),
            argument::parameter("dropout"),
        ],
    )
    .ptx(&ptx)
    .block([256, 1, 1])
    .chunks(
        r#"{"count": 1000, "parameters": {
            "learningRate": {"type": "f32", "cel": "0.1 * (1.0 + double(index % 100) * 0.6)"},
            "batchSize": {"type": "u32", "cel": "32 * (1 + index / 100)"},
            "dropout": {"type": "f32", "cel": "0.1 + double(index % 10) * 0.05"}}}"#,
    );
    let mut seen = Vec::new();
    for concurrency in [1, 4] {
        let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
        run.set_concurrency(concurrency);
        run.submit(vec![range(0, 12)]).unwrap();
        seen.push(collect(&mut events, 12).await);
    }
    assert_eq!(seen[0], seen[1]);
    for outcome in seen[0].values() {
        let Outcome::Succeeded(bytes) = outcome else {
            panic!("{outcome:?}")
        };
        let loss = f32::from_le_bytes(bytes[..4].try_into().unwrap());
        assert!((0.2..0.8).contains(&loss), "{loss}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_results_do_not_wait_for_a_long_chunk_after_them() {
    let pool = pool().await;
    let work = spin(2000, 1999).timeout(600_000);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(1);
    run.submit(vec![range(0, 2000)]).unwrap();
    assert!(all_succeeded(&collect(&mut events, 1999).await));
    harness::until_active(&pool, 1).await;
}

/// Two entries. One returns the value of a variable, and how many blocks of 1 MiB it can allocate before `malloc` fails; it changes the
/// variable and frees nothing. The other recurses deeper than any stack.
const LEAVES_BEHIND: &str = "
.version 7.0
.target sm_70
.address_size 64
.global .u32 visits = 7;
.extern .func (.param .b64 pointer) malloc(.param .b64 bytes);
.visible .entry leaves(.param .u64 out)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    atom.global.add.u32 %r1, [visits], 1;
    st.global.u32 [%rd1], %r1;
    mov.u32 %r2, 0;
    mov.u64 %rd2, 1048576;
MORE:
    {
        .param .b64 bytes;
        .param .b64 pointer;
        st.param.b64 [bytes], %rd2;
        call (pointer), malloc, (bytes);
        ld.param.b64 %rd3, [pointer];
    }
    setp.eq.u64 %p1, %rd3, 0;
    @%p1 bra DONE;
    add.s32 %r2, %r2, 1;
    bra MORE;
DONE:
    st.global.u32 [%rd1+4], %r2;
    ret;
}
.func (.param .b32 back) deeper(.param .b32 depth)
{
    .local .align 4 .b8 frame[1024];
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [depth];
    add.s32 %r2, %r1, 1;
    st.local.u32 [frame], %r1;
    {
        .param .b32 given;
        .param .b32 got;
        st.param.b32 [given], %r2;
        call (got), deeper, (given);
        ld.param.b32 %r3, [got];
    }
    st.param.b32 [back], %r3;
    ret;
}
.visible .entry falls(.param .u64 out)
{
    .reg .b32 %r<2>;
    {
        .param .b32 given;
        .param .b32 got;
        st.param.b32 [given], 0;
        call (got), deeper, (given);
        ld.param.b32 %r1, [got];
    }
    ret;
}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_finds_nothing_that_another_left_in_variables_or_on_the_heap() {
    let pool = pool().await;
    let work = kernel("leaves", 20, vec![argument::output(8)]).ptx(LEAVES_BEHIND);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(2);
    run.submit(vec![range(0, 20)]).unwrap();
    let outcome = collect(&mut events, 20).await;
    assert!(
        outcome.values().all(|outcome| *outcome == Outcome::Succeeded(u32s(&[7, 8]))),
        "{outcome:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stack_that_overflows_is_told_as_that() {
    let pool = pool().await;
    let work = kernel("falls", 1, vec![argument::output(8)]).ptx(LEAVES_BEHIND);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(1);
    run.submit(vec![range(0, 1)]).unwrap();
    let outcome = collect(&mut events, 1).await;
    let Outcome::Failed(FailureCode::StackOverflow, message) = &outcome[&0] else {
        panic!("{outcome:?}")
    };
    assert!(message.contains("8192 bytes"), "{message}");
}
