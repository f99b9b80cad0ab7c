//! Reading side of a connection: reads answers, and payloads directly into their destination.

use std::{io, sync::atomic::Ordering};

use bytes::{Buf, BytesMut};
use prost::Message;
use sahasra_wire::session::{FailureCode, ServerFrame, frame};

use super::broken;
use crate::{
    Error,
    core::{Core, Incoming, Taking},
    state::Shared,
    transport::Reader,
};

/// Bytes to read at a time if the next frame is unknown.
pub(super) const READ_BYTES: usize = 32 << 10;
/// Bytes to read at a time if the next frame probably has a large payload.
const HEAD_READ_BYTES: usize = 1 << 10;

/// Returns the next message and the length of its payload, once the message is complete. The payload has not been read then.
pub(super) fn message(buffer: &mut BytesMut) -> Result<Option<(ServerFrame, usize)>, Error> {
    let Some((message_bytes, payload_bytes)) = frame::lengths(buffer)? else {
        return Ok(None);
    };
    if buffer.len() < frame::HEAD_BYTES + message_bytes {
        return Ok(None);
    }
    buffer.advance(frame::HEAD_BYTES);
    let message = ServerFrame::decode(buffer.split_to(message_bytes)).map_err(|error| Error::protocol(error.to_string()))?;
    Ok(Some((message, payload_bytes)))
}

/// Reads until the connection breaks or the session ends, and returns the cause.
pub(super) async fn receive(shared: &Shared, reader: &mut Reader, read: &mut BytesMut, taking: &mut Option<Taking>) -> Error {
    let Err(error) = receive_until_broken(shared, reader, read, taking).await;
    // Another connection cannot fix an error that is not the connection's. For [`FailureCode::Ended`], the session object may have the
    // reason.
    let over = matches!(&error, Error::Failed(failure) if failure.code == FailureCode::Ended);
    if !over && !matches!(error, Error::Unreachable { .. }) {
        shared.end(error.clone());
    }
    error
}

async fn receive_until_broken(
    shared: &Shared,
    reader: &mut Reader,
    read: &mut BytesMut,
    taking: &mut Option<Taking>,
) -> Result<std::convert::Infallible, Error> {
    let mut in_parts = false;
    loop {
        let mut unread = read.len();
        while let Some((message, payload_bytes)) = message(read)? {
            shared
                .received
                .fetch_add((unread - read.len() + payload_bytes) as u64, Ordering::Relaxed);
            in_parts = payload_bytes >= READ_BYTES;
            match process(shared, |core| core.take(message, payload_bytes as u64))? {
                Incoming::Nothing => discard(reader, read, payload_bytes).await.map_err(broken)?,
                Incoming::Answer(request, answer) => shared.answer(request, answer),
                Incoming::Printed(printed) => shared.print(printed),
                Incoming::Fill(part) => {
                    let there = read.len().min(payload_bytes);
                    let buffer = taking.insert(part).buffer();
                    buffer.extend_from_slice(&read[..there]);
                    read.advance(there);
                    reader.fill(buffer, payload_bytes - there).await.map_err(broken)?;
                    if let Some(part) = taking.take() {
                        let buffer = part.finish()?;
                        if let Incoming::Answer(request, answer) = process(shared, |core| core.filled(buffer))? {
                            shared.answer(request, answer);
                        }
                    }
                }
            }
            unread = read.len();
        }
        // Payload bytes read here are copied once more, so little is read when another part probably follows.
        let most = if in_parts { HEAD_READ_BYTES } else { READ_BYTES };
        reader.read(read, most).await.map_err(broken)?;
    }
}

/// Passes something received to the core. Wakes the callers that wait for space in the queue, and the task that writes.
fn process(shared: &Shared, receive: impl FnOnce(&mut Core) -> Result<Incoming, Error>) -> Result<Incoming, Error> {
    let mut state = shared.lock();
    let before = state.core.queued();
    let incoming = receive(&mut state.core)?;
    let moved = state.core.queued() != before;
    if moved {
        shared.room.notify_all();
    }
    let wakes = moved || state.core.must_tell();
    drop(state);
    if wakes {
        shared.wake.notify_one();
    }
    Ok(incoming)
}

async fn discard(reader: &mut Reader, read: &mut BytesMut, mut bytes: usize) -> io::Result<()> {
    loop {
        let there = read.len().min(bytes);
        read.advance(there);
        bytes -= there;
        if bytes == 0 {
            return Ok(());
        }
        reader.read(read, READ_BYTES.min(bytes)).await?;
    }
}
