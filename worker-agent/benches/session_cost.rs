//! Cost of a session compared to the same plugin driven directly: `cargo bench --workspace --bench session_cost`, with
//! `SAHASRA_PJRT_PLUGIN`. The client is plain Rust on the other end of a TCP connection over loopback; the executor is a process.
//!
//! Prints the time per dependent step of a small MLP, including the final synchronisation; round trip and readback; and bulk transfers in
//! both directions compared to a raw copy over TCP.

#![allow(clippy::unwrap_used, reason = "what cannot go on ends")]

#[path = "../tests/session_executors/client.rs"]
mod client;
#[path = "../tests/session_executors/harness.rs"]
mod harness;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use sahasra_client::{Options as SessionOptions, Session, Target, Token};
use sahasra_pjrt::{Client as Local, CompileOptions, ElementType, Format as LocalFormat, Plugin, Program};
use sahasra_wire::session::{
    ClientFrame, Download, Execute, Format, Part, ServerFrame, Upload,
    client_frame::Kind,
    frame::{self, Decoder, HEAD_BYTES},
    server_frame,
};

use harness::{Client, Executor, plugin};

const STEPS: usize = 1000;
const ROUNDS: usize = 7;
const BULK: usize = 256 << 20;
const PART: usize = 1 << 20;
const WINDOW_PARTS: u64 = 48;
const ROWS: i64 = 32;
const WIDTH: i64 = 64;

/// One step of an MLP: two layers, and the input moved a little towards the output, so that each step depends on the previous one.
const STEP: &str = r"
func.func @main(%x: tensor<32x64xf32>, %a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<32x64xf32> {
  %h = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %t = stablehlo.tanh %h : tensor<32x64xf32>
  %o = stablehlo.dot_general %t, %b, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %y = stablehlo.add %x, %o : tensor<32x64xf32>
  return %y : tensor<32x64xf32>
}";

fn floats(count: i64) -> Vec<u8> {
    (0..count).flat_map(|index| ((index % 13) as f32 * 0.001).to_le_bytes()).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn local_steps(plugin: &std::path::Path) -> (Duration, Vec<u8>) {
    let local = Local::create(&Plugin::load(plugin).unwrap(), &[]).unwrap();
    let program = Program {
        format: LocalFormat::StableHlo,
        code: STEP.as_bytes().to_vec(),
    };
    let executable = local.compile(&program, &CompileOptions::of_platform("cpu")).unwrap();
    let upload = |rows: i64| {
        local
            .upload(ElementType::F32, &[rows, WIDTH], Bytes::from(floats(rows * WIDTH)))
            .unwrap()
    };
    let (a, b) = (upload(WIDTH), upload(WIDTH));
    let mut times = Vec::new();
    let mut result = Vec::new();
    for _ in 0..ROUNDS {
        let mut x = upload(ROWS);
        let began = Instant::now();
        for _ in 0..STEPS {
            x = executable.execute(&[&x, &a, &b], &[]).unwrap().0.remove(0);
        }
        x.ready().unwrap().wait().unwrap();
        times.push(began.elapsed());
        result = x.download().unwrap().to_vec();
    }
    (median(times), result)
}

fn remote_steps(client: &mut Client) -> (Duration, Vec<u8>) {
    client.compile(1, Format::StableHlo, STEP).unwrap();
    client.upload(2, "f32", &[WIDTH, WIDTH], &floats(WIDTH * WIDTH));
    client.upload(3, "f32", &[WIDTH, WIDTH], &floats(WIDTH * WIDTH));
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        client.upload(1, "f32", &[ROWS, WIDTH], &floats(ROWS * WIDTH));
        client.synchronise().unwrap();
        let began = Instant::now();
        for _ in 0..STEPS {
            let execute = Execute {
                program: 1,
                arguments: vec![1, 2, 3],
                outputs: vec![1],
                donated: Vec::new(),
            };
            client.send(Kind::Execute(execute), Bytes::new());
        }
        client.synchronise().unwrap();
        times.push(began.elapsed());
    }
    (median(times), client.download(1).unwrap().bytes)
}

fn latencies(client: &mut Client) -> (Duration, Duration) {
    client.upload(9, "f32", &[16], &[0; 64]);
    client.synchronise().unwrap();
    let mut time = |what: &mut dyn FnMut(&mut Client)| {
        let mut times = Vec::new();
        for _ in 0..300 {
            let began = Instant::now();
            what(client);
            times.push(began.elapsed());
        }
        median(times)
    };
    let round_trip = time(&mut |client| {
        client.load();
    });
    let readback = time(&mut |client| {
        client.download(9).unwrap();
    });
    (round_trip, readback)
}

/// Copies raw bytes over TCP, written and read in the sizes that the stream uses: into one reused buffer or, if `is_kept`, into memory for
/// the whole data, as a receiver that keeps the data needs.
fn raw_copy(bytes: &[u8], is_kept: bool) -> Duration {
    let (mut ours, mut theirs) = tcp();
    let reader = std::thread::spawn(move || {
        let mut kept = vec![0; if is_kept { BULK } else { PART }];
        let part = |place: usize| if is_kept { place * PART } else { 0 };
        for place in 0..BULK / PART {
            theirs.read_exact(&mut kept[part(place)..][..PART]).unwrap();
        }
        theirs.write_all(&[1]).unwrap();
    });
    let began = Instant::now();
    for part in bytes.chunks(PART) {
        ours.write_all(part).unwrap();
    }
    ours.read_exact(&mut [0]).unwrap();
    let took = began.elapsed();
    reader.join().unwrap();
    took
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let theirs = listener.accept().unwrap().0;
    ours.set_nodelay(true).unwrap();
    (ours, theirs)
}

/// A client for bulk transfers only, without copies of its own.
struct Bulk {
    stream: TcpStream,
    sequence: u64,
    received: u64,
    /// Number of the last operation that the executor has confirmed.
    taken: u64,
}

impl Bulk {
    fn send(&mut self, sequence: u64, kind: Option<Kind>, payload: &[u8]) {
        let frame = ClientFrame {
            sequence,
            received: self.received,
            kind,
            ..ClientFrame::default()
        };
        let mut head = BytesMut::new();
        frame::encode(&frame, payload.len(), &mut head).unwrap();
        self.stream.write_all(&head).unwrap();
        self.stream.write_all(payload).unwrap();
    }

    fn operation(&mut self, kind: Kind, payload: &[u8]) {
        self.sequence += 1;
        self.send(self.sequence, Some(kind), payload);
    }

    fn read(&mut self, into: &mut [u8]) -> (ServerFrame, usize) {
        let mut decoder = Decoder::default();
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head).unwrap();
        let (message, payload) = frame::lengths(&head).unwrap().unwrap();
        decoder.buffer().extend_from_slice(&head);
        // The payload is read directly to its destination, so the decoder must expect none.
        decoder.buffer()[4..8].fill(0);
        let start = decoder.buffer().len();
        decoder.buffer().resize(start + message, 0);
        self.stream.read_exact(&mut decoder.buffer()[start..]).unwrap();
        self.stream.read_exact(&mut into[..payload]).unwrap();
        let frame: ServerFrame = decoder.next_frame().unwrap().unwrap().0;
        self.received = self.received.max(frame.sequence);
        self.taken = frame.received;
        (frame, payload)
    }

    fn upload(&mut self, bytes: &[u8]) -> Duration {
        let began = Instant::now();
        let upload = Upload {
            tensor: 1,
            element_type: "u8".to_owned(),
            dimensions: vec![bytes.len() as i64],
            bytes: bytes.len() as u64,
        };
        self.operation(Kind::Upload(upload), &[]);
        for part in bytes.chunks(PART) {
            self.operation(Kind::Part(Part::raw(part.len(), 4)), part);
            // Stay within the executor's window, which it confirms by quarters.
            while self.sequence - self.taken >= WINDOW_PARTS {
                self.read(&mut []);
            }
        }
        self.operation(Kind::Synchronise(Default::default()), &[]);
        while !matches!(self.read(&mut []).0.kind, Some(server_frame::Kind::Done(_))) {}
        began.elapsed()
    }

    fn download(&mut self, into: &mut [u8]) -> Duration {
        let began = Instant::now();
        self.operation(Kind::Download(Download { tensor: 1, request: 1 }), &[]);
        let mut at = 0;
        while at < into.len() {
            let (frame, bytes) = self.read(&mut into[at..]);
            at += bytes;
            if frame.sequence.is_multiple_of(8) {
                self.send(0, None, &[]);
            }
        }
        began.elapsed()
    }
}

/// Session of the client library, connected directly to the executor as if to a worker.
fn library(executor: &Executor) -> Session {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::direct(
        &format!("http://{}", listener.local_addr().unwrap()),
        Token::text("secret"),
        None,
        "default",
        "mine",
    );
    let options = SessionOptions {
        replace: true,
        ..SessionOptions::default()
    };
    let (session, connected) = Session::begin(target.unwrap(), options).unwrap();
    let mut theirs = listener.accept().unwrap().0;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        theirs.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    theirs
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sahasra-session.v1\r\n\r\n")
        .unwrap();
    executor.adopt(&theirs);
    connected.wait().unwrap();
    session
}

fn bulk_of_library(executor: &Executor, bytes: &Bytes) -> (Duration, Duration) {
    let session = library(executor);
    let mut ups = Vec::new();
    let mut downs = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let tensor = session.put(bytes.clone(), "u8", &[BULK as i64]).unwrap();
        session.synchronise().wait().unwrap();
        ups.push(began.elapsed());
        let began = Instant::now();
        let array = tensor.download().wait().unwrap();
        downs.push(began.elapsed());
        assert!(array.data == *bytes);
    }
    session.close().wait().unwrap();
    (median(ups), median(downs))
}

fn rate(time: Duration) -> f64 {
    BULK as f64 / time.as_secs_f64() / 1e9
}

fn main() {
    let Some(plugin) = plugin() else { return };
    let (local, expected) = local_steps(&plugin);
    let executor = Executor::xla(4 << 30, &[]).unwrap();
    let (ours, theirs) = tcp();
    let mut client = executor.client_over(ours.into(), theirs.into());
    let (remote, result) = remote_steps(&mut client);
    assert_eq!(result, expected, "bit for bit");
    let per_step = |time: Duration| time.as_secs_f64() * 1e6 / STEPS as f64;
    println!(
        "step        local {:6.1} µs   session {:6.1} µs   overhead {:6.1} µs",
        per_step(local),
        per_step(remote),
        per_step(remote) - per_step(local)
    );
    let (round_trip, readback) = latencies(&mut client);
    println!("readback    round trip {round_trip:?}   download of 64 bytes {readback:?}");
    client.close();

    let (ours, theirs) = tcp();
    drop(executor.client_over(ours.try_clone().unwrap().into(), theirs.into()));
    let mut bulk = Bulk {
        stream: ours,
        sequence: 0,
        received: 0,
        taken: 0,
    };
    let bytes = vec![3; BULK];
    let mut into = vec![0; BULK];
    // Interleaved, so that other load on the machine affects all alike.
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(raw_copy(&bytes, false));
        times[1].push(raw_copy(&bytes, true));
        times[2].push(bulk.upload(&bytes));
        times[3].push(bulk.download(&mut into));
    }
    assert!(into == bytes);
    let [raw, raw_kept, up, down] = times.map(median);
    let of_raw = |time: Duration| 100.0 * raw.as_secs_f64() / time.as_secs_f64();
    println!(
        "bulk        raw {:.2} GB/s, into memory of its own {:.2} GB/s   up {:.2} GB/s ({:.0} % of raw)   down {:.2} GB/s ({:.0} %)",
        rate(raw),
        rate(raw_kept),
        rate(up),
        of_raw(up),
        rate(down),
        of_raw(down)
    );
    let (up, down) = bulk_of_library(&executor, &bytes.into());
    println!(
        "library     up {:.2} GB/s ({:.0} % of raw)   down {:.2} GB/s ({:.0} %)",
        rate(up),
        of_raw(up),
        rate(down),
        of_raw(down)
    );
}
