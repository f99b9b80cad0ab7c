//! Relay between a WebSocket and a worker's connection. Each direction runs only as fast as its receiver accepts data.
//!
//! Each direction has one buffer, and reads again only after the previous data has been written. Only the payloads of the client's messages
//! are forwarded, so message boundaries carry no meaning. Data from the worker is sent as it arrives, in messages of at most 256 KiB.
//!
//! | Close code | Meaning |
//! |---|---|
//! | 1000 | the worker ended the stream: the session is over, or another client took it |
//! | 1001 | the client showed no sign of life for three ping intervals |
//! | 1002, 1003, 1009 | the client violated the WebSocket protocol, or sent text, or a message of more than 16 MiB |
//! | 1011 | the worker's connection broke: connect again |
//! | 1012 | the gateway shuts down: connect again |

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use bytes::BytesMut;
use futures::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        protocol::{CloseFrame, Role, WebSocketConfig},
    },
};
use tokio_util::{io::ReaderStream, sync::CancellationToken};

use super::{end::End, metrics::StreamMetrics, worker::Worker};
use crate::drain::drain;

/// Maximum size of a client's message in bytes, because a message is buffered whole.
pub const MESSAGE_BYTES: usize = 16 << 20;
/// Maximum number of bytes read from a worker at once, which become one message to the client.
const PIECE_BYTES: usize = 256 << 10;
/// A new buffer is allocated when the current one has less room than this.
const SMALL_BYTES: usize = 32 << 10;
/// Timeout of the client's answer to a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Timing by which a dead client is distinguished from an idle one.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Interval between pings to the client: less than the minute after which proxies close idle connections.
    pub ping: Duration,
    /// A client that sends nothing, not even pongs, or accepts no data for this long counts as gone. Default: three ping intervals.
    pub silence: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            ping: Duration::from_secs(20),
            silence: Duration::from_secs(60),
        }
    }
}

/// Copies data until one side ends the stream or `stop` is cancelled, then sends the client a close frame with the reason if it is still
/// connected.
pub(super) async fn run<C>(client: C, worker: Worker, pace: Pace, metrics: &StreamMetrics, stop: &CancellationToken) -> End
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES))
        // Every message is flushed at once, so that no data waits for the next message.
        .write_buffer_size(0)
        // Bound on data that the client has not accepted: one message, and room for pongs.
        .max_write_buffer_size(4 * PIECE_BYTES);
    let client = WebSocketStream::from_raw_socket(client, Role::Server, Some(config)).await;
    let (mut to_client, mut from_client) = client.split();
    let (mut from_worker, mut to_worker) = tokio::io::split(worker.stream);

    // Unanswered pings are counted rather than time measured: if this process is suspended for a while, its clients have not been silent.
    let (unanswered, listening) = (AtomicU32::new(0), AtomicBool::new(true));
    let max_unanswered = u32::try_from(pace.silence.as_nanos() / pace.ping.as_nanos().max(1))
        .unwrap_or(u32::MAX)
        .max(1);

    let up = async {
        let copied = metrics.bytes.with_label_values(&["to_worker"]);
        loop {
            let message = match from_client.next().await {
                Some(Ok(message)) => message,
                Some(Err(Error::ConnectionClosed)) | None => return End::Client,
                Some(Err(error)) => return End::ClientBroke(error),
            };
            unanswered.store(0, Ordering::Relaxed);
            match message {
                Message::Binary(bytes) => {
                    // Nothing is read from the client, pongs included, until the worker has accepted these bytes: unanswered pings do not
                    // count meanwhile.
                    listening.store(false, Ordering::Relaxed);
                    let written = async {
                        to_worker.write_all(&bytes).await?;
                        // The TLS layer may still buffer part of the data.
                        to_worker.flush().await
                    };
                    if let Err(error) = written.await {
                        return End::WorkerBroke(error);
                    }
                    unanswered.store(0, Ordering::Relaxed);
                    listening.store(true, Ordering::Relaxed);
                    copied.inc_by(bytes.len() as u64);
                }
                Message::Text(_) => return End::Text,
                Message::Close(_) => return End::Client,
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    };
    let down = async {
        let copied = metrics.bytes.with_label_values(&["to_client"]);
        let mut pings = interval_at(Instant::now() + pace.ping, pace.ping);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut buffer = BytesMut::from(&worker.read[..]);
        let mut send = async |message| match timeout(pace.silence, to_client.send(message)).await {
            Ok(sent) => sent.map_err(End::ClientBroke),
            Err(_) => Err(End::ClientSilent(pace.silence)),
        };
        loop {
            if !buffer.is_empty() {
                let size = buffer.len() as u64;
                if let Err(end) = send(Message::Binary(buffer.split().freeze())).await {
                    return end;
                }
                copied.inc_by(size);
            }
            if buffer.capacity() < SMALL_BYTES {
                buffer.reserve(PIECE_BYTES);
            }
            tokio::select! {
                read = from_worker.read_buf(&mut buffer) => match read {
                    Ok(0) => return End::Worker,
                    Ok(_) => {}
                    Err(error) => return End::WorkerBroke(error),
                },
                _ = pings.tick() => {
                    if unanswered.fetch_add(1, Ordering::Relaxed) >= max_unanswered && listening.load(Ordering::Relaxed) {
                        return End::ClientSilent(pace.silence);
                    }
                    if let Err(end) = send(Message::Ping(bytes::Bytes::new())).await {
                        return end;
                    }
                }
            }
        }
    };
    let end = tokio::select! {
        end = up => end,
        end = down => end,
        () = stop.cancelled() => End::Stopping,
    };
    // The worker's connection is dropped first, so that the worker releases its resources of this client at once.
    drop((from_worker, to_worker));
    close(&end, to_client, from_client).await;
    end
}

/// Sends the client the reason of the end if it is still connected.
async fn close<C>(end: &End, mut to_client: SplitSink<WebSocketStream<C>, Message>, mut from_client: SplitStream<WebSocketStream<C>>)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let code = end.close_code();
    let close = code.map(|code| CloseFrame {
        code,
        reason: end.reason().into(),
    });
    let _ = timeout(CLOSE_TIMEOUT, async {
        if close.is_some() {
            let _ = to_client.send(Message::Close(close)).await;
        }
        let _ = to_client.flush().await;
        // Read until the client has answered the close frame: with unread data the kernel would reset the connection, and the client would
        // lose the frame.
        while let Some(Ok(_)) = from_client.next().await {}
    })
    .await;
    // The WebSocket layer does not read the payload of an oversized message. It is drained here, so that the client receives the close frame.
    if matches!(end, End::ClientBroke(Error::Capacity(_)))
        && let Ok(mut client) = from_client.reunite(to_client)
    {
        drain(ReaderStream::with_capacity(client.get_mut(), PIECE_BYTES)).await;
    }
}
