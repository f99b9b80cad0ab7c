//! The burst stream to one agent: frames out through a bounded channel, what comes back as events of a bounded channel.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::Frame;
use sahasra_wire::{
    burst::{ClientFrame, Open, ServerFrame, client_frame, server_frame},
    frame, path,
};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::client::{AgentClient, AgentError, excerpt};

/// Frames on their way to one agent: a coordinator sends few and large ones.
const OUTGOING_FRAMES: usize = 64;
/// An agent that has not accepted the stream by then is taken for gone.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Which stream an event belongs to: a later stream to the same agent has a higher number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamId {
    /// Name of the `GpuWorker`.
    pub worker: String,
    /// Number, unique within the coordinator.
    pub number: u64,
}

/// What happened on a stream.
#[derive(Debug)]
pub enum StreamEvent {
    /// The agent sent this.
    Frame(Box<server_frame::Kind>),
    /// Nothing more will come.
    Closed(Option<StreamError>),
}

/// Why a stream ended otherwise than in order.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// It could not be opened.
    #[error("not opened")]
    Open(#[from] AgentError),
    /// It was not accepted in time.
    #[error("not accepted within {} s", OPEN_TIMEOUT.as_secs())]
    OpenTimeout,
    /// The connection broke.
    #[error("cut off")]
    Cut(#[from] hyper::Error),
    /// What came is not of the protocol.
    #[error("not of the protocol")]
    Protocol(#[from] frame::FrameError),
}

/// The coordinator's end of a stream. Dropping it closes the stream; the agent keeps what runs.
#[derive(Debug)]
pub struct BurstStream {
    frames: mpsc::Sender<ClientFrame>,
    _task: AbortOnDropHandle<()>,
}

impl BurstStream {
    /// Opens a stream in the background: events, and at last [`StreamEvent::Closed`], come to `events` under `id`.
    pub fn open(client: AgentClient, endpoint: String, open: Open, id: StreamId, events: mpsc::Sender<(StreamId, StreamEvent)>) -> Self {
        let (frames, outgoing) = mpsc::channel(OUTGOING_FRAMES);
        let task = tokio::spawn(async move {
            let outcome = run(&client, &endpoint, open, outgoing, &id, &events).await;
            // The coordinator may have gone: then nobody wants to know.
            let _ = events.send((id, StreamEvent::Closed(outcome.err()))).await;
        });
        Self {
            frames,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Sends a frame; `false` when the agent does not keep up or has gone, and nothing was sent.
    pub fn send(&self, frame: client_frame::Kind) -> bool {
        self.frames.try_send(frame.into()).is_ok()
    }
}

async fn run(
    client: &AgentClient,
    endpoint: &str,
    open: Open,
    outgoing: mpsc::Receiver<ClientFrame>,
    id: &StreamId,
    events: &mpsc::Sender<(StreamId, StreamEvent)>,
) -> Result<(), StreamError> {
    let first = ClientFrame::from(client_frame::Kind::Open(Box::new(open)));
    let frames = stream::unfold((Some(first), outgoing), |(first, mut outgoing)| async move {
        let next = match first {
            Some(first) => first,
            None => outgoing.recv().await?,
        };
        let bytes: Bytes = frame::encode(&next);
        Some((Ok(Frame::data(bytes)), (None, outgoing)))
    });
    let body = StreamBody::new(frames).boxed_unsync();
    let response = tokio::time::timeout(OPEN_TIMEOUT, client.request(endpoint, Method::POST, path::BURSTS, body))
        .await
        .map_err(|_| StreamError::OpenTimeout)??;
    let status = response.status();
    let mut incoming = response.into_body();
    if status != StatusCode::OK {
        let text = Limited::new(incoming, 4096)
            .collect()
            .await
            .map(|body| body.to_bytes())
            .unwrap_or_default();
        return Err(AgentError::Status(status, excerpt(&text)).into());
    }
    let mut decoder = frame::Decoder::default();
    while let Some(part) = incoming.frame().await {
        let Ok(data) = part?.into_data() else { continue };
        decoder.extend(data);
        while let Some(message) = decoder.next_message::<ServerFrame>()? {
            let Some(kind) = message.kind else { continue };
            // A full channel stops the reading, and with it, through HTTP/2's windows, the agent.
            if events.send((id.clone(), StreamEvent::Frame(Box::new(kind)))).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}
