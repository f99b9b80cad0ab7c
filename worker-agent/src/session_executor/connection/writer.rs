//! What an executor writes on a connection: answers in batches, parts of tensors compressed where that pays.

use std::io::{self, IoSlice, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use sahasra_wire::session::{
    Encoder, Hello, PART_BYTES, ServerFrame,
    compression::{Compression, Mode},
    frame,
    server_frame::Kind,
};

use crate::session_executor::hub::Hub;
use crate::session_executor::link::Sending;

/// Bytes taken at a time once it is known that the line is fast.
const BATCH_BYTES: u64 = 4 << 20;
/// Slices that one call takes.
const MOST_SLICES: usize = 512;

pub(super) struct Writer {
    stream: UnixStream,
    /// Everything of a batch's frames but their payloads.
    heads: BytesMut,
    compression: Compression,
    encoder: Encoder,
    /// The next part is the first of its tensor.
    is_first: bool,
}

impl Writer {
    /// For the client that said that.
    pub(super) fn new(stream: UnixStream, hello: &Hello) -> Self {
        let mode = if hello.spares_bytes { Mode::Always } else { Mode::WhereItPays };
        Self {
            stream,
            heads: BytesMut::new(),
            compression: Compression::new(mode, &hello.encodings),
            encoder: Encoder::default(),
            is_first: true,
        }
    }

    /// Writes what there is to send, until the connection or the client's stream is over.
    pub(super) fn run(&mut self, hub: &Hub, number: u64) {
        let mut frames = Vec::new();
        loop {
            // How a part goes is decided when those before it have gone.
            let most = if self.compression.is_idle() {
                BATCH_BYTES
            } else {
                PART_BYTES as u64
            };
            let mut has_waited = false;
            let sending = hub.send(number, most, &mut frames, || has_waited = true);
            if has_waited {
                self.compression.wakes(Instant::now());
            }
            let decoded = self.encode(&mut frames);
            let began = Instant::now();
            match self.write(&frames) {
                Ok(bytes) => {
                    self.compression.wrote(bytes, decoded, began, Instant::now());
                    hub.board().sent(bytes as u64);
                }
                Err(_) => {
                    // The reader sees it, and says that the connection is over.
                    let _ = self.stream.shutdown(Shutdown::Both);
                    return;
                }
            }
            frames.clear();
            match sending {
                Sending::Go => {}
                Sending::Over => return,
                Sending::Last => {
                    let _ = self.stream.shutdown(Shutdown::Write);
                    hub.told();
                    return;
                }
            }
        }
    }

    /// Compresses the parts for which that pays, and gives what all payloads were before. What goes again on another connection is
    /// encoded for that one.
    fn encode(&mut self, frames: &mut [(ServerFrame, Bytes)]) -> usize {
        let mut decoded = 0;
        for (message, payload) in frames {
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

    /// Writes frames, their payloads from where they are.
    fn write(&mut self, frames: &[(ServerFrame, Bytes)]) -> io::Result<usize> {
        self.heads.clear();
        let mut ends = Vec::with_capacity(frames.len());
        for (message, payload) in frames {
            frame::encode(message, payload.len(), &mut self.heads).map_err(io::Error::other)?;
            ends.push(self.heads.len());
        }
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(2 * frames.len());
        let mut start = 0;
        for ((_, payload), end) in frames.iter().zip(ends) {
            // Heads between which there is no payload are one piece.
            if !payload.is_empty() {
                pieces.push(&self.heads[start..end]);
                pieces.push(payload);
                start = end;
            }
        }
        pieces.push(&self.heads[start..]);
        let total = pieces.iter().map(|piece| piece.len()).sum();
        let mut stream = &self.stream;
        let mut first = 0;
        while first < pieces.len() {
            if pieces[first].is_empty() {
                first += 1;
                continue;
            }
            let slices: Vec<IoSlice<'_>> = pieces[first..].iter().take(MOST_SLICES).map(|piece| IoSlice::new(piece)).collect();
            let mut written = match stream.write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            while written > 0 {
                let piece = &mut pieces[first];
                let step = written.min(piece.len());
                piece.advance(step);
                written -= step;
                if piece.is_empty() {
                    first += 1;
                }
            }
        }
        Ok(total)
    }
}
