//! A simulated worker with one device. Its agent grants the slices that a test leaves free, and the test controls its streams.

use std::sync::Arc;

use bytes::Bytes;
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use parking_lot::{Mutex, MutexGuard};
use sahasra_crds::{BurstJob, BurstJobStatus, GpuWorker};
use sahasra_operator::{
    agents::{
        AgentClient, AgentError, StreamError,
        transport::{Incomings, Transport},
    },
    burst,
    context::Context,
    gpu_session, vram_lease,
};
use sahasra_ranges::AttemptRange;
use sahasra_store::StorePolicy;
use sahasra_wire::{
    Message,
    burst::{
        ChunkRange, ClientFrame, Failure, FailureCode, Failures, Opened, ResultRun, Results, Returned, ServerFrame, client_frame,
        server_frame,
    },
    grants::{
        AcquireRequest, AcquireResponse, Grant, GrantId, Refusal, RejectionCode, ReleaseRequest, ReleaseResponse, RenewOutcome,
        RenewRequest, RenewResponse,
    },
    inventory::{Device, Inventory},
    path,
};
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    task::AbortHandle,
    time::timeout,
};

use crate::harness::{ApiServer, LIMIT, NAMESPACE, context_with, eventually};

const WORKER: &str = "node-a";
const DEVICE: &str = "cpu0";
const BOOT: &str = "boot";
const SLICE_BYTES: u64 = 1 << 20;
/// Number of slices of the device.
pub(crate) const SLICES: u32 = 4;

/// Chunks on the agent's device.
pub(crate) fn there(first: u64, count: u64, attempt: u32) -> ChunkRange {
    ChunkRange::new(DEVICE, AttemptRange { first, count, attempt })
}

/// State of the agent's grants.
#[derive(Debug, Default)]
struct Ledger {
    /// Number of slices that others hold.
    occupied: u32,
    grants: Vec<Grant>,
    counter: u64,
    /// Number of releases that will not be answered.
    unanswered_releases: u32,
    /// Number of calls of releases, answered or not.
    releases: u32,
}

impl Ledger {
    fn lent(&self) -> u32 {
        self.occupied + self.grants.iter().map(|grant| grant.slices).sum::<u32>()
    }

    fn inventory(&self) -> Inventory {
        let device = Device {
            name: DEVICE.to_owned(),
            class: "cpu".to_owned(),
            total_bytes: u64::from(SLICES) * SLICE_BYTES,
            allocatable_bytes: u64::from(SLICES) * SLICE_BYTES,
            leased_bytes: u64::from(self.lent()) * SLICE_BYTES,
            healthy: true,
            ..Device::default()
        };
        Inventory {
            worker: WORKER.to_owned(),
            boot_id: BOOT.to_owned(),
            devices: vec![device],
            grants: self.grants.clone(),
            ..Inventory::default()
        }
    }

    fn acquire(&mut self, request: &AcquireRequest) -> AcquireResponse {
        let free = SLICES - self.lent();
        let slices = request.slices.min(free);
        if slices == 0 || slices < request.at_least {
            let refusal = Refusal {
                code: RejectionCode::InsufficientVram.into(),
                message: "full".to_owned(),
                free_bytes: u64::from(free) * SLICE_BYTES,
            };
            return AcquireResponse {
                grant: None,
                refusal: Some(refusal),
            };
        }
        self.counter += 1;
        let grant = Grant {
            id: GrantId {
                boot_id: BOOT.to_owned(),
                counter: self.counter,
            },
            owner_uid: request.owner.uid.clone(),
            device: DEVICE.to_owned(),
            slice_bytes: request.slice_bytes,
            slices,
            expires_in_milliseconds: request.ttl_milliseconds,
            draining: false,
            term: request.owner.term,
        };
        self.grants.push(grant.clone());
        AcquireResponse {
            grant: Some(grant),
            refusal: None,
        }
    }

    fn renew(&self, request: &RenewRequest) -> RenewResponse {
        let ids = request.owners.iter().flat_map(|owner| &owner.grants);
        let outcomes = ids.map(|id| RenewOutcome {
            id: id.clone(),
            renewed: self.grants.iter().any(|grant| grant.id == *id),
            refusal: RejectionCode::InvalidRequest.into(),
        });
        RenewResponse {
            outcomes: outcomes.collect(),
        }
    }

    fn release(&mut self, request: &ReleaseRequest) -> ReleaseResponse {
        let is_meant =
            |grant: &Grant| grant.owner_uid == request.owner.uid && (request.grants.is_empty() || request.grants.contains(&grant.id));
        for grant in self.grants.iter_mut().filter(|grant| is_meant(grant)) {
            grant.slices = request.keep_slices;
        }
        let before = self.grants.len();
        self.grants.retain(|grant| grant.slices > 0);
        ReleaseResponse {
            freed: u32::try_from(before - self.grants.len()).unwrap_or(u32::MAX),
            ..ReleaseResponse::default()
        }
    }
}

/// The agent, as the operator's transport.
#[derive(Debug)]
struct Agent {
    ledger: Mutex<Ledger>,
    streams: mpsc::UnboundedSender<Stream>,
}

impl Agent {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }
}

fn decoded<M: Message + Default>(message: Bytes) -> M {
    M::decode(message).expect("the operator sends what the protocol has")
}

impl Transport for Agent {
    fn call<'a>(&'a self, _endpoint: &'a str, path: &'static str, message: Bytes) -> BoxFuture<'a, Result<Bytes, AgentError>> {
        let mut ledger = self.ledger();
        ledger.releases += u32::from(path == path::RELEASE);
        if path == path::RELEASE && ledger.unanswered_releases > 0 {
            ledger.unanswered_releases -= 1;
            return std::future::ready(Err(AgentError::Timeout)).boxed();
        }
        let answer = match path {
            path::ACQUIRE => ledger.acquire(&decoded(message)).encode_to_vec(),
            path::RENEW => ledger.renew(&decoded(message)).encode_to_vec(),
            path::RELEASE => ledger.release(&decoded(message)).encode_to_vec(),
            _ => ledger.inventory().encode_to_vec(),
        };
        std::future::ready(Ok(answer.into())).boxed()
    }

    fn stream<'a>(&'a self, _endpoint: &'a str, frames: BoxStream<'static, ClientFrame>) -> BoxFuture<'a, Result<Incomings, StreamError>> {
        let (answers, incoming) = mpsc::unbounded_channel();
        let _ = self.streams.send(Stream { frames, answers });
        let incoming = stream::unfold(incoming, |mut incoming| async move { Some((incoming.recv().await?, incoming)) });
        std::future::ready(Ok(incoming.boxed())).boxed()
    }
}

/// The agent's end of a coordinator's stream.
pub(crate) struct Stream {
    frames: BoxStream<'static, ClientFrame>,
    answers: mpsc::UnboundedSender<Result<ServerFrame, StreamError>>,
}

impl Stream {
    async fn next(&mut self) -> client_frame::Kind {
        let frame = timeout(LIMIT, self.frames.next()).await.expect("a frame in time");
        frame.and_then(|frame| frame.kind).expect("the coordinator keeps the stream")
    }

    fn send(&self, kind: server_frame::Kind) {
        self.answers.send(Ok(kind.into())).expect("the coordinator keeps the stream");
    }

    /// Accepts the stream. The agent still has these chunks and will repeat frames up to `last_repeated`.
    pub(crate) async fn accept(&mut self, chunks: &[ChunkRange], last_repeated: u64) {
        self.accept_at_most(1 << 16, chunks, last_repeated).await;
    }

    /// Accepts the stream as [`Stream::accept`] does, for an agent that accepts at most this many outstanding chunks.
    pub(crate) async fn accept_at_most(&mut self, max_outstanding_chunks: u64, chunks: &[ChunkRange], last_repeated: u64) {
        let client_frame::Kind::Open(open) = self.next().await else {
            panic!("the first frame is Open")
        };
        assert_eq!(open.boot_id, BOOT);
        self.send(server_frame::Kind::Opened(Opened {
            boot_id: BOOT.to_owned(),
            max_outstanding_chunks,
            chunks: chunks.to_vec(),
            sequence: last_repeated,
            last_repeated,
            resumed: true,
        }));
    }

    /// Checks that no frame arrives for three seconds.
    pub(crate) async fn quiet(&mut self) {
        let frame = timeout(std::time::Duration::from_secs(3), self.frames.next()).await;
        assert!(frame.is_err(), "{frame:?}");
    }

    /// Waits until the coordinator has submitted this many chunks, and returns their ranges.
    pub(crate) async fn submitted(&mut self, chunks: u64) -> Vec<ChunkRange> {
        let mut ranges: Vec<ChunkRange> = Vec::new();
        while ranges.iter().map(|range| range.count).sum::<u64>() < chunks {
            if let client_frame::Kind::Submit(submit) = self.next().await {
                ranges.extend(submit.ranges);
            }
        }
        ranges
    }

    /// Reports consecutive chunks as succeeded on their first attempt, with an output of one byte each.
    pub(crate) fn succeeded(&self, sequence: u64, first: u64, count: u64, segment: &str) {
        let run = ResultRun {
            first,
            count,
            attempt: 1,
            outputs: vec![0; usize::try_from(count).expect("few")].into(),
        };
        self.send(server_frame::Kind::Results(Results {
            sequence,
            device: DEVICE.to_owned(),
            runs: vec![run],
            segment: segment.to_owned(),
        }));
    }

    /// Reports individual chunks as succeeded on their first attempt, with an output of one byte each.
    pub(crate) fn succeeded_each(&self, sequence: u64, chunks: impl Iterator<Item = u64>) {
        let run = |first| ResultRun {
            first,
            count: 1,
            attempt: 1,
            outputs: Bytes::from_static(&[0]),
        };
        self.send(server_frame::Kind::Results(Results {
            sequence,
            device: DEVICE.to_owned(),
            runs: chunks.map(run).collect(),
            segment: String::new(),
        }));
    }

    /// Reports that a chunk failed on its first attempt.
    pub(crate) fn failed(&self, sequence: u64, chunk: u64, code: FailureCode) {
        self.failed_in(1, sequence, chunk, code);
    }

    /// Reports that a chunk failed in this attempt.
    pub(crate) fn failed_in(&self, attempt: u32, sequence: u64, chunk: u64, code: FailureCode) {
        let failure = Failure {
            first: chunk,
            count: 1,
            attempt,
            code: code.into(),
            message: code.label().to_owned(),
        };
        self.send(server_frame::Kind::Failures(Failures {
            sequence,
            device: DEVICE.to_owned(),
            failures: vec![failure],
        }));
    }

    /// Waits until the coordinator withdraws the chunks that have not started.
    pub(crate) async fn withdrawn(&mut self) {
        while !matches!(self.next().await, client_frame::Kind::Withdraw(_)) {}
    }

    /// Returns chunks unstarted.
    pub(crate) fn returned(&self, ranges: Vec<ChunkRange>) {
        self.send(server_frame::Kind::Returned(Returned {
            ranges,
            without_slices: false,
        }));
    }

    /// Returns chunks unstarted because no slice is held on the device.
    pub(crate) fn returned_without_slices(&self, ranges: Vec<ChunkRange>) {
        self.send(server_frame::Kind::Returned(Returned {
            ranges,
            without_slices: true,
        }));
    }

    /// Breaks the connection.
    pub(crate) fn cut(self) {
        let error = std::io::Error::other("the connection broke");
        let _ = self.answers.send(Err(StreamError::Cut(error.into())));
    }
}

/// An operator that leads, with one worker.
pub(crate) struct Pool {
    /// A client whose requests are never rejected.
    pub client: Client,
    /// The API server, which can reject the operator's requests.
    pub api: ApiServer,
    pub context: Arc<Context>,
    agent: Arc<Agent>,
    streams: mpsc::UnboundedReceiver<Stream>,
    tasks: Vec<AbortHandle>,
}

impl Pool {
    /// Starts an operator and a worker on which others hold this many slices.
    pub(crate) async fn start(occupied: u32, stores: StorePolicy) -> Self {
        Self::on(ApiServer::new(), occupied, stores).await
    }

    /// Starts them as [`Pool::start`] does, on an API server that may have objects already.
    pub(crate) async fn on(api: ApiServer, occupied: u32, stores: StorePolicy) -> Self {
        let client = api.client();
        let (opened, streams) = mpsc::unbounded_channel();
        let agent = Arc::new(Agent {
            ledger: Mutex::default(),
            streams: opened,
        });
        let context = context_with(&api.refusing_client(), AgentClient::over(agent.clone()), stores, 0);
        let worker =
            json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuWorker", "metadata": {"name": WORKER}, "spec": {"nodeName": WORKER}});
        let worker: GpuWorker = serde_json::from_value(worker).expect("a GpuWorker");
        let workers = Api::<GpuWorker>::all(client.clone());
        workers.create(&PostParams::default(), &worker).await.expect("created");
        let mut pool = Self {
            client,
            api,
            context,
            agent,
            streams,
            tasks: Vec::new(),
        };
        pool.occupy(occupied).await;
        let (context, (synced, listed)) = (pool.context.clone(), oneshot::channel());
        let directory = context.directory.clone().run(pool.client.clone(), NAMESPACE, move || {
            let _ = synced.send(());
        });
        pool.tasks.push(tokio::spawn(directory).abort_handle());
        listed.await.expect("the workers are listed");
        context.pool.observe();
        pool.tasks.push(tokio::spawn(context.pool.clone().run()).abort_handle());
        let reconciling = async move {
            tokio::join!(
                burst::reconcile::run(context.clone()),
                vram_lease::run(context.clone()),
                gpu_session::run(context.clone()),
            );
        };
        pool.tasks.push(tokio::spawn(reconciling).abort_handle());
        pool
    }

    /// Sets the number of slices that others hold. The agent's report makes the operator request the inventory.
    pub(crate) async fn occupy(&self, slices: u32) {
        self.agent.ledger().occupied = slices;
        let status = json!({"status": {
            "endpoint": "http://node-a:8471",
            "bootId": BOOT,
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Serving", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "devices": [{
                "name": DEVICE, "model": "CPU", "class": "cpu", "totalMiB": SLICES, "allocatableMiB": SLICES, "leasedMiB": slices,
                "activeExecutions": 0, "tensorCount": 0, "storedTensorBytes": 0, "health": "Healthy", "engines": ["ptx"],
            }],
        }});
        let workers = Api::<GpuWorker>::all(self.client.clone());
        let written = workers.patch_status(WORKER, &PatchParams::default(), &Patch::Merge(status)).await;
        written.expect("the status is valid");
    }

    /// Expires all grants. None is renewed, and no slices are granted again.
    pub(crate) fn expire(&self) {
        let mut ledger = self.agent.ledger();
        ledger.grants.clear();
        ledger.occupied = SLICES;
    }

    /// Leaves this many of the following releases unanswered.
    pub(crate) fn leave_releases_unanswered(&self, calls: u32) {
        self.agent.ledger().unanswered_releases = calls;
    }

    /// Number of releases that the agent received, answered or not.
    pub(crate) fn releases(&self) -> u32 {
        self.agent.ledger().releases
    }

    /// Number of slices that are granted or that others hold.
    pub(crate) fn lent(&self) -> u32 {
        self.agent.ledger().lent()
    }

    /// The next stream that a coordinator opens.
    pub(crate) async fn stream(&mut self) -> Stream {
        let opened = timeout(LIMIT, self.streams.recv()).await;
        opened.expect("a stream in time").expect("the agent stays")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// The status of the burst once it has ended.
pub(crate) async fn ended(pool: &Pool, name: &str) -> BurstJobStatus {
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    eventually(&jobs, name, |job| {
        job.status.clone().filter(|status| status.completion_time.is_some())
    })
    .await
}
