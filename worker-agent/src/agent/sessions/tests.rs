use std::path::PathBuf;

use sahasra_names::Backend;
use sahasra_service::clock::Clock;
use sahasra_wire::grants::{AcquireRequest, Owner, SessionTerms};

use super::*;
use crate::{
    agent::{Identity, Parts},
    burst_executors::{ExecutorPool, PoolConfig},
    child::spawn::Spawner,
    classes::ClassTable,
    devices::DeviceDescription,
    metrics::Metrics,
    session_executors::launcher::Launcher,
    store::StorePolicy,
};

const MEMORY: u64 = 1 << 30;

/// Returns an agent with one device whose session executors run `program`.
async fn agent(program: &str) -> Arc<Agent> {
    let program = PathBuf::from(program);
    let device = DeviceDescription {
        name: "cpu-0".into(),
        kind: Backend::Cpu,
        ordinal: 0,
        model: "CPU".to_owned(),
        total_bytes: MEMORY,
        allocatable_bytes: MEMORY,
        context_bytes: 0,
        lanes: 1,
    };
    let chunks = Arc::new(Spawner::start(program.clone()).unwrap());
    Agent::new(
        Identity {
            worker: "node".into(),
            classes: ClassTable::default(),
        },
        Parts::new(
            "boot".into(),
            ExecutorPool::with(PoolConfig::default(), vec![device], chunks),
            Metrics::new().unwrap(),
            StorePolicy::default(),
        ),
        Duration::from_secs(20),
        Arc::new(Launcher::start(program, None, None, None).await.unwrap()),
        Clock::default(),
    )
}

fn granted(agent: &Agent, engine: &str) -> Arc<Session> {
    let request = AcquireRequest {
        owner: Owner {
            uid: "lease".to_owned(),
            namespace: "team".to_owned(),
            name: "VramLease/mine".to_owned(),
            term: 1,
        },
        boot_id: "boot".to_owned(),
        device: "cpu-0".to_owned(),
        slice_bytes: MEMORY,
        slices: 1,
        at_least: 1,
        ttl_milliseconds: 600_000,
        grace_milliseconds: 1_000,
        session: Some(SessionTerms {
            namespace: "team".to_owned(),
            name: "mine".to_owned(),
            uid: "uid".to_owned(),
            engine: engine.to_owned(),
            keep_milliseconds: 600_000,
        }),
    };
    assert!(agent.acquire(&request).grant.is_some());
    agent.sessions.find("team", "mine").unwrap()
}

#[tokio::test]
async fn an_engine_that_the_agent_does_not_know_is_refused_by_name() {
    let agent = agent("/bin/true").await;
    let session = granted(&agent, "later");
    let refused = agent.executor_of(&session).await.unwrap_err();
    assert_eq!(refused.to_string(), "device cpu-0 does not support engine later");
}

#[tokio::test]
async fn an_executor_that_ends_with_status_0_by_itself_is_lost_and_its_grant_goes_back() {
    let agent = agent("/bin/true").await;
    let session = granted(&agent, "ptx");
    agent.executor_of(&session).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), session.ended.cancelled())
        .await
        .unwrap();
    let inventory = agent.inventory();
    assert!(inventory.grants.is_empty(), "{inventory:?}");
    assert_eq!(inventory.sessions.len(), 1);
    assert_eq!(inventory.sessions[0].ended, "its executor exited with status 0");
    assert!(agent.sessions.find("team", "mine").is_none());
}
