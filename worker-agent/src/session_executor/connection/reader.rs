//! What comes on a connection: frames, and parts of large tensors read straight to where they belong.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use sahasra_memory::{Filling, Region};
use sahasra_wire::session::{
    ClientFrame, Encoding, Refused, ServerFrame, client_frame,
    frame::{self, Decoder, HEAD_BYTES},
    server_frame::Kind,
};

use super::HELLO_TIME;
use crate::session_executor::hub::Hub;
use crate::session_executor::payload::Payload;

/// After the last word the client has so long to hear it and to hang up.
const LAST_WORDS_TIME: Duration = Duration::from_secs(2);
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Where frames are as large as this, no more is read at once than one of them: the next begins in memory of its own, and
/// is not copied there.
const LARGE_BYTES: usize = 128 << 10;
/// The beginning of such a frame.
const HEAD_READ_BYTES: usize = 4 << 10;
/// Space that is still worth a read.
const SMALLEST_READ: usize = 512;
/// Parts of a tensor go on together, up to so many: a fraction of what a client may send before it must hear that something
/// was taken.
const GATHERED_BYTES: usize = 4 << 20;
const GATHERED_FRAMES: usize = 64;

/// What comes on a connection, and how far it is read.
pub(super) struct Reader {
    stream: Arc<UnixStream>,
    decoder: Decoder,
    /// Frames are large now.
    is_large: bool,
    /// Memory for the rest of a tensor whose parts are coming.
    tensor: Option<Incoming>,
    /// Bytes of a part that is read there and not complete.
    rest: usize,
    /// What the engine's thread found when it read: nothing more is taken.
    end: Option<End>,
}

/// See [`Reader::end`].
enum End {
    /// What came is no frame, for this reason.
    Malformed(String),
    /// The client is to be told why already, or is another connection's.
    Over,
}

/// The client is likely to wait for the answer before it sends anything else.
fn is_question(frame: &ClientFrame) -> bool {
    use client_frame::Kind as Operation;
    matches!(
        frame.kind,
        Some(Operation::Download(_) | Operation::Synchronise(_) | Operation::Load(_))
    )
}

/// See [`Reader::tensor`].
struct Incoming {
    memory: Filling,
    /// Bytes whose parts have not begun.
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

    /// Reads until the connection is over, or lent to the engine. Gives whether it is lent.
    pub(super) fn run(&mut self, hub: &Hub, number: u64) -> io::Result<bool> {
        match self.end.take() {
            None => {}
            Some(end) => {
                if let End::Malformed(reason) = end {
                    hub.malformed(number, &reason);
                }
                self.hang_up();
                return Ok(false);
            }
        }
        let mut frames = Vec::new();
        // Bytes of the parts among them, which are all of them then.
        let mut gathered = 0;
        loop {
            loop {
                if let Some(frame) = self.part_head() {
                    // What came before need not wait for the part to be complete.
                    if gathered == 0 && !frames.is_empty() && !hub.frames(number, &mut frames, false) {
                        self.hang_up();
                        return Ok(false);
                    }
                    match self.read_part(hub)? {
                        Some(piece) => {
                            gathered += piece.len();
                            frames.push((frame, Payload::InPlace(piece)));
                        }
                        None => return Ok(false),
                    }
                    // One after the other they would wake the engine for nothing.
                    if gathered >= GATHERED_BYTES || frames.len() >= GATHERED_FRAMES || self.tensor.is_none() {
                        gathered = 0;
                        if !hub.frames(number, &mut frames, false) {
                            self.hang_up();
                            return Ok(false);
                        }
                    }
                    continue;
                }
                match self.decoder.next_frame::<ClientFrame>() {
                    Ok(Some((frame, payload))) => {
                        gathered = 0;
                        self.is_large = payload.len() >= LARGE_BYTES;
                        self.expect(&frame, payload.len(), hub.limit_bytes());
                        frames.push((frame, payload.into()));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        if frames.is_empty() || hub.frames(number, &mut frames, false) {
                            hub.malformed(number, &error.to_string());
                        }
                        self.hang_up();
                        return Ok(false);
                    }
                }
            }
            if gathered == 0 && !frames.is_empty() {
                let lends = hub.can_lend() && self.is_between() && frames.iter().any(|(frame, _)| is_question(frame));
                if !hub.frames(number, &mut frames, lends) {
                    // The client may have to be told why.
                    self.hang_up();
                    return Ok(false);
                }
                if lends {
                    return Ok(true);
                }
            }
            let read = self.fill()?;
            hub.board().received(read as u64);
            if read == 0 {
                return Ok(false);
            }
        }
    }

    /// Nothing has begun that is not complete.
    fn is_between(&mut self) -> bool {
        self.tensor.is_none() && self.decoder.buffer().is_empty()
    }

    /// Takes the frames that are there, on the engine's thread. Gives whether it may go on: the parts of a tensor and the end of a
    /// connection are for the reader's own.
    pub(super) fn read_now(&mut self, hub: &Hub, number: u64) -> bool {
        match self.fill() {
            Ok(read) if read > 0 => hub.board().received(read as u64),
            _ => return false,
        }
        let mut frames = Vec::new();
        while self.tensor.is_none() {
            match self.decoder.next_frame::<ClientFrame>() {
                Ok(Some((frame, payload))) => {
                    self.is_large = payload.len() >= LARGE_BYTES;
                    self.expect(&frame, payload.len(), hub.limit_bytes());
                    frames.push((frame, payload.into()));
                }
                Ok(None) => break,
                Err(error) => {
                    self.end = Some(End::Malformed(error.to_string()));
                    break;
                }
            }
        }
        if !frames.is_empty() && !hub.frames(number, &mut frames, false) {
            self.end = Some(End::Over);
        }
        self.end.is_none() && self.is_between()
    }

    /// The first frame; none where what comes is no frame.
    pub(super) fn hello(&mut self) -> io::Result<Option<(ClientFrame, Bytes)>> {
        let until = Instant::now() + HELLO_TIME;
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) if Instant::now() >= until => return Err(io::ErrorKind::TimedOut.into()),
                Ok(None) => {}
                Err(_) => return Ok(None),
            }
            // No hello is anywhere near as long as a frame may be.
            if self.decoder.buffer().len() > READ_BYTES {
                return Ok(None);
            }
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Sees to it that the parts of a large tensor are read into memory of its size, of which an engine can take it as it is.
    fn expect(&mut self, frame: &ClientFrame, payload_bytes: usize, limit_bytes: u64) {
        match &frame.kind {
            Some(client_frame::Kind::Upload(upload)) => {
                let is_large = upload.bytes >= LARGE_BYTES as u64 && upload.bytes <= limit_bytes;
                let missing = upload.bytes as usize;
                // Where there is no memory the parts come like other frames, and the upload fails when they are put together.
                let memory = is_large.then(|| Filling::new(missing).ok()).flatten();
                self.tensor = memory.map(|memory| Incoming { memory, missing });
            }
            // One that was read like other frames: what follows it would not lie behind it.
            Some(client_frame::Kind::Part(_)) if payload_bytes > 0 => self.tensor = None,
            _ => {}
        }
    }

    /// The message of the next frame, if it is a part whose bytes belong into [`Reader::tensor`]; its payload comes next.
    fn part_head(&mut self) -> Option<ClientFrame> {
        let missing = self.tensor.as_ref()?.missing;
        let buffer = self.decoder.buffer();
        // What is too large, or no message, the decoder refuses.
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

    /// The payload of the part whose head was read; `None` when the stream ends in it.
    fn read_part(&mut self, hub: &Hub) -> io::Result<Option<Region>> {
        let Some(tensor) = &mut self.tensor else {
            return Ok(None);
        };
        while self.rest > 0 {
            // There is room for the whole tensor: as much as is missing, and no more is taken from what follows.
            let spare = &mut tensor.memory.spare()[..self.rest];
            let read = match rustix::io::read(&self.stream, spare) {
                Ok((read, _)) => read.len(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if read == 0 {
                return Ok(None);
            }
            // SAFETY: the kernel has just written so many bytes there.
            unsafe { tensor.memory.advance(read) };
            hub.board().received(read as u64);
            self.rest -= read;
        }
        let piece = tensor.memory.split();
        if tensor.missing == 0 {
            self.tensor = None;
        }
        self.is_large = true;
        Ok(Some(piece))
    }

    /// Bytes of the frame that has begun that are not there yet, or of the head.
    fn missing(&mut self) -> usize {
        let buffer = self.decoder.buffer();
        let Some([a, b, c, d, e, f, g, h]) = buffer.first_chunk::<HEAD_BYTES>() else {
            return HEAD_READ_BYTES;
        };
        // Checked by the decoder, which has refused what is too large.
        let message = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let payload = u32::from_le_bytes([*e, *f, *g, *h]) as usize;
        (HEAD_BYTES + message + payload).saturating_sub(buffer.len())
    }

    /// Reads what is there into the decoder's own memory.
    fn fill(&mut self) -> io::Result<usize> {
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
        loop {
            match rustix::io::read(&self.stream, &mut spare[..most]) {
                Ok((read, _)) => {
                    let read = read.len();
                    // SAFETY: the kernel has just written so many bytes behind the length, within the capacity.
                    unsafe { buffer.set_len(length + read) };
                    return Ok(read);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn tell(&mut self, message: &ServerFrame) -> io::Result<()> {
        let mut bytes = BytesMut::new();
        frame::encode(message, 0, &mut bytes).map_err(io::Error::other)?;
        (&*self.stream).write_all(&bytes)
    }

    pub(super) fn refuse(&mut self, refused: Refused) -> io::Result<()> {
        self.tell(&ServerFrame {
            sequence: 0,
            received: 0,
            kind: Some(Kind::Refused(refused)),
            ..ServerFrame::default()
        })?;
        self.stream.shutdown(Shutdown::Write)?;
        self.hang_up();
        Ok(())
    }

    /// Reads what the other end still sends, for a while: a socket that is closed with bytes unread takes back what was written.
    fn hang_up(&mut self) {
        let until = Instant::now() + LAST_WORDS_TIME;
        let _ = self.stream.set_read_timeout(Some(LAST_WORDS_TIME));
        let mut nothing = [0; 16 << 10];
        while Instant::now() < until && (&*self.stream).read(&mut nothing).is_ok_and(|read| read > 0) {}
    }
}
