//! Simulated network between operators and agents, message by message: messages are delayed, reordered, lost and repeated, and connections
//! break.
//!
//! Calls are independent messages. The frames of a stream keep their order, as on a TCP connection: they are lost only with the connection.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{
    StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sahasra_operator::agents::{
    AgentError, StreamError,
    transport::{Incomings, Transport},
};
use sahasra_wire::{
    Message,
    burst::{ChunkRange, ClientFrame, ServerFrame},
    frame,
    grants::{AcquireRequest, ReleaseRequest, RenewRequest},
    path,
};
use sahasra_worker::api::burst_stream;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    book::Live,
    world::{Node, World},
};

/// Time without traffic after which both sides give a connection up.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Frames queued for a coordinator that reads slowly, as in the agent's own server.
const WAITING_FRAMES: usize = 8;

fn unreachable(what: &'static str) -> AgentError {
    AgentError::Unreachable(io::Error::other(what).into())
}

fn cut() -> StreamError {
    StreamError::Cut(io::Error::other("the connection broke").into())
}

/// Returns the endpoint of the agent with this index.
pub fn endpoint(index: usize) -> String {
    format!("http://worker-{index}:9400")
}

fn index(endpoint: &str) -> Option<usize> {
    endpoint.strip_prefix("http://worker-")?.strip_suffix(":9400")?.parse().ok()
}

/// Transport from an operator to the agents.
#[derive(Clone, Debug)]
pub struct Wire {
    world: Arc<World>,
    from: Node,
}

impl Wire {
    /// Creates the transport of the operator `from`.
    pub fn new(world: Arc<World>, from: Node) -> Self {
        Self { world, from }
    }

    fn live(&self, index: usize) -> Option<Arc<Live>> {
        self.world.agent(index).filter(|live| !live.group.has_crashed())
    }
}

impl Transport for Wire {
    fn call<'a>(&'a self, endpoint: &'a str, path: &'static str, message: Bytes) -> BoxFuture<'a, Result<Bytes, AgentError>> {
        Box::pin(async move {
            let Some(to) = index(endpoint) else {
                return Err(AgentError::Endpoint(endpoint.to_owned()));
            };
            let (answer, answered) = oneshot::channel();
            let world = &self.world;
            if path == path::RELEASE {
                world
                    .maxima
                    .lock()
                    .release(to, &ReleaseRequest::decode(message.clone()).unwrap_or_default());
            }
            let loss = world.conditions().loss;
            if world.happens(world.conditions().repeats) {
                let (repeated, _) = oneshot::channel();
                tokio::spawn(deliver(self.clone(), to, path, message.clone(), repeated));
            }
            if world.happens(loss) {
                world.note(format_args!("{} {path} to worker-{to} is lost", self.from));
                std::future::pending::<()>().await;
            }
            tokio::spawn(deliver(self.clone(), to, path, message, answer));
            match answered.await {
                Ok(answer) => answer,
                // The message or its response was lost: the caller gives up after its own timeout.
                Err(_) => std::future::pending().await,
            }
        })
    }

    fn stream<'a>(&'a self, endpoint: &'a str, frames: BoxStream<'static, ClientFrame>) -> BoxFuture<'a, Result<Incomings, StreamError>> {
        Box::pin(async move {
            let to = index(endpoint).ok_or_else(|| AgentError::Endpoint(endpoint.to_owned()))?;
            sleep(self.world.delay()).await;
            if !self.world.connected(self.from, Node::Agent(to)) {
                std::future::pending::<()>().await;
            }
            let live = self.live(to).ok_or_else(|| unreachable("connection refused"))?;
            self.world.note(format_args!("{} opens a stream to worker-{to}", self.from));
            Ok(connect(self.clone(), &live, frames))
        })
    }
}

async fn deliver(wire: Wire, to: usize, path: &'static str, message: Bytes, answer: oneshot::Sender<Result<Bytes, AgentError>>) {
    let world = &wire.world;
    sleep(world.delay()).await;
    if !world.connected(wire.from, Node::Agent(to)) {
        return;
    }
    let Some(live) = wire.live(to) else {
        sleep(world.delay()).await;
        let _ = answer.send(Err(unreachable("connection refused")));
        return;
    };
    let bytes = handle(world, &live, path, &message);
    live.check_capacity(world);
    world.note(format_args!(
        "{} {path} to worker-{to}: {} bytes, {:?}",
        wire.from,
        message.len(),
        bytes.len()
    ));
    sleep(world.delay()).await;
    if world.connected(wire.from, Node::Agent(to)) && !world.happens(world.conditions().loss) && !live.group.has_crashed() {
        let _ = answer.send(Ok(bytes));
    }
}

/// Passes a request to the agent and returns its response. The observer checks and records both.
fn handle(world: &World, live: &Live, path: &str, message: &Bytes) -> Bytes {
    let agent = &live.agent;
    match path {
        path::INVENTORY => agent.inventory().encode_to_vec(),
        path::ACQUIRE => {
            let request = AcquireRequest::decode(message.clone()).unwrap_or_default();
            let response = agent.acquire(&request);
            world.note(format_args!(
                "worker-{}: {} of {} asks for {} on {}: {:?}",
                live.index,
                request.owner.name,
                request.owner.namespace,
                request.slices,
                request.device,
                response.grant.as_ref().map(|grant| (grant.id.counter, grant.slices))
            ));
            live.acquired(world, &request, &response);
            response.encode_to_vec()
        }
        path::RENEW => {
            let request = RenewRequest::decode(message.clone()).unwrap_or_default();
            let response = agent.renew(&request);
            live.renewed(world, &request, &response);
            response.encode_to_vec()
        }
        _ => {
            let request = ReleaseRequest::decode(message.clone()).unwrap_or_default();
            let response = agent.release(&request);
            let grants: Vec<u64> = request.grants.iter().map(|id| id.counter).collect();
            world.note(format_args!(
                "worker-{}: {} of {} gives back {grants:?}, keeping {}",
                live.index, request.owner.name, request.owner.namespace, request.keep_slices
            ));
            live.released(world, &request, &response);
            response.encode_to_vec()
        }
    }
    .into()
}

/// Opens a stream, and moves the frames of both directions.
fn connect(wire: Wire, live: &Arc<Live>, frames: BoxStream<'static, ClientFrame>) -> Incomings {
    let broken = live.connections.lock().child_token();
    let (to_agent, body) = mpsc::unbounded_channel::<Result<Bytes, io::Error>>();
    let (answers, answered) = mpsc::channel::<Bytes>(WAITING_FRAMES);
    let (to_operator, incoming) = mpsc::unbounded_channel();
    let body = stream::unfold(body, |mut body| async move { body.recv().await.map(|part| (part, body)) });
    live.group
        .start(burst_stream::serve(Arc::clone(&live.agent), body.boxed(), answers));

    tokio::spawn(outward(wire.clone(), live.index, frames, to_agent, broken.clone()));
    tokio::spawn(inward(wire, Arc::clone(live), answered, to_operator, broken.clone()));
    // Dropping the returned stream closes the connection.
    let state = (incoming, broken.drop_guard());
    stream::unfold(state, |mut state| async move { state.0.recv().await.map(|frame| (frame, state)) }).boxed()
}

/// Waits until a frame is due and the nodes are connected. Returns `false` if the connection breaks first.
async fn carried(wire: &Wire, agent: usize, due: Instant, broken: &CancellationToken) -> bool {
    let way = async {
        sleep_until(due).await;
        let given_up = Instant::now() + KEEP_ALIVE;
        while !wire.world.connected(wire.from, Node::Agent(agent)) {
            if Instant::now() >= given_up {
                return false;
            }
            sleep(Duration::from_millis(100)).await;
        }
        true
    };
    let carried = tokio::select! {
        biased;
        () = broken.cancelled() => false,
        open = way => open,
    };
    if !carried {
        broken.cancel();
    }
    carried
}

async fn outward(
    wire: Wire,
    agent: usize,
    mut frames: BoxStream<'static, ClientFrame>,
    to_agent: mpsc::UnboundedSender<Result<Bytes, io::Error>>,
    broken: CancellationToken,
) {
    loop {
        let next = tokio::select! {
            biased;
            () = broken.cancelled() => break,
            next = frames.next() => next,
        };
        let Some(next) = next else { return };
        if !carried(&wire, agent, Instant::now() + wire.world.delay(), &broken).await {
            break;
        }
        wire.world.note(format_args!("{} to worker-{agent}: {}", wire.from, kind(&next)));
        if to_agent.send(Ok(frame::encode(&next))).is_err() {
            return;
        }
    }
    sleep(wire.world.delay()).await;
    let _ = to_agent.send(Err(io::Error::other("the connection broke")));
}

fn kind(frame: &ClientFrame) -> String {
    use sahasra_wire::burst::client_frame::Kind;
    match &frame.kind {
        Some(Kind::Open(open)) => format!("open in term {}", open.owner.term),
        Some(Kind::Submit(submit)) => format!("submit {}", ranges(&submit.ranges)),
        Some(Kind::Acknowledge(acknowledge)) => format!("acknowledge {}", acknowledge.sequence),
        Some(Kind::Withdraw(_)) => "withdraw".to_owned(),
        None => "nothing".to_owned(),
    }
}

/// Describes a frame of an agent for the trace, with the attempts of its chunks.
fn answer(frame: &ServerFrame) -> String {
    use sahasra_wire::burst::server_frame::Kind;
    match &frame.kind {
        Some(Kind::Opened(opened)) => {
            format!("opened, has {} of {}", ranges(&opened.chunks), opened.sequence)
        }
        Some(Kind::Refused(refusal)) => format!("refused: {}", refusal.message),
        Some(Kind::Results(results)) => {
            let runs = results.runs.iter();
            let runs = runs.map(|run| format!("{}+{} #{}", run.first, run.count, run.attempt));
            format!("results {}: {}", results.sequence, runs.collect::<Vec<_>>().join(" "))
        }
        Some(Kind::Failures(failures)) => {
            let failed = failures.failures.iter();
            let failed = failed.map(|failed| format!("{}+{} #{} {}", failed.first, failed.count, failed.attempt, failed.code()));
            format!("failures {}: {}", failures.sequence, failed.collect::<Vec<_>>().join(" "))
        }
        Some(Kind::Returned(returned)) => format!("returned {}", ranges(&returned.ranges)),
        None => "nothing".to_owned(),
    }
}

fn ranges(ranges: &[ChunkRange]) -> String {
    let shown = ranges.iter();
    let shown = shown.map(|range| format!("{}+{} #{} on {}", range.first, range.count, range.attempt, range.device));
    shown.collect::<Vec<_>>().join(" ")
}

async fn inward(
    wire: Wire,
    live: Arc<Live>,
    mut answered: mpsc::Receiver<Bytes>,
    to_operator: mpsc::UnboundedSender<Result<ServerFrame, StreamError>>,
    broken: CancellationToken,
) {
    let mut decoder = frame::Decoder::default();
    loop {
        let next = tokio::select! {
            biased;
            () = broken.cancelled() => break,
            next = answered.recv() => next,
        };
        let Some(bytes) = next else {
            if live.group.has_crashed() {
                break;
            }
            return;
        };
        decoder.extend(bytes);
        if !carried(&wire, live.index, Instant::now() + wire.world.delay(), &broken).await {
            break;
        }
        while let Ok(Some(frame)) = decoder.next_message::<ServerFrame>() {
            wire.world
                .note(format_args!("worker-{} to {}: {}", live.index, wire.from, answer(&frame)));
            if to_operator.send(Ok(frame)).is_err() {
                broken.cancel();
                return;
            }
        }
    }
    broken.cancel();
    sleep(wire.world.delay()).await;
    let _ = to_operator.send(Err(cut()));
}
