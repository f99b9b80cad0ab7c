use sahasra_wire::session::Done;

use super::*;

mod resume;
mod window;

fn hello() -> Hello {
    Hello {
        lowest_version: 1,
        highest_version: 1,
        window_frames: 4,
        window_bytes: 100,
        grace_milliseconds: 1000,
        ..Hello::default()
    }
}

fn secret(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn answer(request: u64, payload: usize) -> SessionAnswer {
    SessionAnswer {
        kind: Kind::Done(Done { request }),
        payload: vec![0; payload].into(),
    }
}

/// Sequence numbers of the frames that are sent now, with the operations that they confirm.
fn sent(link: &mut Link, connection: u64) -> (Vec<(u64, u64)>, Sending) {
    let mut frames = Vec::new();
    let sending = link.send(connection, 64, 1 << 20, &mut frames);
    (frames.iter().map(|(frame, _)| (frame.sequence, frame.received)).collect(), sending)
}

#[test]
fn a_client_begins_resumes_and_is_replaced() {
    let now = Instant::now();
    let mut link = Link::default();
    let refusal = |refused: Refused| refused.code();
    let begun = link.hello(1, &hello(), 0, secret("one"), now).unwrap();
    assert_eq!(
        (begun.resumed, begun.generation, begun.replaced, begun.grace),
        (false, 1, None, Duration::from_secs(1))
    );
    assert_eq!(
        link.hello(2, &hello(), 0, secret("two"), now).map_err(refusal),
        Err(RejectionCode::Busy)
    );
    let resume = |shown| Hello {
        resume: secret(shown),
        ..hello()
    };
    for wrong in ["onf", "on", "onee", "two"] {
        assert_eq!(
            link.hello(2, &resume(wrong), 0, secret(""), now).map_err(refusal),
            Err(RejectionCode::Unknown)
        );
    }
    let resumed = link.hello(3, &resume("one"), 0, secret("new"), now).unwrap();
    assert_eq!((resumed.resumed, resumed.generation, resumed.replaced), (true, 1, Some(1)));
    assert_eq!(resumed.resume, secret("one"));
    // Messages of the replaced connection are ignored.
    assert_eq!(link.arrived(1, 1, 0), Ok(Arrival::Stale));
    assert!(!link.disconnected(1, now) && link.is_connected());
    assert_eq!(sent(&mut link, 1).1, Sending::Over);
    let replaces = Hello { replace: true, ..hello() };
    let begun = link.hello(4, &replaces, 0, secret("four"), now).unwrap();
    assert_eq!((begun.resumed, begun.generation, begun.replaced), (false, 2, Some(3)));
    link.answer(1, answer(1, 0));
    assert_eq!(
        sent(&mut link, 4),
        (vec![], Sending::Go),
        "an answer for an earlier client is nobody's"
    );
}

#[test]
fn what_is_kept_ends_with_the_grace() {
    let now = Instant::now();
    let mut link = Link::default();
    let begun = link.hello(1, &hello(), 0, secret("one"), now).unwrap();
    let resume = Hello {
        resume: begun.resume,
        ..hello()
    };
    assert!(link.disconnected(1, now));
    assert_eq!(link.expires(), Some(now + Duration::from_secs(1)));
    assert!(!link.expire(now + Duration::from_millis(999)));
    link.hello(2, &resume, 0, secret(""), now + Duration::from_millis(999)).unwrap();
    assert_eq!(link.expires(), None);
    link.disconnected(2, now);
    // Nobody has called `expire` in the meantime.
    let late = link.hello(3, &resume, 0, secret(""), now + Duration::from_secs(1));
    assert_eq!(late.map_err(|refused| refused.code()), Err(RejectionCode::Unknown));
    let grace = |milliseconds| {
        let hello = Hello {
            grace_milliseconds: milliseconds,
            replace: true,
            ..hello()
        };
        Link::default().hello(1, &hello, 0, secret("s"), now).unwrap().grace
    };
    assert_eq!((grace(0), grace(u64::MAX)), (Duration::from_secs(60), Duration::from_secs(600)));
}

#[test]
fn versions_have_to_meet() {
    for (lowest, highest, is_fine) in [(1, 1, true), (0, 7, true), (2, 3, false), (0, 0, false)] {
        let hello = Hello {
            lowest_version: lowest,
            highest_version: highest,
            ..hello()
        };
        let greeted = Link::default().hello(1, &hello, 0, secret("s"), Instant::now());
        assert_eq!(greeted.is_ok(), is_fine, "{lowest} to {highest}");
    }
}

#[test]
fn operations_count_once_and_without_gaps() {
    let mut link = Link::default();
    link.hello(1, &hello(), 0, secret("s"), Instant::now()).unwrap();
    assert_eq!(link.arrived(1, 1, 5), Ok(Arrival::New));
    assert_eq!(link.arrived(1, 1, 5), Ok(Arrival::Again));
    assert_eq!(link.arrived(1, 3, 5), Err(LinkError::Gap { found: 3, expected: 2 }));
    assert_eq!(link.arrived(1, 2, 5), Ok(Arrival::New));
    assert_eq!(link.confirmed(1, 1), Err(LinkError::Future { received: 1, sent: 0 }));
}

#[test]
fn after_the_last_answer_nothing_comes_and_nobody_resumes() {
    let now = Instant::now();
    for breaks in [false, true] {
        let mut link = Link::default();
        let begun = link.hello(1, &hello(), 0, secret("s"), now).unwrap();
        for request in 1..=5 {
            link.answer(1, answer(request, 0));
        }
        assert_eq!(sent(&mut link, 1).0.len(), 4);
        if breaks {
            assert_eq!(link.breaks(1, answer(9, 0).kind), Some(1));
            assert_eq!(
                sent(&mut link, 1),
                (vec![(0, 0)], Sending::Last),
                "the window is nothing to one that is not heard"
            );
            assert_eq!(link.breaks(1, answer(9, 0).kind), None);
        } else {
            link.close(1, answer(9, 0));
            assert_eq!(sent(&mut link, 1), (vec![], Sending::Go));
            link.confirmed(1, 4).unwrap();
            assert_eq!(sent(&mut link, 1), (vec![(5, 0), (6, 0)], Sending::Last));
        }
        assert!(!link.is_connected());
        let resume = Hello {
            resume: begun.resume,
            ..hello()
        };
        let resumed = link.hello(2, &resume, 0, secret(""), now);
        assert_eq!(resumed.map_err(|refused| refused.code()), Err(RejectionCode::Unknown));
        // A new client need not wait for the connection to end.
        assert_eq!(link.hello(3, &hello(), 0, secret("t"), now).unwrap().generation, 2);
    }
}
