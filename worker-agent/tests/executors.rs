//! Executors as real processes: every chunk comes back in exactly one event, whatever happens to the process.

#[path = "executors/harness.rs"]
mod harness;

use std::collections::BTreeMap;
use std::time::Duration;

use harness::{Outcome, Work, argument, collect, kernel, pool, pool_with, u32s};
use sahasra_wire::burst::{FailureCode, Program};
use sahasra_worker::executors::{Event, PoolConfig, ProgramSpec, SubmitError, WorkRange};

fn range(first: u64, count: u64) -> WorkRange {
    WorkRange { first, count, attempt: 1 }
}

fn affine(count: u64) -> ProgramSpec {
    kernel("affine", count, vec![argument::output(4), argument::index(4)]).spec()
}

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
async fn nothing_starts_without_slices_and_what_waits_can_be_withdrawn() {
    let pool = pool().await;
    let (run, mut events) = pool.open("cpu-0", "default", affine(100)).unwrap();
    run.submit(vec![range(0, 10)]).unwrap();
    run.withdraw();
    let outcome = collect(&mut events, 10).await;
    assert!(outcome.values().all(|outcome| *outcome == Outcome::Returned), "{outcome:?}");
    assert_eq!(pool.processes("cpu-0").len(), 0, "no process was needed");
    run.set_concurrency(1);
    assert_eq!(events.next().await, Some(Event::Settled { concurrency: 1 }));
    run.submit(vec![range(0, 10)]).unwrap();
    let outcome = collect(&mut events, 10).await;
    assert_eq!(outcome[&9], Outcome::Succeeded(u32s(&[28])));
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
    // Twice: an output that was not zeroed, or an input that was not copied anew, would show.
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
            "256 bytes",
        ),
        (kernel("affine", 10, good()).chunks("{}"), FailureCode::ParameterFailed, "count"),
    ];
    for (work, code, words) in cases {
        let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
        run.set_concurrency(4);
        run.submit(vec![range(0, 5)]).unwrap();
        let outcome = collect(&mut events, 5).await;
        run.submit(vec![range(5, 5)]).unwrap();
        let later = collect(&mut events, 5).await;
        for outcome in outcome.values().chain(later.values()) {
            let Outcome::Failed(seen, message) = outcome else {
                panic!("{words}: {outcome:?}")
            };
            assert_eq!(*seen, code, "{message}");
            assert!(message.contains(words), "{message} does not say {words}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_chunk_times_out_and_the_others_succeed() {
    let pool = pool().await;
    let work = kernel(
        "spin",
        10,
        vec![argument::output(4), argument::index(4), argument::scalar(&9u32.to_le_bytes())],
    )
    .timeout(300);
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
    assert!(
        collect(&mut events, 9)
            .await
            .values()
            .all(|outcome| matches!(outcome, Outcome::Succeeded(_)))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_executor_loses_only_what_was_in_flight() {
    let pool = pool().await;
    let work = kernel("work", 3000, vec![argument::output(4), argument::scalar(&20_000u32.to_le_bytes())]);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(8);
    run.submit(vec![range(0, 3000)]).unwrap();
    let mut outcome = BTreeMap::new();
    while outcome.len() < 50 {
        harness::note(&mut outcome, events.next().await.unwrap());
    }
    let executor = pool.processes("cpu-0")[0];
    harness::kill(executor);
    harness::collect_into(&mut outcome, &mut events, 3000).await;
    let failed = outcome
        .values()
        .filter(|outcome| matches!(outcome, Outcome::Failed(FailureCode::ExecutorLost, _)))
        .count();
    let returned: Vec<u64> = outcome
        .iter()
        .filter(|(_, outcome)| **outcome == Outcome::Returned)
        .map(|(index, _)| *index)
        .collect();
    let succeeded = outcome.values().filter(|outcome| matches!(outcome, Outcome::Succeeded(_))).count();
    assert_eq!(succeeded + failed + returned.len(), 3000);
    assert!(failed <= 8, "{failed} failed: at most as many as ran");
    assert!(!returned.is_empty());
    run.submit(returned.iter().map(|index| range(*index, 1)).collect()).unwrap();
    let again = collect(&mut events, returned.len() as u64).await;
    assert!(
        again.values().all(|outcome| matches!(outcome, Outcome::Succeeded(_))),
        "a fresh process runs the rest"
    );
    assert_ne!(pool.processes("cpu-0"), [executor]);
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_a_run_fails_its_chunks_with_the_given_code_and_settles() {
    let pool = pool().await;
    let work = kernel(
        "spin",
        100,
        vec![argument::output(4), argument::index(4), argument::scalar(&0u32.to_le_bytes())],
    )
    .timeout(600_000);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(2);
    assert_eq!(events.next().await, Some(Event::Settled { concurrency: 2 }));
    run.submit(vec![range(0, 100)]).unwrap();
    while pool.load("cpu-0").unwrap().active_executions < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    run.set_concurrency(0);
    run.kill(FailureCode::GrantExpired);
    let mut outcome = BTreeMap::new();
    let mut settled = false;
    while outcome.len() < 100 || !settled {
        match events.next().await.unwrap() {
            Event::Settled { concurrency: 0 } => {
                assert_eq!(outcome.len(), 100, "settled means that nothing is to come");
                settled = true;
            }
            event => harness::note(&mut outcome, event),
        }
    }
    let expired = outcome
        .values()
        .filter(|outcome| matches!(outcome, Outcome::Failed(FailureCode::GrantExpired, _)))
        .count();
    let returned = outcome.values().filter(|outcome| **outcome == Outcome::Returned).count();
    assert_eq!((expired, returned), (2, 98));
    assert_eq!(pool.load("cpu-0").unwrap().executors, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_process_is_replaced() {
    let config = PoolConfig {
        grace: Duration::from_millis(200),
        ..harness::config()
    };
    let pool = pool_with(config).await;
    let work = kernel(
        "spin",
        100,
        vec![argument::output(4), argument::index(4), argument::scalar(&3u32.to_le_bytes())],
    )
    .timeout(500);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(1);
    run.submit(vec![range(0, 4)]).unwrap();
    while pool.load("cpu-0").unwrap().active_executions == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // A process that does nothing any more, not even watch its own chunks.
    harness::stop(pool.processes("cpu-0")[0]);
    let outcome = collect(&mut events, 4).await;
    let late = outcome
        .values()
        .filter(|outcome| matches!(outcome, Outcome::Failed(FailureCode::ChunkTimeout, _)))
        .count();
    assert_eq!(late, 1, "{outcome:?}");
    run.submit(vec![range(10, 1)]).ok();
    run.withdraw();
    let (run, mut events) = pool.open("cpu-0", "default", affine(10)).unwrap();
    run.set_concurrency(1);
    run.submit(vec![range(0, 10)]).unwrap();
    assert!(
        collect(&mut events, 10)
            .await
            .values()
            .all(|outcome| matches!(outcome, Outcome::Succeeded(_)))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_have_processes_of_their_own_and_idle_ones_end() {
    let config = PoolConfig {
        idle_timeout: Duration::from_millis(100),
        ..harness::config()
    };
    let pool = pool_with(config).await;
    let mut runs = Vec::new();
    for namespace in ["one", "two"] {
        let (run, mut events) = pool.open("cpu-0", namespace, affine(10)).unwrap();
        run.set_concurrency(1);
        run.submit(vec![range(0, 10)]).unwrap();
        collect(&mut events, 10).await;
        runs.push((run, events));
    }
    while !pool.processes("cpu-0").is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The run is still open: work starts a process again.
    let (run, events) = &mut runs[0];
    run.submit(vec![range(0, 10)]).unwrap();
    assert_eq!(collect(events, 10).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_namespaces_than_there_is_room_for_take_turns() {
    let mut config = harness::config();
    config.devices.executors_per_device = 1;
    let pool = pool_with(config).await;
    let mut running = tokio::task::JoinSet::new();
    for namespace in ["one", "two", "three"] {
        let (run, mut events) = pool.open("cpu-0", namespace, affine(100)).unwrap();
        run.set_concurrency(1);
        run.submit(vec![range(0, 100)]).unwrap();
        running.spawn(async move { collect(&mut events, 100).await.len() });
    }
    while let Some(done) = running.join_next().await {
        assert_eq!(done.unwrap(), 100);
        assert!(pool.load("cpu-0").unwrap().executors <= 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_never_starts_fails_with_growing_delays() {
    let config = PoolConfig {
        program: "/bin/false".into(),
        ..harness::config()
    };
    let pool = pool_with(config).await;
    let (run, mut events) = pool.open("cpu-0", "default", affine(10)).unwrap();
    run.set_concurrency(1);
    let began = std::time::Instant::now();
    for _ in 0..4 {
        run.submit(vec![range(0, 10)]).unwrap();
        let outcome = collect(&mut events, 10).await;
        assert!(
            outcome
                .values()
                .all(|outcome| matches!(outcome, Outcome::Failed(FailureCode::ExecutorLost, _))),
            "{outcome:?}"
        );
    }
    assert!(
        began.elapsed() >= Duration::from_millis(100 + 200 + 400),
        "the second, third and fourth start wait"
    );
    assert!(!pool.load("cpu-0").unwrap().healthy);
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
    // Taken late: the executor must have paused, not filled the agent.
    while pool.load("cpu-0").unwrap().active_executions > 0 || run.outstanding() > 37 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let settled = run.outstanding();
    assert!(settled >= 40 - 8, "{settled} are outstanding: the rest would be more than may wait");
    let expected: Vec<u8> = (1..=BYTES as u32 / 4).flat_map(u32::to_le_bytes).collect();
    let outcome = collect(&mut events, 40).await;
    assert!(outcome.values().all(|outcome| *outcome == Outcome::Succeeded(expected.clone())));
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_run_frees_the_executor_for_others() {
    let pool = pool().await;
    let work = kernel(
        "spin",
        100,
        vec![argument::output(4), argument::index(4), argument::scalar(&0u32.to_le_bytes())],
    )
    .timeout(300);
    let (run, events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(2);
    run.submit(vec![range(0, 100)]).unwrap();
    while pool.load("cpu-0").unwrap().active_executions == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(events);
    assert_eq!(run.submit(vec![range(0, 1)]), Err(SubmitError::ShutDown));
    let (run, mut events) = pool.open("cpu-0", "default", affine(10)).unwrap();
    run.set_concurrency(2);
    run.submit(vec![range(0, 10)]).unwrap();
    assert!(
        collect(&mut events, 10)
            .await
            .values()
            .all(|outcome| matches!(outcome, Outcome::Succeeded(_)))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_accounts_for_everything_and_ends_the_processes() {
    let pool = pool().await;
    let work = kernel(
        "spin",
        100,
        vec![argument::output(4), argument::index(4), argument::scalar(&0u32.to_le_bytes())],
    )
    .timeout(600_000);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(1);
    run.submit(vec![range(0, 100)]).unwrap();
    while pool.load("cpu-0").unwrap().active_executions == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    pool.shut_down();
    let outcome = collect(&mut events, 100).await;
    let in_flight = outcome
        .values()
        .filter(|outcome| matches!(outcome, Outcome::Failed(FailureCode::ShuttingDown, _)))
        .count();
    assert_eq!(in_flight, 1);
    assert_eq!(events.next().await, None);
    assert!(pool.open("cpu-0", "default", affine(1)).is_err());
    assert!(pool.processes("cpu-0").is_empty());
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
