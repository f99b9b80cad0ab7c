//! Calls to the API server. Each carries the caller's token; the gateway has no credentials of its own.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use sahasra_service::{
    answer::{self, Answer},
    api_requests::user_agent,
    causes,
};
use serde_json::Value;
use tokio::{sync::Semaphore, time::timeout};

use crate::{args::Args, query::Query, refusal::Refusal, token::Token};

/// Timeout of the head of an answer: less than the API server's own limit of 60 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const LATE: Refusal = Refusal::ApiServerTimeout {
    seconds: ANSWER_WITHIN.as_secs(),
};
/// Connect timeout: a connection takes one to three round trips.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Longest long poll, in seconds: proxies on the path close connections that are idle for longer.
pub(crate) const MAX_POLL_SECONDS: u64 = 300;
/// A connection that receives nothing for this long is closed. Longer than the longest long poll.
const SILENT_FOR: Duration = Duration::from_secs(MAX_POLL_SECONDS + 30);
/// Maximum number of concurrent requests, and so of connections: the API server's flow control grants one user no more.
const AT_ONCE: usize = 128;
/// Maximum time for which a request waits for one of the [`AT_ONCE`] permits.
const TURN_WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of an object as JSON: etcd limits objects to 1.5 MiB, and escapes in JSON may lengthen them.
const OBJECT_BYTES: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
#[error("API server not found: set --api-server-url URL and --api-server-ca-file FILE, or KUBECONFIG")]
pub(crate) struct UnknownApiServer(#[source] Box<KubeconfigError>);

/// Returns the address and certificate authority of the API server. Credentials of a kubeconfig, client certificates included, are dropped:
/// callers must not act with them.
pub(crate) async fn config(args: &Args) -> Result<Config, UnknownApiServer> {
    let mut config = match &args.api_server_url {
        Some(url) => Config::new(url.clone()),
        None => {
            let unknown = |error| UnknownApiServer(Box::new(error));
            let kubeconfig = Kubeconfig::read().map_err(unknown)?;
            let theirs = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .map_err(unknown)?;
            let mut ours = Config::new(theirs.cluster_url);
            ours.root_cert = theirs.root_cert;
            ours.tls_server_name = theirs.tls_server_name;
            ours.accept_invalid_certs = theirs.accept_invalid_certs;
            ours.proxy_url = theirs.proxy_url;
            ours
        }
    };
    config.root_cert_file.clone_from(&args.api_server_ca_file);
    config.headers = vec![(header::USER_AGENT, user_agent("sahasra-gateway"))];
    config.connect_timeout = Some(CONNECT_WITHIN);
    config.read_timeout = Some(SILENT_FOR);
    config.write_timeout = Some(ANSWER_WITHIN);
    config.reset_reader_on_write = true;
    // A create request that is retried may create two objects.
    config.default_retry = false;
    Ok(config)
}

/// Client of the API server, without credentials.
pub(crate) struct ApiServer {
    client: Client,
    turns: Semaphore,
}

impl ApiServer {
    /// `client` must have no identity of its own.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// Whether the API server gives any answer, whatever its status.
    pub(crate) async fn answers(&self) -> bool {
        let request = Request::get("/readyz").body(Body::empty());
        let Ok(request) = request else { return false };
        matches!(timeout(CONNECT_WITHIN, self.client.send(request)).await, Ok(Ok(_)))
    }
}

/// A caller with its query, on whose behalf requests are sent to the API server.
pub(crate) struct Caller<'a> {
    pub api: &'a ApiServer,
    pub token: Token,
    pub query: &'a str,
}

impl Caller<'_> {
    /// Parses the caller's query, whose names must be `known`.
    pub(crate) fn query(&self, known: &[&str]) -> Result<Query, Refusal> {
        Query::parse(self.query, known)
    }

    /// Sends a request with the caller's token. Returns as soon as the head of the answer has arrived; the body is read afterwards. An answer
    /// with an error status is an answer, not an error.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Response<Body>, Refusal> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::AUTHORIZATION, self.token.header())
            .header(header::ACCEPT, "application/json");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(body.map_or_else(Body::empty, Body::from));
        let request = request.map_err(|error| Refusal::ApiServerAnswer(error.to_string()))?;
        let Ok(Ok(_turn)) = timeout(TURN_WITHIN, self.api.turns.acquire()).await else {
            return Err(Refusal::Busy {
                what: "requests",
                after: 1,
            });
        };
        let sent = timeout(ANSWER_WITHIN, self.api.client.send(request)).await;
        sent.map_err(|_| LATE)?.map_err(|error| Refusal::ApiServer(causes(&error)))
    }

    /// Sends a request and returns the answer in the form for the client, its body streamed.
    pub(crate) async fn pass(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Answer, Refusal> {
        Ok(passed_on(self.send(method, path, body).await?))
    }

    pub(crate) async fn object(&self, path: &str) -> Result<Value, Refusal> {
        let answer = accepted(self.send(Method::GET, path, None).await?)?;
        let read = timeout(ANSWER_WITHIN, Limited::new(answer.into_body(), OBJECT_BYTES).collect()).await;
        let body = read
            .map_err(|_| LATE)?
            .map_err(|error| Refusal::ApiServerAnswer(error.to_string()))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| Refusal::ApiServerAnswer(error.to_string()))
    }
}

/// Returns an answer with status 200, or [`Refusal::Passed`] with any other answer.
pub(crate) fn accepted(answer: Response<Body>) -> Result<Response<Body>, Refusal> {
    match answer.status() {
        StatusCode::OK => Ok(answer),
        _ => Err(Refusal::Passed(Box::new(passed_on(answer)))),
    }
}

/// Converts an answer of the API server into one for the client: status, body, and the headers that describe them.
fn passed_on(answer: Response<Body>) -> Answer {
    let (parts, body) = answer.into_parts();
    let mut passed = Response::new(body);
    *passed.status_mut() = parts.status;
    for name in [header::CONTENT_TYPE, header::WARNING, header::RETRY_AFTER, header::ALLOW] {
        for value in parts.headers.get_all(&name) {
            passed.headers_mut().append(&name, value.clone());
        }
    }
    if parts.status == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        passed.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
    }
    answer::stream(passed)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::{Pending, pending},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Poll},
    };

    use http::HeaderMap;
    use tokio::time::Instant;

    use super::*;

    /// An API server that accepts requests and never answers, with the number of requests accepted.
    #[derive(Clone, Default)]
    struct Silent(Arc<AtomicUsize>);

    impl tower_service::Service<Request<Body>> for Silent {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Pending<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _request: Request<Body>) -> Self::Future {
            self.0.fetch_add(1, Ordering::Relaxed);
            pending()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_129th_request_waits_and_is_rejected_as_busy() {
        let silent = Silent::default();
        let api = Arc::new(ApiServer::new(Client::new(silent.clone(), "default")));
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static("Bearer a"))]);
        let token = Token::of(&headers).unwrap();
        let send = || {
            let (api, token) = (api.clone(), token.clone());
            async move {
                let (api, query) = (&*api, "");
                let caller = Caller { api, token, query };
                caller.send(Method::GET, "/api", None).await.map(drop)
            }
        };
        let under_way: Vec<_> = (0..128).map(|_| tokio::spawn(send())).collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(silent.0.load(Ordering::Relaxed), 128);
        let began = Instant::now();
        let refused = send().await;
        assert!(matches!(refused, Err(Refusal::Busy { what: "requests", .. })), "{refused:?}");
        assert_eq!((began.elapsed().as_secs(), silent.0.load(Ordering::Relaxed)), (5, 128));
        // Pending requests time out in the end, which frees their permits.
        for one in under_way {
            let given_up = one.await.unwrap();
            assert!(matches!(given_up, Err(Refusal::ApiServerTimeout { seconds: 30 })), "{given_up:?}");
        }
        assert!(matches!(send().await, Err(Refusal::ApiServerTimeout { .. })));
        assert_eq!(silent.0.load(Ordering::Relaxed), 129);
    }
}
