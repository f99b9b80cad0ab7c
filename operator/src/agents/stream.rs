//! The burst stream to one agent: a bounded channel of frames to send, and a bounded channel of events received.

use futures::{StreamExt, stream};
use sahasra_names::WorkerName;
use sahasra_service::tasks;
use sahasra_wire::burst::{ClientFrame, Open, client_frame, server_frame};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{
    client::AgentClient,
    error::{OPEN_TIMEOUT, StreamError},
};

/// Capacity of the channel of frames to one agent. A coordinator sends few, large frames.
const OUTGOING_FRAMES: usize = 64;
/// Identifies the stream that an event belongs to. A later stream to the same agent has a higher number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamId {
    pub worker: WorkerName,
    /// Number of the stream, unique within the coordinator.
    pub number: u64,
}

#[derive(Debug)]
pub(crate) enum StreamEvent {
    Frame(Box<server_frame::Kind>),
    /// The stream ended, with an error unless it ended in order. It is the last event of the stream.
    Closed(Option<StreamError>),
}

/// The coordinator's end of a stream. Dropping it closes the stream; the agent keeps running the chunks that have started.
#[derive(Debug)]
pub(crate) struct BurstStream {
    frames: mpsc::Sender<ClientFrame>,
    _task: AbortOnDropHandle<()>,
}

impl BurstStream {
    /// Opens a stream in the background. Its events are sent to `events` under `id`; the last one is [`StreamEvent::Closed`].
    pub(crate) fn open(
        client: AgentClient,
        endpoint: String,
        open: Open,
        id: StreamId,
        events: mpsc::Sender<(StreamId, StreamEvent)>,
    ) -> Self {
        let (frames, outgoing) = mpsc::channel(OUTGOING_FRAMES);
        let task = tasks::spawn(async move {
            let outcome = run(&client, &endpoint, open, outgoing, &id, &events).await;
            // The send fails if the coordinator has ended and dropped the receiver.
            let _ = events.send((id, StreamEvent::Closed(outcome.err()))).await;
        });
        Self {
            frames,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Queues a frame for the agent. Returns `false`, with nothing sent, if the channel is full because the agent is too slow, or if the
    /// stream has ended.
    pub(crate) fn send(&self, frame: client_frame::Kind) -> bool {
        self.frames.try_send(frame.into()).is_ok()
    }
}

async fn run(
    client: &AgentClient,
    endpoint: &str,
    open: Open,
    mut outgoing: mpsc::Receiver<ClientFrame>,
    id: &StreamId,
    events: &mpsc::Sender<(StreamId, StreamEvent)>,
) -> Result<(), StreamError> {
    let first = ClientFrame::from(client_frame::Kind::Open(Box::new(open)));
    let frames = stream::iter([first]).chain(stream::poll_fn(move |task| outgoing.poll_recv(task)));
    let opening = async {
        let mut incoming = client.transport().stream(endpoint, frames.boxed()).await?;
        let answer = incoming.next().await;
        Ok::<_, StreamError>((answer, incoming))
    };
    let opened = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
    let (mut next, mut incoming) = opened.map_err(|_| StreamError::OpenTimeout)??;
    while let Some(frame) = next {
        // A full channel stops this task from reading. HTTP/2 flow control then stops the agent from sending.
        if let Some(kind) = frame?.kind
            && events.send((id.clone(), StreamEvent::Frame(Box::new(kind)))).await.is_err()
        {
            return Ok(());
        }
        next = incoming.next().await;
    }
    Ok(())
}
