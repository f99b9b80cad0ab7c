use std::{cell::Cell, sync::Arc, time::Duration};

use sahasra_crds::BurstJob;
use sahasra_local::{ControlPlane, Options};
use sahasra_store::StorePolicy;
use sahasra_wire::burst::Open;
use serde_json::json;
use tokio::sync::watch;

use super::{super::streams::OpenStream, *};
use crate::{
    Operator, Settings,
    agents::{
        AgentClient,
        stream::{BurstStream, StreamId},
    },
    burst::{observe::Observed, validate::validate},
    clock::Clock,
    fault::Faults,
};

const PTX: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) { ret; }";
const WORKERS: u64 = 64;
/// Devices of each worker.
const DEVICES: u64 = 64;
/// Maximum outstanding chunks of a worker: half of the chunks that its devices have room for.
const AT_WORKER: u64 = 1000;

thread_local! {
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

/// Counts a visit of a device.
pub(super) fn visited() {
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

/// Number of visits of devices during `work`.
fn visits(work: impl FnOnce()) -> u64 {
    VISITS.with(|visits| visits.set(0));
    work();
    VISITS.with(Cell::get)
}

/// The coordinator of a burst with slices on every device and a stream to every worker.
fn coordinator() -> Coordinator {
    let settings = Settings {
        identity: "one".to_owned(),
        namespace: "default".to_owned(),
        worker_timeout: Duration::from_secs(60),
        leader_timeout: Duration::from_secs(15),
        session_lease: Duration::from_secs(60),
        input_bytes: 0,
        stores: StorePolicy::default(),
        faults: Faults::default(),
    };
    let client = ControlPlane::new(Options::default()).client("default");
    let operator = Operator::new(client, AgentClient::default(), Clock::default(), settings).unwrap();
    let job: BurstJob = serde_json::from_value(json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": "wide"},
        "spec": {
            "kernel": {"ptx": {"inline": PTX}, "entry": "k", "args": [{"output": {"type": "u8"}}]},
            "chunks": {"count": 1_000_000}, "slice": {"vram": "1Mi"}, "results": "None", "aggregate": {"sum": {}},
        },
    }))
    .unwrap();
    let observed = Observed {
        ptx: PTX.into(),
        inputs: vec![Default::default()],
        ..Observed::default()
    };
    let burst = validate(&job.spec, &observed).unwrap_or_else(|invalid| panic!("{invalid:?}"));
    let (_, seen) = watch::channel(Arc::new(job));
    let mut coordinator = Coordinator::new(operator.context().clone(), seen, burst);
    (coordinator.started, coordinator.hold) = (true, Hold::Running);
    for worker in (0..WORKERS).map(|worker| WorkerName::from(format!("worker-{worker}"))) {
        let id = StreamId {
            worker: worker.clone(),
            number: 1,
        };
        let (agents, events) = (coordinator.context.agents.clone(), coordinator.events_sender.clone());
        let mut stream = Stream::new("http://127.0.0.1:1", "boot".into(), Duration::ZERO);
        stream.state = State::Open(OpenStream {
            number: 1,
            stream: BurstStream::open(agents, stream.endpoint.clone(), Open::default(), id, events),
            max_outstanding: AT_WORKER,
            sequence: 0,
            acknowledged: 0,
            reported_before: 0,
            rebalanced: Duration::ZERO,
        });
        for device in (0..DEVICES).map(|device| format!("gpu-{device}")) {
            let device = DeviceId::new(worker.clone(), device);
            let number = coordinator.account.register(&device);
            coordinator.devices.insert(device, Device::new(number, 2, Duration::ZERO));
        }
        coordinator.streams.insert(worker, stream);
    }
    coordinator
}

#[tokio::test]
async fn a_round_over_thousands_of_devices_visits_each_a_few_times() {
    /// Number of visits of a device in each step of a round.
    const FEW: u64 = 6;
    let mut coordinator = coordinator();
    let all = WORKERS * DEVICES;

    let first = visits(|| coordinator.dispatch());
    assert_eq!(coordinator.account.counts().running, WORKERS * AT_WORKER);
    assert!(first <= FEW * all, "{first} visits of {all} devices");
    // Every worker has its maximum of outstanding chunks.
    let second = visits(|| coordinator.dispatch());
    assert_eq!(coordinator.account.counts().running, WORKERS * AT_WORKER);
    assert!(second <= FEW * all, "{second} visits of {all} devices");

    let now = coordinator.now();
    let balancing = visits(|| coordinator.rebalance(now));
    assert!(balancing <= FEW * all, "{balancing} visits of {all} devices");
    let timed = visits(|| {
        coordinator.on_time();
        coordinator.dispatch_wake(now);
    });
    assert!(timed <= FEW * all, "{timed} visits of {all} devices");
}
