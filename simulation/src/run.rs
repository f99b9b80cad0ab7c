//! Course of a run: operators and agents start, users create objects, faults occur and end. At the end, all work must be done with correct
//! results, and all writes must have stopped.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use kube::{Api, ResourceExt, api::ListParams};
use sahasra_crds::{BurstJob, GpuSession, VramLease, conditions};
use sahasra_local::{ControlPlane, Options};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    check, explained,
    plan::{HEALED, NAMESPACES, Plan, SYSTEM},
    processes::{self, Order},
    users::{Named, Users},
    world::World,
};

/// Time after the last fault within which everything must be done.
pub(crate) const DONE_WITHIN: Duration = Duration::from_secs(400);
/// Number of seeds of which one keeps a lease and a session at the end, which takes four more minutes of virtual time.
const STANDING: u64 = 5;
/// Time within which the end of all work is visible everywhere: a resumed heartbeat is noticed within 20 s, and an agent reads what others
/// wrote to its object once per minute.
pub(crate) const SETTLING: Duration = Duration::from_secs(90);
/// Time after [`SETTLING`] during which nothing may be written.
pub(crate) const QUIET: Duration = Duration::from_secs(70);
/// Interval at which the agents are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of all events in their order.
    pub trace: u64,
    pub events: u64,
    /// Duration in milliseconds of virtual time.
    pub milliseconds: u64,
    /// Violations that were found.
    pub broken: Vec<String>,
}

/// Runs a plan in its own paused single-threaded runtime.
///
/// # Panics
/// When the runtime cannot be created.
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
    let options = Options {
        clock: Arc::new(move || origin + started.elapsed()),
        seed: plan.seed,
        watch_history: 200,
        ..Options::default()
    };
    let world = World::new(plan.seed, ControlPlane::new(options), shown);
    let users = Users {
        client: world.control_plane.client(SYSTEM),
        world: Arc::clone(&world),
    };
    for namespace in NAMESPACES.into_iter().chain([SYSTEM]) {
        users.namespace(namespace).await;
        users.secret(namespace).await;
    }
    let operators: Vec<_> = (plan.operators.iter().enumerate())
        .map(|(index, drift)| processes::operator(&world, index, *drift))
        .collect();
    let agents: Vec<_> = (plan.agents.iter().enumerate())
        .map(|(index, agent)| processes::agent(&world, index, agent.clone()))
        .collect();
    for (index, burst) in plan.bursts.iter().enumerate() {
        tokio::spawn(users.clone().burst(index, burst.clone(), plan.is_calm()));
    }
    for (index, lease) in plan.leases.iter().enumerate() {
        tokio::spawn(users.clone().lease(index, lease.clone(), plan.is_calm()));
    }
    for (index, session) in plan.sessions.iter().enumerate() {
        tokio::spawn(users.clone().session(index, session.clone(), plan.is_calm()));
    }
    for fault in &plan.faults {
        tokio::spawn(users.clone().fault(fault.clone(), plan.clone(), operators.clone(), agents.clone()));
    }
    let checking = tokio::spawn(check_agents(Arc::clone(&world)));
    let explaining = tokio::spawn(explained::check_all(users.clone(), plan.is_calm()));
    sleep_until(world.instant(HEALED)).await;
    users.finish(plan, &operators).await;
    checking.abort();
    explaining.abort();
    let (trace, events) = world.trace();
    Outcome {
        trace,
        events,
        milliseconds: u64::try_from(world.elapsed().as_millis()).unwrap_or(u64::MAX),
        broken: world.found(),
    }
}

/// Checks the agents at an interval.
async fn check_agents(world: Arc<World>) {
    loop {
        sleep(POLL_INTERVAL).await;
        let agents: Vec<_> = world.agents.lock().values().cloned().collect();
        for live in agents.iter().filter(|live| !live.group.has_crashed()) {
            live.check_expiry(&world);
        }
    }
}

impl Users {
    /// Waits after the last fault until everything is done, and checks the results.
    async fn finish(&self, plan: &Plan, operators: &[mpsc::UnboundedSender<Order>]) {
        self.world.note(format_args!("nothing goes wrong any more"));
        if !self.done(plan).await {
            return;
        }
        self.judge(plan).await;
        if plan.seed.is_multiple_of(STANDING) {
            self.stand(operators).await;
        }
        if self.done(plan).await {
            sleep(SETTLING).await;
            self.quiet("all was done", QUIET).await;
        }
    }

    /// Waits until everything is done. Returns `false` if that takes too long.
    async fn done(&self, plan: &Plan) -> bool {
        let deadline = Instant::now() + DONE_WITHIN;
        while let Err(pending) = self.pending(plan).await {
            if Instant::now() >= deadline {
                self.world.broken(format!("not done: {pending}"));
                return false;
            }
            sleep(Duration::from_secs(1)).await;
        }
        true
    }

    /// Returns the first thing that is not done yet as an error.
    async fn pending(&self, plan: &Plan) -> Result<(), String> {
        let all = ListParams::default();
        let jobs = Api::<BurstJob>::all(self.client.clone());
        let jobs = jobs.list(&all).await.map_err(|error| error.to_string())?;
        for (index, burst) in plan.bursts.iter().enumerate() {
            let name = Named::burst(index);
            let is_it = |job: &&BurstJob| job.namespace().as_deref() == Some(name.namespace) && job.name_any() == name.name;
            let Some(job) = jobs.iter().find(is_it) else {
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
        let sessions = Api::<GpuSession>::all(self.client.clone());
        let sessions = sessions.list(&all).await.map_err(|error| error.to_string())?;
        if let Some(session) = sessions.iter().next() {
            return Err(format!("GpuSession {} is still there", session.name_any()));
        }
        let leases = Api::<VramLease>::all(self.client.clone());
        let leases = leases.list(&all).await.map_err(|error| error.to_string())?;
        if let Some(lease) = leases.iter().next() {
            return Err(format!("VramLease {} is still there", lease.name_any()));
        }
        for live in self.world.agents.lock().values() {
            let (load, _) = live.agent.totals();
            if load.leased_bytes > 0 {
                return Err(format!("worker-{} still lends {} bytes", live.index, load.leased_bytes));
            }
        }
        Ok(())
    }

    /// Checks that the status of each burst matches what happened.
    async fn judge(&self, plan: &Plan) {
        for (index, burst) in plan.bursts.iter().enumerate() {
            let name = Named::burst(index);
            let Ok(Some(job)) = self.objects::<BurstJob>(name.namespace).get_opt(&name.name).await else {
                continue;
            };
            let config_maps = self.objects::<ConfigMap>(name.namespace);
            let results = config_maps.get_opt(&format!("{}-results", name.name)).await.ok().flatten();
            check::burst(&self.world, burst, &name, &job, results.as_ref());
            if plan.is_calm() {
                check::budget(&self.world, &name, &job);
            }
            if plan.loses_no_attempts() && !burst.is_refused() {
                check::attempts(&self.world, burst, &name, &job);
            }
        }
    }
}
