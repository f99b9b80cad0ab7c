//! Routes `/healthz` (the process is alive) and `/readyz` (the process accepts work; otherwise 503 with the names of the parts that are not
//! ready).

use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;
use warp::{Filter, Rejection};

use crate::methods::get_or_head;

use crate::answer::{self, Answer};

/// Names of the parts of a process that are not ready yet. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    waiting: Arc<Mutex<Vec<&'static str>>>,
}

impl Readiness {
    /// Creates a state in which each of `parts` is not ready until [`Readiness::ready`] is called for it.
    pub fn waiting_for(parts: &[&'static str]) -> Self {
        Self {
            waiting: Arc::new(Mutex::new(parts.to_vec())),
        }
    }

    pub fn ready(&self, component: &'static str) {
        self.waiting.lock().retain(|waiting| *waiting != component);
    }

    pub fn not_ready(&self, component: &'static str) {
        let mut waiting = self.waiting.lock();
        if !waiting.contains(&component) {
            waiting.push(component);
        }
    }

    /// Response of `/readyz`.
    pub fn answer(&self) -> Answer {
        let waiting = self.waiting.lock().join(", ");
        if waiting.is_empty() {
            return alive();
        }
        answer::text(StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {waiting}\n"))
    }

    pub fn is_ready(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

/// Response of `/healthz`.
pub fn alive() -> Answer {
    answer::text(StatusCode::OK, "ok\n")
}

pub fn routes(readiness: Readiness) -> impl Filter<Extract = (Answer,), Error = Rejection> + Clone {
    let health = warp::path!("healthz").map(alive);
    let ready = warp::path!("readyz").map(move || readiness.answer());
    get_or_head().and(health.or(ready).unify())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower_service::Service;

    async fn status(readiness: &Readiness) -> StatusCode {
        let request = warp::http::Request::get("/readyz")
            .body(http_body_util::Full::new(bytes::Bytes::new()))
            .unwrap();
        warp::service(routes(readiness.clone())).call(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn ready_once_every_component_is() {
        let readiness = Readiness::waiting_for(&["api", "device"]);
        readiness.ready("api");
        assert_eq!(status(&readiness).await, StatusCode::SERVICE_UNAVAILABLE);
        readiness.ready("device");
        assert_eq!(status(&readiness).await, StatusCode::OK);
        readiness.not_ready("api");
        assert_eq!(status(&readiness).await, StatusCode::SERVICE_UNAVAILABLE);
    }
}
