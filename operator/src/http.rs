//! The operator's HTTP endpoints: `/workers`, `/metrics`, `/healthz`, `/readyz`.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use sahasra_service::{health, methods::get_or_head, metrics as metrics_route};
use sahasra_wire::inventory::Inventory;
use serde::Serialize;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use warp::{Filter, Rejection, Reply};

use crate::{agents::Worker, context::Context, objects::integer};

/// Timeout of the request for an agent's current load. After it, `/workers` shows the statistics of the `GpuWorker`'s status.
const ANSWER_WITHIN: Duration = Duration::from_millis(250);
/// Maximum number of agents that are queried at the same time.
const AT_ONCE: usize = 64;
/// Time for which an answer is cached. In this time, requests to `/workers` cause at most one call to each agent.
const GOOD_FOR: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    id: String,
    /// Status of the worker: one of [`STATUSES`](crate::agents::STATUSES).
    status: &'static str,
    active_executions: i64,
    tensor_count: i64,
    stored_tensor_bytes: i64,
    /// Time at which the heartbeat last moved, in RFC 3339.
    last_seen: Option<String>,
}

impl From<Worker> for Row {
    fn from(worker: Worker) -> Self {
        let sum = |figure: fn(&sahasra_crds::gpu_worker::DeviceStatus) -> i64| worker.devices.iter().map(figure).sum();
        let status = worker.status();
        Self {
            active_executions: sum(|device| device.active_executions),
            tensor_count: sum(|device| device.tensor_count),
            stored_tensor_bytes: sum(|device| device.stored_tensor_bytes),
            last_seen: worker.last_seen.map(|seen| seen.to_string()),
            id: worker.name.to_string(),
            status,
        }
    }
}

/// The last answer, and its time.
type Last = Mutex<Option<(Instant, Vec<Row>)>>;

/// The workers with their current load. A worker that does not answer in time is shown with the load of its last status.
async fn rows(context: &Context, last: &Last) -> Vec<Row> {
    // The lock is held during the requests, so that concurrent callers cause only one request to each agent.
    let mut last = last.lock().await;
    if let Some((at, rows)) = &*last
        && at.elapsed() < GOOD_FOR
    {
        return rows.clone();
    }
    let look = |worker: Worker| async {
        if worker.stale {
            return Row::from(worker);
        }
        match timeout(ANSWER_WITHIN, context.agents.load(&worker.endpoint)).await {
            Ok(Ok(now)) => with_load(worker, &now),
            _ => worker,
        }
        .into()
    };
    let workers = context.directory.workers();
    let rows: Vec<Row> = stream::iter(workers).map(look).buffered(AT_ONCE).collect().await;
    *last = Some((Instant::now(), rows.clone()));
    rows
}

/// Replaces the load of a worker's devices by the load that its agent reports now.
fn with_load(mut worker: Worker, now: &Inventory) -> Worker {
    for device in &mut worker.devices {
        let Some(now) = now.devices.iter().find(|now| now.name == device.name) else {
            continue;
        };
        device.active_executions = integer(now.active_executions);
        device.tensor_count = integer(now.tensor_count);
        device.stored_tensor_bytes = integer(now.stored_tensor_bytes);
    }
    worker
}

/// The routes of all endpoints.
pub fn routes(context: Arc<Context>, readiness: health::Readiness) -> impl Filter<Extract = (impl Reply,), Error = Rejection> + Clone {
    let registry = context.metrics.registry();
    let (queried, last) = (context.clone(), Arc::new(Last::default()));
    let workers = get_or_head().and(warp::path!("workers")).then(move || {
        let (context, last) = (queried.clone(), last.clone());
        async move { warp::reply::json(&rows(&context, &last).await) }
    });
    let metrics = metrics_route::route(registry, move || context.update_metrics());
    workers.or(metrics).or(health::routes(readiness))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sahasra_crds::gpu_worker::DeviceStatus;

    #[test]
    fn a_row_has_exactly_the_fields_that_users_rely_on() {
        let named = |name: &str| DeviceStatus {
            name: name.to_owned(),
            active_executions: 1,
            tensor_count: 2,
            stored_tensor_bytes: 3,
            ..DeviceStatus::default()
        };
        let worker = Worker {
            name: "node-a".into(),
            uid: sahasra_names::WorkerUid::default(),
            endpoint: String::new(),
            boot_id: sahasra_names::BootId::default(),
            devices: vec![named("cpu-0"), named("cpu-1")],
            ready: Ok(()),
            marked_lost: false,
            stale: false,
            last_seen: Some(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
        };
        let row = serde_json::to_value(Row::from(worker.clone())).unwrap();
        let expected = serde_json::json!({
            "id": "node-a", "status": "healthy", "active_executions": 2, "tensor_count": 4, "stored_tensor_bytes": 6,
            "last_seen": "1970-01-01T00:00:00Z",
        });
        assert_eq!(row, expected);
        // The load that the agent reports now takes precedence over the worker's status.
        let now = Inventory {
            devices: vec![sahasra_wire::inventory::Device {
                name: "cpu-1".to_owned(),
                active_executions: 5,
                ..Default::default()
            }],
            ..Inventory::default()
        };
        let row = Row::from(with_load(worker, &now));
        assert_eq!((row.active_executions, row.tensor_count, row.stored_tensor_bytes), (6, 2, 3));
    }
}
