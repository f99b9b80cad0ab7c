//! Clients that wait for each answer before they continue: the engine's thread reads and writes for them itself.

use std::time::Duration;

use bytes::Bytes;
use sahasra_wire::session::{Format, Launch, Synchronise, client_frame::Kind};

use crate::connections::ends_as_malformed;
use crate::harness::Executor;

const MEMORY: u64 = 64 << 20;

#[test]
fn each_question_is_answered_whatever_the_client_does_in_between() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    for round in 0..600_u64 {
        client.floats(1 + round % 7, &[round as f32]);
        assert_eq!(client.download_floats(1 + round % 7), [round as f32]);
        if round % 60 == 0 {
            // The client computes for longer than the engine waits for it, or than the reader waits for the engine.
            std::thread::sleep(Duration::from_millis(2 * (round / 60)));
        }
    }
    assert_eq!(client.load().tensors, 7);
}

#[test]
fn what_follows_a_question_may_come_in_pieces() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    for size in [1, 3, 8, 9, 13] {
        client.synchronise().unwrap();
        let request = client.request();
        client.send_in_pieces(Kind::Synchronise(Synchronise::new(request)), size);
        client.answer();
    }
}

#[test]
fn arrays_that_follow_a_question_are_as_they_were_sent() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    for bytes in [1_usize, 40_000, 200_000, 5_000_000] {
        let sent: Vec<u8> = (0..bytes).map(|index| ((index * 7) >> 2) as u8).collect();
        client.synchronise().unwrap();
        client.upload(1, "u8", &[bytes as i64], &sent);
        assert!(client.download(1).unwrap().bytes == sent, "{bytes} bytes");
    }
}

#[test]
fn a_client_that_asks_much_and_reads_late_gets_every_answer() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    let values: Vec<f32> = (0..4096).map(|value| value as f32).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    client.floats(1, &values);
    client.synchronise().unwrap();
    // One at a time, so that the engine's thread writes each answer itself, until the connection accepts no more.
    let asked: Vec<u64> = (0..100).map(|_| client.ask_download(1)).collect();
    for request in asked {
        let array = client.downloaded(request).unwrap();
        assert!(array.bytes == bytes);
    }
    client.synchronise().unwrap();
}

#[test]
fn bytes_that_make_no_sense_after_a_question_end_the_session() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.floats(1, &[1.]);
    client.synchronise().unwrap();
    client.write_raw(&[0xff; 16]);
    ends_as_malformed(&executor, &mut client);
}

#[test]
fn a_frame_without_a_message_after_a_question_ends_the_session() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.synchronise().unwrap();
    // Four bytes of message, no payload, and an invalid message: the decoder has consumed them when it detects the error.
    client.write_raw(&[4, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    ends_as_malformed(&executor, &mut client);
}

#[test]
fn what_comes_while_a_kernel_runs_is_read() {
    const ENDLESS: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry endless()
{
again:
    bra again;
}
";
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    client.compile(1, Format::Ptx, ENDLESS).unwrap();
    let launch = Launch {
        program: 1,
        entry: "endless".to_owned(),
        grid: vec![1],
        block: vec![1],
        ..Launch::default()
    };
    client.send(Kind::Launch(launch), Bytes::new());
    // The engine cannot answer this request because the kernel never ends; it stops polling, and the reader receives the following frames.
    let request = client.request();
    client.send(Kind::Synchronise(Synchronise::new(request)), Bytes::new());
    let bytes = vec![7; 8 << 20];
    client.upload(2, "u8", &[bytes.len() as i64], &bytes);
    executor.status_page_shows(|stats| stats.received_bytes >= bytes.len() as u64);
}

#[test]
fn a_connection_that_is_cut_after_a_question_is_resumed() {
    let executor = Executor::ptx(MEMORY);
    let mut client = executor.client();
    for round in 0..50_u64 {
        client.floats(1, &[round as f32]);
        client.synchronise().unwrap();
        client.cut();
        client.resume(executor.connection(&[])).unwrap();
        assert_eq!(client.download_floats(1), [round as f32]);
    }
}
