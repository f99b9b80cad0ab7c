use std::thread;

use sahasra_cuda_device::SequenceId;
use sahasra_wire::cuda::{Mark, Read, Wait};
use sahasra_wire::session::client_frame::Kind;
use sahasra_wire::session::{Load, Stats, server_frame};

use super::*;
use crate::tests::Far;

fn queue() -> (Arc<RemoteQueue>, Far) {
    let (session, far) = Far::connect();
    let (outbox, contexts) = (Outbox::start(session).unwrap(), Arc::<Contexts>::default());
    let context = contexts.add().unwrap();
    (Arc::new(RemoteQueue::new(outbox, contexts, context)), far)
}

/// The next request, after operations.
fn next_request(far: &mut Far) -> Kind {
    loop {
        match far.next().0 {
            Kind::CudaBatch(_) | Kind::CudaWrite(_) => {}
            request => return request,
        }
    }
}

fn next_wait(far: &mut Far) -> Wait {
    match next_request(far) {
        Kind::CudaWait(wait) => wait,
        other => panic!("{other:?}"),
    }
}

fn next_read(far: &mut Far) -> Read {
    match next_request(far) {
        Kind::CudaRead(read) => read,
        other => panic!("{other:?}"),
    }
}

fn waited(request: u64, executed: u64, marks: &[(u64, u64)]) -> server_frame::Kind {
    server_frame::Kind::CudaWaited(Waited {
        request,
        executed,
        marks: marks
            .iter()
            .map(|(mark, nanoseconds)| Mark {
                mark: *mark,
                nanoseconds: *nanoseconds,
            })
            .collect(),
    })
}

#[test]
fn a_time_is_there_after_a_wait_though_another_thread_has_not_taken_the_answer_that_had_it() {
    let (queue, mut far) = queue();
    let ticket = queue.submit(Operation::Mark(7));
    // The request of a thread that does not run when its answer arrives.
    let slow = queue.ask_progress(ticket);
    let request = next_wait(&mut far).request;
    let waiting = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || {
            queue.wait(ticket)?;
            Ok::<_, Failure>((queue.is_done(ticket)?, queue.marked(7)))
        })
    };
    let second = next_wait(&mut far);
    assert_eq!(second.operations, 1);
    far.send(waited(request, 1, &[(7, 100)]));
    far.send(waited(second.request, 1, &[]));
    assert_eq!(waiting.join().unwrap(), Ok((true, Some(Duration::from_nanos(100)))));
    drop(slow);
}

#[test]
fn times_of_marks_are_requested_without_a_wait() {
    let (queue, mut far) = queue();
    for round in 1..=3 {
        // Fewer than an answer can have.
        for mark in 0..5000 {
            queue.submit(Operation::Mark(mark));
            queue.forget(mark);
        }
        let wait = next_wait(&mut far);
        assert_eq!(wait.operations, 0, "round {round}");
        far.send(waited(wait.request, 0, &[]));
    }
}

#[test]
fn an_unmapped_block_comes_back_and_a_failure_before_is_reported_by_the_next_wait() {
    let (queue, mut far) = queue();
    let block = Arc::new(HostBlock::new(8, 256).unwrap());
    let address = block.pointer() as u64;
    let program = {
        let (queue, block) = (Arc::clone(&queue), Arc::clone(&block));
        thread::spawn(move || {
            queue.share(&block).unwrap();
            // Kernels may write to the block from here on.
            queue.submit(Operation::Replay(SequenceId(1)));
            let unmapped = queue.submit(Operation::Unmap { address });
            (block.to_vec(), queue.wait(unmapped), queue.wait(unmapped))
        })
    };
    let shared = next_wait(&mut far);
    far.send(waited(shared.request, 1, &[]));
    // The failure of an operation before is reported by the first request, once.
    let (failed, wait) = (next_read(&mut far), next_wait(&mut far));
    far.send_out_of_memory(failed.request, "no room");
    far.send(waited(wait.request, wait.operations, &[]));
    let (read, wait) = (next_read(&mut far), next_wait(&mut far));
    assert_eq!((read.from.address, read.extent.width), (address, 8));
    far.send_rows(read.request, b"computed");
    far.send(waited(wait.request, wait.operations, &[]));
    let last = next_wait(&mut far);
    far.send(waited(last.request, last.operations, &[]));
    let (bytes, first, second) = program.join().unwrap();
    assert_eq!(bytes, b"computed");
    assert_eq!(first, Err(Failure::new(FailureKind::OutOfMemory, "no room")));
    assert_eq!(second, Ok(()));
}

#[test]
fn a_read_and_an_unmapping_of_other_memory_bring_blocks_back() {
    for reads in [true, false] {
        let (queue, mut far) = queue();
        let block = Arc::new(HostBlock::new(8, 256).unwrap());
        let address = block.pointer() as u64;
        let program = {
            let (queue, block) = (Arc::clone(&queue), Arc::clone(&block));
            thread::spawn(move || {
                queue.share(&block).unwrap();
                queue.write(Region::linear(1 << 40), Extent::linear(1), &[0]);
                assert!(!queue.has_host_memory(), "copies of other memory leave blocks where they are");
                queue.submit(Operation::Replay(SequenceId(1)));
                assert!(queue.has_host_memory());
                if reads {
                    queue.read(Region::linear(1 << 40), Extent::linear(1), &mut [0]).unwrap();
                } else {
                    queue.submit(Operation::Unmap { address: 1 << 40 });
                }
                assert!(!queue.has_host_memory());
                block.to_vec()
            })
        };
        let shared = next_wait(&mut far);
        far.send(waited(shared.request, 1, &[]));
        if reads {
            let read = next_read(&mut far);
            far.send_rows(read.request, b"x");
        }
        let (read, wait) = (next_read(&mut far), next_wait(&mut far));
        assert_eq!((read.from.address, read.extent.width), (address, 8));
        far.send_rows(read.request, b"computed");
        far.send(waited(wait.request, wait.operations, &[]));
        assert_eq!(program.join().unwrap(), b"computed", "reads: {reads}");
    }
}

#[test]
fn a_queue_that_is_closed_sends_nothing_more_though_there_are_references_to_it() {
    let (queue, mut far) = queue();
    let reference = Arc::clone(&queue);
    queue.submit(Operation::Mark(1));
    queue.close();
    assert!(matches!(far.next().0, Kind::CudaBatch(_)));
    assert!(matches!(far.next().0, Kind::CudaDiscard(discard) if discard.context == 1));
    let ticket = reference.submit(Operation::Mark(2));
    assert_eq!(ticket, Ticket(1), "not counted");
    reference.write(Region::linear(0), Extent::linear(3 << 20), &vec![0; 3 << 20]);
    assert_eq!(reference.wait(ticket), Err(Failure::closed()));
    assert_eq!(
        reference.read(Region::linear(0), Extent::linear(1), &mut [0]),
        Err(Failure::closed())
    );
    // Calls that found the queue open before it was closed.
    assert!(reference.ask_in_any_case(ticket).is_err());
    assert!(reference.read_frames(Region::linear(0), Extent::linear(1), &mut [0]).is_err());
    let lending = {
        let reference = Arc::clone(&reference);
        thread::spawn(move || reference.write_lent(0, &[0; 1 << 10]))
    };
    // A request of no context, whose answer confirms frames that were sent from the caller's memory before.
    let (kind, _) = far.next();
    let Kind::Load(Load { request }) = kind else { panic!("{kind:?}") };
    far.send(server_frame::Kind::Stats(Stats {
        request,
        ..Stats::default()
    }));
    assert_eq!(lending.join().unwrap(), ticket);
    let outbox = Arc::clone(&queue.outbox);
    queue.close();
    drop((queue, reference));
    let _request = outbox.ask_after_all(Session::load);
    assert!(matches!(far.next().0, Kind::Load(_)), "no second discard");
}
