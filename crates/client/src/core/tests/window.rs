//! Tests of the window: what may be outstanding, and what is kept until it has been confirmed.

use sahasra_wire::session::{Synchronise, client_frame::Kind};

use super::*;

#[test]
fn an_operation_is_retained_until_it_is_processed() {
    let mut core = connected();
    core.submit(Kind::Part(Part::default()), Bytes::from_static(b"12345"));
    assert_eq!(core.queued(), (1, 5));
    core.write(&mut VecDeque::new(), usize::MAX, u64::MAX).unwrap();
    assert_eq!(core.queued(), (1, 5));
    let taken = ServerFrame {
        sequence: 0,
        received: 1,
        kind: None,
        ..ServerFrame::default()
    };
    assert_eq!(core.take(taken, 0).unwrap(), Incoming::Nothing);
    assert_eq!(core.queued(), (0, 0));
}

#[test]
fn a_payload_is_not_copied() {
    let mut core = connected();
    let payload = Bytes::from(vec![7; 100]);
    core.submit(Kind::Part(Part::default()), payload.clone());
    let mut pieces = VecDeque::new();
    core.write(&mut pieces, usize::MAX, u64::MAX).unwrap();
    assert_eq!(pieces[1].as_ptr(), payload.as_ptr());
}

#[test]
fn one_frame_beyond_the_window_is_sent_while_little_is_outstanding() {
    let mut core = connected();
    let request = core.request(Wanted::Done);
    core.submit(Kind::Synchronise(Synchronise::new(request)), Bytes::new());
    core.write(&mut VecDeque::new(), usize::MAX, u64::MAX).unwrap();
    // The executor need not confirm the first operation, so waiting for its confirmation could last forever.
    for _ in 0..3 {
        core.submit(Kind::Part(Part::default()), Bytes::from(vec![0; 1000]));
    }
    let mut pieces = VecDeque::new();
    core.write(&mut pieces, usize::MAX, u64::MAX).unwrap();
    assert_eq!(pieces.len(), 2);
}

#[test]
fn messages_of_answers_count_in_the_window() {
    for (bytes, must_tell) in [(2, false), (16, true)] {
        let mut core = connected();
        let text = vec![b'a'; bytes].into();
        let printed = ServerFrame {
            sequence: 1,
            kind: Some(server_frame::Kind::CudaPrinted(Printed { context: 1, text })),
            ..ServerFrame::default()
        };
        assert!(matches!(core.take(printed, 0), Ok(Incoming::Printed(_))));
        assert_eq!(core.must_tell(), must_tell, "{bytes} bytes");
    }
}

#[test]
fn a_window_beyond_the_largest_is_announced_and_reported_as_the_largest() {
    let mut core = Core::new(
        Window {
            frames: u32::MAX,
            bytes: u64::MAX,
        },
        Mode::default(),
        false,
    );
    let Some(client_frame::Kind::Hello(hello)) = core.hello(false, Duration::ZERO).kind else {
        panic!("a connection begins with Hello");
    };
    assert_eq!(
        (hello.window_frames, hello.window_bytes),
        (LARGEST_WINDOW_FRAMES, LARGEST_WINDOW_BYTES)
    );
    core.count(1, LARGEST_WINDOW_BYTES / 4);
    assert!(core.must_tell());
}
