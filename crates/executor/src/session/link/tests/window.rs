//! Windows: how much may be in flight, and when each side must confirm.

use proptest::prelude::*;
use prost::Message;
use sahasra_wire::cuda::Printed;

use super::*;

#[test]
fn a_client_that_does_not_heed_the_window_is_stopped() {
    let mut link = Link::default();
    link.hello(1, &hello(), 0, secret("s"), Instant::now()).unwrap();
    let part = 1 << 20;
    let fitting = WINDOW.bytes / part;
    for sequence in 1..=fitting + 1 {
        assert_eq!(link.arrived(1, sequence, part as usize), Ok(Arrival::New));
    }
    assert_eq!(link.arrived(1, fitting + 2, part as usize), Err(LinkError::Window));
    link.take(1, part as usize);
    assert_eq!(link.arrived(1, fitting + 2, part as usize), Ok(Arrival::New));
}

#[test]
fn answers_stay_within_the_clients_window_and_are_sent_again() {
    let mut link = Link::default();
    let begun = link.hello(1, &hello(), 0, secret("s"), Instant::now()).unwrap();
    for (request, payload) in [(1, 60), (2, 60), (3, 0), (4, 500), (5, 0)] {
        link.answer(1, answer(request, payload));
    }
    assert!(link.is_congested());
    assert_eq!(sent(&mut link, 1), (vec![(1, 0)], Sending::Go), "60 more bytes are more than 100");
    assert_eq!(sent(&mut link, 1).0, []);
    assert_eq!(link.confirmed(1, 1), Ok(true));
    assert_eq!(sent(&mut link, 1).0, [(2, 0), (3, 0)]);
    link.confirmed(1, 3).unwrap();
    assert_eq!(
        sent(&mut link, 1).0,
        [(4, 0)],
        "while little is on its way a frame may always be sent"
    );
    // The connection is cut: answers 2 and 3 arrived, 4 did not; the engine has taken two operations.
    link.arrived(1, 1, 0).unwrap();
    link.arrived(1, 2, 0).unwrap();
    link.take(1, 0);
    link.take(1, 0);
    let resume = Hello {
        resume: begun.resume,
        ..hello()
    };
    let resumed = link.hello(2, &resume, 3, secret(""), Instant::now()).unwrap();
    assert_eq!(resumed.received, 2);
    assert_eq!(sent(&mut link, 2).0, [(4, 2)]);
    link.confirmed(2, 4).unwrap();
    assert_eq!(sent(&mut link, 2).0, [(5, 2)]);
    assert!(!link.is_congested());
}

#[test]
fn messages_of_answers_count_in_the_window() {
    let mut link = Link::default();
    link.hello(1, &hello(), 0, secret("s"), Instant::now()).unwrap();
    for context in 1..=2 {
        let text = vec![b'a'; 60].into();
        link.answer(1, Kind::CudaPrinted(Printed { context, text }).into());
    }
    assert!(link.is_congested());
    assert_eq!(sent(&mut link, 1).0, [(1, 0)]);
    link.confirmed(1, 1).unwrap();
    assert!(!link.is_congested());
    assert_eq!(sent(&mut link, 1).0, [(2, 0)]);
}

/// Number of answers that reach a client that confirms as late as it may: when a quarter of its window is unconfirmed.
fn arrives_at_a_client_that_tells_late(window: Window, payloads: &[usize]) -> usize {
    let mut link = Link::default();
    let hello = Hello {
        window_frames: window.frames,
        window_bytes: window.bytes,
        ..hello()
    };
    link.hello(1, &hello, 0, secret("s"), Instant::now()).unwrap();
    for (place, payload) in payloads.iter().enumerate() {
        link.answer(1, answer(place as u64 + 1, *payload));
    }
    let counts = (
        window.frames.min(LARGEST_WINDOW_FRAMES) / 4,
        window.bytes.min(LARGEST_WINDOW_BYTES) / 4,
    );
    let (mut received, mut unacknowledged) = (0, (0, 0));
    loop {
        let mut frames = Vec::new();
        link.send(1, 3, 1000, &mut frames);
        if frames.is_empty() {
            return received;
        }
        for (frame, payload) in frames {
            received += 1;
            assert_eq!(frame.sequence, received as u64);
            let bytes = frame.encoded_len() + payload.len();
            unacknowledged = (unacknowledged.0 + 1, unacknowledged.1 + bytes as u64);
        }
        if unacknowledged.0 >= counts.0 || unacknowledged.1 >= counts.1 {
            link.confirmed(1, received as u64).unwrap();
            unacknowledged = (0, 0);
        }
    }
}

#[test]
fn a_window_beyond_the_largest_counts_as_the_largest() {
    let window = Window {
        frames: u32::MAX,
        bytes: u64::MAX,
    };
    let frames = vec![0; LARGEST_WINDOW_FRAMES as usize + 10];
    assert_eq!(arrives_at_a_client_that_tells_late(window, &frames), frames.len());
    // Payload sizes of which the window is no multiple.
    let payloads = vec![(60 << 20) + 1; 9];
    assert_eq!(arrives_at_a_client_that_tells_late(window, &payloads), payloads.len());
}

proptest! {
    #[test]
    fn no_frame_waits_for_ever_whatever_the_window_and_its_size(
        frames in 0_u32..12,
        bytes in 0_u64..400,
        payloads in prop::collection::vec(prop_oneof![Just(0_usize), 1_usize..50, 90_usize..110, 200_usize..600], 0..40),
    ) {
        let window = Window { frames, bytes };
        prop_assert_eq!(arrives_at_a_client_that_tells_late(window, &payloads), payloads.len());
    }
}

#[test]
fn a_quarter_of_the_window_is_told_without_an_answer() {
    let mut link = Link::default();
    link.hello(1, &hello(), 0, secret("s"), Instant::now()).unwrap();
    let quarter = u64::from(WINDOW.frames) / 4;
    for sequence in 1..=quarter {
        link.arrived(1, sequence, 0).unwrap();
        assert_eq!(link.take(1, 0), sequence == quarter);
    }
    assert_eq!(sent(&mut link, 1).0, [(0, quarter)]);
    assert_eq!(sent(&mut link, 1).0, []);
    link.arrived(1, quarter + 1, WINDOW.bytes as usize / 4).unwrap();
    assert!(link.take(1, WINDOW.bytes as usize / 4));
    assert_eq!(sent(&mut link, 1).0, [(0, quarter + 1)]);
}
