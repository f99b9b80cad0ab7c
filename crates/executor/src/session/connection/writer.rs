//! Writer of a connection: sends answers in batches, and compresses the parts of tensors where that saves time.

use std::io::{self, IoSlice, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use rustix::net::SendFlags;
use sahasra_wire::session::{
    Encoder, Hello, PART_BYTES, ServerFrame,
    compression::{Compression, Mode},
    decoding_rate, frame,
    server_frame::Kind,
};

use crate::session::hub::{Hub, LITTLE_BYTES};
use crate::session::link::Sending;

/// Size of a batch in bytes once the link is known to be fast.
const BATCH_BYTES: u64 = 4 << 20;
/// Maximum number of slices for one vectored write.
const MAX_SLICES: usize = 512;

pub(super) struct Writer {
    stream: Arc<UnixStream>,
    /// Frames of a batch without their payloads.
    heads: BytesMut,
    /// Bytes that the socket did not accept yet; they are sent before anything else.
    rest: BytesMut,
    frames: Vec<(ServerFrame, Bytes)>,
    compression: Compression,
    encoder: Encoder,
    /// Whether the next part is the first of its tensor.
    is_first: bool,
}

impl Writer {
    pub(super) fn new(stream: Arc<UnixStream>, hello: &Hello) -> Self {
        let mode = if hello.spares_bytes { Mode::Always } else { Mode::WhereItPays };
        Self {
            stream,
            heads: BytesMut::new(),
            rest: BytesMut::new(),
            frames: Vec::new(),
            compression: Compression::new(mode, &hello.encodings),
            encoder: Encoder::default(),
            is_first: true,
        }
    }

    /// Writes until there is nothing to send. Returns whether the connection or the client's stream is over.
    pub(super) fn write_all(&mut self, hub: &Hub, number: u64, has_waited: bool) -> bool {
        if has_waited {
            self.compression.wakes(Instant::now());
        }
        let rest = self.rest.split();
        if !rest.is_empty() && (&*self.stream).write_all(&rest).is_err() {
            return self.hang_up();
        }
        loop {
            // The encoding of a part is decided after the parts before it were sent.
            let most = if self.compression.is_idle() {
                BATCH_BYTES
            } else {
                PART_BYTES as u64
            };
            let sending = hub.send(number, most, &mut self.frames);
            let is_empty = self.frames.is_empty();
            if !is_empty {
                let mut frames = std::mem::take(&mut self.frames);
                let decoded = self.encode(&mut frames, hub);
                let began = Instant::now();
                let written = self.write(&frames);
                frames.clear();
                self.frames = frames;
                match written {
                    Ok(bytes) => {
                        self.compression.wrote(bytes, decoded, began, Instant::now());
                        hub.status_page.sent(bytes as u64);
                    }
                    Err(_) => return self.hang_up(),
                }
            }
            match sending {
                Sending::Go if is_empty => return false,
                Sending::Go => {}
                Sending::Over => return true,
                Sending::Last => {
                    let _ = self.stream.shutdown(Shutdown::Write);
                    hub.record_end();
                    return true;
                }
            }
        }
    }

    /// Writes small answers as far as the socket accepts them without blocking. Returns whether something is left to write.
    pub(super) fn write_now(&mut self, hub: &Hub, number: u64) -> bool {
        if !self.rest.is_empty() {
            return true;
        }
        self.compression.wakes(Instant::now());
        let sending = hub.send(number, LITTLE_BYTES as u64, &mut self.frames);
        let mut frames = std::mem::take(&mut self.frames);
        let decoded = self.encode(&mut frames, hub);
        self.heads.clear();
        for (message, payload) in frames.drain(..) {
            if frame::encode(&message, payload.len(), &mut self.heads).is_err() {
                return self.hang_up();
            }
            self.heads.extend_from_slice(&payload);
        }
        self.frames = frames;
        let bytes = self.heads.len();
        if bytes > 0 {
            let began = Instant::now();
            let written = match rustix::net::send(&*self.stream, &self.heads, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(written) => written,
                Err(Errno::AGAIN | Errno::INTR) => 0,
                Err(_) => return self.hang_up(),
            };
            self.rest.extend_from_slice(&self.heads[written..]);
            self.compression.wrote(bytes, decoded, began, Instant::now());
            hub.status_page.sent(bytes as u64);
        }
        !self.rest.is_empty() || sending != Sending::Go || hub.has_to_send(number)
    }

    /// Shuts the connection down. The reader notices, and reports the end of the connection. Returns `true`: nothing follows.
    fn hang_up(&self) -> bool {
        let _ = self.stream.shutdown(Shutdown::Both);
        true
    }

    /// Compresses the parts for which that saves time. Returns the size of all payloads before compression, in bytes. Answers that are sent
    /// again on another connection are encoded for that connection.
    fn encode(&mut self, frames: &mut [(ServerFrame, Bytes)], hub: &Hub) -> usize {
        self.compression.decodes(hub.client_decodes());
        let mut decoded = 0;
        for (message, payload) in frames {
            message.decoding_rate = decoding_rate();
            decoded += payload.len();
            let Some(Kind::Part(part)) = message.kind else {
                self.is_first = true;
                continue;
            };
            let is_first = std::mem::take(&mut self.is_first);
            let Some(trial) = self.compression.trial(payload.len(), part.width, is_first) else {
                continue;
            };
            let tried = trial.run(&mut self.encoder, payload);
            self.compression.tried(&tried);
            if let Some((part, bytes)) = tried.encoded {
                message.kind = Some(Kind::Part(part));
                *payload = bytes;
            }
        }
        decoded
    }

    /// Writes frames without copying their payloads. Returns the number of bytes.
    fn write(&mut self, frames: &[(ServerFrame, Bytes)]) -> io::Result<usize> {
        self.heads.clear();
        let mut ends = Vec::with_capacity(frames.len());
        for (message, payload) in frames {
            frame::encode(message, payload.len(), &mut self.heads).map_err(io::Error::other)?;
            ends.push(self.heads.len());
        }
        let mut pieces = Vec::with_capacity(2 * frames.len() + 1);
        let mut start = 0;
        for ((_, payload), end) in frames.iter().zip(ends) {
            // Consecutive frames without payloads form one slice.
            if !payload.is_empty() {
                pieces.push(IoSlice::new(&self.heads[start..end]));
                pieces.push(IoSlice::new(payload));
                start = end;
            }
        }
        pieces.push(IoSlice::new(&self.heads[start..]));
        let total = pieces.iter().map(|piece| piece.len()).sum();
        let mut rest = &mut pieces[..];
        // Removes empty slices at the start.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match (&*self.stream).write_vectored(&rest[..rest.len().min(MAX_SLICES)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }
}
