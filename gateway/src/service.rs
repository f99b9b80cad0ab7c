//! The gateway as a warp filter that turns requests into answers.

use std::{sync::Arc, time::Duration};

use bytes::{Buf, Bytes};
use futures::{Stream, TryStreamExt};
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use kube::Client;
use sahasra_access::Access;
use sahasra_service::{
    answer::{self, Answer},
    health::{self, Readiness},
    metrics as metrics_route,
    tls::Connector,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use warp::{Filter, Rejection, path::FullPath};

use crate::{
    api::ApiServer,
    args::MAX_STREAMS,
    body,
    call::Call,
    metrics::Metrics,
    objects, openapi,
    query::Query,
    refusal::Refusal,
    results,
    route::Route,
    stream::{Pace, Streams},
    token::Token,
    wait,
    workers::{self, Operator},
};

/// Name of the readiness condition: the gateway is ready while the API server answers.
const API_SERVER: &str = "the API server";
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Default limit of a request's body in bytes: the API server's.
const MAX_BODY_BYTES: usize = 3 << 20;

/// Limits on what clients may send.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size of a body in bytes.
    pub body_bytes: usize,
    pub body_timeout: Duration,
    pub streams: usize,
    pub pace: Pace,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: MAX_BODY_BYTES,
            body_timeout: Duration::from_secs(20),
            streams: MAX_STREAMS,
            pace: Pace::default(),
        }
    }
}

/// The gateway. Cheap to clone: clones are handles of the same gateway.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    api: ApiServer,
    operator: Option<Operator>,
    streams: Streams,
    limits: Limits,
    metrics: Metrics,
    readiness: Readiness,
    document: Bytes,
}

impl Gateway {
    /// Creates a gateway to the API server of `client`, which must have no identity of its own. `access` decides who may open streams, and
    /// `workers` verifies workers that speak TLS. Streams end when `stop` is cancelled.
    pub fn new(
        client: Client,
        access: Access,
        operator: Option<Operator>,
        workers: Option<Connector>,
        limits: Limits,
        stop: CancellationToken,
    ) -> Result<Self, prometheus::Error> {
        let metrics = Metrics::new()?;
        let shared = Shared {
            api: ApiServer::new(client),
            operator,
            streams: Streams::new(access, workers, limits.streams, limits.pace, metrics.streams.clone(), stop),
            limits,
            metrics,
            readiness: Readiness::waiting_for(&[API_SERVER]),
            document: Bytes::from(openapi::document()),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Polls the API server forever; `/readyz` reports whether it answers.
    pub async fn watch_api_server(&self) {
        loop {
            if self.shared.api.answers().await {
                self.shared.readiness.ready(API_SERVER);
            } else {
                self.shared.readiness.not_ready(API_SERVER);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until every stream has ended. Called after `stop` is cancelled.
    pub async fn streams_ended(&self) {
        self.shared.streams.ended().await;
    }

    /// The routes of the gateway, unknown paths included: a rejection is an answer too.
    pub fn routes(&self) -> impl Filter<Extract = (Answer,), Error = Rejection> + Clone + use<> {
        let gateway = self.clone();
        let query = warp::query::raw().map(Some).or(warp::any().map(|| None)).unify();
        warp::method()
            // A path filter of warp would ignore a trailing slash.
            .and(warp::path::full())
            .and(query)
            .and(warp::header::headers_cloned())
            .and(warp::ext::optional())
            .and(warp::body::stream())
            .then(move |method, path: FullPath, query, headers, upgrade, body| {
                let gateway = gateway.clone();
                let call = Call {
                    // The HTTP server omits the body of the answer to a HEAD request.
                    method: if method == Method::HEAD { Method::GET } else { method },
                    query,
                    headers,
                    upgrade,
                };
                async move { gateway.answer(path.as_str(), call, body).await }
            })
    }

    async fn answer<B: Buf>(self, path: &str, call: Call, body: impl Stream<Item = Result<B, warp::Error>> + Send) -> Answer {
        let began = Instant::now();
        let is_upgrade = call.headers.contains_key(header::UPGRADE);
        let (label, outcome) = match Route::parse(path) {
            Ok(route) => (route.label(), self.route(route, path, call, body).await),
            Err(refusal) => ("unmatched", Err(refusal)),
        };
        let mut answer = outcome.unwrap_or_else(Refusal::answer);
        // Answers depend on the caller's token, so caches must not store them.
        let headers = answer.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        self.shared.metrics.answered(label, answer.status(), began.elapsed().as_secs_f64());
        if is_upgrade && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            tracing::debug!(status = %answer.status(), "stream rejected");
        }
        answer
    }

    async fn route<B: Buf>(
        &self,
        route: Route,
        path: &str,
        call: Call,
        body: impl Stream<Item = Result<B, warp::Error>> + Send,
    ) -> Result<Answer, Refusal> {
        route.admits(&call.method)?;
        let Shared {
            api, operator, streams, ..
        } = &*self.shared;
        let query = call.query.as_deref();
        let token = || Token::of(&call.headers);
        match &route {
            Route::Health if path == "/healthz" => Ok(health::alive()),
            Route::Health => Ok(self.shared.readiness.answer()),
            Route::Metrics => Ok(metrics_route::answer(self.shared.metrics.registry())),
            Route::OpenApi => Ok(answer::json(StatusCode::OK, self.shared.document.clone())),
            // A stream's token may be in a WebSocket subprotocol instead of the header, so the stream reads it itself.
            Route::Stream(namespace, name) => streams.open(api, call, namespace, name).await,
            Route::Workers => {
                let token = token()?;
                Query::parse(query, &[])?;
                workers::get(api, operator.as_ref(), &token).await
            }
            Route::Collection(kind, namespace) if call.method == Method::POST => {
                let token = token()?;
                objects::is_json(&call.headers)?;
                let Limits {
                    body_bytes, body_timeout, ..
                } = self.shared.limits;
                let body = StreamBody::new(body.map_ok(|mut piece| Frame::data(piece.copy_to_bytes(piece.remaining()))));
                let body = body::whole(&call.headers, body, body_bytes, body_timeout).await?;
                objects::create(api, &token, *kind, namespace, query, &body).await
            }
            Route::Collection(kind, namespace) => objects::list(api, &token()?, *kind, namespace, query).await,
            Route::Object(kind, namespace, name) if call.method == Method::DELETE => {
                objects::delete(api, &token()?, *kind, namespace, name, query).await
            }
            Route::Object(kind, namespace, name) => wait::get(api, &token()?, *kind, namespace, name, query).await,
            Route::Results(namespace, name) => results::get(api, &token()?, namespace, name, query).await,
        }
    }
}
