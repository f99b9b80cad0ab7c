//! Connections that begin, break, are replaced, or send malformed frames. With engine ptx, because the content of the operations does not
//! matter.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use sahasra_executor_protocol::clock::monotonic_now;
use sahasra_wire::session::{
    ClientFrame, FailureCode, Format, Hello, Part, RejectionCode, Upload, client_frame::Kind, frame, server_frame,
};

use crate::harness::{Client, Executor, hello};

const MEMORY: u64 = 64 << 20;

#[test]
fn bytes_that_the_agent_read_already_come_first() {
    let executor = Executor::ptx(MEMORY);
    let frame = ClientFrame {
        kind: Some(Kind::Hello(hello())),
        ..ClientFrame::default()
    };
    let mut bytes = BytesMut::new();
    frame::encode(&frame, 0, &mut bytes).unwrap();
    let mut client = Client::new(executor.connection(&bytes[..5]));
    client.write_raw(&bytes[5..]);
    let (answer, _) = client.read().unwrap();
    assert!(matches!(answer.kind, Some(server_frame::Kind::Welcome(_))), "{answer:?}");
}

#[test]
fn a_session_has_one_client_at_a_time() {
    let executor = Executor::ptx(MEMORY);
    let mut first = executor.client();
    first.floats(1, &[1.]);
    first.synchronise().unwrap();
    let mut second = Client::new(executor.connection(&[]));
    let refused = second.greet(hello()).unwrap_err();
    assert_eq!(refused.code(), RejectionCode::Busy);
    assert_eq!(first.download_floats(1), [1.]);
    let mut third = Client::new(executor.connection(&[]));
    let welcome = third.greet(Hello { replace: true, ..hello() }).unwrap();
    assert!(!welcome.resumed);
    assert!(first.next().is_none(), "its connection ends");
    assert_eq!(third.load().tensors, 0, "what it had is freed");
    let refused = first.resume(executor.connection(&[])).unwrap_err();
    assert_eq!(refused.code(), RejectionCode::Unknown);
}

#[test]
fn versions_that_nobody_speaks_are_refused() {
    let executor = Executor::ptx(MEMORY);
    let mut client = Client::new(executor.connection(&[]));
    let refused = client.greet(Hello {
        lowest_version: 99,
        highest_version: 100,
        ..hello()
    });
    assert_eq!(refused.unwrap_err().code(), RejectionCode::Version);
}

#[test]
fn what_a_client_has_is_freed_when_its_grace_is_over() {
    let executor = Executor::ptx(MEMORY);
    let mut client = Client::new(executor.connection(&[]));
    let welcome = client.greet(Hello {
        grace_milliseconds: 50,
        ..hello()
    });
    client.welcome = welcome.unwrap();
    assert_eq!(client.welcome.grace_milliseconds, 50);
    client.floats(1, &[1.]);
    client.synchronise().unwrap();
    executor.status_page_shows(|stats| stats.tensors == 1);
    client.cut();
    executor.status_page_shows(|stats| !stats.connected && stats.tensors == 0 && stats.stored_bytes == 0);
    let refused = client.resume(executor.connection(&[])).unwrap_err();
    assert_eq!(refused.code(), RejectionCode::Unknown);
    // Another client starts a new session.
    assert_eq!(executor.client().load().tensors, 0);
}

#[test]
fn after_a_close_nobody_resumes_and_another_may_begin() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.floats(1, &[1.]);
    client.close();
    let mut next = executor.client();
    assert_eq!(next.load().tensors, 0);
    let refused = client.resume(executor.connection(&[])).unwrap_err();
    assert_eq!(refused.code(), RejectionCode::Unknown);
    next.close();
}

/// Asserts that the session ends because of malformed frames.
pub(crate) fn ends_as_malformed(executor: &Executor, client: &mut Client) {
    let (answer, _) = client.next().expect("the failure is reported");
    match answer {
        server_frame::Kind::Failed(failed) => assert_eq!((failed.request, failed.code()), (0, FailureCode::Malformed), "{failed:?}"),
        other => panic!("{other:?}"),
    }
    assert!(client.next().is_none(), "the connection ends");
    assert_eq!(client.resume(executor.connection(&[])).unwrap_err().code(), RejectionCode::Unknown);
    executor.status_page_shows(|stats| stats.tensors == 0 && !stats.connected);
}

#[test]
fn frames_that_make_no_sense_end_the_session_and_leave_nothing() {
    let executor = Executor::ptx(MEMORY);
    let upload = |bytes| {
        Kind::Upload(Upload {
            tensor: 9,
            element_type: "u8".to_owned(),
            dimensions: vec![bytes as i64],
            bytes,
        })
    };
    let raw = Kind::Part(Part::default());
    let lz4 = Kind::Part(Part {
        encoding: 1,
        decoded_bytes: 4,
        width: 0,
    });
    let four = Bytes::from_static(&[1, 2, 3, 4]);
    let cases: Vec<Vec<(Kind, Bytes)>> = vec![
        vec![(raw.clone(), four.clone())],
        vec![(upload(3), Bytes::new()), (raw.clone(), four.clone())],
        vec![(upload(4), Bytes::new()), (lz4, four.clone())],
        vec![(upload(4), Bytes::new()), (upload(4), Bytes::new())],
        vec![(upload(4), four.clone())],
        vec![(Kind::Hello(hello()), Bytes::new())],
    ];
    for case in cases {
        let mut client = executor.client();
        client.floats(1, &[1.]);
        for (kind, payload) in case {
            client.send(kind, payload);
        }
        ends_as_malformed(&executor, &mut client);
    }
    // A skipped number; more confirmed answers than sent; invalid lengths; bytes that are no message.
    let frame = |sequence, received| {
        let frame = ClientFrame {
            sequence,
            received,
            kind: Some(Kind::Delete(Default::default())),
            ..ClientFrame::default()
        };
        let mut bytes = BytesMut::new();
        frame::encode(&frame, 0, &mut bytes).unwrap();
        bytes.to_vec()
    };
    for bytes in [
        frame(7, 0),
        frame(3, 9),
        frame(0, 0),
        vec![0xff; 8],
        vec![2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
    ] {
        let mut client = executor.client();
        client.floats(1, &[1.]);
        client.write_raw(&bytes);
        ends_as_malformed(&executor, &mut client);
    }
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), frame(1, 0)] {
        let mut client = Client::new(executor.connection(&bytes));
        let (answer, _) = client.read().unwrap();
        match answer.kind {
            Some(server_frame::Kind::Refused(refused)) => assert_eq!(refused.code(), RejectionCode::Malformed),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(executor.client().load().tensors, 0);
}

#[test]
fn parts_may_be_compressed() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    let upload = Upload {
        tensor: 1,
        element_type: "u8".to_owned(),
        dimensions: vec![3000],
        bytes: 3000,
    };
    client.send(Kind::Upload(upload), Bytes::new());
    client.send(Kind::Part(Part::default()), Bytes::from(vec![1; 1000]));
    let lz4 = Part {
        encoding: 1,
        decoded_bytes: 2000,
        width: 0,
    };
    client.send(Kind::Part(lz4), lz4_flex::block::compress(&[2; 2000]).into());
    let expected = [vec![1; 1000], vec![2; 2000]].concat();
    assert_eq!(client.download(1).unwrap().bytes, expected);
}

#[test]
fn large_parts_may_be_raw_and_compressed_in_turn() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    let expected: Vec<u8> = (0..3_000_000_u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 25) as u8)
        .collect();
    for compressed in [vec![], vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
        let upload = Upload {
            tensor: 1,
            element_type: "u8".to_owned(),
            dimensions: vec![expected.len() as i64],
            bytes: expected.len() as u64,
        };
        client.send(Kind::Upload(upload), Bytes::new());
        for (place, part) in expected.chunks(1_000_000).enumerate() {
            let is_compressed = compressed.contains(&place);
            let message = Part {
                encoding: is_compressed.into(),
                decoded_bytes: part.len() as u64,
                width: 0,
            };
            let payload = if is_compressed {
                lz4_flex::block::compress(part)
            } else {
                part.to_vec()
            };
            client.send(Kind::Part(message), payload.into());
        }
        assert!(client.download(1).unwrap().bytes == expected, "{compressed:?}");
    }
    client.synchronise().unwrap();
}

#[test]
fn many_small_parts_of_a_large_tensor_are_taken_before_the_last_of_them() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    let expected: Vec<u8> = (0..1_u32 << 20).map(|index| (index >> 3) as u8).collect();
    let upload = Upload {
        tensor: 1,
        element_type: "u8".to_owned(),
        dimensions: vec![expected.len() as i64],
        bytes: expected.len() as u64,
    };
    client.send(Kind::Upload(upload), Bytes::new());
    let mut parts = expected.chunks(100);
    // Send at most the window, and then nothing until some parts were taken.
    for part in parts.by_ref().take(client.welcome.window_frames as usize - 1) {
        client.send(Kind::Part(Part::default()), Bytes::copy_from_slice(part));
    }
    let mut taken = 0;
    while taken < client.welcome.window_frames as u64 / 4 {
        taken = client.read().expect("an acknowledgement").0.received;
    }
    // Send the rest in one part.
    let rest = parts.flatten().copied().collect::<Vec<u8>>();
    client.send(Kind::Part(Part::default()), rest.into());
    assert!(client.download(1).unwrap().bytes == expected);
}

#[test]
fn an_upload_that_fails_swallows_its_parts() {
    let executor = Executor::ptx(1 << 20);
    let mut client = executor.client();
    let culprit = client.upload(1, "u8", &[5 << 20], &vec![1; 5 << 20]);
    client.upload(2, "f23", &[4], &[0; 4]);
    client.upload(3, "f32", &[4], &[0; 4]);
    client.floats(4, &[4.]);
    assert_eq!(client.download_floats(4), [4.]);
    let failed = client.synchronise().unwrap_err();
    assert_eq!((failed.code(), failed.sequence), (FailureCode::OutOfMemory, culprit));
    for tensor in [2, 3] {
        assert_eq!(client.download(tensor).unwrap_err().code(), FailureCode::InvalidArgument);
    }
}

#[test]
fn the_process_ends_when_its_agent_ends_the_session_and_tells_its_client() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    assert_eq!(executor.end(), "");
    match client.answer() {
        server_frame::Kind::Failed(failed) => assert_eq!((failed.request, failed.code()), (0, FailureCode::Ended)),
        other => panic!("{other:?}"),
    }
    assert!(client.next().is_none());
}

#[test]
fn the_process_ends_with_its_agent_without_a_word_to_its_client() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.floats(1, &[1.]);
    assert_eq!(client.download_floats(1), [1.]);
    assert_eq!(executor.lose_agent(), "");
    // The session is not reported as deleted: the client finds out at the worker's address that the worker is lost.
    assert!(client.next().is_none());
}

#[test]
fn the_process_ends_when_the_time_that_its_agent_last_said_is_over() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    // The agent has not set an expiry yet.
    client.upload(1, "u8", &[3], &[1, 2, 3]);
    assert_eq!(client.download(1).unwrap().bytes, [1, 2, 3]);
    executor.status_page.set_until(monotonic_now());
    match client.answer() {
        server_frame::Kind::Failed(failed) => {
            assert_eq!((failed.request, failed.code()), (0, FailureCode::Ended));
            assert!(failed.message.contains("did not extend it"), "{}", failed.message);
        }
        other => panic!("{other:?}"),
    }
    assert!(client.next().is_none());
}

#[test]
fn a_process_that_is_killed_ends_its_connections() {
    let mut executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.floats(1, &[1.]);
    executor.child.kill().unwrap();
    assert!(client.next().is_none());
}

/// Runs a program of a few operations whose answers contain everything: values, failures, order.
fn conversation(client: &mut Client, executor: &Executor, cuts: &[usize]) -> Vec<String> {
    let mut cuts = cuts.iter().copied();
    client.frames_left = cuts.next();
    let mut asked = Vec::new();
    for round in 0..6_u64 {
        let bytes: Vec<u8> = (0..2_500_000_u64).map(|index| ((index * (round + 3)) >> 3) as u8).collect();
        client.upload(1, "u8", &[bytes.len() as i64], &bytes);
        client.upload(2, "f32", &[2], &[round as u8; 8]);
        asked.push(client.ask_download(2));
        client.delete(&[3]);
        asked.push(client.ask_download(3));
        client.upload(3, "f23", &[1], &[0; 4]);
        asked.push(client.ask_download(1));
    }
    let mut answers = Vec::new();
    let mut unanswered = asked.len();
    let mut missing = 0_u64;
    while unanswered > 0 || missing > 0 {
        let Some((kind, payload)) = client.next() else {
            // The connection was cut: resume, with the next cut.
            client.resume_for(executor.connection(&[]), cuts.next()).unwrap();
            continue;
        };
        match &kind {
            server_frame::Kind::Tensor(tensor) => {
                unanswered -= 1;
                missing = tensor.bytes;
            }
            server_frame::Kind::Part(_) => missing -= payload.len() as u64,
            _ => unanswered -= 1,
        }
        let sum = payload
            .iter()
            .fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        answers.push(format!("{kind:?} {} {sum}", payload.len()));
    }
    // The connection may have been cut with the last answer.
    client.resume(executor.connection(&[])).unwrap();
    answers
}

#[test]
fn a_connection_that_is_cut_anywhere_loses_nothing_and_repeats_nothing() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    let uncut = conversation(&mut client, &executor, &[]);
    let failed = client.ask_close().expect_err("one of its operations makes no sense");
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let cuts = proptest::collection::vec(0_usize..40, 1..6);
    runner
        .run(&cuts, |cuts| {
            let mut client = executor.client();
            let seen = conversation(&mut client, &executor, &cuts);
            prop_assert_eq!(&seen, &uncut);
            prop_assert_eq!(client.ask_close().map_err(|again| again.message), Err(failed.message.clone()));
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_program_name_may_be_used_again() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    let text = |name: &str| format!(".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry {name}() {{ ret; }}\n");
    client.compile(1, Format::Ptx, text("a")).unwrap();
    client.compile(1, Format::Ptx, text("b")).unwrap();
    assert_eq!(client.load().programs, 1);
}
