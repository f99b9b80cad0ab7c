//! Streams of sessions: a WebSocket towards the client, an upgraded HTTP/1.1 connection towards the worker, and a relay of bytes between
//! them.
//!
//! ```text
//! client ═ WebSocket, binary messages ═ relay ═ the bytes alone ═ worker-agent
//! ```
//!
//! Whatever can be rejected is rejected with an HTTP answer before the WebSocket opens: a missing token, missing rights, an unknown session,
//! a session without a worker, a rejection by the worker. Later failures are reported as close codes (see [`relay`]).
//!
//! A client whose stream broke sends the session's secret. If the session's worker is in the cache, the gateway connects to it at once,
//! and the worker verifies the secret: clients can resume during an outage of the API server.

mod end;
mod metrics;
mod relay;
mod slots;
mod websocket;
mod worker;

use std::{num::NonZeroUsize, sync::Arc};

use http::{HeaderValue, StatusCode, header};
use hyper_util::rt::TokioIo;
use lru::LruCache;
use parking_lot::Mutex;
use sahasra_access::{Access, AccessError};
use sahasra_crds::conditions::FAILED;
use sahasra_service::{answer::Answer, tls::Connector};
use sahasra_wire::session::{HELLO_ACCEPTED, HELLO_HEADER, PROTOCOL};
use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    api::{ApiServer, Caller},
    conditions,
    query::Query,
    refusal::Refusal,
    route::{Call, Object},
};

use slots::Slot;
use websocket::Opening;
use worker::Worker;

pub(crate) use metrics::StreamMetrics;
pub use relay::{MESSAGE_BYTES, Pace};

/// Maximum number of sessions whose worker is cached. An entry takes a few hundred bytes.
const MAX_CACHED: NonZeroUsize = NonZeroUsize::new(8192).unwrap();

/// State shared by all streams of a gateway.
pub(crate) struct Streams {
    access: Access,
    workers: Option<Connector>,
    slots: slots::Slots,
    metrics: StreamMetrics,
    pace: Pace,
    stop: CancellationToken,
    open: TaskTracker,
    /// The last workers of sessions. Every entry was read by a caller that may open the session's stream.
    cache: Mutex<LruCache<Object, CachedWorker>>,
}

/// The worker of a session, and the caller that opened its stream.
#[derive(Clone)]
struct CachedWorker {
    endpoint: String,
    /// Caller that opened the stream. A client that resumes the stream with the session's secret counts as the same caller.
    caller: Option<Arc<str>>,
}

impl Streams {
    /// Creates a relay for at most `limit` concurrent streams of callers that `access` allows, until `stop` is cancelled. `workers` verifies
    /// the certificates of workers.
    pub(crate) fn new(
        access: Access,
        workers: Option<Connector>,
        limit: usize,
        pace: Pace,
        metrics: StreamMetrics,
        stop: CancellationToken,
    ) -> Self {
        Self {
            access,
            workers,
            slots: slots::Slots::new(limit),
            metrics,
            pace,
            stop,
            open: TaskTracker::new(),
            cache: Mutex::new(LruCache::new(MAX_CACHED)),
        }
    }

    /// Waits until every stream has ended. Called after `stop` is cancelled.
    pub(crate) async fn ended(&self) {
        self.open.close();
        self.open.wait().await;
    }

    /// Opens the stream of a session and answers the client's WebSocket handshake. No connection to the worker and no slot stays open after
    /// an error.
    #[tracing::instrument(level = "error", name = "session_stream", skip_all, fields(session = session.name, namespace = session.namespace))]
    pub(crate) async fn open(&self, api: &ApiServer, call: Call, session: &Object) -> Result<Answer, Refusal> {
        Query::parse(&call.query, &[])?;
        let upgrade = call.upgrade.ok_or(Refusal::UpgradeRequired)?;
        let handshake = websocket::Handshake::read(&call.headers)?;
        if self.stop.is_cancelled() {
            return Err(Refusal::ShuttingDown);
        }
        let caller = Caller {
            api,
            token: handshake.token,
            query: &call.query,
        };
        let opening = &handshake.opening;
        let resumed = match opening.resume {
            Some(_) => self.resume(&caller, session, opening).await,
            None => None,
        };
        let (worker, slot) = match resumed {
            Some(Ok(resumed)) => resumed,
            Some(Err(gone)) => match self.find(&caller, session, opening).await {
                // The API server is unreachable, so the last known worker is decisive: it takes no connections, hence the session has ended.
                Err(Refusal::ApiServer(_) | Refusal::ApiServerTimeout { .. }) => return Err(gone),
                found => found?,
            },
            None => self.find(&caller, session, opening).await?,
        };

        let is_greeted = worker.greeted;
        let (metrics, pace, stop) = (self.metrics.clone(), self.pace, self.stop.clone());
        let relayed = async move {
            let _slot = slot;
            let client = match upgrade.await {
                Ok(client) => TokioIo::new(client),
                // The client disconnected before it received the answer.
                Err(error) => return tracing::debug!(%error, "failed to upgrade to a WebSocket"),
            };
            metrics.open.inc();
            let end = relay::run(client, worker, pace, &metrics, &stop).await;
            metrics.open.dec();
            metrics.ended.with_label_values(&[end.label()]).inc();
            tracing::debug!(%end, "stream closed");
        };
        self.open.spawn(relayed.in_current_span());

        let mut answer = Answer::default();
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, handshake.accept);
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
        if is_greeted {
            headers.insert(HELLO_HEADER, HeaderValue::from_static(HELLO_ACCEPTED));
        }
        Ok(answer)
    }

    /// Opens a stream to the last known worker of the session, which verifies the secret. `None` when the worker is not known or does not
    /// accept: the API server then decides.
    async fn resume(&self, caller: &Caller<'_>, session: &Object, opening: &Opening) -> Option<Result<(Worker, Slot), Refusal>> {
        let seen = self.cache.lock().get(session).cloned()?;
        let worker = match worker::connect(self.workers.as_ref(), &seen.endpoint, session, &caller.token, opening).await {
            Ok(worker) => worker,
            Err(gone @ Refusal::WorkerUnreachable { .. }) => return Some(Err(gone)),
            Err(_) => return None,
        };
        // A worker that did not recognise the secret has accepted the token.
        let slot = self.slots.take(seen.caller, Some(session).filter(|_| worker.resumed));
        Some(slot.map(|slot| (worker, slot)))
    }

    /// Opens a stream to the worker in the session's status, if the API server allows it to the caller.
    async fn find(&self, caller: &Caller<'_>, session: &Object, opening: &Opening) -> Result<(Worker, Slot), Refusal> {
        let token = &caller.token;
        let check = self.access.check_stream(token.text(), &session.namespace, &session.name);
        let (allowed, name) = tokio::join!(check, self.access.caller(token.text()));
        allowed.map_err(refused)?;
        let name = name.map_err(refused)?;
        // The slot is taken after the check of access, so that callers without the right take none, and before the slow connection to the
        // worker.
        let slot = match self.slots.take(name.clone(), None) {
            // The caller holds its share, but this may be the session's client coming back, whose stream does not count as new: the worker's
            // check of the secret decides.
            Err(full @ Refusal::Share { .. }) if opening.resume.is_some() => Err(full),
            taken => Ok(taken?),
        };
        let found = caller.object(&session.path()).await?;
        let endpoint = endpoint(&found, &session.name)?.to_owned();
        let worker = worker::connect(self.workers.as_ref(), &endpoint, session, token, opening).await?;
        let slot = match slot {
            Err(_) if worker.resumed => self.slots.take(name.clone(), Some(session))?,
            slot => slot?,
        };
        self.cache.lock().put(session.clone(), CachedWorker { endpoint, caller: name });
        Ok((worker, slot))
    }
}

fn refused(error: AccessError) -> Refusal {
    match error.status() {
        StatusCode::UNAUTHORIZED => Refusal::Unauthorized(error.to_string()),
        StatusCode::FORBIDDEN => Refusal::Forbidden(error.to_string()),
        _ => Refusal::ApiServer(sahasra_service::causes(&error)),
    }
}

/// Returns the URL of the worker of a session, or the reason why the session has none.
fn endpoint<'a>(session: &'a Value, name: &str) -> Result<&'a str, Refusal> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if let Some(failed) = conditions::when_true(session, FAILED) {
        let (reason, message) = (text(&failed["reason"]), text(&failed["message"]));
        let problem = format!("{name} has failed, {reason}: {message}. Delete it and create another session");
        return Err(Refusal::not_yet("SessionFailed", "status.state", "Failed", problem));
    }
    if session["metadata"]["deletionTimestamp"].is_string() {
        let (field, value) = ("metadata.deletionTimestamp", text(&session["metadata"]["deletionTimestamp"]));
        let problem = format!("{name} is being deleted: create another session");
        return Err(Refusal::not_yet("SessionTerminating", field, value, problem));
    }
    let endpoint = session["status"]["endpoint"].as_str().filter(|endpoint| !endpoint.is_empty());
    endpoint.ok_or_else(|| {
        let wait = "wait for it with GET and ?waitFor=Placed on the session, whose conditions say why it waits";
        let problem = format!("{name} has no worker yet: {wait}");
        Refusal::not_yet("SessionNotPlaced", "status.endpoint", "", problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_session_without_a_worker_is_distinguished_from_a_failed_one() {
        let placed = json!({"status": {"endpoint": "http://node:8471", "conditions": [{"type": "Placed", "status": "True"}]}});
        assert_eq!(endpoint(&placed, "mine").unwrap(), "http://node:8471");
        let reason = |session: Value| endpoint(&session, "mine").unwrap_err().status()["reason"].clone();
        assert_eq!(reason(json!({"metadata": {}})), "SessionNotPlaced");
        assert_eq!(
            reason(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"endpoint": "x"}})),
            "SessionTerminating"
        );
        let failed = json!({"type": "Failed", "status": "True", "reason": "WorkerLost", "message": "node-1 is gone"});
        let failed = json!({"status": {"endpoint": "http://node:8471", "conditions": [failed]}});
        let said = endpoint(&failed, "mine").unwrap_err().to_string();
        assert!(said.contains("WorkerLost: node-1 is gone"), "{said}");
    }
}
