//! The far end of a session, for tests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZero;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sahasra_client::{Options, Session, Target, Token};
use sahasra_cuda_device::{CpuDevice, Device, FailureKind};
use sahasra_wire::cuda::MAX_CONTEXTS;
use sahasra_wire::session::client_frame::Kind;
use sahasra_wire::session::frame::{self, Decoder};
use sahasra_wire::session::{
    ClientFrame, Failed, FailureCode, LARGEST_WINDOW_BYTES, LARGEST_WINDOW_FRAMES, Part, ServerFrame, Tensor, VERSION, Welcome,
    server_frame,
};

use crate::RemoteDevice;

/// Timeout for a machine under load.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Executor of a session of engine `cuda` whose answers a test gives.
pub(crate) struct Far {
    stream: TcpStream,
    frames: Receiver<(ClientFrame, Bytes)>,
    /// Number of frames that were sent, and number of the last operation that the test took.
    sent: u64,
    received: u64,
}

impl Far {
    /// Target of a session, and the thread that accepts its client.
    pub(crate) fn listen() -> (Target, thread::JoinHandle<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target = Target::direct(&url, Token::text("secret"), None, "default", "mine").unwrap();
        (target, thread::spawn(move || Self::accept(listener.accept().unwrap().0)))
    }

    /// A session, and its far end.
    pub(crate) fn connect() -> (Session, Self) {
        let (target, far) = Self::listen();
        let (session, connected) = Session::begin(target, Options::default()).unwrap();
        connected.wait().unwrap();
        (session, far.join().unwrap())
    }

    fn accept(mut stream: TcpStream) -> Self {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sahasra-session.v1\r\n\r\n";
        stream.write_all(switched.as_bytes()).unwrap();
        let (sender, frames) = mpsc::channel();
        let reader = stream.try_clone().unwrap();
        thread::spawn(move || read(reader, &sender));
        let mut far = Self {
            stream,
            frames,
            sent: 0,
            received: 0,
        };
        let hello = far.frames.recv_timeout(TIMEOUT).unwrap().0;
        assert!(matches!(hello.kind, Some(Kind::Hello(_))), "{hello:?}");
        let device = CpuDevice::new(1 << 30, NonZero::<usize>::MIN);
        let welcome = Welcome {
            version: VERSION,
            resume: Bytes::from_static(b"secret of the client"),
            window_frames: LARGEST_WINDOW_FRAMES,
            window_bytes: LARGEST_WINDOW_BYTES,
            engine: "cuda".to_owned(),
            limit_bytes: device.properties().memory_bytes,
            cuda: Some(Box::new(device.properties().into())),
            ..Welcome::default()
        };
        far.write(0, server_frame::Kind::Welcome(welcome), &[]);
        far
    }

    fn write(&mut self, sequence: u64, kind: server_frame::Kind, payload: &[u8]) {
        let message = ServerFrame {
            sequence,
            received: self.received,
            kind: Some(kind),
            ..ServerFrame::default()
        };
        let mut bytes = BytesMut::new();
        frame::encode(&message, payload.len(), &mut bytes).unwrap();
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).unwrap();
    }

    pub(crate) fn send(&mut self, kind: server_frame::Kind) {
        self.sent += 1;
        self.write(self.sent, kind, &[]);
    }

    /// Answers that a request failed because memory is used up.
    pub(crate) fn send_out_of_memory(&mut self, request: u64, message: &str) {
        self.send(server_frame::Kind::Failed(Failed {
            request,
            code: FailureCode::OutOfMemory.into(),
            message: message.to_owned(),
            ..Failed::default()
        }));
    }

    pub(crate) fn send_rows(&mut self, request: u64, bytes: &[u8]) {
        self.send(server_frame::Kind::Tensor(Tensor {
            request,
            element_type: "u8".to_owned(),
            dimensions: vec![bytes.len() as i64],
            bytes: bytes.len() as u64,
        }));
        self.sent += 1;
        self.write(self.sent, server_frame::Kind::Part(Part::raw(bytes.len(), 1)), bytes);
    }

    /// The next operation, which is confirmed with the next answer.
    pub(crate) fn next(&mut self) -> (Kind, Bytes) {
        loop {
            let (frame, payload) = self.frames.recv_timeout(TIMEOUT).expect("an operation arrives");
            if let Some(kind) = frame.kind {
                self.received = frame.sequence;
                return (kind, payload);
            }
        }
    }
}

/// Passes on the frames that arrive.
fn read(mut stream: TcpStream, frames: &Sender<(ClientFrame, Bytes)>) {
    let mut decoder = Decoder::default();
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        decoder.buffer().extend_from_slice(&bytes[..count]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            // The test may have ended.
            let _ = frames.send(frame);
        }
    }
}

#[test]
fn contexts_beyond_the_limit_of_a_session_are_refused_until_others_have_gone() {
    let (target, far) = Far::listen();
    let device = RemoteDevice::connect(target, false).unwrap();
    let mut far = far.join().unwrap();
    let mut queues: Vec<_> = (0..MAX_CONTEXTS).map(|_| device.open().unwrap()).collect();
    for _ in 0..2 {
        let refused = device.open().err().unwrap();
        assert_eq!(refused.kind, FailureKind::OutOfMemory);
        assert!(refused.message.contains("at most 64"), "{refused}");
        queues.pop();
        let (kind, _) = far.next();
        assert!(matches!(kind, Kind::CudaDiscard(_)), "{kind:?}");
        queues.push(device.open().unwrap());
    }
}
