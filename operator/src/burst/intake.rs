//! From a job as it was applied to one that can be run, beside the reconcilers: what the spec refers to is fetched and checked
//! here, so that neither a slow store nor a large kernel holds up anything else.
//!
//! Bounded are the bytes that all bursts together hold in this process ([`Settings::input_bytes`](crate::Settings)), the jobs that
//! ask stores at the same time, in all and for each namespace, the time that a job's requests may take, and the kernels that are
//! checked at the same time. What waits for memory says so.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use kube::Client;
use sahasra_crds::burst_job::{
    BurstJobSpec,
    kernel::{MAX_INPUT_BYTES, MAX_PTX_BYTES},
};
use sahasra_service::part;
use sahasra_store::StorePolicy;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use super::{
    observe::{ObserveError, Survey, survey},
    validate::{Invalid, ValidBurst, validate},
};

/// Memory is given out in units of so many bytes.
const UNIT: u64 = 1024;
/// Least memory for inputs with which every burst can run that the schema admits.
pub const LEAST_INPUT_BYTES: u64 = MAX_PTX_BYTES + MAX_INPUT_BYTES;
/// Jobs that ask stores at the same time: each has a few sockets.
const FETCHES: usize = 128;
/// Jobs of one namespace that ask stores, or wait for memory to do so, at the same time: one with slow stores delays its own jobs, and
/// has no more than these ahead of another namespace's in the queue for memory.
const FETCHES_OF_A_NAMESPACE: usize = 8;
/// What all requests of a job to its store may take together: the largest inputs at 1 MiB/s.
const DEADLINE: Duration = Duration::from_secs(60);
/// Kernels that are checked at the same time: each takes a core, and memory many times its text's.
const CHECKS: usize = 2;
/// A wait that takes longer is reported.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// Why a job cannot be run as it is, and whether that may change without a change of the job.
#[derive(Clone, Debug)]
pub struct Refused {
    /// CamelCase cause.
    pub reason: &'static str,
    /// The field, what is wrong and the remedy.
    pub message: String,
    /// It may be put right in what the spec refers to.
    pub may_pass: bool,
}

/// A refusal, and the version of what the spec refers to for which it holds.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Why the burst is refused.
    pub refused: Refused,
    /// Absent when not all of it could be read.
    pub version: Option<Vec<u8>>,
}

/// A burst that can be run, with the right to the memory that it takes.
#[derive(Debug)]
pub struct Accepted {
    /// The checked burst, with its PTX and inputs.
    pub burst: ValidBurst,
    /// To be kept as long as the burst is.
    pub memory: OwnedSemaphorePermit,
    /// Version of what the spec refers to.
    pub version: Vec<u8>,
}

/// A job in the intake waits, and may wait for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// CamelCase cause.
    pub reason: &'static str,
    /// The field, and what ends the wait.
    pub message: String,
}

/// What becomes of a job.
#[derive(Debug)]
pub enum Outcome {
    /// The burst can be run.
    Accepted(Box<Accepted>),
    /// The burst cannot be run as it stands.
    Refused(Verdict),
    /// The API server did not answer.
    Failed(ObserveError),
}

/// See the module.
pub struct Intake {
    client: Client,
    stores: StorePolicy,
    memory: Arc<Semaphore>,
    memory_bytes: u64,
    fetches: Arc<Semaphore>,
    of_namespaces: Mutex<BTreeMap<String, Weak<Semaphore>>>,
    checks: Arc<Semaphore>,
}

impl Intake {
    /// With so many bytes for all bursts' inputs together, and never less than the largest burst needs.
    pub fn new(client: Client, stores: StorePolicy, input_bytes: u64) -> Self {
        let memory_bytes = input_bytes.max(LEAST_INPUT_BYTES);
        let units = usize::try_from(memory_bytes / UNIT)
            .unwrap_or(Semaphore::MAX_PERMITS)
            .min(Semaphore::MAX_PERMITS);
        Self {
            client,
            stores,
            memory: Arc::new(Semaphore::new(units)),
            memory_bytes,
            fetches: Arc::new(Semaphore::new(FETCHES)),
            of_namespaces: Mutex::default(),
            checks: Arc::new(Semaphore::new(CHECKS)),
        }
    }

    /// Fetches and checks. What was refused `before` is not checked again unless something has changed. A wait of more than a second is
    /// passed to `report`.
    pub async fn admit(&self, namespace: &str, spec: &BurstJobSpec, before: Option<Verdict>, report: impl Fn(Waiting)) -> Outcome {
        match self.accept(namespace, spec, before, report).await {
            Ok(accepted) => Outcome::Accepted(Box::new(accepted)),
            Err(Refusal::Verdict(verdict)) => Outcome::Refused(verdict),
            Err(Refusal::Observe(ObserveError::Missing { path, reason, message })) => Outcome::Refused(Verdict {
                refused: Refused {
                    reason,
                    message: format!("{path}: {message}"),
                    may_pass: true,
                },
                version: None,
            }),
            Err(Refusal::Observe(error)) => Outcome::Failed(error),
        }
    }

    async fn accept(
        &self,
        namespace: &str,
        spec: &BurstJobSpec,
        before: Option<Verdict>,
        report: impl Fn(Waiting),
    ) -> Result<Accepted, Refusal> {
        let remote = Survey::has_objects(spec);
        // Before memory is reserved, so that no namespace holds or queues for much of it while its stores are slow.
        let turn = match remote {
            true => Some(self.turn(namespace, &report).await),
            false => None,
        };
        let mut left = DEADLINE;
        let surveyed = survey(&self.client, &self.stores, namespace, spec);
        let survey = self.within(remote, &mut left, surveyed).await?;
        let mut memory = self.reserve(survey.bytes(), &report).await;
        let references = survey.read().await?;
        let version = references.version().to_vec();
        if let Some(before) = before
            && before.version.as_ref() == Some(&version)
        {
            return Err(Refusal::Verdict(before));
        }
        let observed = self.within(remote, &mut left, references.fetch()).await?;
        drop(turn);
        // From now on it is known what it takes.
        let spare = memory.num_permits().saturating_sub(units(observed.bytes()));
        drop(memory.split(spare));

        let checking = self.checks.clone().acquire_owned().await.expect("never closed");
        let spec = spec.clone();
        let checked = part::blocking(move || {
            let _checking = checking;
            validate(&spec, &observed)
        });
        match checked.await {
            Ok(burst) => Ok(Accepted { burst, memory, version }),
            Err(Invalid { path, reason, message }) => Err(Refusal::Verdict(Verdict {
                refused: Refused {
                    reason,
                    message: format!("{path}: {message}"),
                    // What a ConfigMap or Secret holds may be put right there.
                    may_pass: path.starts_with("spec.kernel") || path.starts_with("spec.output"),
                },
                version: Some(version),
            })),
        }
    }

    /// Memory for so many bytes, first come, first served.
    async fn reserve(&self, bytes: u64, report: impl Fn(Waiting)) -> OwnedSemaphorePermit {
        let units = u32::try_from(units(bytes)).unwrap_or(u32::MAX);
        // What stands in the job itself is in the cache of jobs anyway, and does not wait.
        if let Ok(nothing) = self.memory.clone().try_acquire_many_owned(0)
            && units == 0
        {
            return nothing;
        }
        // Who waits first gets what comes free bit by bit: that is not held yet.
        let free = self.memory.available_permits() as u64 * UNIT;
        let acquired = reported(self.memory.clone().acquire_many_owned(units), || {
            report(Waiting {
                reason: "WaitingForMemory",
                message: format!(
                    "spec.kernel: PTX and inputs of {} MiB wait until other bursts end: those hold {} of the {} MiB that the operator \
                     keeps for them (--input-memory-mib)",
                    bytes.div_ceil(1 << 20),
                    (self.memory_bytes - free.min(self.memory_bytes)).div_ceil(1 << 20),
                    self.memory_bytes >> 20,
                ),
            });
        });
        acquired.await.expect("never closed")
    }

    /// The right of one job of the namespace to ask stores.
    async fn turn(&self, namespace: &str, report: impl Fn(Waiting)) -> OwnedSemaphorePermit {
        let acquired = reported(self.of_namespace(namespace).acquire_owned(), || {
            report(Waiting {
                reason: "WaitingForStores",
                message: format!(
                    "spec.output.store: {FETCHES_OF_A_NAMESPACE} other BurstJobs of the namespace read their stores, or wait for memory to \
                     do so: this one is next when they are done"
                ),
            });
        });
        acquired.await.expect("never closed")
    }

    /// Does work that asks a store, within the time that is `left`, among the [`FETCHES`] of all namespaces.
    async fn within<T>(
        &self,
        remote: bool,
        left: &mut Duration,
        work: impl Future<Output = Result<T, ObserveError>>,
    ) -> Result<T, ObserveError> {
        if !remote {
            return work.await;
        }
        let _fetching = self.fetches.acquire().await;
        let began = Instant::now();
        let done = timeout(*left, work).await;
        *left = left.saturating_sub(began.elapsed());
        done.unwrap_or_else(|_| {
            Err(ObserveError::Missing {
                path: "spec.output.store".to_owned(),
                reason: "StoreUnreadable",
                message: format!(
                    "what the spec names there was not read within {} s: is the store away, or slow?",
                    DEADLINE.as_secs()
                ),
            })
        })
    }

    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut all = self.of_namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(FETCHES_OF_A_NAMESPACE));
        all.insert(namespace.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// Waits, and reports it once when that takes longer than [`REPORT_AFTER`].
async fn reported<T>(work: impl Future<Output = T>, report: impl FnOnce()) -> T {
    let mut work = std::pin::pin!(work);
    match timeout(REPORT_AFTER, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            report();
            work.await
        }
    }
}

fn units(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(UNIT)).unwrap_or(usize::MAX)
}

enum Refusal {
    Verdict(Verdict),
    Observe(ObserveError),
}

impl From<ObserveError> for Refusal {
    fn from(error: ObserveError) -> Self {
        Self::Observe(error)
    }
}
