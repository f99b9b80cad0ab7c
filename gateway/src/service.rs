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
use warp::{Filter, filters::BoxedFilter, path::FullPath};

use crate::{
    api::{ApiServer, Caller},
    args::MAX_STREAMS,
    body,
    metrics::Metrics,
    objects, openapi,
    refusal::Refusal,
    results,
    route::{Call, Route},
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

pub struct Gateway {
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
    ) -> Result<Arc<Self>, prometheus::Error> {
        let metrics = Metrics::new()?;
        Ok(Arc::new(Self {
            api: ApiServer::new(client),
            operator,
            streams: Streams::new(access, workers, limits.streams, limits.pace, metrics.streams.clone(), stop),
            limits,
            metrics,
            readiness: Readiness::waiting_for(&[API_SERVER]),
            document: Bytes::from(openapi::document()),
        }))
    }

    /// Polls the API server forever; `/readyz` reports whether it answers.
    pub async fn watch_api_server(&self) {
        loop {
            if self.api.answers().await {
                self.readiness.ready(API_SERVER);
            } else {
                self.readiness.not_ready(API_SERVER);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until every stream has ended. Called after `stop` is cancelled.
    pub async fn streams_ended(&self) {
        self.streams.ended().await;
    }

    /// The routes of the gateway, unknown paths included: a rejection is an answer too.
    pub fn routes(self: &Arc<Self>) -> BoxedFilter<(Answer,)> {
        let gateway = self.clone();
        let query = warp::query::raw().or(warp::any().map(String::new)).unify();
        warp::method()
            // A path filter of warp would ignore a trailing slash.
            .and(warp::path::full())
            .and(query)
            .and(warp::header::headers_cloned())
            .and(warp::ext::optional())
            .and(warp::body::stream())
            .then(move |method, path, query, headers, upgrade, body| {
                let call = Call {
                    // The HTTP server omits the body of the answer to a HEAD request.
                    method: if method == Method::HEAD { Method::GET } else { method },
                    query,
                    headers,
                    upgrade,
                };
                gateway.clone().answer(path, call, body)
            })
            .boxed()
    }

    /// The routes of the paths `/v1/…` and `/openapi.json`, for a process that serves other paths as well.
    pub fn api_routes(self: &Arc<Self>) -> BoxedFilter<(Answer,)> {
        warp::path::full()
            .and_then(async |path: FullPath| {
                let is_served = path.as_str().starts_with("/v1/") || path.as_str() == "/openapi.json";
                if is_served { Ok(()) } else { Err(warp::reject::not_found()) }
            })
            .untuple_one()
            .and(self.routes())
            .boxed()
    }

    #[tracing::instrument(name = "request", level = "debug", skip_all, fields(method = %call.method, path = path.as_str()))]
    async fn answer<B: Buf>(self: Arc<Self>, path: FullPath, call: Call, body: impl Stream<Item = Result<B, warp::Error>>) -> Answer {
        let began = Instant::now();
        let is_upgrade = call.headers.contains_key(header::UPGRADE);
        let (label, outcome) = match Route::parse(path.as_str()) {
            Ok(route) => (route.label(), self.route(&route, path.as_str(), call, body).await),
            Err(refusal) => ("unmatched", Err(refusal)),
        };
        let mut answer = outcome.unwrap_or_else(Refusal::answer);
        // Answers depend on the caller's token, so caches must not store them.
        let headers = answer.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        self.metrics.answered(label, answer.status(), began.elapsed().as_secs_f64());
        if is_upgrade && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            tracing::debug!(status = %answer.status(), "stream rejected");
        }
        answer
    }

    async fn route<B: Buf>(
        &self,
        route: &Route,
        path: &str,
        call: Call,
        body: impl Stream<Item = Result<B, warp::Error>>,
    ) -> Result<Answer, Refusal> {
        route.admits(&call.method)?;
        let api = &self.api;
        let (query, is_delete) = (&call.query, call.method == Method::DELETE);
        let caller = || Token::of(&call.headers).map(|token| Caller { api, token, query });
        match route {
            Route::Health if path == "/healthz" => Ok(health::alive()),
            Route::Health => Ok(self.readiness.answer()),
            Route::Metrics => Ok(metrics_route::answer(&self.metrics.registry)),
            Route::OpenApi => Ok(answer::json(StatusCode::OK, self.document.clone())),
            // A stream's token may be in a WebSocket subprotocol instead of the header, so the stream reads it itself.
            Route::Stream(session) => self.streams.open(api, call, session).await,
            Route::Workers => workers::get(&caller()?, self.operator.as_ref()).await,
            Route::Collection(kind, namespace) if call.method == Method::POST => {
                let caller = caller()?;
                objects::is_json(&call.headers)?;
                let body = StreamBody::new(body.map_ok(|mut piece| Frame::data(piece.copy_to_bytes(piece.remaining()))));
                let body = body::whole(&call.headers, body, self.limits.body_bytes, self.limits.body_timeout).await?;
                objects::create(&caller, *kind, namespace, &body).await
            }
            Route::Collection(kind, namespace) => objects::list(&caller()?, *kind, namespace).await,
            Route::Object(object) if is_delete => objects::delete(&caller()?, object).await,
            Route::Object(object) => wait::get(&caller()?, object).await,
            Route::Results(burst) => results::get(&caller()?, burst).await,
        }
    }
}
