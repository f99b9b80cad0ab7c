//! The real operators and agents with simulated transports and executors, and the loops that restart them after a stop or a crash.

use std::{sync::Arc, time::Duration};

use sahasra_names::Backend;
use sahasra_operator::{Operator, Settings, agents::AgentClient, fault::Faults};
use sahasra_service::{clock::Clock, health::Readiness};
use sahasra_store::{Endpoints, StorePolicy};
use sahasra_worker::{
    agent::{Agent, Identity, Parts},
    burst_executors::{ExecutorPool, PoolConfig},
    classes::ClassTable,
    devices::DeviceDescription,
    metrics::Metrics,
    registration::{Registration, RegistrationConfig, claim::Occupied},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::Api,
    book::Live,
    executor::Models,
    network::{Wire, endpoint},
    plan::{AgentPlan, SYSTEM},
    session_executor::SessionModels,
    store::Network,
    task_group::TaskGroup,
    world::{Node, World},
};

/// Time without a heartbeat after which a worker counts as stale, or without a renewal after which a leader is
/// replaced.
const SILENCE: Duration = Duration::from_secs(15);
/// Delay before a process that ended restarts.
const RESTART: Duration = Duration::from_millis(500);

/// Time after which a task group that is to crash crashes even without enough steps.
const CRASH_WITHIN: Duration = Duration::from_secs(2);

/// Order to an operator or an agent.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// The process crashes after a number of steps of its tasks, and restarts later.
    Crash {
        steps: u64,
        /// Milliseconds until the restart.
        down: u64,
    },
    /// The process stops gracefully, and restarts later.
    Stop {
        /// Milliseconds until the restart.
        down: u64,
    },
    /// The executors of an agent are killed.
    KillExecutors,
}

/// Crashes a task group after a number of steps. A task group that takes fewer steps within [`CRASH_WITHIN`] crashes then.
fn crash(group: &TaskGroup, steps: u64) {
    group.crash_after(steps);
    let group = group.clone();
    tokio::spawn(async move {
        sleep(CRASH_WITHIN).await;
        group.crash();
    });
}

/// Returns the policy by which one node reaches the object store.
fn stores(world: &Arc<World>, node: Node) -> StorePolicy {
    StorePolicy::over(Endpoints::default(), Network::new(world, node))
}

/// Runs an operator, and restarts it until the simulation ends.
pub fn operator(world: &Arc<World>, index: usize, drift: i32) -> mpsc::UnboundedSender<Order> {
    let (orders, mut ordered) = mpsc::unbounded_channel();
    let world = Arc::clone(world);
    tokio::spawn(async move {
        loop {
            let group = TaskGroup::default();
            let node = Node::Operator(index);
            let settings = Settings {
                identity: node.to_string(),
                namespace: SYSTEM.to_owned(),
                worker_timeout: SILENCE,
                leader_timeout: SILENCE,
                session_lease: Duration::from_secs(60),
                input_bytes: sahasra_operator::INPUT_BYTES,
                stores: stores(&world, node),
                faults: Faults::default(),
            };
            let agents = AgentClient::over(Arc::new(Wire::new(Arc::clone(&world), node)));
            let operator = Operator::new(Api::client(&world, node), agents, Clock::drifting(drift), settings)
                .expect("each operator has a registry of its own");
            let stop = CancellationToken::new();
            let stopped = stop.clone();
            world.note(format_args!("{node} starts"));
            let mut running = group.start(async move { operator.run(Readiness::default(), &stopped).await });
            let mut down = RESTART;
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut running => {
                        world.note(format_args!("{node} ends: {outcome:?}"));
                        break;
                    }
                    () = group.crashed() => {
                        world.note(format_args!("{node} crashes"));
                        break;
                    }
                    order = ordered.recv() => match order {
                        Some(Order::Crash { steps, down: milliseconds }) => {
                            down = Duration::from_millis(milliseconds);
                            crash(&group, steps);
                        }
                        Some(Order::Stop { down: milliseconds }) => {
                            down = Duration::from_millis(milliseconds);
                            stop.cancel();
                        }
                        Some(Order::KillExecutors) => {}
                        None => return,
                    },
                }
            }
            group.crash();
            sleep(down).await;
        }
    });
    orders
}

/// Runs an agent, and restarts it until the simulation ends.
pub fn agent(world: &Arc<World>, index: usize, plan: AgentPlan) -> mpsc::UnboundedSender<Order> {
    let (orders, mut ordered) = mpsc::unbounded_channel();
    let world = Arc::clone(world);
    tokio::spawn(async move {
        for boot in 1_u64.. {
            let group = TaskGroup::default();
            let node = Node::Agent(index);
            let clock = Clock::drifting(plan.drift);
            let models = Models::new(Arc::clone(&world), index);
            let agent = start(&world, index, &plan, boot, &group, clock, &models);
            let live = Live::new(index, Arc::clone(&agent), group.clone(), clock);
            world.agents.lock().insert(index, Arc::clone(&live));
            world.note(format_args!("{node} starts, boot {boot}"));
            let mut down = RESTART;
            let stop = CancellationToken::new();
            let registration = register(&world, index, &agent, &group, &stop);
            loop {
                tokio::select! {
                    biased;
                    () = group.crashed() => {
                        world.note(format_args!("{node} crashes"));
                        break;
                    }
                    order = ordered.recv() => match order {
                        Some(Order::Crash { steps, down: milliseconds }) => {
                            down = Duration::from_millis(milliseconds);
                            crash(&group, steps);
                        }
                        Some(Order::Stop { down: milliseconds }) => {
                            down = Duration::from_millis(milliseconds);
                            world.note(format_args!("{node} drains"));
                            agent.drain(Duration::from_secs(3)).await;
                            stop.cancel();
                            let _ = timeout(Duration::from_secs(5), registration).await;
                            agent.parts.pool.shut_down();
                            break;
                        }
                        Some(Order::KillExecutors) => {
                            world.note(format_args!("{node}: its executors are killed"));
                            models.kill_all();
                        }
                        None => return,
                    },
                }
            }
            group.crash();
            live.connections.lock().cancel();
            world.agents.lock().remove(&index);
            sleep(down).await;
        }
    });
    orders
}

fn start(
    world: &Arc<World>,
    index: usize,
    plan: &AgentPlan,
    boot: u64,
    group: &TaskGroup,
    clock: Clock,
    models: &Arc<Models>,
) -> Arc<Agent> {
    let devices = (0..plan.devices).map(|ordinal| DeviceDescription {
        name: format!("cpu-{ordinal}").into(),
        kind: Backend::Cpu,
        ordinal,
        model: "model".to_owned(),
        total_bytes: plan.mebibytes << 20,
        allocatable_bytes: plan.mebibytes << 20,
        context_bytes: 0,
        lanes: plan.lanes,
    });
    let config = PoolConfig {
        idle_timeout: Duration::from_secs(10),
        ..PoolConfig::default()
    };
    let pool = ExecutorPool::with(config, devices.collect(), Arc::clone(models) as _);
    let identity = Identity {
        worker: Node::Agent(index).to_string().into(),
        classes: ClassTable::default(),
    };
    let boot_id = format!("{index:08x}{boot:08x}{:016x}", world.below(u64::MAX));
    let metrics = Metrics::new().expect("each agent has a registry of its own");
    let shutdown_grace = Duration::from_secs(4);
    let launcher = SessionModels::new(world, index);
    let stores = stores(world, Node::Agent(index));
    let parts = Parts::new(boot_id.into(), pool, metrics, stores);
    let agent = Agent::new(identity, parts, shutdown_grace, launcher, clock);
    group.start(Arc::clone(&agent).keep_time(CancellationToken::new()));
    group.start(Arc::clone(&agent).keep_sessions(CancellationToken::new()));
    agent
}

fn register(
    world: &Arc<World>,
    index: usize,
    agent: &Arc<Agent>,
    group: &TaskGroup,
    stop: &CancellationToken,
) -> tokio::task::JoinHandle<Result<(), Occupied>> {
    let config = RegistrationConfig {
        node_name: Node::Agent(index).to_string().into(),
        namespace: SYSTEM.to_owned(),
        endpoint: endpoint(index),
        heartbeat_interval: Duration::from_secs(5),
        status_interval: Duration::from_secs(5),
    };
    let client = Api::client(world, Node::Agent(index));
    // The simulation starts an agent only after the previous agent of the node has ended.
    let registration = Registration::new(config, Arc::clone(agent), client).without_probes();
    group.start(registration.run(stop.clone()))
}
