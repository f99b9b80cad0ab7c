//! No object is silent: a little after it was asked for or changed, a condition is true or says why not.
//!
//! In a calm run that holds of every object at all times, in every other once nothing has gone wrong for a while.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Resource, ResourceExt, api::ListParams};
use sahasra_crds::{BurstJob, GpuSession, VramLease};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::{plan::HEALED, users::Users};

/// An object is explained so long after its last change.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(2);
/// A leader is found, and every agent heard again, so long after nothing goes wrong any more.
const RECOVERED_WITHIN: Duration = Duration::from_secs(35);
/// The pool is up so long after the start of a run.
const STARTED_WITHIN: Duration = Duration::from_secs(5);
/// How often the objects are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A kind whose status explains itself by conditions.
trait Explained: Resource<DynamicType = ()> {
    /// `status.conditions`.
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

/// Since when each object, by UID, has had the generation that it has.
type Seen = BTreeMap<String, (i64, Duration)>;

/// Looks at all objects until it is dropped.
pub async fn look(users: Users, calm: bool) {
    let from = if calm {
        STARTED_WITHIN
    } else {
        Duration::from_millis(HEALED) + RECOVERED_WITHIN
    };
    let mut seen = Seen::new();
    loop {
        sleep(LOOK).await;
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
