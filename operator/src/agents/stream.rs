//! The burst stream to one agent: frames out through a bounded channel, what comes back as events of a bounded channel.

use std::time::Duration;

use futures::{StreamExt, stream};
use sahasra_service::part;
use sahasra_wire::{
    burst::{ClientFrame, OPEN_WITHIN, Open, client_frame, server_frame},
    frame,
};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::client::{AgentClient, AgentError};

/// Frames on their way to one agent: a coordinator sends few and large ones.
const OUTGOING_FRAMES: usize = 64;
/// An agent that has not answered `Open` by then is taken for gone. Longer than the agent waits for `Open`, so that its rejection, which
/// has the cause, comes before this.
const OPEN_TIMEOUT: Duration = OPEN_WITHIN.saturating_add(Duration::from_secs(5));

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
    /// It was not answered in time.
    #[error("not answered within {} s", OPEN_TIMEOUT.as_secs())]
    OpenTimeout,
    /// The connection broke.
    #[error("cut off")]
    Cut(#[source] Box<dyn std::error::Error + Send + Sync>),
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
        let task = part::spawn(async move {
            let outcome = run(&client, &endpoint, open, outgoing, &id, &events).await;
            // The coordinator may have ended, and its channel with it.
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
        Some((next, (None, outgoing)))
    });
    let opening = async {
        let mut incoming = client.transport().stream(endpoint, frames.boxed()).await?;
        let answer = incoming.next().await;
        Ok::<_, StreamError>((answer, incoming))
    };
    let opened = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
    let (mut next, mut incoming) = opened.map_err(|_| StreamError::OpenTimeout)??;
    while let Some(frame) = next {
        // A full channel stops the reading, and with it, through HTTP/2's windows, the agent.
        if let Some(kind) = frame?.kind
            && events.send((id.clone(), StreamEvent::Frame(Box::new(kind)))).await.is_err()
        {
            return Ok(());
        }
        next = incoming.next().await;
    }
    Ok(())
}
