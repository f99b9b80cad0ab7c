//! Users who create sessions and connect to them, and the checks of a session whose executor exits on its own.

use std::{sync::Arc, time::Duration};

use kube::{Api, api::DeleteParams};
use sahasra_crds::{GpuSession, GpuSessionStatus, VramLease, conditions};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    book::Live,
    plan::{HEALED, SessionPlan},
    users::{Named, Users},
};

/// Interval at which a session is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time after the exit of an executor within which its slice is free, whatever other faults occur.
const FREED_WITHIN: Duration = Duration::from_millis(500);
/// Time after the exit of an executor within which the session has failed, in a run without faults: the operator queries agents every five
/// seconds.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);
/// Time after the last fault within which the session has failed.
const REPORTED_AFTER_FAULTS: Duration = Duration::from_secs(55);

/// A session, as its user sees it.
struct UserSession {
    users: Users,
    name: Named,
    sessions: Api<GpuSession>,
    leases: Api<VramLease>,
    calm: bool,
}

impl Users {
    /// Creates a session, checks that it stays on one device and holds one slice, connects if planned, and deletes it.
    pub async fn session(self, index: usize, plan: SessionPlan, calm: bool) {
        sleep_until(self.world.instant(plan.at)).await;
        let name = Named::session(index);
        let user_session = UserSession {
            sessions: self.objects(name.namespace),
            leases: self.objects(name.namespace),
            users: self,
            name,
            calm,
        };
        user_session.live(plan).await;
    }
}

impl UserSession {
    async fn live(self, plan: SessionPlan) {
        let (world, name) = (&self.users.world, &self.name);
        let session = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "GpuSession",
            "metadata": {"name": name.name},
            "spec": {
                "vram": format!("{}Mi", plan.mebibytes),
                "engine": "ptx",
                "ttlSeconds": plan.ttl,
                "idleTimeoutSeconds": plan.ttl,
            },
        });
        self.users.ask(&self.sessions, name, session).await;
        let mut exit = plan.exit;
        let mut placed = None;
        while world.instant(plan.deleted) > Instant::now() {
            let status = self.status().await;
            let where_it_is = status.worker.clone().zip(status.device.clone());
            if placed.is_some() && where_it_is != placed {
                world.broken(format!("{name} was moved from {placed:?} to {where_it_is:?}"));
            }
            placed = where_it_is;
            let lease = match &status.lease {
                Some(lease) => self.leases.get_opt(lease).await.ok().flatten(),
                None => None,
            };
            let held = lease.and_then(|lease| lease.status).map_or(0, |status| status.slices);
            if held > 1 {
                world.broken(format!("{name} holds {held} slices"));
            }
            if conditions::is_true(&status.conditions, conditions::READY)
                && let Some((after, how)) = exit
                && let Some(live) = self.agent(&status)
                && let Some(executor) = self.connect(&live).await
            {
                exit = None;
                let ending = async {
                    sleep(Duration::from_millis(after)).await;
                    let Some(session) = live.agent.sessions.find(name.namespace, &name.name) else {
                        return;
                    };
                    let Some(exits) = world.session_executors.lock().remove(&(live.index, executor)) else {
                        return;
                    };
                    if session.ended.is_cancelled() || exits.send(how).is_err() {
                        return;
                    }
                    world.note(format_args!("the executor of {name} ends: {how:?}"));
                    self.lost(&live, &session.owner_uid, &status).await;
                };
                ending.await;
            }
            sleep(POLL_INTERVAL).await;
        }
        let _ = self.sessions.delete(&name.name, &DeleteParams::default()).await;
        world.note(format_args!("{name} is deleted"));
    }

    async fn status(&self) -> GpuSessionStatus {
        let session = self.sessions.get_opt(&self.name.name).await.ok().flatten();
        session.and_then(|session| session.status).unwrap_or_default()
    }

    /// Returns the agent of the session, if it is running.
    fn agent(&self, status: &GpuSessionStatus) -> Option<Arc<Live>> {
        let index = status.worker.as_deref()?.strip_prefix("worker-")?.parse().ok()?;
        self.users.world.agent(index).filter(|live| !live.group.has_crashed())
    }

    /// Connects a client. Returns the number of the session's executor.
    async fn connect(&self, live: &Live) -> Option<u32> {
        let session = live.agent.sessions.find(self.name.namespace, &self.name.name)?;
        let agent = Arc::clone(&live.agent);
        let connecting = live.group.start(async move { agent.executor_of(&session).await });
        tokio::select! {
            process = connecting => Some(process.ok()?.ok()?.id()),
            // A crashed task group drops its tasks without a result.
            () = live.group.crashed() => None,
        }
    }

    /// Checks a session whose executor exited: its slice is free, the session has failed with a reason, and its lease is deleted.
    async fn lost(&self, live: &Live, owner: &str, before: &GpuSessionStatus) {
        let (world, name) = (&self.users.world, &self.name);
        sleep(FREED_WITHIN).await;
        let held = || live.agent.inventory().grants.iter().any(|grant| grant.owner_uid == owner);
        if !live.group.has_crashed() && held() {
            world.broken(format!(
                "executor: worker-{} still lends a slice to {name} {FREED_WITHIN:?} after its executor ended",
                live.index
            ));
        }
        let reported = match self.calm {
            true => Instant::now() + REPORTED_WITHIN,
            false => (world.instant(HEALED) + REPORTED_AFTER_FAULTS).max(Instant::now()),
        };
        sleep_until(reported).await;
        let status = self.status().await;
        let failed = conditions::get(&status.conditions, conditions::FAILED).filter(|failed| failed.status == "True");
        let Some(failed) = failed else {
            return world.broken(format!(
                "executor: {name} has not failed, whose executor ended: {:?}",
                status.conditions
            ));
        };
        if self.calm && failed.reason != "ExecutorLost" {
            world.broken(format!(
                "executor: {name}, whose executor ended, says {}: {}",
                failed.reason, failed.message
            ));
        }
        if let Some(lease) = &before.lease
            && self.leases.get_opt(lease).await.is_ok_and(|lease| lease.is_some())
        {
            world.broken(format!("executor: the lease of {name} is left, whose executor ended"));
        }
    }
}
