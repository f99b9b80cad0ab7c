//! Adoption of a lease's grants by its next coordinator, and the grants that were lost since the previous term.

use sahasra_crds::{VramLease, vram_lease::GrantStatus};
use sahasra_wire::grants::Grant;

use super::{is_a_sessions, was_granted};
use crate::pool::{Loss, Lost, SILENT};

/// Grants that the next coordinator of a lease adopts, out of those that agents hold for it. A session adopts only the grant that it was
/// placed on. Other grants, whose answer a predecessor never received, are released or expire.
pub(super) fn adopted_by(lease: &VramLease, mut held: Vec<(String, Grant)>) -> Vec<(String, Grant)> {
    if !is_a_sessions(lease) {
        return held;
    }
    if let Some(status) = lease.status.as_ref().filter(|_| was_granted(lease)) {
        held.retain(|(worker, grant)| {
            let is_named = |named: &GrantStatus| named.worker == *worker && named.id == grant.id.text();
            status.grants.iter().any(is_named)
        });
    }
    held.truncate(1);
    held
}

/// The workers of the grants in the lease's status.
pub(super) fn named_workers(lease: &VramLease) -> Vec<&str> {
    let grants = lease.status.iter().flat_map(|status| &status.grants);
    let mut workers: Vec<&str> = grants.map(|grant| grant.worker.as_str()).collect();
    workers.sort_unstable();
    workers.dedup();
    workers
}

/// The first grant in the lease's status that was not adopted, as a loss with its cause. `boot` returns the boot id of a worker's agent.
pub(super) fn lost_since(
    lease: &VramLease,
    adopted: &[(String, Grant)],
    silent: &[String],
    boot: impl Fn(&str) -> Option<String>,
) -> Option<Lost> {
    let mut named = lease.status.iter().flat_map(|status| &status.grants);
    let is_adopted = |named: &GrantStatus| adopted.iter().any(|(_, grant)| grant.id.text() == named.id);
    let named = named.find(|named| !is_adopted(named))?;
    let why = match boot(&named.worker) {
        _ if silent.contains(&named.worker) => Loss::Worker(SILENT),
        None => Loss::Worker("its worker is gone"),
        Some(boot) if named.id.starts_with(&format!("{boot}/")) => Loss::Expired,
        Some(_) => Loss::Worker("its agent restarted"),
    };
    Some(Lost {
        device: format!("{}/{}", named.worker, named.device),
        slices: u32::try_from(named.slices).unwrap_or_default(),
        why,
    })
}
