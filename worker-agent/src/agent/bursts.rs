//! Bursts of an agent: their lookup by owner, their sequence numbers, and their end at shutdown.

use std::sync::{Arc, atomic::Ordering};
use std::time::Duration;

use sahasra_names::{DeviceName, OwnerUid};
use sahasra_wire::{burst::FailureCode, grants::Refusal};

use super::Agent;
use crate::dispatch::{Burst, Host, Parts};

impl Agent {
    pub(crate) fn burst(&self, owner_uid: &OwnerUid) -> Option<Arc<Burst>> {
        self.bursts.lock().get(owner_uid).cloned()
    }

    pub(super) fn poke(&self, owner_uid: &OwnerUid) {
        if let Some(burst) = self.burst(owner_uid) {
            burst.poke();
        }
    }

    /// Returns the owner's burst, which `make` chooses. `make` receives the existing burst, if any, and the sequence number above which a
    /// new burst must start counting. It may return the existing burst, replace it, or reject the request.
    pub(crate) fn burst_or(
        &self,
        owner_uid: &OwnerUid,
        make: impl FnOnce(Option<&Arc<Burst>>, u64) -> Result<Arc<Burst>, Refusal>,
    ) -> Result<Arc<Burst>, Refusal> {
        let mut bursts = self.bursts.lock();
        let known = bursts.get(owner_uid);
        let floor = self.floor(known.map_or(0, |burst| burst.sequence()));
        let burst = make(known, floor)?;
        if let Some(replaced) = bursts.insert(owner_uid.clone(), Arc::clone(&burst))
            && !Arc::ptr_eq(&replaced, &burst)
        {
            replaced.close();
        }
        Ok(burst)
    }

    fn floor(&self, at_least: u64) -> u64 {
        self.sequence_floor.fetch_max(at_least, Ordering::Relaxed).max(at_least)
    }

    /// Closes and removes a burst whose owner holds no slices and whose coordinator has no open stream: nobody can request its results any
    /// more.
    pub(crate) fn close_if_abandoned(&self, owner_uid: &OwnerUid) {
        let mut bursts = self.bursts.lock();
        let Some(burst) = bursts.get(owner_uid) else { return };
        if burst.has_stream() || self.ledger.lock().holds_anything(owner_uid) {
            return;
        }
        self.floor(burst.sequence());
        burst.close();
        bursts.remove(owner_uid);
    }

    /// Drains the agent. New grants and new work are rejected from now on; chunks that still run after the shutdown grace fail, and
    /// sessions end. Returns once every coordinator has received its burst's last frames, or when that takes longer than `timeout`.
    pub async fn drain(&self, timeout: Duration) {
        self.change(|ledger, _| ledger.begin_shutdown());
        self.parts.draining.cancel();
        let bursts: Vec<Arc<Burst>> = self.bursts.lock().values().cloned().collect();
        for burst in &bursts {
            burst.poke();
            burst.announce();
        }
        let settled = async {
            for burst in &bursts {
                burst.settled().await;
            }
        };
        if tokio::time::timeout(self.shutdown_grace, settled).await.is_err() {
            tracing::warn!("grace period expired: killing executors");
            bursts.iter().for_each(|burst| burst.kill_all(FailureCode::ShuttingDown));
        }
        self.end_sessions().await;
        let closed = async {
            for burst in &bursts {
                burst.settled().await;
                burst.streams_closed().await;
            }
        };
        if tokio::time::timeout(timeout, closed).await.is_err() {
            tracing::warn!("timed out waiting for coordinators to read their last results");
        }
    }
}

impl Host for Agent {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn active_slices(&self, owner_uid: &OwnerUid, device: &DeviceName) -> u32 {
        self.ledger.lock().active_slices(owner_uid, device)
    }

    fn occupy(&self, owner_uid: &OwnerUid, device: &DeviceName, slices: u32) -> u32 {
        self.change(|ledger, now| ledger.occupy(now, owner_uid, device, slices))
    }

    fn vacate(&self, owner_uid: &OwnerUid, device: &DeviceName, slices: u32) {
        self.change(|ledger, now| ledger.vacate(now, owner_uid, device, slices));
    }
}
