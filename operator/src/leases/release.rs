//! The release of slices whose owner is deleted or has ended: repeated until every agent has answered or all grants have expired.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use sahasra_wire::grants::Owner;
use tokio::time::Instant;

use crate::pool::Pool;

/// Time in addition to a grant's TTL for which a release waits for the answer of a worker that does not respond.
const EXPIRY_MARGIN: Duration = Duration::from_secs(5);
/// Shortest and longest wait before an agent that has not answered a release is called again.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Time after which an unanswered release is forgotten: longer than any TTL with [`EXPIRY_MARGIN`].
const FORGOTTEN: Duration = Duration::from_secs(2 * 86_400);

/// Outcome of a release.
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

/// Releases slices, and remembers the releases that agents have not answered.
#[derive(Debug)]
pub(crate) struct Releases {
    pool: Arc<Pool>,
    /// Time of the first release without an answer, by the UID of the owner.
    unanswered: Mutex<BTreeMap<String, Instant>>,
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
        unanswered.retain(|_, since| since.elapsed() < FORGOTTEN);
        let limit = ttl + EXPIRY_MARGIN;
        let since = *unanswered.entry(owner.uid.clone()).or_insert_with(|| {
            tracing::info!(owner = owner.name, namespace = owner.namespace, %error, ?limit, "finished or deleted: waiting for an agent to respond, or for the slices to expire");
            Instant::now()
        });
        let elapsed = since.elapsed();
        if elapsed >= limit {
            tracing::warn!(owner = owner.name, namespace = owner.namespace, %error, "finalizer removed after the slices expired");
            unanswered.remove(&owner.uid);
            return Release::Done;
        }
        Release::Again((elapsed / 4).clamp(AGAIN.0, AGAIN.1).min(limit - elapsed))
    }
}
