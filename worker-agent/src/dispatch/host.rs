//! [`Host`], the interface of the agent for dispatch.

use std::fmt::Debug;
use std::sync::{Arc, atomic::AtomicU64};

use sahasra_names::{BootId, DeviceName, OwnerUid};
use tokio_util::sync::CancellationToken;

use crate::{burst_executors::ExecutorPool, metrics::Metrics, store::StorePolicy};

/// Parts of an agent that dispatch uses too.
#[derive(Debug)]
pub struct Parts {
    /// Identifies this start of the agent.
    pub boot_id: BootId,
    pub pool: Arc<ExecutorPool>,
    pub metrics: Metrics,
    pub store_policy: StorePolicy,
    /// Cancelled when shutdown begins.
    pub draining: CancellationToken,
    /// Number of the last segment of results.
    pub segments: AtomicU64,
}

impl Parts {
    /// Creates the parts of an agent that has written no segment.
    pub fn new(boot_id: BootId, pool: Arc<ExecutorPool>, metrics: Metrics, store_policy: StorePolicy) -> Self {
        Self {
            boot_id,
            pool,
            metrics,
            store_policy,
            draining: CancellationToken::new(),
            segments: AtomicU64::new(0),
        }
    }
}

/// The agent, as dispatch uses it.
pub(crate) trait Host: Debug + Send + Sync {
    fn parts(&self) -> &Parts;

    fn active_slices(&self, owner_uid: &OwnerUid, device: &DeviceName) -> u32;

    /// Marks up to `slices` further slices of the owner as in use, and returns how many.
    fn occupy(&self, owner_uid: &OwnerUid, device: &DeviceName, slices: u32) -> u32;

    /// Marks slices of the owner as no longer in use.
    fn vacate(&self, owner_uid: &OwnerUid, device: &DeviceName, slices: u32);
}
