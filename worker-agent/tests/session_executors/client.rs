//! Client for tests that sends exactly the frames that the test asks for.

#![allow(dead_code, reason = "each program uses a part")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sahasra_wire::session::{
    Allocate, ClientFrame, Close, Compile, Compiled, Delete, Download, Encoding, Execute, Failed, FailureCode, Format, Hello, Load,
    PART_BYTES, Part, Refused, ServerFrame, Stats, Synchronise, Upload, VERSION, Welcome, client_frame,
    frame::{self, Decoder},
    server_frame::Kind,
};

use crate::harness::TIMEOUT;

/// The `Hello` of a new session.
pub(crate) fn hello() -> Hello {
    Hello {
        lowest_version: VERSION,
        highest_version: VERSION,
        window_frames: 1024,
        window_bytes: 64 << 20,
        client: "test".to_owned(),
        ..Hello::default()
    }
}

/// Sets a timeout for every read and write.
fn patient(stream: UnixStream) -> UnixStream {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// A downloaded tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    pub element_type: String,
    pub dimensions: Vec<i64>,
    pub bytes: Vec<u8>,
}

/// A client: numbers its operations, checks the numbers of answers, keeps unconfirmed operations, and resumes.
pub(crate) struct Client {
    stream: UnixStream,
    decoder: Decoder,
    pub welcome: Welcome,
    /// Operations that the executor has not confirmed, with their numbers.
    kept: VecDeque<(u64, client_frame::Kind, Bytes)>,
    sequence: u64,
    received: u64,
    request: u64,
    /// Number of frames to send before the connection is cut; `None` for no limit.
    pub frames_left: Option<usize>,
    /// `Hello` to send when resuming, without the secret.
    pub says: Hello,
    /// Parts of downloads as received: size on the link in bytes, and whether encoded.
    pub parts: Vec<(usize, bool)>,
    /// Pause after each read, to simulate a slow link.
    pub pause: Duration,
    /// Decoding rate to report in frames, in bytes per second.
    pub decoding_rate: u64,
}

impl Client {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream: patient(stream),
            decoder: Decoder::default(),
            welcome: Welcome::default(),
            kept: VecDeque::new(),
            sequence: 0,
            received: 0,
            request: 0,
            frames_left: None,
            says: hello(),
            parts: Vec::new(),
            pause: Duration::ZERO,
            decoding_rate: 0,
        }
    }

    /// Sends a `Hello` and waits for the answer.
    pub(crate) fn greet(&mut self, hello: Hello) -> Result<Welcome, Refused> {
        self.write(0, Some(client_frame::Kind::Hello(hello)), &Bytes::new());
        let (frame, _) = self.read().expect("an answer to the hello");
        match frame.kind {
            Some(Kind::Welcome(welcome)) => {
                self.forget(frame.received);
                Ok(welcome)
            }
            Some(Kind::Refused(refused)) => Err(refused),
            other => panic!("{other:?}"),
        }
    }

    /// Resumes on another connection, and sends all unconfirmed operations again.
    pub(crate) fn resume(&mut self, stream: UnixStream) -> Result<(), Refused> {
        self.resume_for(stream, None)
    }

    /// As [`Client::resume`], but cuts the connection after `frames` frames.
    pub(crate) fn resume_for(&mut self, stream: UnixStream, frames: Option<usize>) -> Result<(), Refused> {
        self.stream = patient(stream);
        self.decoder = Decoder::default();
        self.frames_left = None;
        let welcome = self.greet(Hello {
            resume: self.welcome.resume.clone(),
            ..self.says.clone()
        })?;
        assert!(welcome.resumed);
        self.frames_left = frames;
        for (sequence, kind, payload) in self.kept.clone() {
            self.write(sequence, Some(kind), &payload);
        }
        Ok(())
    }

    fn forget(&mut self, received: u64) {
        while self.kept.front().is_some_and(|(sequence, ..)| *sequence <= received) {
            self.kept.pop_front();
        }
    }

    /// Sends an operation in pieces of `size` bytes.
    pub(crate) fn send_in_pieces(&mut self, kind: client_frame::Kind, size: usize) {
        self.sequence += 1;
        let frame = ClientFrame {
            sequence: self.sequence,
            received: self.received,
            kind: Some(kind),
            ..ClientFrame::default()
        };
        let mut bytes = BytesMut::new();
        frame::encode(&frame, 0, &mut bytes).unwrap();
        for piece in bytes.chunks(size) {
            self.write_raw(piece);
            // Simulates a link on which the pieces arrive separately.
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    fn write(&mut self, sequence: u64, kind: Option<client_frame::Kind>, payload: &Bytes) {
        if let Some(left) = &mut self.frames_left {
            if *left == 0 {
                let _ = self.stream.shutdown(std::net::Shutdown::Both);
                return;
            }
            *left -= 1;
        }
        let frame = ClientFrame {
            sequence,
            received: self.received,
            kind,
            decoding_rate: self.decoding_rate,
        };
        let mut bytes = BytesMut::new();
        frame::encode(&frame, payload.len(), &mut bytes).unwrap();
        bytes.extend_from_slice(payload);
        // If the connection was cut, the next read shows it.
        let _ = self.stream.write_all(&bytes);
    }

    pub(crate) fn write_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Cuts the connection.
    pub(crate) fn cut(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Sends an operation. Returns its number.
    pub(crate) fn send(&mut self, kind: client_frame::Kind, payload: Bytes) -> u64 {
        self.sequence += 1;
        self.kept.push_back((self.sequence, kind.clone(), payload.clone()));
        self.write(self.sequence, Some(kind), &payload);
        self.sequence
    }

    /// Waits for the next frame; `None` at the end of the stream.
    pub(crate) fn read(&mut self) -> Option<(ServerFrame, Bytes)> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("frames make sense") {
                return Some(frame);
            }
            if !self.pause.is_zero() {
                std::thread::sleep(self.pause);
            }
            match self.stream.read(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("nothing comes within {TIMEOUT:?}"),
                Ok(0) | Err(_) => return None,
                Ok(read) => self.decoder.buffer().extend_from_slice(&buffer[..read]),
            }
        }
    }

    /// Waits for the next answer; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<(Kind, Bytes)> {
        loop {
            let (frame, payload) = self.read()?;
            self.forget(frame.received);
            match frame.kind {
                None => {}
                // The message that ends the stream is not an answer.
                Some(kind) if frame.sequence == 0 => return Some((kind, payload)),
                Some(_) if frame.sequence <= self.received => panic!("an answer came twice"),
                Some(kind) => {
                    assert_eq!(frame.sequence, self.received + 1, "answers come in order");
                    self.received = frame.sequence;
                    if self.received.is_multiple_of(8) {
                        self.write(0, None, &Bytes::new());
                    }
                    return Some((kind, payload));
                }
            }
        }
    }

    pub(crate) fn answer(&mut self) -> Kind {
        self.next().expect("an answer").0
    }

    pub(crate) fn request(&mut self) -> u64 {
        self.request += 1;
        self.request
    }

    pub(crate) fn upload(&mut self, tensor: u64, element_type: &str, dimensions: &[i64], bytes: &[u8]) -> u64 {
        let upload = Upload {
            tensor,
            element_type: element_type.to_owned(),
            dimensions: dimensions.to_vec(),
            bytes: bytes.len() as u64,
        };
        let sequence = self.send(client_frame::Kind::Upload(upload), Bytes::new());
        for part in bytes.chunks(PART_BYTES) {
            let message = Part {
                decoded_bytes: part.len() as u64,
                ..Part::default()
            };
            self.send(client_frame::Kind::Part(message), Bytes::copy_from_slice(part));
        }
        sequence
    }

    pub(crate) fn floats(&mut self, tensor: u64, values: &[f32]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.upload(tensor, "f32", &[values.len() as i64], &bytes)
    }

    pub(crate) fn allocate(&mut self, tensor: u64, element_type: &str, dimensions: &[i64]) -> u64 {
        let allocate = Allocate {
            tensor,
            element_type: element_type.to_owned(),
            dimensions: dimensions.to_vec(),
        };
        self.send(client_frame::Kind::Allocate(allocate), Bytes::new())
    }

    /// Compiles a program without requesting an answer.
    pub(crate) fn compile_unasked(&mut self, program: u64, format: Format, code: impl AsRef<[u8]>) -> u64 {
        let compile = Compile {
            program,
            name: format!("program_{program}"),
            format: format.into(),
            request: 0,
        };
        self.send(client_frame::Kind::Compile(compile), Bytes::copy_from_slice(code.as_ref()))
    }

    /// Compiles a program and waits for the answer.
    pub(crate) fn compile(&mut self, program: u64, format: Format, code: impl AsRef<[u8]>) -> Result<Compiled, Failed> {
        let request = self.request();
        let compile = Compile {
            program,
            name: format!("program_{program}"),
            format: format.into(),
            request,
        };
        self.send(client_frame::Kind::Compile(compile), Bytes::copy_from_slice(code.as_ref()));
        match self.answer() {
            Kind::Compiled(compiled) if compiled.request == request => Ok(compiled),
            Kind::Failed(failed) if failed.request == request => Err(failed),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn execute(&mut self, program: u64, arguments: &[u64], outputs: &[u64], donated: &[u32]) -> u64 {
        let execute = Execute {
            program,
            arguments: arguments.to_vec(),
            outputs: outputs.to_vec(),
            donated: donated.to_vec(),
        };
        self.send(client_frame::Kind::Execute(execute), Bytes::new())
    }

    pub(crate) fn delete(&mut self, tensors: &[u64]) {
        let delete = Delete {
            tensors: tensors.to_vec(),
            programs: Vec::new(),
        };
        self.send(client_frame::Kind::Delete(delete), Bytes::new());
    }

    pub(crate) fn delete_program(&mut self, program: u64) {
        let delete = Delete {
            tensors: Vec::new(),
            programs: vec![program],
        };
        self.send(client_frame::Kind::Delete(delete), Bytes::new());
    }

    pub(crate) fn ask_download(&mut self, tensor: u64) -> u64 {
        let request = self.request();
        self.send(client_frame::Kind::Download(Download { tensor, request }), Bytes::new());
        request
    }

    /// Waits for the array of a requested download.
    pub(crate) fn downloaded(&mut self, request: u64) -> Result<Array, Failed> {
        let tensor = match self.answer() {
            Kind::Tensor(tensor) if tensor.request == request => tensor,
            Kind::Failed(failed) if failed.request == request => return Err(failed),
            other => panic!("{other:?}"),
        };
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < tensor.bytes {
            self.part(&mut bytes);
        }
        Ok(Array {
            element_type: tensor.element_type,
            dimensions: tensor.dimensions,
            bytes,
        })
    }

    /// Waits for the next part of a download, and decodes it.
    pub(crate) fn part(&mut self, into: &mut Vec<u8>) {
        match self.next() {
            Some((Kind::Part(part), payload)) => {
                self.parts.push((payload.len(), part.encoding() != Encoding::Raw));
                let there = into.len();
                into.resize(there + part.bytes(payload.len()).unwrap(), 0);
                part.decode(&payload, &mut into[there..]).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn download(&mut self, tensor: u64) -> Result<Array, Failed> {
        let request = self.ask_download(tensor);
        self.downloaded(request)
    }

    pub(crate) fn download_floats(&mut self, tensor: u64) -> Vec<f32> {
        let array = self.download(tensor).expect("it is there");
        let (chunks, rest) = array.bytes.as_chunks::<4>();
        assert!(rest.is_empty() && array.element_type == "f32");
        chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
    }

    pub(crate) fn synchronise(&mut self) -> Result<(), Failed> {
        let request = self.request();
        self.send(client_frame::Kind::Synchronise(Synchronise::new(request)), Bytes::new());
        match self.answer() {
            Kind::Done(done) if done.request == request => Ok(()),
            Kind::Failed(failed) if failed.request == request => Err(failed),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn load(&mut self) -> Stats {
        let request = self.request();
        self.send(client_frame::Kind::Load(Load { request }), Bytes::new());
        match self.answer() {
            Kind::Stats(stats) if stats.request == request => stats,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn close(&mut self) {
        self.ask_close().expect("nothing failed");
    }

    /// Closes the session. Returns the failure that no answer has reported before.
    pub(crate) fn ask_close(&mut self) -> Result<(), Failed> {
        let request = self.request();
        self.send(client_frame::Kind::Close(Close { request }), Bytes::new());
        match self.answer() {
            Kind::Done(done) if done.request == request => Ok(()),
            Kind::Failed(failed) if failed.request == request => Err(failed),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn code(failed: &Failed) -> FailureCode {
    failed.code()
}
