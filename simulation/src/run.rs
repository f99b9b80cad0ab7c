//! A run: the parts start, users ask, things go wrong, then nothing goes wrong any more; and in the end everything must be
//! done, right, and quiet.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use sahasra_crds::{BurstJob, VramLease, conditions};
use sahasra_local::{ControlPlane, Options};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    check, kernel,
    parts::{self, Order},
    plan::{BurstPlan, Fault, HEALED, Kind, LeasePlan, NAMESPACE, Plan},
    world::{Node, USUAL_DELAY, World, locked, pair},
};

/// Everything must be done so long after nothing goes wrong any more.
const DONE_WITHIN: Duration = Duration::from_secs(400);
/// What is done must have shown everywhere by then: an agent looks once a minute what stands in its object.
const SETTLING: Duration = Duration::from_secs(75);
/// Then for so long nobody writes anything.
const QUIET: Duration = Duration::from_secs(70);
/// How often the agents are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Of everything that happened, in its order.
    pub trace: u64,
    /// How much that was.
    pub events: u64,
    /// Milliseconds of virtual time.
    pub milliseconds: u64,
    /// What was found wrong.
    pub broken: Vec<String>,
}

/// Carries a plan out, in a paused single-threaded runtime of its own.
///
/// # Panics
/// When no runtime can be made.
pub fn run(plan: &Plan, shown: bool) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without input and output needs nothing");
    runtime.block_on(simulate(plan, shown))
}

async fn simulate(plan: &Plan, shown: bool) -> Outcome {
    let started = Instant::now();
    crate::begin();
    fastrand::seed(plan.seed);
    let origin = Timestamp::from_second(1_800_000_000).unwrap_or_default();
    let options = Options::default()
        .seed(plan.seed)
        .watch_history(200)
        .clock(move || origin + started.elapsed());
    let world = World::new(plan.seed, ControlPlane::new(options), shown);
    let users = Users {
        client: world.control_plane.client(NAMESPACE),
        world: Arc::clone(&world),
    };
    let operators: Vec<_> = (plan.operators.iter().enumerate())
        .map(|(place, drift)| parts::operator(&world, place, *drift))
        .collect();
    let agents: Vec<_> = (plan.agents.iter().enumerate())
        .map(|(place, agent)| parts::agent(&world, place, agent.clone()))
        .collect();
    for (place, burst) in plan.bursts.iter().enumerate() {
        tokio::spawn(users.clone().burst(place, burst.clone(), plan.is_calm()));
    }
    for (place, lease) in plan.leases.iter().enumerate() {
        tokio::spawn(users.clone().lease(place, lease.clone()));
    }
    for fault in &plan.faults {
        tokio::spawn(users.clone().fault(fault.clone(), plan.clone(), operators.clone(), agents.clone()));
    }
    let looking = tokio::spawn(look(Arc::clone(&world)));
    sleep_until(world.instant(HEALED)).await;
    users.finish(plan).await;
    looking.abort();
    let (trace, events) = world.trace();
    Outcome {
        trace,
        events,
        milliseconds: u64::try_from(world.elapsed().as_millis()).unwrap_or(u64::MAX),
        broken: world.found(),
    }
}

/// Looks at the agents now and then.
async fn look(world: Arc<World>) {
    loop {
        sleep(LOOK).await;
        let agents: Vec<_> = locked(&world.agents).values().cloned().collect();
        for live in agents.iter().filter(|live| !live.part.has_crashed()) {
            live.check_expiry(&world);
        }
    }
}

/// Those who ask: their requests always get through.
#[derive(Clone)]
struct Users {
    client: Client,
    world: Arc<World>,
}

fn burst_name(place: usize) -> String {
    format!("burst-{place}")
}

fn lease_name(place: usize) -> String {
    format!("lease-{place}")
}

impl Users {
    fn bursts(&self) -> Api<BurstJob> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn leases(&self) -> Api<VramLease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Creates an object, which nothing forbids.
    async fn ask<K>(&self, api: &Api<K>, name: &str, object: Value)
    where
        K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        let object = serde_json::from_value(object).map_err(|error| error.to_string());
        let created = match object {
            Ok(object) => api.create(&PostParams::default(), &object).await.map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        match created {
            Ok(_) => self.world.note(format_args!("{name} is asked for")),
            Err(error) => self.world.broken(format!("create {name}: {error}")),
        }
    }

    async fn burst(self, place: usize, plan: BurstPlan, calm: bool) {
        sleep_until(self.world.instant(plan.at)).await;
        let name = burst_name(place);
        let aggregate = if plan.argmin { "argmin" } else { "sum" };
        let job = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "BurstJob",
            "metadata": {"name": name},
            "spec": {
                "kernel": {
                    "ptx": {"inline": kernel::PTX},
                    "entry": kernel::ENTRY,
                    "block": [1],
                    "args": [
                        {"output": {"type": "u32"}},
                        {"chunkIndex": {"type": "u32"}},
                        {"scalar": {"type": "u32", "value": plan.salt}},
                    ],
                },
                "chunks": {"count": plan.chunks},
                "slice": {"vram": format!("{}Mi", plan.mebibytes)},
                "slices": {"min": plan.slices.0, "max": plan.slices.1},
                "priority": plan.priority,
                "lease": {"ttlSeconds": plan.ttl},
                "chunkTimeoutSeconds": 6,
                "maxFailedChunks": 100,
                "retryPolicy": {"maxRetries": 50, "initialBackoffSeconds": 0, "maxBackoffSeconds": 1},
                "aggregate": {aggregate: {"output": 0}},
            },
        });
        self.ask(&self.bursts(), &name, job).await;
        let Some(deleted) = plan.deleted else { return };
        sleep_until(self.world.instant(deleted)).await;
        let uid = self.bursts().get_opt(&name).await.ok().flatten().and_then(|job| job.uid());
        let _ = self.bursts().delete(&name, &DeleteParams::default()).await;
        self.world.note(format_args!("{name} is deleted"));
        if calm && let Some(uid) = uid {
            sleep(check::FREED_WITHIN).await;
            check::freed(&self.world, &uid, &name);
        }
    }

    async fn lease(self, place: usize, plan: LeasePlan) {
        sleep_until(self.world.instant(plan.at)).await;
        let name = lease_name(place);
        let lease = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "VramLease",
            "metadata": {"name": name},
            "spec": {
                "owner": {"name": "simulation"},
                "slice": {"vram": format!("{}Mi", plan.mebibytes)},
                "slices": {"min": plan.slices.0, "max": plan.slices.1},
                "ttlSeconds": plan.ttl,
                "renewal": if plan.never_renewed { "Never" } else { "Automatic" },
            },
        });
        self.ask(&self.leases(), &name, lease).await;
        sleep_until(self.world.instant(plan.deleted)).await;
        let _ = self.leases().delete(&name, &DeleteParams::default()).await;
        self.world.note(format_args!("{name} is deleted"));
    }

    async fn fault(
        self,
        fault: Fault,
        plan: Plan,
        operators: Vec<mpsc::UnboundedSender<Order>>,
        agents: Vec<mpsc::UnboundedSender<Order>>,
    ) {
        let world = &self.world;
        sleep_until(world.instant(fault.at)).await;
        world.note(format_args!("fault: {fault:?}"));
        let over = world.instant((fault.at + fault.lasts).min(HEALED - 1_000));
        match fault.kind {
            Kind::End(Node::Operator(place), order) => drop(operators[place].send(order)),
            Kind::End(Node::Agent(place), order) => drop(agents[place].send(order)),
            Kind::End(Node::Api, _) => {}
            Kind::Partition(one, other) => {
                *world.conditions().partitions.entry(pair(one, other)).or_default() += 1;
                sleep_until(over).await;
                let mut conditions = world.conditions();
                if let Some(reasons) = conditions.partitions.get_mut(&pair(one, other)) {
                    *reasons -= 1;
                }
                conditions.partitions.retain(|_, reasons| *reasons > 0);
            }
            Kind::ApiDown => {
                world.conditions().api_down += 1;
                world.control_plane.close_watches();
                sleep_until(over).await;
                world.conditions().api_down -= 1;
            }
            Kind::ApiErrors(share) => {
                world.conditions().api_errors = share;
                sleep_until(over).await;
                world.conditions().api_errors = 0;
            }
            Kind::Compact => world.control_plane.compact(),
            Kind::CloseWatches => world.control_plane.close_watches(),
            Kind::ExpireWatches => world.control_plane.expire_watches(),
            Kind::WatchLag(lag) => {
                world.conditions().watch_lag = lag;
                sleep_until(over).await;
                world.conditions().watch_lag = 0;
            }
            Kind::Delay(delay) => {
                world.conditions().delay = delay;
                sleep_until(over).await;
                world.conditions().delay = USUAL_DELAY;
            }
            Kind::Loss(share) => {
                world.conditions().loss = share;
                sleep_until(over).await;
                world.conditions().loss = 0;
            }
            Kind::Repeats(share) => {
                world.conditions().repeats = share;
                sleep_until(over).await;
                world.conditions().repeats = 0;
            }
            Kind::Break(place) => {
                if let Some(live) = world.agent(place) {
                    std::mem::take(&mut *locked(&live.connections)).cancel();
                }
            }
            Kind::Slow(place, factor) => {
                world.conditions().slow.insert(place, factor);
                sleep_until(over).await;
                world.conditions().slow.remove(&place);
            }
            Kind::Meddle(place) => {
                for times in 0..10 {
                    let patch = json!({"metadata": {"annotations": {"meddled": times.to_string()}}});
                    self.patch(place, patch).await;
                    sleep(Duration::from_millis(1 + world.below(300))).await;
                }
            }
            Kind::Suspend(place) => {
                self.patch(place, json!({"spec": {"suspend": true}})).await;
                sleep_until(over).await;
                self.patch(place, json!({"spec": {"suspend": false}})).await;
            }
            Kind::Priority(place, priority) => self.patch(place, json!({"spec": {"priority": priority}})).await,
            Kind::Resize(place, most) => {
                let most = most.max(plan.bursts[place].slices.0);
                self.patch(place, json!({"spec": {"slices": {"max": most}}})).await;
            }
        }
    }

    async fn patch(&self, place: usize, patch: Value) {
        let name = burst_name(place);
        // It may not be there yet, or not any more.
        let _ = self.bursts().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        self.world.note(format_args!("{name} is written: {patch}"));
    }

    /// Nothing goes wrong any more: everything must come to its end, and be right.
    async fn finish(&self, plan: &Plan) {
        let world = &self.world;
        world.note(format_args!("nothing goes wrong any more"));
        let deadline = Instant::now() + DONE_WITHIN;
        loop {
            match self.pending(plan).await {
                Ok(()) => break,
                Err(pending) if Instant::now() >= deadline => return world.broken(format!("not done: {pending}")),
                Err(_) => sleep(Duration::from_secs(1)).await,
            }
        }
        self.judge(plan).await;
        sleep(SETTLING).await;
        let (before, then) = (locked(&world.writes).total(), world.elapsed());
        sleep(QUIET).await;
        let writes = locked(&world.writes);
        if writes.total() != before {
            let last: Vec<&str> = writes.since(then).take(8).collect();
            world.broken(format!(
                "not quiet: {} writes when all was done: {}",
                writes.total() - before,
                last.join(", ")
            ));
        }
    }

    /// What is not done yet.
    async fn pending(&self, plan: &Plan) -> Result<(), String> {
        let all = ListParams::default();
        let jobs = self.bursts().list(&all).await.map_err(|error| error.to_string())?;
        for (place, burst) in plan.bursts.iter().enumerate() {
            let name = burst_name(place);
            let Some(job) = jobs.iter().find(|job| job.name_any() == name) else {
                if burst.deleted.is_none() {
                    self.world.broken(format!("{name} vanished"));
                }
                continue;
            };
            let state = job.status.as_ref().map(|status| (&status.state, &status.reason, &status.chunks));
            if burst.deleted.is_some() || job.metadata.deletion_timestamp.is_some() {
                return Err(format!("{name} is being deleted: {state:?}"));
            }
            let conditions = job.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            let finished = conditions::is_true(conditions, conditions::COMPLETE) || conditions::is_true(conditions, conditions::FAILED);
            if !finished || !job.finalizers().is_empty() {
                return Err(format!("{name}: {state:?}, finalizers {:?}", job.finalizers()));
            }
        }
        let leases = self.leases().list(&all).await.map_err(|error| error.to_string())?;
        if let Some(lease) = leases.iter().next() {
            return Err(format!("VramLease {} is still there", lease.name_any()));
        }
        for live in locked(&self.world.agents).values() {
            let (load, _) = live.agent.totals();
            if load.leased_bytes > 0 {
                return Err(format!("worker-{} still lends {} bytes", live.place, load.leased_bytes));
            }
        }
        Ok(())
    }

    /// What bursts say of themselves is what happened.
    async fn judge(&self, plan: &Plan) {
        for (place, burst) in plan.bursts.iter().enumerate() {
            let name = burst_name(place);
            let Ok(Some(job)) = self.bursts().get_opt(&name).await else {
                continue;
            };
            let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
            let results = config_maps.get_opt(&format!("{name}-results")).await.ok().flatten();
            check::burst(&self.world, burst, &job, results.as_ref());
            if plan.is_calm() {
                check::budget(&self.world, &name, &job);
            }
        }
    }
}
