//! The gateway as a tower service that turns requests into answers.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::body::Body;
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
use tower_service::Service;

use crate::{
    api::ApiServer,
    body,
    metrics::Metrics,
    objects, openapi,
    refusal::Refusal,
    results,
    route::Route,
    stream::{Pace, Streams},
    token::Token,
    wait,
    workers::{self, Operator},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Name of the readiness condition: the gateway is ready while the API server answers.
const API_SERVER: &str = "the API server";
/// Interval at which the API server is polled.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Limits on what clients may send.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size of a body in bytes; the default of 3 MiB is the API server's limit.
    pub body_bytes: usize,
    /// Time within which a body must arrive.
    pub body_timeout: Duration,
    /// Maximum number of concurrent streams.
    pub streams: usize,
    /// Timing by which dead clients are detected.
    pub pace: Pace,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 3 << 20,
            body_timeout: Duration::from_secs(20),
            streams: 256,
            pace: Pace::default(),
        }
    }
}

/// The gateway. Cheap to clone: clones are handles of the same.
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
    ///
    /// # Errors
    /// When a metric cannot be registered.
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
            streams: Streams::new(access, workers, limits.streams, limits.pace, metrics.clone(), stop),
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
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until every stream has ended. Called after `stop` is cancelled.
    pub async fn streams_ended(&self) {
        self.shared.streams.ended().await;
    }

    async fn answer<B>(self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let began = Instant::now();
        let mut request = request;
        // The HTTP server omits the body of the answer to a HEAD request.
        if request.method() == Method::HEAD {
            *request.method_mut() = Method::GET;
        }
        let (label, outcome) = match Route::parse(request.uri().path()) {
            Ok(route) => (route.label(), self.route(route, request).await),
            Err(refusal) => ("none", Err(refusal)),
        };
        let mut answer = outcome.unwrap_or_else(Refusal::answer);
        // Answers depend on the caller's token, so caches must not store them.
        let headers = answer.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        self.shared.metrics.answered(label, answer.status(), began.elapsed().as_secs_f64());
        answer
    }

    async fn route<B>(&self, route: Route, request: Request<B>) -> Result<Answer, Refusal>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        route.admits(request.method())?;
        let Shared {
            api, operator, streams, ..
        } = &*self.shared;
        match &route {
            Route::Health if request.uri().path() == "/healthz" => return Ok(health::alive()),
            Route::Health => return Ok(self.shared.readiness.answer()),
            Route::Metrics => return Ok(metrics_route::answer(self.shared.metrics.registry())),
            Route::OpenApi => return Ok(answer::json(StatusCode::OK, self.shared.document.clone())),
            // A stream's token may be in a WebSocket subprotocol instead of the header, so the stream reads it itself.
            Route::Stream(namespace, name) => return streams.open(api, request, namespace, name).await,
            _ => {}
        }
        let token = Token::of(request.headers())?;
        let creates = request.method() == Method::POST;
        let deletes = request.method() == Method::DELETE;
        let (head, body) = request.into_parts();
        let query = head.uri.query();
        match &route {
            Route::Workers => {
                crate::query::Query::parse(query, &[])?;
                workers::get(api, operator.as_ref(), &token).await
            }
            Route::Collection(kind, namespace) if creates => {
                objects::is_json(&head.headers)?;
                let Limits {
                    body_bytes, body_timeout, ..
                } = self.shared.limits;
                let body = body::whole(&head.headers, body, body_bytes, body_timeout).await?;
                objects::create(api, &token, *kind, namespace, query, &body).await
            }
            Route::Collection(kind, namespace) => objects::list(api, &token, *kind, namespace, query).await,
            Route::Object(kind, namespace, name) if deletes => objects::delete(api, &token, *kind, namespace, name, query).await,
            Route::Object(kind, namespace, name) => wait::get(api, &token, *kind, namespace, name, query).await,
            Route::Results(namespace, name) => results::get(api, &token, namespace, name, query).await,
            Route::Health | Route::Metrics | Route::OpenApi | Route::Stream(..) => Err(Refusal::NoSuchPath),
        }
    }
}

impl<B> Service<Request<B>> for Gateway
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let gateway = self.clone();
        Box::pin(async move {
            let is_upgrade = request.headers().contains_key(header::UPGRADE);
            let answer = gateway.answer(request).await;
            if is_upgrade && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                tracing::debug!(status = %answer.status(), "a stream was refused");
            }
            Ok(answer)
        })
    }
}
