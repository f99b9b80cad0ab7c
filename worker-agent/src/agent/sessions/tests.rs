use std::path::PathBuf;

use sahasra_service::clock::Clock;
use sahasra_wire::grants::{AcquireRequest, Owner, SessionTerms};

use super::*;
use crate::{
    agent::{AgentLimits, Executors, Identity},
    burst_executors::{ExecutorPool, PoolConfig},
    child::spawn::Spawner,
    classes::ClassTable,
    devices::{DeviceDescription, DeviceKind},
    metrics::Metrics,
    session_executors::launcher::Launcher,
    store::StorePolicy,
};

const MEMORY: u64 = 1 << 30;

/// Returns an agent with one device whose session executors run `program`.
async fn agent(program: &str) -> Arc<Agent> {
    let program = PathBuf::from(program);
    let device = DeviceDescription {
        name: "cpu-0".to_owned(),
        kind: DeviceKind::Cpu,
        ordinal: 0,
        model: "CPU".to_owned(),
        uuid: String::new(),
        compute_capability: None,
        total_bytes: MEMORY,
        allocatable_bytes: MEMORY,
        context_bytes: 0,
        lanes: 1,
    };
    let chunks = Arc::new(Spawner::start(program.clone()).unwrap());
    Agent::new(
        Identity {
            worker: "node".to_owned(),
            classes: ClassTable::default(),
        },
        "boot".to_owned(),
        AgentLimits::default(),
        Executors {
            chunks: ExecutorPool::with(PoolConfig::default(), vec![device], chunks),
            sessions: Some(Arc::new(Launcher::start(program, None, None).await.unwrap())),
        },
        Metrics::new().unwrap(),
        StorePolicy::default(),
        Clock::default(),
    )
}

#[tokio::test]
async fn an_executor_that_ends_with_status_0_by_itself_is_lost_and_its_grant_goes_back() {
    let agent = agent("/bin/true").await;
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
            engine: "ptx".to_owned(),
            keep_milliseconds: 600_000,
        }),
    };
    assert!(agent.acquire(&request).grant.is_some());
    let session = agent.sessions().find("team", "mine").unwrap();
    agent.executor_of(&session).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), session.ended.cancelled())
        .await
        .unwrap();
    let inventory = agent.inventory();
    assert!(inventory.grants.is_empty(), "{inventory:?}");
    assert_eq!(inventory.sessions.len(), 1);
    assert_eq!(inventory.sessions[0].ended, "its executor exited with status 0");
    assert!(agent.sessions().find("team", "mine").is_none());
}
