//! Reader of a connection: receives frames, and reads the parts of large tensors directly into their final memory.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use rustix::io::retry_on_intr;
use rustix::net::RecvFlags;
use sahasra_memory::{Filling, Region};
use sahasra_wire::session::{
    ClientFrame, Encoding, Refused, ServerFrame, client_frame,
    frame::{self, Decoder, HEAD_BYTES},
    server_frame::Kind,
};

use crate::session::hub::Hub;
use crate::session::payload::Payload;

/// Time that the client has to read the final message and close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 64 << 10;
/// Size in bytes from which frames count as large. While frames are large, a read ends with the current frame, so that the next frame
/// starts in memory of its own and need not be copied there.
const LARGE_BYTES: usize = 128 << 10;
/// Number of bytes to read for the start of a large frame.
const HEAD_READ_BYTES: usize = 4 << 10;
/// Smallest free space in the buffer that is worth a read, in bytes.
const SMALLEST_READ: usize = 512;
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit in bytes for passing several parts of a tensor to the hub at once. It is a fraction of the window, so that the client learns in
/// time that parts were taken.
const GATHERED_BYTES: usize = 4 << 20;
const GATHERED_FRAMES: usize = 64;

/// Receiving half of a connection, with its read position in the stream.
pub(super) struct Reader {
    stream: Arc<UnixStream>,
    decoder: Decoder,
    /// Whether the latest frame was large.
    is_large: bool,
    /// Memory for the rest of a tensor whose parts are being received.
    tensor: Option<Incoming>,
    /// Bytes of the current part that have not been received.
    rest: usize,
    /// Set if the engine's thread found the end of the stream: no more frames are accepted.
    end: Option<End>,
}

/// Reason for the end of a stream, for [`Reader::end`].
enum End {
    Malformed(String),
    /// The stream is over for a reason that the hub knows, or the client uses another connection.
    Over,
}

/// Why [`Reader::run`] no longer reads.
enum Stop {
    /// The engine's thread reads the connection.
    Delegated,
    /// The client has closed the connection.
    Closed,
    /// The hub accepts no more frames of this connection.
    HangUp,
}

/// Whether the client is likely to wait for the answer to `frame` before it sends anything else.
fn is_question(frame: &ClientFrame) -> bool {
    use client_frame::Kind as Operation;
    matches!(
        frame.kind,
        Some(
            Operation::Download(_)
                | Operation::Synchronise(_)
                | Operation::Load(_)
                | Operation::CudaRead(_)
                | Operation::CudaLoad(_)
                | Operation::CudaWait(_)
        )
    )
}

/// Reads available bytes to the start of `into`, and returns their number.
fn read(stream: &UnixStream, into: &mut [MaybeUninit<u8>], flags: RecvFlags) -> io::Result<usize> {
    let read = retry_on_intr(|| rustix::net::recv(stream, &mut *into, flags).map(|(_, read)| read));
    Ok(read?)
}

/// Tensor whose parts are being received, for [`Reader::tensor`].
struct Incoming {
    memory: Filling,
    /// Bytes of the tensor whose parts have not begun.
    missing: usize,
}

impl Reader {
    pub(super) fn new(stream: Arc<UnixStream>, already_read: &[u8]) -> Self {
        let mut decoder = Decoder::default();
        decoder.buffer().extend_from_slice(already_read);
        Self {
            stream,
            decoder,
            is_large: false,
            tensor: None,
            rest: 0,
            end: None,
        }
    }

    /// Reads until the connection ends or is delegated to the engine's thread. Returns whether it is delegated.
    pub(super) fn run(&mut self, hub: &Hub, number: u64) -> io::Result<bool> {
        let stop = match self.end.take() {
            Some(End::Malformed(reason)) => {
                hub.malformed(number, &reason);
                Stop::HangUp
            }
            Some(End::Over) => Stop::HangUp,
            None => self.receive(hub, number)?,
        };
        if matches!(stop, Stop::HangUp) {
            // The writer may still have to send the reason.
            self.hang_up();
        }
        Ok(matches!(stop, Stop::Delegated))
    }

    fn receive(&mut self, hub: &Hub, number: u64) -> io::Result<Stop> {
        let mut frames = Vec::new();
        // Bytes of the parts in `frames`. If not 0, `frames` contains only parts.
        let mut gathered = 0;
        loop {
            loop {
                if let Some(frame) = self.part_head() {
                    // Earlier frames need not wait until the part is complete.
                    if gathered == 0 && !frames.is_empty() && !hub.frames(number, &mut frames, false) {
                        return Ok(Stop::HangUp);
                    }
                    let Some(piece) = self.read_part(hub)? else {
                        return Ok(Stop::Closed);
                    };
                    gathered += piece.len();
                    frames.push((frame, Payload::InPlace(piece)));
                    // Pass several parts at once: one by one they would wake the engine to no purpose.
                    if gathered >= GATHERED_BYTES || frames.len() >= GATHERED_FRAMES || self.tensor.is_none() {
                        gathered = 0;
                        if !hub.frames(number, &mut frames, false) {
                            return Ok(Stop::HangUp);
                        }
                    }
                    continue;
                }
                match self.next_frame(hub) {
                    Ok(Some(frame)) => {
                        gathered = 0;
                        frames.push(frame);
                    }
                    Ok(None) => break,
                    Err(reason) => {
                        if frames.is_empty() || hub.frames(number, &mut frames, false) {
                            hub.malformed(number, &reason);
                        }
                        return Ok(Stop::HangUp);
                    }
                }
            }
            if gathered == 0 && !frames.is_empty() {
                let delegates = hub.can_delegate() && self.is_between() && frames.iter().any(|(frame, _)| is_question(frame));
                if !hub.frames(number, &mut frames, delegates) {
                    return Ok(Stop::HangUp);
                }
                if delegates {
                    return Ok(Stop::Delegated);
                }
            }
            let read = self.fill(RecvFlags::empty())?;
            hub.status_page.received(read as u64);
            if read == 0 {
                return Ok(Stop::Closed);
            }
        }
    }

    /// Decodes the next frame, if it is complete, and prepares for the parts that follow it.
    ///
    /// # Errors
    /// The reason why the stream is malformed.
    fn next_frame(&mut self, hub: &Hub) -> Result<Option<(ClientFrame, Payload)>, String> {
        let Some((frame, payload)) = self.decoder.next_frame::<ClientFrame>().map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        self.is_large = payload.len() >= LARGE_BYTES;
        self.expect(&frame, payload.len(), hub.limit_bytes);
        Ok(Some((frame, payload.into())))
    }

    /// Whether the read position is between two frames and not inside a tensor.
    fn is_between(&mut self) -> bool {
        self.tensor.is_none() && self.decoder.buffer().is_empty()
    }

    /// Receives available bytes without waiting, on the engine's thread, and returns their number; 0 at the end of the connection.
    pub(super) fn receive_now(&mut self, hub: &Hub) -> io::Result<usize> {
        let read = self.fill(RecvFlags::DONTWAIT)?;
        hub.status_page.received(read as u64);
        Ok(read)
    }

    /// Processes the frames received, on the engine's thread. Returns whether it may continue to receive: the parts of a tensor and the end
    /// of a connection are handled by the reader's own thread.
    pub(super) fn process_now(&mut self, hub: &Hub, number: u64) -> bool {
        let mut frames = Vec::new();
        while self.tensor.is_none() {
            match self.next_frame(hub) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(reason) => {
                    self.end = Some(End::Malformed(reason));
                    break;
                }
            }
        }
        if !frames.is_empty() && !hub.frames(number, &mut frames, false) {
            self.end = Some(End::Over);
        }
        self.end.is_none() && self.is_between()
    }

    /// Reads the first frame. Returns `None` if the data is not a frame.
    pub(super) fn hello(&mut self) -> io::Result<Option<(ClientFrame, Bytes)>> {
        let until = Instant::now() + HELLO_TIMEOUT;
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) if Instant::now() >= until => return Err(io::ErrorKind::TimedOut.into()),
                Ok(None) => {}
                Err(_) => return Ok(None),
            }
            // No `Hello` is nearly as long as the maximum of a frame.
            if self.decoder.buffer().len() > READ_BYTES {
                return Ok(None);
            }
            if self.fill(RecvFlags::empty())? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Prepares memory for a large tensor when its upload begins, so that the parts are read directly into it and the engine can use it
    /// without a copy.
    fn expect(&mut self, frame: &ClientFrame, payload_bytes: usize, limit_bytes: u64) {
        match &frame.kind {
            Some(client_frame::Kind::Upload(upload)) => {
                let is_large = upload.bytes >= LARGE_BYTES as u64 && upload.bytes <= limit_bytes;
                let missing = upload.bytes as usize;
                // If the allocation fails, the parts are received like other frames, and the upload fails when they are assembled.
                let memory = is_large.then(|| Filling::new(missing).ok()).flatten();
                self.tensor = memory.map(|memory| Incoming { memory, missing });
            }
            // This part was received like other frames, so the following parts would not be contiguous with it.
            Some(client_frame::Kind::Part(_)) if payload_bytes > 0 => self.tensor = None,
            _ => {}
        }
    }

    /// Decodes the message of the next frame if the frame is a part whose payload belongs into [`Reader::tensor`]. The payload follows.
    fn part_head(&mut self) -> Option<ClientFrame> {
        let missing = self.tensor.as_ref()?.missing;
        let buffer = self.decoder.buffer();
        // The decoder rejects frames that are too large or have no valid message.
        let (message, payload) = frame::lengths(buffer).ok()??;
        if !(1..=missing).contains(&payload) {
            return None;
        }
        let frame = ClientFrame::decode(buffer.get(HEAD_BYTES..HEAD_BYTES + message)?).ok()?;
        let is_part = matches!(&frame.kind, Some(client_frame::Kind::Part(part)) if part.encoding == i32::from(Encoding::Raw));
        if !is_part || frame.sequence == 0 {
            return None;
        }
        if let Some(tensor) = &mut self.tensor {
            buffer.advance(HEAD_BYTES + message);
            let there = payload.min(buffer.len());
            tensor.memory.extend_from_slice(&buffer[..there]);
            buffer.advance(there);
            tensor.missing -= payload;
            self.rest = payload - there;
        }
        Some(frame)
    }

    /// Reads the payload of the part whose message was decoded. Returns `None` if the stream ends before the payload is complete.
    fn read_part(&mut self, hub: &Hub) -> io::Result<Option<Region>> {
        let Some(tensor) = &mut self.tensor else {
            return Ok(None);
        };
        while self.rest > 0 {
            // The memory has room for the whole tensor. Read at most the rest of this part, to leave the next frame in the socket.
            let spare = &mut tensor.memory.spare()[..self.rest];
            let read = read(&self.stream, spare, RecvFlags::empty())?;
            if read == 0 {
                return Ok(None);
            }
            // SAFETY: the kernel has just written `read` bytes into the spare memory.
            unsafe { tensor.memory.advance(read) };
            hub.status_page.received(read as u64);
            self.rest -= read;
        }
        let piece = tensor.memory.split();
        if tensor.missing == 0 {
            self.tensor = None;
        }
        self.is_large = true;
        Ok(Some(piece))
    }

    /// Number of bytes to read until the current frame, or the head of the next one, is complete.
    fn missing(&mut self) -> usize {
        let buffer = self.decoder.buffer();
        // The decoder has rejected frames that are too large.
        let Ok(Some((message, payload))) = frame::lengths(buffer) else {
            return HEAD_READ_BYTES;
        };
        (HEAD_BYTES + message + payload).saturating_sub(buffer.len())
    }

    /// Reads available bytes into the decoder's buffer.
    fn fill(&mut self, flags: RecvFlags) -> io::Result<usize> {
        let missing = self.missing();
        let is_large = self.is_large || missing >= LARGE_BYTES;
        let buffer = self.decoder.buffer();
        let spare = buffer.capacity() - buffer.len();
        if spare == 0 || (buffer.is_empty() && spare < SMALLEST_READ) {
            buffer.reserve(if is_large { HEAD_READ_BYTES } else { READ_BYTES });
        }
        let length = buffer.len();
        let spare = buffer.spare_capacity_mut();
        let most = if is_large { missing.max(1).min(spare.len()) } else { spare.len() };
        let read = read(&self.stream, &mut spare[..most], flags)?;
        // SAFETY: the kernel has just written `read` bytes after the length, within the capacity.
        unsafe { buffer.set_len(length + read) };
        Ok(read)
    }

    pub(super) fn send(&mut self, message: &ServerFrame) -> io::Result<()> {
        let mut bytes = BytesMut::new();
        frame::encode(message, 0, &mut bytes).map_err(io::Error::other)?;
        (&*self.stream).write_all(&bytes)
    }

    pub(super) fn reject(&mut self, refused: Refused) -> io::Result<()> {
        self.send(&ServerFrame {
            kind: Some(Kind::Refused(refused)),
            ..ServerFrame::default()
        })?;
        self.stream.shutdown(Shutdown::Write)?;
        self.hang_up();
        Ok(())
    }

    /// Reads and discards what the client still sends, for a limited time: closing a socket with unread bytes would discard the final
    /// message.
    fn hang_up(&mut self) {
        let until = Instant::now() + CLOSE_TIMEOUT;
        let _ = self.stream.set_read_timeout(Some(CLOSE_TIMEOUT));
        let mut nothing = [0; 16 << 10];
        while Instant::now() < until && (&*self.stream).read(&mut nothing).is_ok_and(|read| read > 0) {}
    }
}
