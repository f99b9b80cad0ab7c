//! How objects hold slices of the pool: a `BurstJob` through its coordinator, any other `VramLease` through the reconciler of leases.
//!
//! Both register a claim for an [`owner`] with [`Bounds`] and the grants that they [`adopt`], show what the claim holds in the lease's
//! [`status`], and end it by a [`Release`].

use kube::{Resource, ResourceExt};
use sahasra_wire::grants::Owner;

use crate::pool::{Pool, Unclaimed};

mod release;
mod status;

pub(crate) use release::{How, Release, Releases};
pub(crate) use status::{GrantedReason, status};

/// The owner of an object's grants, as agents identify it.
pub(crate) fn owner<K: Resource<DynamicType = ()>>(object: &K, term: u64) -> Owner {
    Owner {
        uid: object.uid().unwrap_or_default(),
        namespace: object.namespace().unwrap_or_default(),
        name: format!("{}/{}", K::kind(&()), object.name_any()),
        term,
    }
}

/// The owner with a term above `term`, the last one in the object's status: no coordinator is granted slices after a release in its name.
pub(crate) fn owner_above<K: Resource<DynamicType = ()>>(object: &K, term: i64) -> Owner {
    owner(object, u64::try_from(term).unwrap_or_default() + 1)
}

/// Minimum and maximum number of slices, at least 1 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub min: u32,
    pub max: u32,
}

impl Bounds {
    /// The bounds in a spec. Without `max`, there may be any number of slices.
    pub(crate) fn new(min: i64, max: Option<i64>) -> Self {
        let number = |slices: i64| u32::try_from(slices.max(1)).unwrap_or(u32::MAX);
        Self {
            min: number(min),
            max: max.map_or(u32::MAX, number),
        }
    }

    pub(crate) fn at_most(self, most: u32) -> Self {
        let max = self.max.min(most);
        Self {
            min: self.min.min(max),
            max,
        }
    }
}

/// The grants of an earlier term that agents hold for an owner without a claim, and that have the claim's slice size.
pub(crate) async fn adopt(pool: &Pool, owner_uid: &str, slice_bytes: u64) -> Unclaimed {
    let mut found = pool.unclaimed(owner_uid).await;
    found.grants.retain(|(_, grant)| grant.slice_bytes == slice_bytes);
    found
}
