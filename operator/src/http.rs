//! What the operator serves: `/workers`, `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;

use sahasra_service::{health, metrics as metrics_route};
use serde::Serialize;
use warp::{Filter, Rejection, Reply};

use crate::{
    agents::{Directory, Worker},
    metrics::Metrics,
};

/// One line of `/workers`.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    id: String,
    /// `ready`, `stale`, `notready`, `unhealthy`.
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
        let all_unhealthy = !worker.devices.is_empty()
            && (worker.devices.iter()).all(|device| device.health == sahasra_crds::gpu_worker::DeviceHealth::Unhealthy);
        let status = if worker.stale {
            "stale"
        } else if worker.ready.is_err() {
            "notready"
        } else if all_unhealthy {
            "unhealthy"
        } else {
            "ready"
        };
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

/// All routes.
pub fn routes(
    directory: Arc<Directory>,
    metrics: Arc<Metrics>,
    readiness: health::Readiness,
) -> impl Filter<Extract = (impl Reply,), Error = Rejection> + Clone {
    let workers = warp::get()
        .and(warp::path!("workers"))
        .map(move || warp::reply::json(&directory.workers().into_iter().map(Row::from).collect::<Vec<_>>()));
    let registry = metrics.registry();
    let metrics = metrics_route::route(registry, move || metrics.before_scrape());
    workers.or(metrics).or(health::routes(readiness))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sahasra_crds::gpu_worker::DeviceStatus;

    #[test]
    fn a_row_has_exactly_the_fields_that_users_rely_on() {
        let device = DeviceStatus {
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
            devices: vec![device.clone(), device],
            ready: Ok(()),
            marked_lost: false,
            stale: false,
            last_seen: Some(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
        };
        let row = serde_json::to_value(Row::from(worker)).unwrap();
        let expected = serde_json::json!({
            "id": "node-a", "status": "ready", "active_executions": 2, "tensor_count": 4, "stored_tensor_bytes": 6,
            "last_seen": "1970-01-01T00:00:00Z",
        });
        assert_eq!(row, expected);
    }
}
