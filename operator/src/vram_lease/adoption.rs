//! Adoption of a lease's grants by its next coordinator, and the grants that were lost since the previous term.

use sahasra_crds::{VramLease, vram_lease::GrantStatus};
use sahasra_names::{BootId, DeviceId, WorkerName};
use sahasra_wire::grants::Grant;

use super::{ReconcileError, is_a_sessions, is_served_once, was_granted};
use crate::{
    context::Context,
    leases,
    pool::{Loss, Lost, SILENT},
};

/// The grants of earlier terms that the next coordinator of a lease adopts, and the first loss since the last status.
///
/// # Errors
/// Fails if agents do not answer and the lease's slices must not be acquired again on other devices.
pub(super) async fn adopt(
    context: &Context,
    lease: &VramLease,
    slice_bytes: u64,
) -> Result<(Vec<(WorkerName, Grant)>, Option<Lost>), ReconcileError> {
    let uid = lease.metadata.uid.as_deref().unwrap_or_default();
    let found = leases::adopt(&context.pool, uid, slice_bytes).await;
    let (mut adopted, mut silent) = (adopted_by(lease, found.grants), found.silent);
    if adopted.is_empty() && is_served_once(lease) && was_granted(lease) {
        // Slices that are not found now are lost permanently. A predecessor may have been granted slices after the agents were queried, so
        // they are queried again.
        silent.clear();
        let mut held = Vec::new();
        for (worker, inventory) in context.pool.inventories(&named_workers(lease)).await {
            match inventory {
                Ok(inventory) => {
                    let is_ours = |grant: &Grant| grant.owner_uid == uid && !grant.draining && grant.slice_bytes == slice_bytes;
                    let ours = inventory.grants.into_iter().filter(is_ours);
                    held.extend(ours.map(|grant| (worker.clone(), grant)));
                }
                Err(_) => silent.push(worker),
            }
        }
        adopted = adopted_by(lease, held);
        if adopted.is_empty() && !silent.is_empty() {
            return Err(ReconcileError::Inventories(silent));
        }
    }
    let boot = |worker: &str| Some(context.directory.worker(worker)?.boot_id);
    let lost = lost_since(lease, &adopted, &silent, boot);
    Ok((adopted, lost))
}

/// Grants that the next coordinator of a lease adopts, out of those that agents hold for it. A session adopts only the grant that it was
/// placed on. Other grants, whose answer a predecessor never received, are released or expire.
pub(super) fn adopted_by(lease: &VramLease, mut held: Vec<(WorkerName, Grant)>) -> Vec<(WorkerName, Grant)> {
    if !is_a_sessions(lease) {
        return held;
    }
    if let Some(status) = lease.status.as_ref().filter(|_| was_granted(lease)) {
        held.retain(|(worker, grant)| {
            let is_named = |named: &GrantStatus| *worker == named.worker && named.id == grant.id.text();
            status.grants.iter().any(is_named)
        });
    }
    held.truncate(1);
    held
}

fn named_workers(lease: &VramLease) -> Vec<&str> {
    let grants = lease.status.iter().flat_map(|status| &status.grants);
    let mut workers: Vec<&str> = grants.map(|grant| grant.worker.as_str()).collect();
    workers.sort_unstable();
    workers.dedup();
    workers
}

/// The first grant in the lease's status that was not adopted, as a loss with its cause. `boot` returns the boot id of a worker's agent.
pub(super) fn lost_since(
    lease: &VramLease,
    adopted: &[(WorkerName, Grant)],
    silent: &[WorkerName],
    boot: impl Fn(&str) -> Option<BootId>,
) -> Option<Lost> {
    let mut named = lease.status.iter().flat_map(|status| &status.grants);
    let is_adopted = |named: &GrantStatus| adopted.iter().any(|(_, grant)| grant.id.text() == named.id);
    let named = named.find(|named| !is_adopted(named))?;
    let why = match boot(&named.worker) {
        _ if silent.iter().any(|worker| *worker == named.worker) => Loss::Worker(SILENT),
        None => Loss::Worker("worker lost"),
        Some(boot) if named.id.starts_with(&format!("{boot}/")) => Loss::Expired,
        Some(_) => Loss::Worker("agent restarted"),
    };
    Some(Lost {
        device: DeviceId::new(&*named.worker, &*named.device),
        slices: u32::try_from(named.slices).unwrap_or_default(),
        why,
    })
}
