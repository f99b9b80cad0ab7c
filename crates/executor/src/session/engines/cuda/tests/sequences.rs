//! Stored sequences: the graphs of a client.

use sahasra_cuda_device::SequenceId;

use super::*;

const ID: SequenceId = SequenceId(7);

fn fill(address: u64, value: u32) -> Operation {
    Operation::Fill {
        to: Region::linear(address),
        extent: Extent::linear(4),
        value,
        element_bytes: 4,
    }
}

fn extend(operations: Vec<Operation>) -> Operation {
    Operation::Extend { sequence: ID, operations }
}

#[test]
fn a_replay_is_one_operation_that_executes_all_of_a_sequence() {
    let mut bench = Bench::new();
    bench.load(1);
    bench.answers();
    let address = bench.first;
    let add = || launch(0, &address.to_le_bytes());
    bench.batch(1, [Operation::Map { address, bytes: 512 }, fill(address, 0)]);
    bench.batch(1, [extend(vec![add(), add()]), extend(vec![add()])]);
    bench.batch(1, (0..100).map(|_| Operation::Replay(ID)));
    let changed = Operation::Amend {
        sequence: ID,
        index: 1,
        operations: vec![launch(0, &(address + 4).to_le_bytes())],
    };
    bench.batch(1, [changed, Operation::Replay(ID), Operation::Erase(ID)]);
    bench.wait(1, 107);
    let answers = bench.answers();
    assert!(
        matches!(&answers[0].kind, Kind::CudaWaited(waited) if waited.executed == 107),
        "{answers:?}"
    );
    bench.read(1, address, 8);
    let payload: Vec<u8> = bench.answers().iter().flat_map(|answer| answer.payload.to_vec()).collect();
    assert_eq!(payload, [906u32.to_le_bytes(), 3u32.to_le_bytes()].concat());
}

#[test]
fn sequences_count_as_memory_of_the_session_until_they_are_erased() {
    let mut bench = Bench::new();
    let address = bench.first;
    bench.batch(1, [Operation::Map { address, bytes: 512 }]);
    bench.wait(1, 1);
    bench.answers();
    let before = bench.state.stored().1;
    bench.batch(1, [extend(vec![fill(address, 1); 1000])]);
    bench.wait(1, 2);
    bench.answers();
    assert_eq!(bench.state.stored().1 - before, 256_000);
    bench.batch(1, [Operation::Erase(ID)]);
    bench.wait(1, 3);
    bench.answers();
    assert_eq!(bench.state.stored().1, before);
    bench.batch(1, [extend(vec![fill(address, 1); 1000])]);
    bench
        .operation(client_frame::Kind::CudaDiscard(Discard { context: 1 }), "")
        .unwrap();
    bench.freed();
}

#[test]
fn a_sequence_beyond_the_memory_of_the_session_is_refused_and_not_replayed() {
    let mut bench = Bench::new();
    let address = bench.first;
    // All memory but a page of a GPU, in which one sequence fits, but not two.
    let bytes = bench.capacity - (2 << 20);
    bench.batch(1, [Operation::Map { address, bytes }, extend(vec![fill(address, 1); 5000])]);
    bench.batch(1, [extend(vec![fill(address, 2); 5000])]);
    bench.wait(1, 3);
    assert_eq!(bench.failure().0, FailureCode::OutOfMemory);
    bench.batch(1, [Operation::Replay(ID)]);
    bench.wait(1, 4);
    assert_eq!(bench.failure().0, FailureCode::OutOfMemory);
    bench.batch(1, [Operation::Erase(ID)]);
    bench.read(1, address, 4);
    let answers = bench.answers();
    assert_eq!(answers[1].payload, [0; 4][..], "{answers:?}");
}

#[test]
fn a_replay_of_an_unknown_sequence_ends_the_context() {
    let mut bench = Bench::new();
    bench.batch(1, [Operation::Replay(ID)]);
    bench.wait(1, 1);
    let (code, message) = bench.failure();
    assert_eq!(code, FailureCode::InvalidArgument);
    assert!(message.contains("sequence 7 not found"), "{message}");
}

#[test]
fn a_client_that_leaves_while_a_sequence_runs_frees_everything() {
    let mut bench = Bench::new();
    bench.load(1);
    bench.answers();
    bench.batch(1, [extend(vec![launch(2, &[]); 3]), Operation::Replay(ID)]);
    bench.wait(1, 1);
    bench.answers();
    bench.state.reset();
    bench.freed();
}
