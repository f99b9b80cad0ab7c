//! Tests of parts that are encoded, in either direction.

use sahasra_wire::session::{Download, Encoding, Synchronise, Tensor, Upload, client_frame::Kind, encodings};

use super::*;

const WIDE: Window = Window {
    frames: 1000,
    bytes: 1 << 20,
};

fn pair() -> Pair {
    Pair::compressing(WIDE, WIDE, Mode::Always)
}

/// Submits an upload in two parts, and another operation after it.
fn upload(core: &mut Core, parts: [&'static [u8]; 2]) {
    let bytes = parts.iter().map(|part| part.len() as u64).sum();
    let upload = Upload {
        tensor: 1,
        element_type: "u8".to_owned(),
        dimensions: vec![bytes as i64],
        bytes,
    };
    core.submit(Kind::Upload(upload), Bytes::new());
    for part in parts {
        core.submit(Kind::Part(Part::raw(part.len(), 4)), Bytes::from_static(part));
    }
    let request = core.request(Wanted::Done);
    core.submit(Kind::Synchronise(Synchronise::new(request)), Bytes::new());
}

fn written(core: &mut Core, end: u64) -> Vec<u8> {
    let mut pieces = VecDeque::new();
    core.write(&mut pieces, usize::MAX, end).unwrap();
    pieces.iter().flatten().copied().collect()
}

#[test]
fn a_part_is_a_candidate_until_it_is_settled_or_sent() {
    let mut pair = pair();
    upload(&mut pair.core, [&[7; 1000], &[8; 500]]);
    let first = pair.core.candidate().unwrap();
    assert_eq!(
        (first.sequence, first.payload.len(), first.width, first.is_first),
        (2, 1000, 4, true)
    );
    // Operations before the candidate are sent without waiting for it.
    let bytes = written(&mut pair.core, first.sequence);
    assert!(!bytes.is_empty() && bytes.len() < 100);
    assert!(written(&mut pair.core, first.sequence).is_empty());
    // A connection that breaks in between changes nothing.
    pair.connect();
    assert_eq!(pair.core.candidate(), Some(first));
    pair.core.settle(2, None);
    let second = pair.core.candidate().unwrap();
    assert_eq!((second.sequence, second.is_first), (3, false));
    written(&mut pair.core, u64::MAX);
    // The part has already been sent, so this has no effect.
    pair.core.settle(3, Some((Part::default(), Bytes::new())));
    assert_eq!(pair.core.candidate(), None);
    assert_eq!(pair.core.queued(), (4, 1500));
    upload(&mut pair.core, [&[1; 100], &[2; 100]]);
    written(&mut pair.core, 7);
    assert_eq!(pair.core.candidate().unwrap().sequence, 7, "one that has gone is no candidate");
    assert_eq!(connected().candidate(), None);
}

#[test]
fn a_repeated_part_keeps_its_encoding_and_counts_with_its_decoded_size() {
    let mut pair = pair();
    upload(&mut pair.core, [&[7; 1000], &[8; 500]]);
    pair.encode();
    assert_eq!(pair.core.queued(), (4, 1500));
    let before = written(&mut pair.core, u64::MAX);
    assert!(before.len() < 200, "{}", before.len());
    assert_eq!(pair.core.sent_bytes, 1500);
    pair.connect();
    assert_eq!(written(&mut pair.core, u64::MAX), before);
    pair.connect();
    pair.settle();
    assert_eq!(pair.executor.encoded.0, 2);
    assert_eq!(pair.executor.tensors[&1], [vec![7; 1000], vec![8; 500]].concat());
    assert_eq!(pair.answers, [(1, Ok(Event::Done))]);
}

#[test]
fn an_encoded_download_is_unchanged_wherever_the_connection_is_cut() {
    for cut in 0..400 {
        let mut pair = pair();
        upload(&mut pair.core, [&[7; 300], &[8; 50]]);
        let request = pair.core.request(Wanted::Array(Some(350)));
        pair.core.submit(Kind::Download(Download { tensor: 1, request }), Bytes::new());
        pair.up(usize::MAX, 0);
        pair.down(cut, true);
        pair.connect();
        pair.settle();
        assert!(pair.executor.encoded.1 > 2);
        let Some((_, Ok(Event::Array(array)))) = pair.answers.last() else {
            panic!("{:?}", pair.answers);
        };
        assert!(array.data == [vec![7; 300], vec![8; 50]].concat());
        assert_eq!(pair.answers.len(), 2);
    }
}

#[test]
fn a_client_that_does_not_compress_announces_it_and_accepts_no_encoded_part() {
    let mut silent = Pair::compressing(WIDE, WIDE, Mode::Never);
    upload(&mut silent.core, [&[7; 1000], &[8; 500]]);
    assert_eq!(silent.core.candidate(), None);
    for (mode, announced, spares) in [
        (Mode::Never, Vec::new(), false),
        (Mode::WhereItPays, encodings(), false),
        (Mode::Always, encodings(), true),
    ] {
        let Some(Kind::Hello(hello)) = Core::new(WIDE, mode, false).hello(false, Duration::ZERO).kind else {
            panic!("a connection begins with Hello");
        };
        assert_eq!((hello.encodings, hello.spares_bytes), (announced, spares));
    }
}

#[test]
fn encoded_parts_that_make_no_sense_end_the_session() {
    let tensor = |bytes| {
        server_frame::Kind::Tensor(Tensor {
            request: 1,
            bytes,
            ..Tensor::default()
        })
    };
    let ends = |mode, part: Part, payload: &[u8]| {
        let mut core = Pair::compressing(WIDE, WIDE, mode).core;
        core.request(Wanted::Array(None));
        core.take(answer(1, tensor(1000)), 0).unwrap();
        match core.take(answer(2, server_frame::Kind::Part(part)), payload.len() as u64) {
            Ok(Incoming::Fill(mut taking)) => {
                taking.buffer().extend_from_slice(payload);
                taking.finish().is_err()
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => matches!(error, Error::Protocol(_)),
        }
    };
    let (good, payload) = Encoder::default().encode(&[3; 1000], 1, usize::MAX).unwrap();
    assert!(!ends(Mode::Always, good, &payload));
    assert!(ends(Mode::Never, good, &payload), "it was not asked for");
    assert!(ends(Mode::Always, good, &payload[1..]), "it does not decode");
    assert!(ends(Mode::Always, good, &[]), "it is nothing");
    for wrong in [
        Part { encoding: 9, ..good },
        Part { decoded_bytes: 0, ..good },
        Part {
            decoded_bytes: 999,
            ..good
        },
        Part {
            decoded_bytes: 1001,
            ..good
        },
        Part {
            decoded_bytes: u64::MAX,
            ..good
        },
        Part {
            encoding: Encoding::ShuffledLz4.into(),
            width: 5,
            ..good
        },
    ] {
        assert!(ends(Mode::Always, wrong, &payload), "{wrong:?}");
    }
}
