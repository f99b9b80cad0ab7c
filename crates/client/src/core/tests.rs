//! Tests of the client's protocol state against a scripted executor.

use bytes::BytesMut;
use sahasra_wire::session::{Encoder, Part, frame, server_frame};

use super::*;

mod compression;
mod executor;
mod order;
mod resume;
mod window;

pub(crate) use executor::Executor;

/// A client and an executor, with the bytes between them.
struct Pair {
    core: Core,
    executor: Executor,
    down: BytesMut,
    answers: Vec<(u64, Result<Event, Failure>)>,
    encodes: bool,
}

impl Pair {
    fn new(ours: Window, theirs: Window) -> Self {
        Self::compressing(ours, theirs, Mode::Never)
    }

    fn compressing(ours: Window, theirs: Window, mode: Mode) -> Self {
        let mut pair = Self {
            core: Core::new(ours, mode, false),
            executor: Executor::new(theirs),
            down: BytesMut::new(),
            answers: Vec::new(),
            encodes: mode != Mode::Never,
        };
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        let hello = self.core.hello(false, Duration::ZERO);
        let welcome = self.executor.welcome(&hello);
        let Some(server_frame::Kind::Welcome(said)) = &welcome.kind else {
            panic!("the executor welcomes");
        };
        self.core.welcomed(welcome.received, said).unwrap();
        self.down.clear();
    }

    /// Encodes every part that becomes shorter.
    fn encode(&mut self) {
        while let Some(part) = self.core.candidate() {
            let encoded = Encoder::default().encode(&part.payload, part.width, usize::MAX);
            self.core.settle(part.sequence, encoded);
        }
    }

    /// Writes up to `at_most` bytes. All of them arrive except for the last `cut`.
    fn up(&mut self, at_most: usize, cut: usize) -> bool {
        if self.encodes {
            self.encode();
        }
        let mut pieces = VecDeque::new();
        self.core.write(&mut pieces, at_most, u64::MAX).unwrap();
        let bytes: Vec<u8> = pieces.iter().flatten().copied().collect();
        self.executor.take(&bytes[..bytes.len().saturating_sub(cut)]);
        self.executor.write(&mut self.down);
        !bytes.is_empty()
    }

    /// Lets the client process the first `bytes` bytes that the executor sent. If the connection is cut, this includes an incomplete last
    /// frame.
    fn down(&mut self, bytes: usize, cut: bool) {
        let mut read = self.down.split_to(bytes.min(self.down.len()));
        let mut rest = std::mem::take(&mut self.down);
        while let Some((message_bytes, payload_bytes)) = frame::lengths(&read).unwrap() {
            let start = frame::HEAD_BYTES + message_bytes;
            if read.len() < start || (!cut && read.len() < start + payload_bytes) {
                break;
            }
            let message: ServerFrame = prost::Message::decode(&read[frame::HEAD_BYTES..start]).unwrap();
            let there = (read.len() - start).min(payload_bytes);
            let payload = read.split_to(start + there).split_off(start);
            match self.core.take(message, payload_bytes as u64).unwrap() {
                Incoming::Nothing | Incoming::Printed(_) => {}
                Incoming::Answer(request, answer) => self.answers.push((request, answer)),
                Incoming::Fill(mut taking) => {
                    taking.buffer().extend_from_slice(&payload);
                    if there < payload_bytes {
                        self.core.interrupted(taking);
                        break;
                    }
                    if let Incoming::Answer(request, answer) = self.core.filled(taking.finish().unwrap()).unwrap() {
                        self.answers.push((request, answer));
                    }
                }
            }
        }
        read.extend_from_slice(&rest.split());
        self.down = read;
    }

    fn settle(&mut self) {
        loop {
            let wrote = self.up(usize::MAX, 0);
            let came = !self.down.is_empty();
            self.down(usize::MAX, false);
            if !wrote && !came {
                return;
            }
        }
    }
}

fn answer(sequence: u64, kind: server_frame::Kind) -> ServerFrame {
    ServerFrame {
        sequence,
        received: 0,
        kind: Some(kind),
        ..ServerFrame::default()
    }
}

fn connected() -> Core {
    let window = Window { frames: 8, bytes: 64 };
    Pair::new(window, window).core
}
