//! Parts that are sent encoded in both directions, and parts whose encoding is invalid.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use sahasra_wire::session::{Encoder, Hello, PART_BYTES, Part, Upload, client_frame::Kind, encodings, server_frame};

use crate::connections::ends_as_malformed;
use crate::harness::{Client, Executor, hello};

const MEMORY: u64 = 256 << 20;

fn takes_all() -> Hello {
    Hello {
        encodings: encodings(),
        spares_bytes: true,
        ..hello()
    }
}

/// Element types, sizes and bytes of several kinds: compressible in one way, in another way or not at all, and of a length that is no
/// multiple of a part's.
fn arrays() -> Vec<(&'static str, usize, Vec<u8>)> {
    let mut state = 7_u64;
    let mut noise = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let mut bytes = |count: usize, each: &mut dyn FnMut(u32) -> Vec<u8>| {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend(each(noise()));
        }
        bytes.truncate(count);
        bytes
    };
    let large = 2 * PART_BYTES + 8 * 1001;
    vec![
        ("f32", 4, vec![0; large]),
        ("s32", 4, bytes(large, &mut |random| (random % 50_000).to_le_bytes().to_vec())),
        (
            "bf16",
            2,
            bytes(large, &mut |random| vec![random as u8, 0x3c + (random >> 8) as u8 % 4]),
        ),
        ("s64", 8, bytes(large, &mut |random| u64::from(random).to_le_bytes().to_vec())),
        ("u8", 1, bytes(large, &mut |random| vec![(random % 3) as u8])),
        ("u8", 1, bytes(large, &mut |random| random.to_le_bytes()[..3].to_vec())),
        ("f32", 4, vec![1; 4000]),
        ("u8", 1, vec![9; 3]),
        ("f64", 8, Vec::new()),
    ]
}

fn upload(client: &mut Client, tensor: u64, element_type: &str, width: usize, bytes: &[u8], encodes: bool) -> usize {
    let mut sent = 0;
    client.send(
        Kind::Upload(Upload {
            tensor,
            element_type: element_type.to_owned(),
            dimensions: vec![(bytes.len() / width) as i64],
            bytes: bytes.len() as u64,
        }),
        Bytes::new(),
    );
    for (place, raw) in bytes.chunks(PART_BYTES).enumerate() {
        // Some parts among them are sent raw.
        let encoded = Encoder::default()
            .encode(raw, width as u32, usize::MAX)
            .filter(|_| encodes && place != 1);
        let (part, payload) = encoded.unwrap_or_else(|| (Part::raw(raw.len(), width as u32), Bytes::copy_from_slice(raw)));
        sent += payload.len();
        client.send(Kind::Part(part), payload);
    }
    sent
}

#[test]
fn arrays_go_and_come_encoded_and_are_as_they_were() {
    let executor = Executor::ptx(MEMORY);
    assert_eq!(executor.client().welcome.encodings, encodings());
    for (says, is_encoded) in [(takes_all(), true), (hello(), false)] {
        let mut client = executor.client_saying(Hello { replace: true, ..says });
        for (element_type, width, bytes) in arrays() {
            let sent = upload(&mut client, 1, element_type, width, &bytes, is_encoded);
            client.parts.clear();
            let back = client.download(1).unwrap();
            assert!(back.bytes == bytes, "{element_type}");
            let came: usize = client.parts.iter().map(|(bytes, _)| bytes).sum();
            assert_eq!(
                client.parts.iter().any(|(_, encoded)| *encoded),
                came < bytes.len(),
                "{element_type}"
            );
            if is_encoded {
                // One of the parts of a large array was sent raw.
                assert!(came <= sent, "{element_type}: {came} of {sent}");
            } else {
                assert_eq!((sent, came), (bytes.len(), bytes.len()));
            }
        }
        client.synchronise().unwrap();
    }
}

#[test]
fn what_went_encoded_goes_again_as_the_connection_takes_it() {
    let executor = Executor::ptx(MEMORY);
    for (element_type, width, bytes) in arrays().into_iter().filter(|(_, _, bytes)| bytes.len() > PART_BYTES) {
        let mut client = executor.client_saying(Hello {
            replace: true,
            ..takes_all()
        });
        upload(&mut client, 1, element_type, width, &bytes, true);
        client.ask_download(1);
        let mut back = Vec::new();
        assert!(matches!(client.answer(), server_frame::Kind::Tensor(_)));
        client.part(&mut back);
        // The rest may be in flight: it is sent again, on a connection that accepts only raw parts.
        client.cut();
        client.says = hello();
        client.resume(executor.connection(&[])).unwrap();
        client.parts.clear();
        while back.len() < bytes.len() {
            client.part(&mut back);
        }
        assert!(back == bytes, "{element_type}");
        assert!(client.parts.iter().all(|(_, encoded)| !encoded));
        client.synchronise().unwrap();
    }
}

#[test]
fn encoded_parts_count_for_what_they_decode_to() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    let quarter = (client.welcome.window_bytes / 4) as usize / PART_BYTES;
    let zeros = vec![0; PART_BYTES];
    let (part, payload) = Encoder::default().encode(&zeros, 1, usize::MAX).unwrap();
    let bytes = (2 * quarter * PART_BYTES) as u64;
    client.send(upload_of(bytes), Bytes::new());
    for _ in 0..quarter {
        client.send(Kind::Part(part), payload.clone());
    }
    // Only some kilobytes are sent, but they decode to a quarter of the window, so the executor must confirm them.
    while client.read().expect("an acknowledgement").0.received <= quarter as u64 {}
    for _ in 0..quarter {
        client.send(Kind::Part(part), payload.clone());
    }
    assert_eq!(client.load().used_bytes, bytes);
}

fn upload_of(bytes: u64) -> Kind {
    Kind::Upload(Upload {
        tensor: 1,
        element_type: "u8".to_owned(),
        dimensions: vec![bytes as i64],
        bytes,
    })
}

#[test]
fn parts_that_only_say_that_they_are_encoded_end_the_session_and_take_no_memory() {
    let executor = Executor::ptx(MEMORY);
    let (good, payload) = Encoder::default().encode(&[5; 1000], 4, usize::MAX).unwrap();
    let cases = [
        (Part { encoding: 3, ..good }, payload.clone()),
        (Part { width: 3, ..good }, payload.clone()),
        (Part { decoded_bytes: 0, ..good }, payload.clone()),
        (
            Part {
                decoded_bytes: 999,
                ..good
            },
            payload.clone(),
        ),
        (
            Part {
                decoded_bytes: 1001,
                ..good
            },
            payload.clone(),
        ),
        (
            Part {
                decoded_bytes: PART_BYTES as u64 + 1,
                ..good
            },
            payload.clone(),
        ),
        (
            Part {
                decoded_bytes: u64::MAX,
                ..good
            },
            payload.clone(),
        ),
        (good, Bytes::new()),
        (good, payload.slice(1..)),
        (good, Bytes::from(vec![0xff; 1000])),
        (good, Bytes::from(vec![0xff; 1001])),
    ];
    for (part, payload) in cases {
        let mut client = executor.client();
        client.floats(9, &[1.]);
        client.send(upload_of(200 << 20), Bytes::new());
        client.send(Kind::Part(part), payload);
        ends_as_malformed(&executor, &mut client);
    }
    assert_eq!(executor.client().load().tensors, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_parts_are_bytes_of_their_tensor_or_end_the_session(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        width in prop::sample::select(vec![1_u32, 2, 4, 8]),
    ) {
        // One process for all cases: it must survive all invalid parts.
        static EXECUTOR: OnceLock<Mutex<Executor>> = OnceLock::new();
        let executor = EXECUTOR.get_or_init(|| Mutex::new(Executor::ptx(MEMORY))).lock();
        let raw: Vec<u8> = (0..4000_u32).map(|place| (place / 7 % 50) as u8).collect();
        let (part, payload) = Encoder::default().encode(&raw, width, usize::MAX).unwrap();
        let mut payload = payload.to_vec();
        for (place, byte) in damage {
            let place = place.index(payload.len());
            payload[place] = byte;
        }
        let mut client = executor.client();
        client.send(upload_of(4000), Bytes::new());
        client.send(Kind::Part(part), payload.clone().into());
        if part.decode(&payload, &mut vec![0; 4000]).is_ok() {
            prop_assert_eq!(client.download(1).unwrap().bytes.len(), 4000);
            client.close();
        } else {
            ends_as_malformed(&executor, &mut client);
        }
    }
}

#[test]
fn downloads_are_compressed_for_a_client_that_takes_them_slowly() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client_saying(Hello {
        encodings: encodings(),
        ..hello()
    });
    let zeros = vec![0; 32 << 20];
    client.upload(1, "f32", &[8 << 20], &zeros);
    client.synchronise().unwrap();
    // Some megabytes per second: the test does not depend on the exact rate.
    client.pause = Duration::from_millis(2);
    assert!(client.download(1).unwrap().bytes == zeros);
    let encoded = client.parts.iter().filter(|(_, encoded)| *encoded).count();
    assert!(encoded > client.parts.len() / 2, "{encoded} of {} parts", client.parts.len());
    // A client that decodes more slowly than it receives gets raw parts.
    client.decoding_rate = 1_000_000;
    client.parts.clear();
    assert!(client.download(1).unwrap().bytes == zeros);
    assert_eq!(client.parts.iter().filter(|(_, encoded)| *encoded).count(), 0);
}
