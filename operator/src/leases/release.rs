//! The release of slices whose owner is deleted or has ended: repeated until every agent has answered or all grants have expired.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use sahasra_crds::vram_lease::MAX_LEASE_SECONDS;
use sahasra_service::backoff::Backoff;
use sahasra_wire::grants::Owner;
use tokio::time::Instant;

use crate::pool::Pool;

/// Time in addition to a grant's TTL for which a release waits for the answer of a worker that does not respond.
const EXPIRY_MARGIN: Duration = Duration::from_secs(5);
/// Waits before an agent that has not answered a release is called again.
const AGAIN: Backoff = Backoff::milliseconds(100, 10_000);
/// Time after which an unanswered release is forgotten: longer than any TTL with [`EXPIRY_MARGIN`].
const FORGOTTEN: Duration = Duration::from_secs(2 * MAX_LEASE_SECONDS);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// All slices of the owner are released: every agent has answered, or all grants have expired.
    Done,
    /// An agent that may hold grants has not answered, and they may not have expired. Release again after this wait.
    Again(Duration),
}

/// The agents that a release calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The agents with grants of the owner's claim in this pool. The release ends the claim.
    Claim,
    /// All agents, because any of them may hold grants of an earlier term.
    Everywhere,
}

/// The calls for one owner that agents have not answered.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    since: Instant,
    failures: u32,
}

/// Releases slices, and remembers the releases that agents have not answered.
#[derive(Debug)]
pub(crate) struct Releases {
    pool: Arc<Pool>,
    /// Releases without an answer, by the UID of the owner.
    unanswered: Mutex<BTreeMap<String, Unanswered>>,
}

impl Releases {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            unanswered: Mutex::default(),
        }
    }

    /// Releases the owner's slices, whose grants have this TTL. Work that still runs on them is killed.
    pub(crate) async fn release(&self, owner: &Owner, ttl: Duration, how: How) -> Release {
        let outcome = match how {
            How::Claim => self.pool.release(&owner.uid, true).await,
            How::Everywhere => self.pool.release_everywhere(owner).await,
        };
        let mut unanswered = self.unanswered.lock();
        let Err(error) = outcome else {
            unanswered.remove(&owner.uid);
            return Release::Done;
        };
        unanswered.retain(|_, calls| calls.since.elapsed() < FORGOTTEN);
        let limit = ttl + EXPIRY_MARGIN;
        let calls = unanswered.entry(owner.uid.clone()).or_insert_with(|| {
            tracing::info!(%error, ?limit, "finished or deleted: waiting for an agent to respond, or for the slices to expire");
            Unanswered {
                since: Instant::now(),
                failures: 0,
            }
        });
        calls.failures = calls.failures.saturating_add(1);
        let elapsed = calls.since.elapsed();
        if elapsed >= limit {
            tracing::warn!(%error, "finalizer removed after the slices expired");
            unanswered.remove(&owner.uid);
            return Release::Done;
        }
        Release::Again(AGAIN.after(calls.failures).min(limit - elapsed))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::{future::BoxFuture, stream::BoxStream};
    use sahasra_crds::{GpuWorker, GpuWorkerSpec, GpuWorkerStatus};
    use sahasra_wire::burst::ClientFrame;

    use super::*;
    use crate::{
        agents::{
            AgentClient, AgentError, Directory, StreamError,
            transport::{Incomings, Transport},
        },
        clock::Clock,
        fault::Faults,
        metrics::Metrics,
    };

    /// An agent that answers no call.
    #[derive(Debug)]
    struct Silent;

    impl Transport for Silent {
        fn call<'a>(&'a self, _: &'a str, _: &'static str, _: Bytes) -> BoxFuture<'a, Result<Bytes, AgentError>> {
            Box::pin(async { Err(AgentError::Timeout) })
        }

        fn stream<'a>(&'a self, _: &'a str, _: BoxStream<'static, ClientFrame>) -> BoxFuture<'a, Result<Incomings, StreamError>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unanswered_release_is_repeated_soon_then_less_and_less_often_until_the_slices_have_expired() {
        let directory = Arc::new(Directory::new(Duration::from_secs(15), Duration::from_secs(5)));
        let mut worker = GpuWorker::new("a", GpuWorkerSpec { node_name: "node".into() });
        worker.status = Some(GpuWorkerStatus {
            endpoint: Some("http://a".into()),
            ..GpuWorkerStatus::default()
        });
        directory.observe_worker(&worker);
        let agents = AgentClient::over(Arc::new(Silent));
        let metrics = Arc::new(Metrics::new().unwrap());
        let releases = Releases::new(Pool::new(agents, directory, Clock::default(), Faults::default(), metrics));
        let mut waits = Vec::new();
        let owner = Owner {
            uid: "one".into(),
            ..Owner::default()
        };
        while let Release::Again(wait) = releases.release(&owner, Duration::from_secs(15), How::Everywhere).await {
            tokio::time::sleep(wait).await;
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 6_400, 7_300]);
    }
}
