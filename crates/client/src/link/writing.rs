//! Writing side of a connection: writes queued operations, and compresses parts of uploads where that pays.

use std::{
    collections::VecDeque,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use bytes::Bytes;
use sahasra_wire::session::{Encoder, PART_BYTES, compression::Compression};

use super::{broken, silence_timeout};
use crate::{
    Error,
    state::Shared,
    transport::{Pulse, Writer},
};

/// Coalescing delay of deletions: time for which they wait to be sent along with other operations.
const COALESCING_DELAY: Duration = Duration::from_millis(1);
/// Bytes to write at a time on a connection that is known to be fast. The compression decides again for each write.
const WRITE_BYTES: usize = 4 << 20;
/// Time without received bytes after which the client pings the gateway while a caller waits; also the minimum time between two pings.
const PING: Duration = Duration::from_secs(5);

/// Writes until the connection breaks or the session ends, and returns the cause.
pub(super) async fn write(shared: &Shared, writer: &mut Writer, pulse: &Pulse) -> Error {
    let mut pieces: VecDeque<Bytes> = VecDeque::new();
    let taken = shared.lock().welcome.as_ref().map(|welcome| welcome.encodings.clone());
    let mut compression = Compression::new(shared.options.compression, &taken.unwrap_or_default());
    let mut encoder = Encoder::default();
    // Two pings must fit into the timeout, even if it is short.
    let ping = PING.min(silence_timeout(&shared.options) / 2);
    let mut pinged = Instant::now();
    loop {
        let now = Instant::now();
        if now >= pinged.max(pulse.last_received()) + ping {
            pinged = now;
            if shared.is_awaited()
                && let Err(error) = writer.ping().await
            {
                return broken(error);
            }
        }
        let lonely = {
            let state = shared.lock();
            if let Some(error) = &state.ended {
                return error.clone();
            }
            state.core.has_only_deleted()
        };
        if lonely {
            // A new operation ends the delay.
            let _ = tokio::time::timeout(COALESCING_DELAY, shared.wake.notified()).await;
        }
        let (trial, decoded) = {
            let mut state = shared.lock();
            compression.decodes(state.core.decodes());
            let most = if compression.is_idle() { WRITE_BYTES } else { PART_BYTES };
            let candidate = state.core.candidate();
            let trial = candidate.and_then(|part| {
                let trial = compression.trial(part.payload.len(), part.width, part.is_first);
                if trial.is_none() {
                    state.core.settle(part.sequence, None);
                }
                Some((trial?, part))
            });
            let end = trial.as_ref().map_or(u64::MAX, |(_, part)| part.sequence);
            match state.core.write(&mut pieces, most, end) {
                Ok(decoded) => (trial, decoded),
                Err(error) => {
                    drop(state);
                    shared.end(error.clone());
                    return error;
                }
            }
        };
        let bytes = pieces.iter().map(Bytes::len).sum();
        shared.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        shared.uploaded.fetch_add(decoded, Ordering::Relaxed);
        if bytes == 0 && trial.is_none() {
            tokio::select! {
                () = shared.wake.notified() => compression.wakes(Instant::now()),
                () = tokio::time::sleep_until((pinged.max(pulse.last_received()) + ping).into()) => {}
            }
            continue;
        }
        // A part is encoded while the parts before it are sent, because the operations after it wait for those anyway.
        let trying = trial.map(|(trial, part)| {
            let mut encoder = std::mem::take(&mut encoder);
            let trying = tokio::task::spawn_blocking(move || (trial.run(&mut encoder, &part.payload), encoder));
            (part.sequence, trying)
        });
        if bytes > 0 {
            let began = Instant::now();
            if let Err(error) = writer.write(&mut pieces).await {
                return broken(error);
            }
            compression.wrote(bytes, decoded as usize, began, Instant::now());
        }
        if let Some((sequence, trying)) = trying {
            // If the encoding thread panics, the part is sent uncompressed.
            let encoded = trying.await.ok().and_then(|(tried, used)| {
                encoder = used;
                compression.tried(&tried);
                tried.encoded
            });
            shared.lock().core.settle(sequence, encoded);
        }
    }
}
