//! Tests of the queue with real programs on a CPU device. The test acts as the lanes.

use prost::Message;
use sahasra_ptx::Cancel;
use sahasra_wire::burst::{Argument, Program, argument};
use sha2::{Digest, Sha256};

use super::*;
use crate::device::cpu::CpuDevice;

const PTX: &str = include_str!("../../../tests/kernels.ptx");

fn program() -> Bytes {
    let argument = |kind| Argument { kind: Some(kind) };
    let program = Program {
        ptx: PTX.into(),
        digest: Sha256::digest(PTX).to_vec().into(),
        entry: "affine".to_owned(),
        grid: vec![1; 3],
        block: vec![1; 3],
        arguments: vec![
            argument(argument::Kind::OutputBytes(4)),
            argument(argument::Kind::ChunkIndexBytes(4)),
        ],
        chunks_json: r#"{"count": 100}"#.into(),
        slice_bytes: 1 << 20,
        chunk_timeout_milliseconds: 1000,
        ..Program::default()
    };
    program.encode_to_vec().into()
}

struct Bed {
    device: CpuDevice,
    queue: Queue<CpuDevice>,
}

impl Bed {
    /// Queue with runs 1 and 2, both prepared and with a concurrency limit of 4.
    fn new() -> Self {
        let bed = Self {
            device: CpuDevice::new(1 << 20, 4),
            queue: Queue::new(4),
        };
        for run in [1, 2] {
            bed.queue.open(run, program());
            bed.limit(run, 4);
            bed.submit(run, 0, 1, false);
            let (assignment, task) = bed.try_assign().unwrap();
            let Task::Prepare(encoded, None) = task else {
                panic!("not prepared yet")
            };
            let code = Arc::new(Code::new(&encoded).unwrap());
            let module = Arc::new(bed.device.load(PTX).unwrap());
            let prepared = Prepared::new(&bed.device, &mut bed.device.stream().unwrap(), code, &module).unwrap();
            assert_eq!(bed.queue.prepared(assignment, Ok(prepared)), None);
            bed.queue.leave(assignment, None);
            bed.queue.withdraw(run);
        }
        bed
    }

    fn limit(&self, run: u64, limit: u32) -> Option<Kind> {
        self.queue.set_concurrency(SetConcurrency { run, limit, change: 1 }).1
    }

    fn submit(&self, run: u64, first: u64, count: u64, alone: bool) {
        let ranges = vec![ChunkRange {
            device: String::new(),
            first,
            count,
            attempt: 1,
        }];
        assert_eq!(self.queue.submit(Submit { run, ranges, alone }), None);
    }

    fn try_assign(&self) -> Option<(Assignment, Task<CpuDevice>)> {
        self.queue.state.lock().assign(4)
    }

    fn assign(&self) -> (Assignment, AttemptRange, Frame<CpuDevice>) {
        let (assignment, task) = self.try_assign().expect("a lane can be assigned");
        let Task::Run(prepared, batch, frame) = task else {
            panic!("it is prepared")
        };
        let mut frame = frame.unwrap_or_else(|| prepared.frame(&self.device).unwrap());
        let mut out = Vec::new();
        let mut stream = self.device.stream().unwrap();
        prepared
            .run(&self.device, &mut stream, &mut frame, batch.first, &Cancel::new(), &mut out)
            .unwrap();
        assert_eq!(out, (3 * batch.first as u32 + 1).to_le_bytes());
        (assignment, batch, frame)
    }
}

fn settled_limit(message: Option<Kind>) -> Option<u32> {
    match message? {
        Kind::Settled(settled) => Some(settled.limit),
        _ => None,
    }
}

#[test]
fn a_lower_limit_is_settled_when_as_many_lanes_have_left() {
    let bed = Bed::new();
    bed.submit(1, 0, 50, false);
    let lanes: Vec<_> = (0..3).map(|_| bed.assign()).collect();
    assert_eq!(settled_limit(bed.limit(1, 1)), None);
    assert!(bed.try_assign().is_none(), "no lane beyond the limit");
    let used = bed.device.used_bytes();
    let mut lanes = lanes.into_iter();
    for expected in [None, Some(1)] {
        let (assignment, _, frame) = lanes.next().unwrap();
        assert_eq!(
            bed.queue.next_batch(assignment, 1, Duration::from_micros(1)),
            None,
            "this one is too many"
        );
        assert_eq!(settled_limit(bed.queue.leave(assignment, Some(frame))), expected);
    }
    let (assignment, _, frame) = lanes.next().unwrap();
    assert!(
        bed.queue.next_batch(assignment, 1, Duration::from_micros(1)).is_some(),
        "this one may stay"
    );
    assert!(bed.try_assign().is_none());
    bed.queue.leave(assignment, Some(frame));
    assert!(bed.device.used_bytes() < used, "the frames of two lanes were freed");
    let (assignment, _, frame) = bed.assign();
    assert_eq!(settled_limit(bed.limit(1, 0)), None);
    assert_eq!(settled_limit(bed.queue.leave(assignment, Some(frame))), Some(0));
    bed.queue.close(2);
    assert_eq!(bed.device.used_bytes(), 0, "nothing is held without slices");
    assert!(bed.limit(1, 2).is_some());
    let (assignment, task) = bed.try_assign().unwrap();
    assert!(matches!(task, Task::Prepare(_, Some(_))), "formulas are kept, memory is made anew");
    bed.queue.leave(assignment, None);
}

#[test]
fn a_suspect_runs_when_and_while_nothing_else_runs() {
    let bed = Bed::new();
    bed.submit(1, 0, 50, false);
    let (assignment, _, frame) = bed.assign();
    bed.submit(2, 7, 2, true);
    bed.submit(2, 20, 10, false);
    assert!(
        bed.try_assign().is_none(),
        "the suspect waits for the lane, and no other is assigned before it"
    );
    assert_eq!(
        bed.queue.next_batch(assignment, 1, Duration::from_micros(1)),
        None,
        "the lane makes room"
    );
    bed.queue.leave(assignment, Some(frame));
    for index in [7, 8] {
        let (assignment, batch, frame) = bed.assign();
        assert_eq!((assignment.run, batch.first, batch.count), (2, index, 1));
        assert!(bed.try_assign().is_none(), "nothing beside it");
        assert_eq!(bed.queue.next_batch(assignment, 1, Duration::from_micros(1)), None);
        bed.queue.leave(assignment, Some(frame));
    }
    let (first, ..) = bed.assign();
    let (second, ..) = bed.assign();
    assert_ne!(first.run, second.run, "then both runs take turns");
}

#[test]
fn batches_grow_with_quick_chunks_and_shrink_at_once_with_slow_ones() {
    let bed = Bed::new();
    bed.submit(1, 0, 1_000_000, false);
    let (assignment, batch, _frame) = bed.assign();
    assert_eq!(batch.count, 1);
    let batch = bed.queue.next_batch(assignment, 1, Duration::from_micros(4)).unwrap();
    assert_eq!(batch.count, 500, "2 ms of them");
    let batch = bed.queue.next_batch(assignment, 500, Duration::from_millis(500)).unwrap();
    assert_eq!(batch.count, 2);
    let batch = bed.queue.next_batch(assignment, 2, Duration::from_secs(2)).unwrap();
    assert_eq!(batch.count, 1);
}

#[test]
fn a_paused_run_starts_nothing_until_it_goes_on() {
    let bed = Bed::new();
    bed.submit(1, 0, 50, false);
    let (assignment, ..) = bed.assign();
    bed.queue.pause(1, true);
    assert_eq!(bed.queue.next_batch(assignment, 1, Duration::from_micros(1)), None);
    bed.queue.leave(assignment, None);
    assert!(bed.try_assign().is_none());
    bed.queue.pause(1, false);
    bed.assign();
}

#[test]
fn what_waits_can_be_withdrawn_and_comes_back_as_it_was() {
    let bed = Bed::new();
    bed.submit(1, 10, 20, false);
    let (_assignment, batch, _frame) = bed.assign();
    assert_eq!((batch.first, batch.count), (10, 1));
    let Some(Kind::Returned(returned)) = bed.queue.withdraw(1) else {
        panic!("something waits")
    };
    assert_eq!((returned.run, returned.ranges.len()), (1, 1));
    assert_eq!((returned.ranges[0].first, returned.ranges[0].count), (11, 19));
    assert_eq!(bed.queue.withdraw(1), None);
}
