//! Stream of one coordinator: reads the coordinator's frames, and writes the burst's frames.

use std::{sync::Arc, time::Duration};

use bytes::{Buf, Bytes};
use futures::{Stream, StreamExt, stream::BoxStream};
use sahasra_error_chain::causes;
use sahasra_names::OwnerUid;
use sahasra_wire::{
    burst::{ChunkRange, ClientFrame, OPEN_WITHIN, Open, Opened, ServerFrame, client_frame, server_frame},
    frame::{self, Decoder, FrameError},
    grants::{Owner, Refusal, RejectionCode},
};
use tokio::sync::mpsc;
use tracing::{Span, field::Empty};

use crate::{
    agent::{Agent, MAX_OUTSTANDING_CHUNKS, MAX_RETAINED_BYTES},
    burst_executors::{OutstandingChunks, ProgramSpec},
    dispatch::{Attached, Burst, Host, Outgoing, Outputs},
};

/// Timeout for sending the last frame of a stream, which the coordinator may not read.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("the coordinator ended the stream")]
    Ended,
    #[error("connection closed")]
    Broken,
    /// The request is not allowed. The coordinator receives the rejection.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The bytes are not a valid frame. The coordinator receives the error.
    #[error("failed to read a frame")]
    Frame(#[from] FrameError),
}

impl From<Refusal> for StreamError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl StreamError {
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Ended | Self::Broken => None,
            Self::Refused(refusal) => Some(refusal.clone()),
            Self::Frame(error) => Some(Refusal::invalid(error.to_string())),
        }
    }
}

fn encode(kind: server_frame::Kind) -> Bytes {
    frame::encode(&ServerFrame::from(kind))
}

/// Reads frames from the bytes of a request, which are `None` once the connection is broken.
struct Reader {
    body: BoxStream<'static, Option<Bytes>>,
    decoder: Decoder,
}

impl Reader {
    async fn next(&mut self) -> Result<client_frame::Kind, StreamError> {
        loop {
            if let Some(frame) = self.decoder.next_message::<ClientFrame>()? {
                return frame.kind.ok_or_else(|| Refusal::invalid("invalid frame: no content").into());
            }
            match self.body.next().await {
                Some(Some(bytes)) => self.decoder.extend(bytes),
                Some(None) => return Err(StreamError::Broken),
                None if self.decoder.is_mid_frame() => return Err(StreamError::Broken),
                None => return Err(StreamError::Ended),
            }
        }
    }
}

/// Serves a stream until either side ends it. `answers` is the body of the response. It is bounded, so that no frames pile up for a
/// coordinator that does not read.
#[tracing::instrument(level = "error", name = "burst_stream", skip_all, fields(job = Empty, namespace = Empty, term = Empty))]
pub async fn serve<E>(agent: Arc<Agent>, body: impl Stream<Item = Result<impl Buf, E>> + Send + 'static, answers: mpsc::Sender<Bytes>) {
    let body = body.map(|bytes| bytes.ok().map(|mut bytes| bytes.copy_to_bytes(bytes.remaining())));
    let mut reader = Reader {
        body: body.boxed(),
        decoder: Decoder::default(),
    };
    let error = match open(&agent, &mut reader).await {
        Ok((owner, burst, attached)) => {
            let devices = agent.parts.pool.devices();
            let chunks = attached.chunks.iter();
            let chunks: Vec<ChunkRange> = chunks
                .map(|(place, range)| ChunkRange::new(devices[*place].name.as_str(), *range))
                .collect();
            let opened = Opened {
                boot_id: agent.parts.boot_id.to_string(),
                max_outstanding_chunks: MAX_OUTSTANDING_CHUNKS,
                chunks,
                sequence: attached.sequence,
                last_repeated: attached.last_repeated,
                resumed: attached.resumed,
            };
            let stream = attached.stream;
            let error = if answers.send(encode(server_frame::Kind::Opened(opened))).await.is_err() {
                StreamError::Broken
            } else {
                tokio::select! {
                    error = read(&agent, &owner, &burst, stream, &mut reader) => error,
                    error = write(&agent, &burst, stream, &answers) => error,
                }
            };
            let current = burst.detach(stream);
            if current {
                agent.close_if_abandoned(&OwnerUid::from(&owner.uid));
            }
            error
        }
        Err(error) => error,
    };
    tracing::info!(reason = causes(&error), "burst stream ended");
    if let Some(refusal) = error.refusal() {
        let refused = answers.send(encode(server_frame::Kind::Refused(refusal)));
        let _ = tokio::time::timeout(REFUSAL_TIMEOUT, refused).await;
    }
}

async fn open(agent: &Arc<Agent>, reader: &mut Reader) -> Result<(Owner, Arc<Burst>, Attached), StreamError> {
    let first = tokio::time::timeout(OPEN_WITHIN, reader.next())
        .await
        .map_err(|_| Refusal::invalid("timed out waiting for Open"))??;
    let client_frame::Kind::Open(open) = first else {
        return Err(Refusal::invalid("the first frame must be Open").into());
    };
    let Open {
        owner,
        boot_id,
        mut program,
        covered,
    } = *open;
    if agent.parts.boot_id != boot_id {
        let message = format!("boot id is {}, not {boot_id}", agent.parts.boot_id);
        return Err(Refusal::new(RejectionCode::BootMismatch, message).into());
    }
    agent.fence(&owner)?;
    if agent.parts.draining.is_cancelled() {
        return Err(Agent::shutting_down().into());
    }
    let outputs = Outputs::take(&mut program);
    let spec = ProgramSpec::new(program).map_err(|error| Refusal::invalid(format!("invalid program: {error}")))?;
    let mut attached = None;
    let burst = agent.burst_or(&OwnerUid::from(&owner.uid), |known, sequence| {
        let burst = match known {
            Some(known) if known.program().digest == spec.digest => Arc::clone(known),
            Some(known) if !known.is_idle() => {
                let message = "chunks of another program of this owner still run: release its grants first";
                return Err(Refusal::invalid(message));
            }
            _ => {
                let chunks = OutstandingChunks::new(MAX_OUTSTANDING_CHUNKS);
                Burst::new(&owner, spec, outputs.clone(), chunks, MAX_RETAINED_BYTES, sequence)
            }
        };
        attached = Some(burst.attach(owner.term, outputs, &covered));
        Ok(burst)
    })?;
    let attached = attached.expect("attached with the burst");
    let span = Span::current();
    span.record("job", owner.name.strip_prefix("BurstJob/").unwrap_or(&owner.name));
    span.record("namespace", &owner.namespace);
    span.record("term", owner.term);
    tracing::info!("burst stream opened");
    Ok((owner, burst, attached))
}

async fn read(agent: &Arc<Agent>, owner: &Owner, burst: &Arc<Burst>, stream: u64, reader: &mut Reader) -> StreamError {
    let host: Arc<dyn Host> = Arc::<Agent>::clone(agent);
    loop {
        let frame = match reader.next().await {
            Ok(frame) => frame,
            Err(error) => return error,
        };
        if let Err(refusal) = agent.fence(owner) {
            return refusal.into();
        }
        match frame {
            client_frame::Kind::Open(_) => return Refusal::invalid("duplicate Open").into(),
            client_frame::Kind::Submit(submit) => {
                if let Err(refusal) = burst.submit(&host, stream, &submit.ranges) {
                    return refusal.into();
                }
            }
            client_frame::Kind::Acknowledge(acknowledge) => burst.acknowledge(stream, acknowledge.sequence),
            client_frame::Kind::Withdraw(withdraw) => burst.withdraw(&withdraw.device),
        }
    }
}

async fn write(agent: &Agent, burst: &Burst, stream: u64, answers: &mpsc::Sender<Bytes>) -> StreamError {
    let mut version = burst.watch();
    loop {
        version.borrow_and_update();
        match burst.outgoing(stream, agent.parts.draining.is_cancelled()) {
            Outgoing::Frames(frames) => {
                for frame in frames {
                    if answers.send(frame).await.is_err() {
                        return StreamError::Broken;
                    }
                }
            }
            Outgoing::Nothing => {
                tokio::select! {
                    changed = version.changed() => if changed.is_err() {
                        return StreamError::Broken;
                    },
                    () = answers.closed() => return StreamError::Broken,
                }
            }
            Outgoing::Replaced(term) => {
                let message = format!("replaced by a stream of term {term}");
                return Refusal::new(RejectionCode::StaleTerm, message).into();
            }
            Outgoing::Finished => return Agent::shutting_down().into(),
        }
    }
}
