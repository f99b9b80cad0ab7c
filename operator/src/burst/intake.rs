//! The intake of jobs: fetches and validates everything that a job's spec refers to. It runs beside the reconcilers, so that neither a slow
//! store nor a large kernel delays other jobs.
//!
//! The intake limits the bytes that all bursts together hold in this process ([`Settings::input_bytes`](crate::Settings)), the number of
//! jobs that read stores at the same time (in total and for each namespace), the time for a job's requests, and the number of kernels that
//! are checked at the same time. Jobs that wait report so in their status.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use kube::Client;
use parking_lot::Mutex;
use sahasra_crds::burst_job::{
    BurstJobSpec,
    kernel::{MAX_INPUT_BYTES, MAX_PTX_BYTES},
};
use sahasra_service::tasks;
use sahasra_store::StorePolicy;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use super::{
    observe::{Invalid, ObserveError, Survey, survey, unreadable},
    validate::{ValidBurst, validate},
};

/// Unit in which memory is reserved, in bytes.
const UNIT: u64 = 1024;
/// Minimum memory for inputs. It suffices for every burst that the schema admits.
pub const LEAST_INPUT_BYTES: u64 = MAX_PTX_BYTES + MAX_INPUT_BYTES;
/// Maximum number of jobs that read stores at the same time. Each uses a few sockets.
const FETCHES: usize = 128;
/// Maximum number of jobs of one namespace that read stores, or wait for memory to do so, at the same time. A namespace with slow stores
/// delays only its own jobs, and has at most this many jobs in the queue for memory ahead of another namespace's.
const FETCHES_OF_A_NAMESPACE: usize = 8;
/// Timeout of all requests of a job to its store together: enough for the largest inputs at 1 MiB/s.
const DEADLINE: Duration = Duration::from_secs(60);
/// Maximum number of kernels that are checked at the same time. Each check uses a core, and many times the memory of the kernel's text.
const CHECKS: usize = 2;
/// Time after which a wait is reported.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// Reason why a job cannot run, whether this may change without a change of the job, and the version of the referenced objects for which
/// it holds.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub reason: &'static str,
    /// Field of the spec, the problem and its remedy.
    pub message: String,
    /// Whether the problem can be fixed in an object that the spec refers to.
    pub may_pass: bool,
    /// Version of the referenced objects; `None` if not all of them could be read.
    pub version: Option<Vec<u8>>,
}

impl Verdict {
    fn new(invalid: &Invalid, may_pass: bool, version: Option<Vec<u8>>) -> Self {
        Self {
            reason: invalid.reason,
            message: invalid.to_string(),
            may_pass,
            version,
        }
    }
}

/// A burst that can run, with its reservation of memory.
#[derive(Debug)]
pub struct Accepted {
    pub burst: ValidBurst,
    /// Reservation of the burst's memory. Must be kept for as long as the burst.
    pub memory: OwnedSemaphorePermit,
    pub version: Vec<u8>,
}

/// The cause for which a job waits in the intake, possibly for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub reason: &'static str,
    /// Field of the spec, and what the job waits for.
    pub message: String,
}

#[derive(Debug)]
pub enum Outcome {
    Accepted(Box<Accepted>),
    /// The job cannot run as its spec is now.
    Refused(Verdict),
    Failed(ObserveError),
}

impl From<ObserveError> for Outcome {
    fn from(error: ObserveError) -> Self {
        match error {
            ObserveError::Missing(invalid) => Self::Refused(Verdict::new(&invalid, true, None)),
            error => Self::Failed(error),
        }
    }
}

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
    /// Creates an intake with `input_bytes` of memory for the inputs of all bursts together, but at least [`LEAST_INPUT_BYTES`].
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

    /// Fetches and validates a job's inputs. A job that was rejected with verdict `before` is not validated again unless the referenced
    /// objects have changed. A wait of more than a second is passed to `report`.
    pub async fn admit(&self, namespace: &str, spec: &BurstJobSpec, before: Option<Verdict>, report: impl Fn(Waiting)) -> Outcome {
        let accepted = self.accept(namespace, spec, before, report).await;
        accepted.map_or_else(|outcome| outcome, |accepted| Outcome::Accepted(Box::new(accepted)))
    }

    async fn accept(
        &self,
        namespace: &str,
        spec: &BurstJobSpec,
        before: Option<Verdict>,
        report: impl Fn(Waiting),
    ) -> Result<Accepted, Outcome> {
        let remote = Survey::has_objects(spec);
        // Acquired before memory is reserved, so that no namespace holds or queues for much memory while its stores are slow.
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
            return Err(Outcome::Refused(before));
        }
        let observed = self.within(remote, &mut left, references.fetch()).await?;
        drop(turn);
        // The exact size is known now, so release the rest of the reservation.
        let spare = memory.num_permits().saturating_sub(units(observed.bytes()));
        drop(memory.split(spare));

        let checking = self.checks.clone().acquire_owned().await.expect("never closed");
        let spec = spec.clone();
        let checked = tasks::blocking(move || {
            let _checking = checking;
            validate(&spec, &observed)
        });
        match checked.await {
            Ok(burst) => Ok(Accepted { burst, memory, version }),
            Err(invalid) => {
                // The content of a ConfigMap or Secret can be fixed there.
                let may_pass = ["spec.kernel", "spec.output"].iter().any(|part| invalid.path.starts_with(part));
                Err(Outcome::Refused(Verdict::new(&invalid, may_pass, Some(version))))
            }
        }
    }

    /// Reserves memory, first come, first served.
    async fn reserve(&self, bytes: u64, report: impl Fn(Waiting)) -> OwnedSemaphorePermit {
        let units = u32::try_from(units(bytes)).unwrap_or(u32::MAX);
        // PTX and inputs in the job itself are in the cache of jobs anyway, so they need no reservation.
        if let Ok(nothing) = self.memory.clone().try_acquire_many_owned(0)
            && units == 0
        {
            return nothing;
        }
        // The first waiter receives free memory bit by bit, but does not hold it yet.
        let free = self.memory.available_permits() as u64 * UNIT;
        let acquired = reported(self.memory.clone().acquire_many_owned(units), || {
            report(Waiting {
                reason: "InputMemoryExhausted",
                message: format!(
                    "spec.kernel: waiting for memory for {} MiB of PTX and inputs: other bursts use {} of the {} MiB of the operator \
                     (--input-memory-limit)",
                    bytes.div_ceil(1 << 20),
                    (self.memory_bytes - free.min(self.memory_bytes)).div_ceil(1 << 20),
                    self.memory_bytes >> 20,
                ),
            });
        });
        acquired.await.expect("never closed")
    }

    /// Waits for one of the namespace's permits to read stores.
    async fn turn(&self, namespace: &str, report: impl Fn(Waiting)) -> OwnedSemaphorePermit {
        let acquired = reported(self.of_namespace(namespace).acquire_owned(), || {
            report(Waiting {
                reason: "WaitingForStoreReads",
                message: format!(
                    "spec.output.store: waiting until {FETCHES_OF_A_NAMESPACE} other BurstJobs of the namespace have read their stores"
                ),
            });
        });
        acquired.await.expect("never closed")
    }

    /// Runs `work` that reads a store within the time `left`, as one of the [`FETCHES`] of all namespaces.
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
            let seconds = DEADLINE.as_secs();
            let message = format!("timed out reading from the store after {seconds} s: check that it is reachable");
            Err(unreadable("spec.output.store", message))
        })
    }

    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut all = self.of_namespaces.lock();
        if let Some(known) = all.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(FETCHES_OF_A_NAMESPACE));
        all.insert(namespace.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// Awaits `work`, and calls `report` once if that takes longer than [`REPORT_AFTER`].
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
