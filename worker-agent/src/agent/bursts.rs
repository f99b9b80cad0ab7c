//! The agent's part in bursts: which there are, how they are numbered, and how they end with it.

use std::sync::{Arc, PoisonError, atomic::Ordering};
use std::time::Duration;

use sahasra_wire::{burst::FailureCode, grants::Refusal};

use super::Agent;
use crate::dispatch::Burst;

impl Agent {
    pub(crate) fn burst(&self, owner_uid: &str) -> Option<Arc<Burst>> {
        self.bursts().get(owner_uid).cloned()
    }

    pub(super) fn poke(&self, owner_uid: &str) {
        if let Some(burst) = self.burst(owner_uid) {
            burst.poke();
        }
    }

    /// The owner's burst, or what `make` makes of the sequence number above which it must count. `make` gets the one
    /// there is and may refuse it or replace it.
    pub(crate) fn burst_or(
        &self,
        owner_uid: &str,
        make: impl FnOnce(Option<&Arc<Burst>>, u64) -> Result<Arc<Burst>, Refusal>,
    ) -> Result<Arc<Burst>, Refusal> {
        let mut bursts = self.bursts();
        let known = bursts.get(owner_uid);
        let floor = self.floor(known.map_or(0, |burst| burst.sequence()));
        let burst = make(known, floor)?;
        if let Some(replaced) = bursts.insert(owner_uid.to_owned(), Arc::clone(&burst))
            && !Arc::ptr_eq(&replaced, &burst)
        {
            replaced.close();
        }
        Ok(burst)
    }

    /// Number of the next segment of this boot.
    pub(crate) fn next_segment(&self) -> u64 {
        self.segments.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn floor(&self, at_least: u64) -> u64 {
        let mut floor = self.sequence_floor.lock().unwrap_or_else(PoisonError::into_inner);
        *floor = (*floor).max(at_least);
        *floor
    }

    /// Drops a burst that no coordinator listens to and whose owner holds nothing: nobody can ask for it any more.
    pub(crate) fn close_if_abandoned(&self, owner_uid: &str) {
        let mut bursts = self.bursts();
        let Some(burst) = bursts.get(owner_uid) else { return };
        if burst.has_stream() || self.lock().holds_anything(owner_uid) {
            return;
        }
        self.floor(burst.sequence());
        burst.close();
        bursts.remove(owner_uid);
    }

    /// Refuses new grants and new work from now on, lets running chunks end within the grace, fails the rest, and
    /// returns once every burst has been told (or `telling` has passed).
    pub async fn drain(&self, telling: Duration) {
        self.change(|ledger, _| ledger.begin_shutdown());
        self.draining.cancel();
        let bursts: Vec<Arc<Burst>> = self.bursts().values().cloned().collect();
        for burst in &bursts {
            burst.poke();
            burst.announce();
        }
        let settled = async {
            for burst in &bursts {
                burst.settled().await;
            }
        };
        if tokio::time::timeout(self.limits.shutdown_grace, settled).await.is_err() {
            tracing::warn!("grace is over: killing executors");
            bursts.iter().for_each(|burst| burst.kill_all(FailureCode::ShuttingDown));
        }
        self.end_sessions().await;
        let told = async {
            for burst in &bursts {
                burst.settled().await;
                burst.told().await;
            }
        };
        if tokio::time::timeout(telling, told).await.is_err() {
            tracing::warn!("coordinators did not take everything before the agent stopped");
        }
    }
}
