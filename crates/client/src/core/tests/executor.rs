//! Scripted executor for tests.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use sahasra_wire::session::{
    ClientFrame, Done, Encoder, Part, ServerFrame, Synchronise, Tensor, VERSION, Welcome, client_frame::Kind, encodings, frame,
    frame::Decoder, server_frame,
};

use crate::core::Window;

const SECRET: &[u8] = b"secret";
/// Size of a part of a download in bytes.
const PART: usize = 40;

/// Counts operations, keeps tensors, and answers. An execution adds the bytes of its arguments, element by element.
pub(crate) struct Executor {
    window: Window,
    clients: Window,
    begun: bool,
    taken: u64,
    pub(crate) done: Vec<String>,
    pub(crate) tensors: BTreeMap<u64, Vec<u8>>,
    uploading: Option<(u64, usize)>,
    /// Answers that the client has not received. The first `sent` of them have been sent.
    answers: VecDeque<(ServerFrame, Bytes)>,
    sent: usize,
    answered: u64,
    received: u64,
    decoder: Decoder,
    /// Frames and bytes that arrived since the last confirmation to the client.
    unconfirmed: (u32, u64),
    /// Whether the client accepts encoded parts, and whether the next part is encoded. Every other part is, so that a repeated transmission
    /// may differ.
    encodes: bool,
    is_next_encoded: bool,
    /// Number of parts that arrived encoded and that were sent encoded.
    pub(crate) encoded: (u32, u32),
    /// Decoding rate that the executor's frames report.
    pub(crate) decoding_rate: u64,
}

impl Executor {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            window,
            clients: Window { frames: 0, bytes: 0 },
            begun: false,
            taken: 0,
            done: Vec::new(),
            tensors: BTreeMap::new(),
            uploading: None,
            answers: VecDeque::new(),
            sent: 0,
            answered: 0,
            received: 0,
            decoder: Decoder::default(),
            unconfirmed: (0, 0),
            encodes: false,
            is_next_encoded: false,
            encoded: (0, 0),
            decoding_rate: 0,
        }
    }

    pub(crate) fn welcome(&mut self, hello: &ClientFrame) -> ServerFrame {
        let Some(Kind::Hello(said)) = &hello.kind else {
            panic!("a connection begins with Hello");
        };
        assert_eq!(said.resume.is_empty(), !self.begun);
        self.clients = Window {
            frames: said.window_frames,
            bytes: said.window_bytes,
        };
        self.encodes = !said.encodings.is_empty();
        let resumed = self.begun;
        self.begun = true;
        self.receive(hello.received);
        self.sent = 0;
        self.decoder = Decoder::default();
        self.unconfirmed = (0, 0);
        let welcome = Welcome {
            version: VERSION,
            resume: Bytes::from_static(SECRET),
            resumed,
            window_frames: self.window.frames,
            window_bytes: self.window.bytes,
            encodings: encodings(),
            ..Welcome::default()
        };
        ServerFrame {
            sequence: 0,
            received: self.taken,
            kind: Some(server_frame::Kind::Welcome(welcome)),
            ..ServerFrame::default()
        }
    }

    fn receive(&mut self, received: u64) {
        assert!(received <= self.answered);
        self.received = self.received.max(received);
        while self.answers.front().is_some_and(|(frame, _)| frame.sequence <= self.received) {
            self.answers.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.decoder.buffer().extend_from_slice(bytes);
        while let Some((frame, payload)) = self.decoder.next_frame::<ClientFrame>().unwrap() {
            self.receive(frame.received);
            let Some(kind) = frame.kind else {
                continue;
            };
            let little = self.unconfirmed.0 <= self.window.frames / 4 && self.unconfirmed.1 <= self.window.bytes / 4;
            self.unconfirmed.0 += 1;
            self.unconfirmed.1 += match &kind {
                Kind::Part(part) => part.bytes(payload.len()).unwrap() as u64,
                _ => payload.len() as u64,
            };
            let within = self.unconfirmed.0 <= self.window.frames && self.unconfirmed.1 <= self.window.bytes;
            assert!(within || little, "more than the window is on its way: {:?}", self.unconfirmed);
            if frame.sequence <= self.taken {
                continue;
            }
            assert_eq!(frame.sequence, self.taken + 1, "operations come in order");
            self.taken = frame.sequence;
            self.apply(kind, &payload);
        }
    }

    fn apply(&mut self, kind: Kind, payload: &[u8]) {
        match kind {
            Kind::Upload(upload) => {
                self.tensors.insert(upload.tensor, Vec::new());
                self.uploading = (upload.bytes > 0).then_some((upload.tensor, upload.bytes as usize));
                self.done.push(format!("upload {} {}", upload.tensor, upload.bytes));
            }
            Kind::Part(part) => {
                let (name, bytes) = self.uploading.expect("a part belongs to an upload");
                let tensor = self.tensors.get_mut(&name).unwrap();
                let there = tensor.len();
                tensor.resize(there + part.bytes(payload.len()).unwrap(), 0);
                part.decode(payload, &mut tensor[there..]).unwrap();
                self.encoded.0 += u32::from(part.encoding != 0);
                self.uploading = (tensor.len() < bytes).then_some((name, bytes));
            }
            Kind::Execute(execute) => {
                let mut result = Vec::new();
                for name in &execute.arguments {
                    for (place, byte) in self.tensors[name].iter().enumerate() {
                        if place == result.len() {
                            result.push(0u8);
                        }
                        result[place] = result[place].wrapping_add(*byte);
                    }
                }
                self.done.push(format!("execute {:?} {:?}", execute.arguments, execute.outputs));
                self.tensors.insert(execute.outputs[0], result);
            }
            Kind::Download(download) => {
                let data = self.tensors[&download.tensor].clone();
                let tensor = Tensor {
                    request: download.request,
                    element_type: "u8".to_owned(),
                    dimensions: vec![data.len() as i64],
                    bytes: data.len() as u64,
                };
                self.answer(server_frame::Kind::Tensor(tensor), Bytes::new());
                for part in data.chunks(PART) {
                    self.answer(server_frame::Kind::Part(Part::raw(part.len(), 1)), Bytes::copy_from_slice(part));
                }
            }
            Kind::Delete(delete) => {
                for name in &delete.tensors {
                    self.tensors.remove(name).expect("it was there, and is deleted once");
                }
                self.done.push(format!("delete {:?}", delete.tensors));
            }
            Kind::Compile(compile) => self.done.push(format!("compile {} {}", compile.name, payload.len())),
            Kind::Close(close) => {
                self.tensors.clear();
                self.answer(server_frame::Kind::Done(Done { request: close.request }), Bytes::new());
            }
            Kind::Synchronise(Synchronise { request, .. }) => self.answer(server_frame::Kind::Done(Done { request }), Bytes::new()),
            other => panic!("{other:?} is in no script"),
        }
    }

    fn answer(&mut self, kind: server_frame::Kind, payload: Bytes) {
        self.answered += 1;
        let frame = ServerFrame {
            sequence: self.answered,
            received: 0,
            kind: Some(kind),
            ..ServerFrame::default()
        };
        self.answers.push_back((frame, payload));
    }

    pub(crate) fn write(&mut self, into: &mut BytesMut) {
        while let Some((frame, payload)) = self.answers.get_mut(self.sent) {
            if self.sent > 0 && self.sent >= self.clients.frames as usize {
                break;
            }
            frame.received = self.taken;
            frame.decoding_rate = self.decoding_rate;
            let (mut frame, mut payload) = (frame.clone(), payload.clone());
            if matches!(frame.kind, Some(server_frame::Kind::Part(_))) && self.encodes {
                self.is_next_encoded ^= true;
                if self.is_next_encoded
                    && let Some((part, encoded)) = Encoder::default().encode(&payload, 1, usize::MAX)
                {
                    frame.kind = Some(server_frame::Kind::Part(part));
                    payload = encoded;
                    self.encoded.1 += 1;
                }
            }
            frame::encode(&frame, payload.len(), into).unwrap();
            into.extend_from_slice(&payload);
            self.sent += 1;
            self.unconfirmed = (0, 0);
        }
        if self.unconfirmed.0 > 0 && (self.unconfirmed.0 >= self.window.frames / 4 || self.unconfirmed.1 >= self.window.bytes / 4) {
            let frame = ServerFrame {
                sequence: 0,
                received: self.taken,
                kind: None,
                ..ServerFrame::default()
            };
            frame::encode(&frame, 0, into).unwrap();
            self.unconfirmed = (0, 0);
        }
    }
}
