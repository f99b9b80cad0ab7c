//! What the operator serves: `/workers`, `/metrics`, `/healthz`, `/readyz`.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use sahasra_service::{health, metrics as metrics_route};
use sahasra_wire::inventory::Inventory;
use serde::Serialize;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use warp::{Filter, Rejection, Reply};

use crate::{
    agents::{AgentClient, Directory, Worker},
    context::Context,
    metrics,
};

/// An agent gives its load within this, or the figures of its status are shown.
const ANSWER_WITHIN: Duration = Duration::from_millis(250);
/// Agents asked at the same time.
const AT_ONCE: usize = 64;
/// A request within this time of the last gets the same answer: requests to the port cause at most one call an agent in it.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// What a worker's status may be.
pub(crate) const STATUSES: [&str; 4] = ["healthy", "stale", "notready", "unhealthy"];

/// One of [`STATUSES`].
pub(crate) fn status(worker: &Worker) -> &'static str {
    let all_unhealthy = !worker.devices.is_empty()
        && (worker.devices.iter()).all(|device| device.health == sahasra_crds::gpu_worker::DeviceHealth::Unhealthy);
    if worker.stale {
        "stale"
    } else if worker.ready.is_err() {
        "notready"
    } else if all_unhealthy {
        "unhealthy"
    } else {
        "healthy"
    }
}

/// One line of `/workers`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    id: String,
    /// One of [`STATUSES`].
    status: &'static str,
    active_executions: i64,
    tensor_count: i64,
    stored_tensor_bytes: i64,
    /// When the heartbeat was last seen to move, RFC 3339.
    last_seen: Option<String>,
}

impl From<Worker> for Row {
    fn from(worker: Worker) -> Self {
        let sum = |figure: fn(&sahasra_crds::gpu_worker::DeviceStatus) -> i64| worker.devices.iter().map(figure).sum();
        let status = status(&worker);
        Self {
            active_executions: sum(|device| device.active_executions),
            tensor_count: sum(|device| device.tensor_count),
            stored_tensor_bytes: sum(|device| device.stored_tensor_bytes),
            last_seen: worker.last_seen.map(|seen| seen.to_string()),
            id: worker.name,
            status,
        }
    }
}

/// The workers with their load as it is now; of one that does not answer at once, as it last was in its status.
#[derive(Debug)]
struct Workers {
    directory: Arc<Directory>,
    agents: AgentClient,
    last: Mutex<Option<(Instant, Vec<Row>)>>,
}

impl Workers {
    async fn rows(&self) -> Vec<Row> {
        // Held while it looks: however many ask, the agents are asked once.
        let mut last = self.last.lock().await;
        if let Some((at, rows)) = &*last
            && at.elapsed() < GOOD_FOR
        {
            return rows.clone();
        }
        let look = |worker: Worker| async {
            if worker.stale {
                return Row::from(worker);
            }
            match timeout(ANSWER_WITHIN, self.agents.load(&worker.endpoint)).await {
                Ok(Ok(now)) => with_load(worker, &now),
                _ => worker,
            }
            .into()
        };
        let rows: Vec<Row> = stream::iter(self.directory.workers()).map(look).buffered(AT_ONCE).collect().await;
        *last = Some((Instant::now(), rows.clone()));
        rows
    }
}

/// A worker's devices with the figures that its agent gives now.
fn with_load(mut worker: Worker, now: &Inventory) -> Worker {
    let number = |figure: u64| i64::try_from(figure).unwrap_or(i64::MAX);
    for device in &mut worker.devices {
        let Some(now) = now.devices.iter().find(|now| now.name == device.name) else {
            continue;
        };
        device.active_executions = number(now.active_executions);
        device.tensor_count = number(now.tensor_count);
        device.stored_tensor_bytes = number(now.stored_tensor_bytes);
    }
    worker
}

/// All routes.
pub fn routes(context: Arc<Context>, readiness: health::Readiness) -> impl Filter<Extract = (impl Reply,), Error = Rejection> + Clone {
    let workers = Arc::new(Workers {
        directory: context.directory.clone(),
        agents: context.agents.clone(),
        last: Mutex::default(),
    });
    let workers = warp::get().and(warp::path!("workers")).then(move || {
        let workers = workers.clone();
        async move { warp::reply::json(&workers.rows().await) }
    });
    let registry = context.metrics.registry();
    let metrics = metrics_route::route(registry, move || metrics::observe(&context));
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
            uid: String::new(),
            endpoint: String::new(),
            boot_id: String::new(),
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
        // What the agent says now goes before what its status said.
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
