//! Check that every object explains itself: a short time after its creation or a change, one of its conditions is true or gives a reason.
//!
//! In runs without faults this holds for all objects at all times; in other runs it holds once no fault has occurred for a while.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Resource, ResourceExt, api::ListParams};
use sahasra_crds::{BurstJob, GpuSession, VramLease};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::{plan::HEALED, users::Users};

/// Time after an object's last change within which a condition must explain it.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(2);
/// Time after the last fault within which a leader is elected and every agent has responded again.
const RECOVERED_WITHIN: Duration = Duration::from_secs(35);
/// Time after the start of a run within which the pool is ready.
const STARTED_WITHIN: Duration = Duration::from_secs(5);
/// Interval at which the objects are checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A kind with `status.conditions`.
trait Explained: Resource<DynamicType = ()> {
    fn conditions(&self) -> &[Condition];
}

macro_rules! explained {
    ($($kind:ty),*) => {$(
        impl Explained for $kind {
            fn conditions(&self) -> &[Condition] {
                self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
            }
        }
    )*};
}

explained!(BurstJob, VramLease, GpuSession);

/// Current generation of each object, by UID, and since when the object has had it.
type Seen = BTreeMap<String, (i64, Duration)>;

/// Checks all objects at an interval, until the future is dropped.
pub async fn check_all(users: Users, calm: bool) {
    let from = if calm {
        STARTED_WITHIN
    } else {
        Duration::from_millis(HEALED) + RECOVERED_WITHIN
    };
    let mut seen = Seen::new();
    loop {
        sleep(POLL_INTERVAL).await;
        check::<BurstJob>(&users, &mut seen, from).await;
        check::<VramLease>(&users, &mut seen, from).await;
        check::<GpuSession>(&users, &mut seen, from).await;
    }
}

async fn check<K>(users: &Users, seen: &mut Seen, from: Duration)
where
    K: Explained + Clone + Debug + DeserializeOwned,
{
    let now = users.world.elapsed();
    let objects = Api::<K>::all(users.client.clone()).list(&ListParams::default()).await;
    let objects = match objects {
        Ok(objects) => objects,
        Err(error) => return users.world.broken(format!("list {}: {error}", K::plural(&()))),
    };
    for object in objects.iter().filter(|object| object.meta().deletion_timestamp.is_none()) {
        let generation = object.meta().generation.unwrap_or_default();
        let since = seen.entry(object.uid().unwrap_or_default()).or_insert((generation, now));
        if since.0 != generation {
            *since = (generation, now);
        }
        if now < since.1.max(from) + EXPLAINED_WITHIN {
            continue;
        }
        let explains = |condition: &Condition| {
            condition.observed_generation == Some(generation)
                && (condition.status == "True" || !(condition.reason.is_empty() || condition.message.is_empty()))
        };
        if !object.conditions().iter().any(explains) {
            users.world.broken(format!(
                "silent: {} {}/{} of generation {generation} says {:?}",
                K::kind(&()),
                object.namespace().unwrap_or_default(),
                object.name_any(),
                object.conditions(),
            ));
        }
    }
}
