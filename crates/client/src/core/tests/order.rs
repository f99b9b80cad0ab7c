//! Tests of the order of operations and answers, and of the match between answers and requests.

use sahasra_wire::session::{Done, Failed, FailureCode, Synchronise, Tensor, client_frame::Kind};

use super::*;

#[test]
fn deletions_are_sent_before_the_next_operation() {
    let mut core = connected();
    core.delete_tensor(5);
    assert!(core.has_only_deleted());
    let request = core.request(Wanted::Done);
    core.submit(Kind::Synchronise(Synchronise::new(request)), Bytes::new());
    assert!(!core.has_only_deleted());
    let kinds: Vec<_> = core
        .operations
        .iter()
        .map(|operation| operation.message.kind.clone().unwrap())
        .collect();
    let delete = Delete {
        tensors: vec![5],
        programs: Vec::new(),
    };
    assert_eq!(kinds, [Kind::Delete(delete), Kind::Synchronise(Synchronise::new(request))]);
}

#[test]
fn answers_that_make_no_sense_end_the_session() {
    let done = |request| server_frame::Kind::Done(Done { request });
    let tensor = |bytes| {
        server_frame::Kind::Tensor(Tensor {
            request: 1,
            bytes,
            ..Tensor::default()
        })
    };
    let refused = |frame: ServerFrame, payload| {
        let mut core = connected();
        core.request(Wanted::Array(Some(8)));
        matches!(core.take(frame, payload), Err(Error::Protocol(_)))
    };
    assert!(refused(answer(2, done(1)), 0), "a number is left out");
    assert!(refused(answer(1, done(9)), 0), "nobody asked");
    assert!(refused(answer(1, done(1)), 0), "another kind");
    assert!(refused(answer(1, tensor(9)), 0), "another size");
    assert!(refused(answer(1, tensor(8)), 5), "a payload that is none");
    assert!(
        refused(answer(1, server_frame::Kind::Part(Part::default())), 5),
        "a part of nothing"
    );
    assert!(refused(answer(0, done(1)), 0), "no number");
    let failed = Failed {
        request: 1,
        ..Failed::default()
    };
    assert!(
        refused(answer(0, server_frame::Kind::Failed(failed)), 0),
        "a failure without a number"
    );
    let mut unsent = answer(1, done(1));
    unsent.received = 7;
    assert!(refused(unsent, 0), "an operation that was not sent");
    assert!(!refused(answer(1, tensor(8)), 0));
}

#[test]
fn a_tensor_beyond_memory_is_an_error_instead_of_an_abort() {
    let mut core = connected();
    core.request(Wanted::Array(None));
    let tensor = Tensor {
        request: 1,
        bytes: u64::MAX / 2,
        ..Tensor::default()
    };
    let error = core.take(answer(1, server_frame::Kind::Tensor(tensor)), 0).unwrap_err();
    assert!(error.to_string().contains("failed to allocate"), "{error}");
}

#[test]
fn a_failure_answers_its_request_or_else_ends_the_session() {
    let failed = |request| Failed {
        request,
        code: FailureCode::OutOfMemory as i32,
        sequence: 4,
        operation: "execute step".to_owned(),
        message: "too large".to_owned(),
    };
    let mut core = connected();
    let request = core.request(Wanted::Done);
    let incoming = core.take(answer(1, server_frame::Kind::Failed(failed(request))), 0).unwrap();
    let Incoming::Answer(1, Err(failure)) = incoming else {
        panic!("a failure was expected, not {incoming:?}");
    };
    assert_eq!(failure.to_string(), "execute step failed: too large");
    assert_eq!(failure.code, FailureCode::OutOfMemory);
    for sequence in [0, 2] {
        let error = core.take(answer(sequence, server_frame::Kind::Failed(failed(0))), 0);
        assert!(matches!(error, Err(Error::Failed(_))));
    }
}

#[test]
fn the_end_of_a_session_may_arrive_between_the_parts_of_a_tensor() {
    let mut core = connected();
    core.request(Wanted::Array(Some(8)));
    let tensor = Tensor {
        request: 1,
        bytes: 8,
        ..Tensor::default()
    };
    core.take(answer(1, server_frame::Kind::Tensor(tensor)), 0).unwrap();
    let ended = Failed {
        code: FailureCode::Ended.into(),
        message: "the session is over".to_owned(),
        ..Default::default()
    };
    for sequence in [0, 2] {
        let told = core.take(answer(sequence, server_frame::Kind::Failed(ended.clone())), 0);
        assert!(
            matches!(&told, Err(Error::Failed(failure)) if failure.code == FailureCode::Ended),
            "{told:?}"
        );
    }
}
