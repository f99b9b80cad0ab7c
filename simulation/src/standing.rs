//! Check of an idle system at the end of a run: a lease and a session that no client uses cost no writes. They also survive outages of the
//! API server that are shorter than the leader's timeout, and operators that are killed repeatedly.

use std::{borrow::Cow, time::Duration};

use kube::Api;
use sahasra_crds::{GpuSession, GpuSessionStatus, VramLease, VramLeaseStatus, conditions};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::{
    processes::Order,
    run::{DONE_WITHIN, QUIET, SETTLING},
    users::{Named, Users},
};

/// Namespace and name of the lease and of the session.
const STANDING: Named = Named {
    namespace: "default",
    name: Cow::Borrowed("standing"),
};
/// Time to live of the slices without renewal, which is shorter than the phase in which operators are killed.
const TTL: Duration = Duration::from_secs(60);
/// Time between two kills of the operators.
const LIFE: Duration = Duration::from_secs(5);
const KILLS: u32 = 16;
/// Duration of an outage of the API server: shorter than the timeout of its leader, but long enough that heartbeats of workers that last
/// arrived shortly before it seem to have stopped.
const OUTAGE: Duration = Duration::from_millis(11_500);
/// Number of outages, and time between them.
const OUTAGES: (u32, Duration) = (3, Duration::from_millis(23_200));
/// Delay of an operator's restart after a kill, in milliseconds.
const DOWN: u64 = 700;

impl Users {
    /// Keeps a lease and a session for a while, and checks them.
    pub async fn stand(&self, operators: &[mpsc::UnboundedSender<Order>]) {
        let world = &self.world;
        world.note(format_args!("a lease and a session stand"));
        let lease = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "VramLease",
            "metadata": {"name": STANDING.name},
            "spec": {
                "owner": {"name": "simulation"},
                "slice": {"vram": "1Mi"},
                "slices": {"min": 1, "max": 1},
                "ttlSeconds": TTL.as_secs(),
            },
        });
        let (leases, sessions) = self.both();
        self.ask(&leases, &STANDING, lease).await;
        let session = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "GpuSession",
            "metadata": {"name": STANDING.name},
            "spec": {"vram": "1Mi", "engine": "ptx", "ttlSeconds": 86_400, "idleTimeoutSeconds": 86_400},
        });
        self.ask(&sessions, &STANDING, session).await;
        let deadline = Instant::now() + DONE_WITHIN;
        let before = loop {
            let (lease, session) = self.standing().await;
            if conditions::is_true(&lease.conditions, conditions::GRANTED) && conditions::is_true(&session.conditions, conditions::PLACED) {
                break (lease.grants, session.worker);
            }
            if Instant::now() >= deadline {
                return world.broken(format!("not standing: {:?}, {:?}", lease.conditions, session.conditions));
            }
            sleep(Duration::from_secs(1)).await;
        };
        sleep(SETTLING).await;
        self.quiet("a lease and a session stood", QUIET).await;
        for _ in 0..OUTAGES.0 {
            world.note(format_args!("the API server is away"));
            world.conditions().api_down += 1;
            world.control_plane.close_watches();
            sleep(OUTAGE).await;
            world.conditions().api_down -= 1;
            sleep(OUTAGES.1).await;
        }
        for _ in 0..KILLS {
            for operator in operators {
                let _ = operator.send(Order::Crash { steps: 1, down: DOWN });
            }
            sleep(LIFE).await;
        }
        let (lease, session) = self.standing().await;
        if lease.grants != before.0 || lease.last_loss.is_some() {
            world.broken(format!("standing: the lease held {:?}, and then {lease:?}", before.0));
        }
        if session.worker != before.1 || conditions::is_true(&session.conditions, conditions::FAILED) {
            world.broken(format!("standing: the session was on {:?}, and then {session:?}", before.1));
        }
        let (leases, sessions) = self.both();
        let _ = leases.delete(&STANDING.name, &Default::default()).await;
        let _ = sessions.delete(&STANDING.name, &Default::default()).await;
    }

    fn both(&self) -> (Api<VramLease>, Api<GpuSession>) {
        (self.objects(STANDING.namespace), self.objects(STANDING.namespace))
    }

    async fn standing(&self) -> (VramLeaseStatus, GpuSessionStatus) {
        let (leases, sessions) = self.both();
        let lease = leases.get_opt(&STANDING.name).await.ok().flatten();
        let session = sessions.get_opt(&STANDING.name).await.ok().flatten();
        let lease = lease.and_then(|lease| lease.status).unwrap_or_default();
        (lease, session.and_then(|session| session.status).unwrap_or_default())
    }

    /// Checks that nothing but heartbeats is written for this time.
    pub async fn quiet(&self, when: &str, time: Duration) {
        let world = &self.world;
        let (before, then) = (world.writes.lock().total(), world.elapsed());
        sleep(time).await;
        let writes = world.writes.lock();
        if writes.total() != before {
            let last: Vec<&str> = writes.since(then).take(8).collect();
            world.broken(format!(
                "not quiet: {} writes when {when}: {}",
                writes.total() - before,
                last.join(", ")
            ));
        }
    }
}
