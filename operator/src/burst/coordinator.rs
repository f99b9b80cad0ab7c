//! The coordinator of one burst: a task that lives from the job's acceptance to its end.
//!
//! ```text
//!  pool ──ClaimView──► windows ──Submit──► agents ──Results/Failures──► account, aggregator, records
//!                         ▲                                                   │ checkpoint, status (in the background)
//!                         └────────────── what is ready to run ◄──────────────┘
//! ```
//!
//! 1. `secure`: finalizer, term (compare-and-set in the status), intent (`VramLease`); after a predecessor also its
//!    checkpoint and the grants that agents still hold for the job.
//! 2. The loop here: give out what is ready, take in what comes, write progress. No step of it waits for the API server.
//! 3. `finish`: final checkpoint, VRAM back, status, finalizer.
//!
//! Whatever goes wrong with a write ends the coordinator; the reconciler starts another, which takes over under the next
//! term.

use std::{collections::BTreeMap, sync::Arc};

use object_store::ObjectStore;
use sahasra_crds::{BurstJob, BurstJobStatus, burst_job::KeptResults, vram_lease::MAX_SLICES};
use sahasra_wire::grants::Owner;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    account::{Account, DeviceKey},
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
    pool::ClaimView,
};

mod dispatch;
mod finish;
mod progress;
mod save;
mod secure;
mod streams;

use dispatch::Device;
use progress::Written;
pub(crate) use progress::lease_status;
use save::SaveError;
use streams::Stream;

/// Events of all streams of a burst that wait to be handled; behind it HTTP/2's windows hold the agents back.
const EVENTS: usize = 1024;
/// Events handled in one go before anything else gets its turn.
const EVENTS_AT_ONCE: usize = 256;

/// Why a coordinator ended before its burst did.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// A write failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Someone else wrote the job at the same time.
    #[error("the job was written by someone else")]
    Conflict(#[source] kube::Error),
    /// An agent has heard of a higher term.
    #[error("an agent has heard of a higher term")]
    Superseded,
    /// The checkpoint does not fit the job.
    #[error("read the checkpoint")]
    Checkpoint(#[from] super::checkpoint::CheckpointError),
    /// What the burst counted was not saved, or not read back.
    #[error(transparent)]
    Save(SaveError),
}

impl From<SaveError> for CoordinatorError {
    fn from(error: SaveError) -> Self {
        match error {
            SaveError::Write(error) => Self::Write(error),
            other => Self::Save(other),
        }
    }
}

impl CoordinatorError {
    /// Category for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Write(error) => error.category(),
            Self::Conflict(_) => "conflict",
            Self::Superseded => "fenced",
            Self::Checkpoint(_) => "checkpoint",
            Self::Save(error) => error.category(),
        }
    }
}

/// How a burst ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Every chunk is counted, and no more failed than may.
    Complete,
    /// Too many failed.
    Failed,
    /// What it counts can never be saved.
    Refused,
    /// The object is being deleted.
    Deleted,
}

/// Whether the burst may hold slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// It may.
    Running,
    /// It was asked to stop; what runs may end until then, in milliseconds of the clock.
    Suspending(u64),
    /// It holds nothing.
    Suspended,
}

/// See the module.
pub struct Coordinator {
    context: Arc<Context>,
    objects: Objects,
    burst: ValidBurst,
    /// The job as last seen.
    job: watch::Receiver<Arc<BurstJob>>,
    term: u64,
    /// As last written.
    status: BurstJobStatus,
    version: String,

    account: Account,
    aggregator: Aggregator,
    results: Results,
    /// Segments of the store that no checkpoint's index has yet.
    segments: Vec<Segment>,
    /// The job's folder in the store, once it was opened.
    folder: Option<Arc<dyn ObjectStore>>,
    /// Sets of the last checkpoint that stand in the store.
    stored_sets: Option<StoredSets>,
    /// Number of the next checkpoint of this term: no object's name is used twice.
    checkpoint_number: u64,
    /// Why the last checkpoint was not written, if so.
    saving_failed: Option<Verdict>,
    /// Why none ever will be.
    refused: Option<Verdict>,
    /// The status leaves out what the API server might refuse.
    lean: bool,
    /// Where the list of results stands in the store, once it does.
    published: Option<String>,
    /// Indices that a written checkpoint covers.
    covered: IndexSet,
    checkpoint_version: Option<String>,
    peak_slices: u64,

    hold: Hold,
    /// It has held its minimum.
    started: bool,
    /// Since when it claims slices, in milliseconds of the clock.
    claimed_at: u64,
    lease: Option<String>,
    view: Option<watch::Receiver<ClaimView>>,
    held: ClaimView,

    devices: BTreeMap<DeviceKey, Device>,
    streams: BTreeMap<String, Stream>,
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
    /// A coordinator for the job that `job` shows.
    pub fn new(context: Arc<Context>, job: watch::Receiver<Arc<BurstJob>>, burst: ValidBurst) -> Self {
        let current = job.borrow().clone();
        let now = context.clock.now();
        let (events_sender, events) = mpsc::channel(EVENTS);
        let uid = current.metadata.uid.clone().unwrap_or_default();
        // Retries of different jobs spread differently; those of one job alike after a restart.
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
            aggregator: Aggregator::new(burst.aggregate.as_ref(), &burst.layout),
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
            checkpoint_pace: Pace::new(now, 5_000, 10_000),
            status_pace: Pace::new(now, 500, 20_000),
            lease_pace: Pace::new(now, 1_000, 40_000),
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

    /// Runs the burst to its end. Gives back the job as last written.
    pub async fn run(mut self) -> Result<Arc<BurstJob>, CoordinatorError> {
        let outcome = self.run_to_end().await;
        if let Err(CoordinatorError::Write(WriteError::Gone)) = &outcome {
            if let Err(error) = self.context.pool.release(&self.owner().uid, true).await {
                tracing::warn!(%error, "the job is gone; what did not answer returns at expiry");
            }
        } else if outcome.is_err() {
            // The next coordinator adopts the grants from the agents; this process stops renewing them.
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

    /// Whether the burst is at its end.
    fn end(&self) -> Option<End> {
        let counts = self.account.counts();
        if self.job.borrow().metadata.deletion_timestamp.is_some() {
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

    /// The spec may have changed where it may: suspend, slices, priority.
    fn on_job(&mut self) {
        let job = self.job.borrow_and_update().clone();
        if let Some(version) = &job.metadata.resource_version {
            self.version = newer(std::mem::take(&mut self.version), version.clone());
        }
        if self.view.is_some() {
            let (min, max) = self.bounds(&job);
            self.context.pool.resize(&self.owner().uid, min, max, job.spec.priority);
        }
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
        if !self.started && slices >= u64::from(self.bounds(&job).0) {
            self.started = true;
            super::status::started(&mut self.status, crate::clock::timestamp());
        }
        self.follow_grants();
        Ok(())
    }

    /// Fewest and most slices: never more than chunks, and never more than a lease may ask for.
    fn bounds(&self, job: &BurstJob) -> (u32, u32) {
        let chunks = u32::try_from(self.burst.total).unwrap_or(MAX_SLICES).min(MAX_SLICES);
        let number = |slices: i64| u32::try_from(slices.max(1)).unwrap_or(u32::MAX);
        let max = job.spec.slices.max.map_or(chunks, number).min(chunks);
        (number(job.spec.slices.min).min(max), max)
    }

    fn owner(&self) -> Owner {
        let job = self.job.borrow();
        owner(&job, self.term)
    }
}

/// The job as agents know it.
pub(super) fn owner(job: &BurstJob, term: u64) -> Owner {
    Owner {
        uid: job.metadata.uid.clone().unwrap_or_default(),
        namespace: job.metadata.namespace.clone().unwrap_or_default(),
        name: format!("BurstJob/{}", job.metadata.name.as_deref().unwrap_or_default()),
        term,
    }
}

/// The later of two resource versions: a watch may show an older one than a write has answered.
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
