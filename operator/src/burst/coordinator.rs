//! The coordinator of one burst: a task that runs from the job's acceptance to its end.
//!
//! ```text
//!  pool ──ClaimView──► windows ──Submit──► agents ──Results/Failures──► account, aggregator, records
//!                         ▲                                                   │ checkpoint, status (in the background)
//!                         └────────────── what is ready to run ◄──────────────┘
//! ```
//!
//! 1. `secure`: writes finalizer, term (by compare-and-set in the status) and intent (the `VramLease`). After a predecessor, it also
//!    restores the checkpoint and adopts the grants that agents still hold for the job.
//! 2. The loop in this module: assigns ready chunks, handles events, and writes progress. None of its steps waits for the API server.
//! 3. `finish`: writes the final checkpoint, releases the VRAM, writes the status and removes the finalizer.
//!
//! A failed write that is not tolerated ends the coordinator. The reconciler then starts another one, which takes over under the next term.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use object_store::ObjectStore;
use sahasra_crds::{BurstJob, BurstJobStatus, VramLease, burst_job::KeptResults, vram_lease::MAX_SLICES};
use sahasra_names::{DeviceId, WorkerName};
use sahasra_wire::grants::Owner;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    account::Account,
    aggregate::Aggregator,
    budget::{Budget, Pace},
    checkpoint::{Results, StoredSets},
    index_set::IndexSet,
    objects::{Objects, WriteError},
    results_store::{Segment, SegmentIndex},
    status::Verdict,
    validate::ValidBurst,
};
use crate::{
    agents::stream::{StreamEvent, StreamId},
    context::Context,
    leases::{Bounds, owner},
    pool::ClaimView,
};

mod answers;
mod dispatch;
mod finish;
mod fit;
mod losses;
mod progress;
mod save;
mod secure;
mod streams;
mod writes;

use dispatch::Device;
use streams::Stream;
use writes::Written;

/// Capacity of the channel for events of all streams of a burst. When it is full, HTTP/2 flow control stops the agents from sending.
const EVENTS: usize = 1024;
/// Maximum number of stream events that are handled before other events get their turn.
const EVENTS_AT_ONCE: usize = 256;

/// Reasons why a coordinator ended before its burst did.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("the job was modified concurrently")]
    Conflict(#[source] kube::Error),
    #[error("an agent has received a higher term")]
    Superseded,
    #[error("failed to read the checkpoint")]
    Checkpoint(#[from] super::checkpoint::CheckpointError),
}

impl CoordinatorError {
    pub fn category(&self) -> &'static str {
        match self {
            Self::Write(error) => error.category(),
            Self::Conflict(_) => "conflict",
            Self::Superseded => "fenced",
            Self::Checkpoint(_) => "checkpoint",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Every chunk is counted, and no more chunks failed than the spec allows.
    Complete,
    /// More chunks failed than the spec allows.
    Failed,
    /// The burst can never be saved.
    Refused,
    Deleted,
}

/// Whether the burst can hold slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Running,
    /// The burst must be suspended. Running chunks may continue until this time.
    Suspending(Duration),
    Suspended,
}

/// Coordinator of one burst; see the module documentation. Points of time are durations since the origin of the context's clock.
pub struct Coordinator {
    context: Arc<Context>,
    objects: Objects,
    burst: ValidBurst,
    job: watch::Receiver<Arc<BurstJob>>,
    term: u64,
    status: BurstJobStatus,
    version: String,

    account: Account,
    aggregator: Aggregator,
    results: Results,
    /// Segments in the store that no checkpoint's index contains yet.
    segments: Vec<Segment>,
    folder: Option<Arc<dyn ObjectStore>>,
    /// Sets of the last checkpoint that are in the store.
    stored_sets: Option<StoredSets>,
    /// Number of the next checkpoint of this term. It makes the names of objects in the store unique.
    checkpoint_number: u64,
    /// Condition that describes why the last checkpoint was not written; `None` if it was written.
    saving_failed: Option<Verdict>,
    /// Condition that describes why no checkpoint can ever be written.
    refused: Option<Verdict>,
    /// Whether the status leaves out the fields that the API server might reject.
    lean: bool,
    /// URL of the list of results in the store, once it has been written.
    published: Option<String>,
    covered: IndexSet,
    checkpoint_version: Option<String>,
    peak_slices: u64,

    hold: Hold,
    fit: fit::Fit,
    /// Whether the burst has held its minimum of slices.
    started: bool,
    claimed_at: Duration,
    /// The lease as last read or written. `None` while it is recreated, and after that has failed, because it may exist nevertheless.
    lease: Option<VramLease>,
    view: Option<watch::Receiver<ClaimView>>,
    held: ClaimView,

    devices: BTreeMap<DeviceId, Device>,
    streams: BTreeMap<WorkerName, Stream>,
    stream_number: u64,
    events: mpsc::Receiver<(StreamId, StreamEvent)>,
    events_sender: mpsc::Sender<(StreamId, StreamEvent)>,

    budget: Budget,
    checkpoint_pace: Pace,
    status_pace: Pace,
    lease_pace: Pace,
    writes: JoinSet<Written>,
    writing: progress::Writing,
}

impl Coordinator {
    pub fn new(context: Arc<Context>, job: watch::Receiver<Arc<BurstJob>>, burst: ValidBurst) -> Self {
        let current = job.borrow().clone();
        let now = context.clock.now();
        let (events_sender, events) = mpsc::channel(EVENTS);
        let uid = current.metadata.uid.clone().unwrap_or_default();
        // The jitter of retries differs between jobs, and stays the same for one job after a restart.
        let seed = uid
            .bytes()
            .fold(0_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let results = match burst.store {
            _ if burst.results != KeptResults::All => Results::Nowhere,
            Some(_) => Results::Store(SegmentIndex::default()),
            None => Results::Inline(vec![0; usize::try_from(burst.result_bytes).unwrap_or_default()]),
        };
        Self {
            objects: Objects::new(&context.client, &current),
            account: Account::new(burst.total, burst.policy, seed),
            aggregator: burst.aggregator.clone(),
            results,
            segments: Vec::new(),
            folder: None,
            stored_sets: None,
            checkpoint_number: 0,
            saving_failed: None,
            refused: None,
            lean: false,
            published: None,
            covered: IndexSet::default(),
            checkpoint_version: None,
            peak_slices: 0,
            hold: Hold::Suspended,
            fit: fit::Fit::default(),
            started: false,
            claimed_at: now,
            lease: None,
            view: None,
            held: ClaimView::default(),
            devices: BTreeMap::new(),
            streams: BTreeMap::new(),
            stream_number: 0,
            events,
            events_sender,
            budget: Budget::new(now),
            checkpoint_pace: Pace::new(now, Duration::from_secs(5), Duration::from_secs(10)),
            status_pace: progress::status_pace(now),
            lease_pace: progress::lease_pace(now),
            writes: JoinSet::new(),
            writing: progress::Writing::default(),
            status: current.status.clone().unwrap_or_default(),
            version: String::new(),
            term: 0,
            context,
            burst,
            job,
        }
    }

    /// Runs the burst to its end. Returns the job as last written.
    pub async fn run(mut self) -> Result<Arc<BurstJob>, CoordinatorError> {
        let outcome = self.run_to_end().await;
        if let Err(CoordinatorError::Write(WriteError::Gone)) = &outcome {
            if let Err(error) = self.context.pool.release(&self.owner().uid, true).await {
                tracing::warn!(%error, "job not found: retrying the release until the slices have expired");
            }
        } else if outcome.is_err() {
            // The next coordinator adopts the grants from the agents, so this process stops renewing them without releasing them.
            self.context.pool.forget(&self.owner().uid);
        }
        outcome
    }

    async fn run_to_end(&mut self) -> Result<Arc<BurstJob>, CoordinatorError> {
        self.secure().await?;
        loop {
            self.hold_or_suspend().await?;
            if let Some(end) = self.end() {
                return self.finish(end).await;
            }
            self.fit_slices();
            self.dispatch();
            self.write_progress();
            let wake = self.context.clock.instant(self.next_wake());
            tokio::select! {
                Some((id, event)) = self.events.recv() => {
                    self.on_stream(&id, event)?;
                    for _ in 1..EVENTS_AT_ONCE {
                        let Ok((id, event)) = self.events.try_recv() else { break };
                        self.on_stream(&id, event)?;
                    }
                }
                () = changed(&mut self.view) => self.on_view()?,
                outcome = self.job.changed() => {
                    if outcome.is_err() {
                        // The reconciler has dropped its handle of this coordinator.
                        return Err(CoordinatorError::Superseded);
                    }
                    self.on_job();
                }
                Some(written) = self.writes.join_next() => self.on_written(written)?,
                () = tokio::time::sleep_until(wake) => self.on_time(),
            }
        }
    }

    fn end(&self) -> Option<End> {
        let counts = self.account.counts();
        if self.is_deleted() {
            Some(End::Deleted)
        } else if self.refused.is_some() {
            Some(End::Refused)
        } else if counts.failed > self.burst.max_failed {
            Some(End::Failed)
        } else if self.account.is_finished() {
            Some(End::Complete)
        } else {
            None
        }
    }

    /// Applies a change of the spec's mutable fields: suspend, slices and priority.
    fn on_job(&mut self) {
        let job = self.job.borrow_and_update().clone();
        if let Some(version) = &job.metadata.resource_version {
            self.version = newer(std::mem::take(&mut self.version), version.clone());
        }
        if self.view.is_some() {
            self.resize_claim(self.held.slices());
        }
    }

    /// Adapts the claim of a burst that holds `held` slices to the spec and to the number of unfinished chunks.
    fn resize_claim(&self, held: u64) {
        let job = self.job.borrow().clone();
        let Bounds { min, max } = self.bounds(&job, held);
        self.context.pool.resize(&self.owner().uid, min, max, job.spec.priority);
    }

    fn on_view(&mut self) -> Result<(), CoordinatorError> {
        let Some(view) = &mut self.view else { return Ok(()) };
        self.held = view.borrow_and_update().clone();
        if self.held.fenced {
            return Err(CoordinatorError::Superseded);
        }
        let slices = self.held.slices();
        self.peak_slices = self.peak_slices.max(slices);
        let job = self.job.borrow().clone();
        if !self.started && (slices >= u64::from(self.bounds(&job, slices).min) || self.held.keeps_fewer) {
            self.started = true;
            self.status.start_time.get_or_insert(Time(crate::clock::timestamp()));
        }
        self.follow_grants();
        Ok(())
    }

    /// Minimum and maximum number of slices of a burst that holds `held`. Limited to the number of unfinished chunks, unless more are held,
    /// and to the maximum of a lease.
    fn bounds(&self, job: &BurstJob, held: u64) -> Bounds {
        let counts = self.account.counts();
        let chunks = (counts.pending + counts.running).max(held).clamp(1, self.burst.total);
        let chunks = u32::try_from(chunks).unwrap_or(MAX_SLICES).min(MAX_SLICES);
        Bounds::new(job.spec.slices.min, job.spec.slices.max).at_most(chunks)
    }

    fn now(&self) -> Duration {
        self.context.clock.now()
    }

    fn owner(&self) -> Owner {
        owner(&**self.job.borrow(), self.term)
    }
}

/// The newer of two resource versions. A watch may deliver a version older than the one that a write returned.
fn newer(one: String, other: String) -> String {
    match (one.parse::<u64>(), other.parse::<u64>()) {
        (Ok(a), Ok(b)) if a > b => one,
        _ => other,
    }
}

async fn changed(view: &mut Option<watch::Receiver<ClaimView>>) {
    match view {
        Some(view) => {
            if view.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}
