//! State machine of the client's half of the session stream, without input or output of its own: operations go in and frames come out,
//! frames go in and answers come out. Connections, timeouts and waiting are up to its callers.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use sahasra_memory::{Filling, Region};
use sahasra_wire::cuda::{Loaded, Printed, Waited};
use sahasra_wire::milliseconds;
use sahasra_wire::session::{
    ClientFrame, Compiled, Delete, Hello, LARGEST_WINDOW_BYTES, LARGEST_WINDOW_FRAMES, ServerFrame, Stats, VERSION, Welcome, client_frame,
    compression::Mode, encodings, server_frame,
};

use crate::{Error, Failure};

mod arriving;
mod leaving;
#[cfg(test)]
pub(crate) mod tests;

use arriving::Arriving;
pub(crate) use arriving::Taking;

/// Maximum number of tensors or programs in one `Delete`, which keeps the message far below its size limit.
const DELETED_AT_ONCE: usize = 16_384;

/// Limits of what may be outstanding in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub frames: u32,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Compiled,
    /// [`Event::Array`], with its size in bytes if known.
    Array(Option<u64>),
    Done,
    Stats,
    Loaded,
    Waited,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Compiled(Compiled),
    Array(Array),
    /// Answer to a `Synchronise` or a `Close`.
    Done,
    Stats(Stats),
    Loaded(Loaded),
    Waited(Waited),
}

/// An array in host memory: dense, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Element type in XLA's notation.
    pub element_type: String,
    /// Number of elements along each dimension, outermost first; empty for a scalar.
    pub dimensions: Vec<i64>,
    /// The array's bytes, in memory that is reused after its last owner has dropped it.
    pub data: Region,
}

/// Next step of the caller after [`Core::take`] or [`Core::filled`].
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming {
    /// No answer. The caller reads and discards the frame's payload, if there is one.
    Nothing,
    /// Read the payload into this part's buffer. Then pass the result of [`Taking::finish`] to [`Core::filled`], or the part itself to
    /// [`Core::interrupted`] if the connection broke.
    Fill(Taking),
    /// Keep the text that kernels printed.
    Printed(Printed),
    /// Deliver the answer to the request with this number.
    Answer(u64, Result<Event, Failure>),
}

#[derive(Debug)]
struct Operation {
    message: ClientFrame,
    payload: Bytes,
    /// Size of the decoded payload in bytes, which counts in the window.
    bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Core {
    ours: Window,
    theirs: Window,
    resume: Bytes,
    names: u64,
    requests: u64,
    sequence: u64,
    /// Operations that the executor has not processed; the first `sent` of them have been sent.
    operations: VecDeque<Operation>,
    /// Sequence numbers of the operations that may be compressed.
    candidates: VecDeque<u64>,
    mode: Mode,
    /// Whether the client asks for shared memory.
    shares_memory: bool,
    /// Decoding rate reported by the executor, in decoded bytes per second; 0 if it has decoded nothing.
    decodes: u64,
    sent: usize,
    sent_bytes: u64,
    queued_bytes: u64,
    received: u64,
    /// Frames and bytes within `received` that the client has not confirmed to the executor yet.
    unconfirmed: (u32, u64),
    wanted: HashMap<u64, Wanted>,
    arriving: Option<Arriving>,
    deleted: Delete,
}

impl Core {
    /// Creates a client with the receive window `ours`, reduced to the largest window that the protocol allows. `mode` says when it
    /// compresses: with [`Mode::Never`], downloads are not compressed either.
    pub(crate) fn new(ours: Window, mode: Mode, shares_memory: bool) -> Self {
        Self {
            ours: Window {
                frames: ours.frames.min(LARGEST_WINDOW_FRAMES),
                bytes: ours.bytes.min(LARGEST_WINDOW_BYTES),
            },
            mode,
            shares_memory,
            ..Self::default()
        }
    }

    pub(crate) fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    /// Returns a new number for a request, and expects the answer `wanted` for it.
    pub(crate) fn request(&mut self, wanted: Wanted) -> u64 {
        self.requests += 1;
        self.wanted.insert(self.requests, wanted);
        self.requests
    }

    /// Adds an operation to the queue, after the pending deletions.
    pub(crate) fn submit(&mut self, kind: client_frame::Kind, payload: Bytes) {
        self.flush_deleted();
        self.push(kind, payload);
    }

    fn push(&mut self, kind: client_frame::Kind, payload: Bytes) {
        self.sequence += 1;
        let bytes = payload.len() as u64;
        self.queued_bytes += bytes;
        if matches!(kind, client_frame::Kind::Part(_)) && self.mode != Mode::Never {
            self.candidates.push_back(self.sequence);
        }
        let message = ClientFrame {
            sequence: self.sequence,
            kind: Some(kind),
            ..ClientFrame::default()
        };
        self.operations.push_back(Operation { message, payload, bytes });
    }

    /// Deletes a tensor. The deletion is sent before the next operation, or the next time that anything is written.
    pub(crate) fn delete_tensor(&mut self, name: u64) {
        self.deleted.tensors.push(name);
    }

    /// Deletes a program. The deletion is sent like that of a tensor, see [`Self::delete_tensor`].
    pub(crate) fn delete_program(&mut self, name: u64) {
        self.deleted.programs.push(name);
    }

    fn flush_deleted(&mut self) {
        while !(self.deleted.tensors.is_empty() && self.deleted.programs.is_empty()) {
            let mut now = Delete::default();
            let tensors = self.deleted.tensors.len().min(DELETED_AT_ONCE);
            now.tensors.extend(self.deleted.tensors.drain(..tensors));
            let programs = self.deleted.programs.len().min(DELETED_AT_ONCE);
            now.programs.extend(self.deleted.programs.drain(..programs));
            self.push(client_frame::Kind::Delete(now), Bytes::new());
        }
    }

    /// Drops all operations, which nothing sends after the end of a session.
    pub(crate) fn abandon(&mut self) {
        self.operations.clear();
        self.candidates.clear();
        (self.sent, self.sent_bytes, self.queued_bytes) = (0, 0, 0);
    }

    /// Returns the number of operations, and the bytes of their payloads, that the executor has not processed.
    pub(crate) fn queued(&self) -> (usize, u64) {
        (self.operations.len(), self.queued_bytes)
    }

    /// Returns whether only deletions wait to be sent. They may wait for other operations.
    pub(crate) fn has_only_deleted(&self) -> bool {
        self.sent == self.operations.len() && !self.must_tell() && !(self.deleted.tensors.is_empty() && self.deleted.programs.is_empty())
    }

    pub(crate) fn has_connected(&self) -> bool {
        !self.resume.is_empty()
    }

    /// Returns the secret with which this client resumes; empty before the first connection.
    pub(crate) fn secret(&self) -> Bytes {
        self.resume.clone()
    }

    /// Returns the first frame of a connection. A grace period of zero selects the executor's default.
    pub(crate) fn hello(&self, replace: bool, grace: Duration) -> ClientFrame {
        let hello = Hello {
            lowest_version: VERSION,
            highest_version: VERSION,
            resume: self.resume.clone(),
            replace,
            grace_milliseconds: milliseconds(grace),
            window_frames: self.ours.frames,
            window_bytes: self.ours.bytes,
            client: concat!("sahasra-client ", env!("CARGO_PKG_VERSION")).to_owned(),
            encodings: if self.mode == Mode::Never { Vec::new() } else { encodings() },
            spares_bytes: self.mode == Mode::Always,
            shares_memory: self.shares_memory,
        };
        ClientFrame {
            sequence: 0,
            received: self.received,
            kind: Some(client_frame::Kind::Hello(hello)),
            ..ClientFrame::default()
        }
    }

    /// Processes the executor's answer to [`Self::hello`]. `received` comes from the answer's frame. All operations that the executor has
    /// not processed will be sent again. Fails for an unsupported version, an unexpected start of a new client, a missing secret or an invalid
    /// `received`.
    pub(crate) fn welcomed(&mut self, received: u64, welcome: &Welcome) -> Result<(), Error> {
        if welcome.version != VERSION {
            return Err(Error::protocol(format!(
                "unsupported protocol version {} of the session",
                welcome.version
            )));
        }
        if welcome.resumed != self.has_connected() {
            return Err(Error::protocol("the session did not resume after the lost connection"));
        }
        if welcome.resume.is_empty() {
            return Err(Error::protocol("the session sent no resume secret"));
        }
        self.resume = welcome.resume.clone();
        self.theirs = Window {
            frames: welcome.window_frames,
            bytes: welcome.window_bytes,
        };
        self.taken(received)?;
        // All operations that were sent and did not arrive are sent again.
        self.sent = 0;
        self.sent_bytes = 0;
        self.unconfirmed = (0, 0);
        Ok(())
    }

    fn taken(&mut self, received: u64) -> Result<(), Error> {
        if received > self.sequence {
            return Err(Error::protocol(format!("operation {received} was acknowledged before it was sent")));
        }
        while let Some(first) = self.operations.front()
            && first.message.sequence <= received
        {
            let bytes = first.bytes;
            if self.sent > 0 {
                self.sent -= 1;
                self.sent_bytes -= bytes;
            }
            self.queued_bytes -= bytes;
            self.operations.pop_front();
        }
        Ok(())
    }

    pub(crate) fn decodes(&self) -> u64 {
        self.decodes
    }

    /// Returns whether the executor must be sent a new `received`: a quarter of the window has arrived since the last one.
    pub(crate) fn must_tell(&self) -> bool {
        let (frames, bytes) = self.unconfirmed;
        frames > 0 && (frames >= self.ours.frames / 4 || bytes >= self.ours.bytes / 4)
    }

    /// Processes a frame whose payload of `payload_bytes` bytes has not been read yet. Fails with [`Error::Failed`] if the executor ends the
    /// session.
    pub(crate) fn take(&mut self, frame: ServerFrame, payload_bytes: u64) -> Result<Incoming, Error> {
        let message_bytes = frame.encoded_len() as u64;
        self.taken(frame.received)?;
        if frame.decoding_rate > 0 {
            self.decodes = frame.decoding_rate;
        }
        let Some(kind) = frame.kind else {
            return Ok(Incoming::Nothing);
        };
        // The failure that ends the session is no answer. It can arrive at any place, also between the parts of a tensor.
        if let server_frame::Kind::Failed(failed) = &kind
            && failed.request == 0
        {
            return Err(Error::Failed(failed.clone().into()));
        }
        if frame.sequence == 0 {
            return Err(Error::protocol("response without a number"));
        }
        if frame.sequence <= self.received {
            return Ok(Incoming::Nothing);
        }
        if frame.sequence != self.received + 1 {
            return Err(Error::protocol(format!(
                "response {} follows response {}",
                frame.sequence, self.received
            )));
        }
        if let server_frame::Kind::Part(part) = kind {
            return self.part(frame.sequence, part, message_bytes, payload_bytes);
        }
        if payload_bytes > 0 {
            return Err(Error::protocol("unexpected payload in a response"));
        }
        if self.arriving.is_some() {
            return Err(Error::protocol("response in the middle of a tensor"));
        }
        let answer = match kind {
            server_frame::Kind::Compiled(compiled) => self.answer(compiled.request, Wanted::Compiled, Event::Compiled(compiled))?,
            server_frame::Kind::Done(done) => self.answer(done.request, Wanted::Done, Event::Done)?,
            server_frame::Kind::Stats(stats) => self.answer(stats.request, Wanted::Stats, Event::Stats(stats))?,
            server_frame::Kind::CudaLoaded(loaded) => self.answer(loaded.request, Wanted::Loaded, Event::Loaded(loaded))?,
            server_frame::Kind::CudaWaited(waited) => self.answer(waited.request, Wanted::Waited, Event::Waited(waited))?,
            server_frame::Kind::CudaPrinted(printed) => Incoming::Printed(printed),
            server_frame::Kind::Failed(failed) => {
                self.wanted(failed.request, |_| true)?;
                Incoming::Answer(failed.request, Err(failed.into()))
            }
            server_frame::Kind::Tensor(tensor) => {
                let bytes = tensor.bytes;
                self.wanted(
                    tensor.request,
                    |wanted| matches!(wanted, Wanted::Array(expected) if expected.is_none_or(|expected| expected == bytes)),
                )?;
                let memory = Filling::new(usize::try_from(bytes).unwrap_or(usize::MAX));
                let memory = memory.map_err(|error| Error::protocol(format!("failed to receive a tensor: {error}")))?;
                let array = Array {
                    element_type: tensor.element_type,
                    dimensions: tensor.dimensions,
                    data: Region::empty(),
                };
                if bytes == 0 {
                    Incoming::Answer(tensor.request, Ok(Event::Array(array)))
                } else {
                    self.arriving = Some(Arriving {
                        request: tensor.request,
                        array,
                        memory: Some(memory),
                        bytes,
                        filled: 0,
                        part: None,
                    });
                    Incoming::Nothing
                }
            }
            server_frame::Kind::Welcome(_) | server_frame::Kind::Refused(_) | server_frame::Kind::Attached(_) => {
                return Err(Error::protocol("duplicate greeting of the session"));
            }
            // [`Core::part`] handles parts before this `match`.
            server_frame::Kind::Part(_) => return Err(Error::protocol("part without a tensor")),
        };
        self.count(frame.sequence, message_bytes);
        Ok(answer)
    }

    fn answer(&mut self, request: u64, kind: Wanted, event: Event) -> Result<Incoming, Error> {
        self.wanted(request, |wanted| wanted == kind)?;
        Ok(Incoming::Answer(request, Ok(event)))
    }

    fn wanted(&mut self, request: u64, fits: impl Fn(Wanted) -> bool) -> Result<(), Error> {
        match self.wanted.remove(&request) {
            Some(wanted) if fits(wanted) => Ok(()),
            Some(_) => Err(Error::protocol(format!(
                "unexpected kind or size of the response to request {request}"
            ))),
            None => Err(Error::protocol(format!("response to unknown request {request}"))),
        }
    }

    fn count(&mut self, sequence: u64, bytes: u64) {
        self.received = sequence;
        self.unconfirmed.0 += 1;
        self.unconfirmed.1 += bytes;
    }
}
