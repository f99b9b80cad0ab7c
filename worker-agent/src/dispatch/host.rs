//! [`Host`], the interface of the agent for dispatch.

use std::fmt::Debug;

use sahasra_names::{BootId, DeviceName, OwnerUid};
use tokio_util::sync::CancellationToken;

use crate::{burst_executors::ExecutorPool, store::StorePolicy};

/// The agent, as dispatch uses it.
pub(crate) trait Host: Debug + Send + Sync {
    fn boot_id(&self) -> &BootId;

    fn pool(&self) -> &ExecutorPool;

    /// Returns the token that is cancelled when shutdown begins.
    fn draining(&self) -> &CancellationToken;

    fn store_policy(&self) -> &StorePolicy;

    /// Returns the number of active slices that the owner holds on the device.
    fn active_slices(&self, owner_uid: &OwnerUid, device: &DeviceName) -> u32;

    /// Marks up to `slices` further slices of the owner as in use, and returns how many.
    fn occupy(&self, owner_uid: &OwnerUid, device: &DeviceName, slices: u32) -> u32;

    /// Marks slices of the owner as no longer in use.
    fn vacate(&self, owner_uid: &OwnerUid, device: &DeviceName, slices: u32);

    /// Returns the number of the next segment of results in this boot.
    fn next_segment(&self) -> u64;

    /// Counts chunks that ended with the outcome.
    fn count_chunks(&self, outcome: &'static str, chunks: u64);
}
