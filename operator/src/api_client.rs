//! The operator's client for the API server. Every call ends within a time limit, even on a dead connection.

use std::time::Duration;

use http::{Request, Response, Uri, header};
use http_body_util::BodyExt;
use kube::{Client, Config, client::Body};
use sahasra_service::api_requests::{ApiRequests, user_agent};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a call that is not a watch, including the response body. The API server limits its own webhooks to 10 s. A call that takes
/// longer than this timeout is on a dead connection, which would block its reconcile for a quarter of an hour.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum silence on a watch. The API server ends each watch after 290 s, so a longer silence means that the connection is broken.
const WATCH_SILENCE: Duration = Duration::from_secs(300);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Error of a call without an answer within the timeout.
#[derive(Debug, thiserror::Error)]
#[error("API server timed out after {} s", CALL_TIMEOUT.as_secs_f32())]
struct TimedOut;

/// Creates the operator's client, which sends the operator's user agent, counts requests, and limits the time of each call.
///
/// # Errors
/// Certificates or credentials of `config` cannot be used.
pub(crate) fn connect(mut config: Config, requests: &ApiRequests) -> kube::Result<Client> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(WATCH_SILENCE);
    config.headers.push((header::USER_AGENT, user_agent("sahasra-operator")));
    let client = sahasra_kubernetes::client_builder(config)?;
    Ok(timely(client.with_layer(&requests.layer()).build()))
}

fn timely(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            if is_watch(request.uri()) {
                return Ok(client.send(request).await?);
            }
            let exchange = async {
                let (head, body) = client.send(request).await?.into_parts();
                let bytes = body.collect().await?.to_bytes();
                Ok(Response::from_parts(head, Body::from(bytes)))
            };
            let answer = tokio::time::timeout(CALL_TIMEOUT, exchange).await;
            answer.unwrap_or_else(|_| Err(BoxError::from(TimedOut)))
        }
    });
    Client::new(service, namespace)
}

fn is_watch(uri: &Uri) -> bool {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    parameters.any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        task::{Context, Poll},
    };

    use bytes::Bytes;
    use futures::{StreamExt, future::BoxFuture};
    use http_body_util::StreamBody;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, api::WatchParams};
    use tokio::{io::AsyncReadExt, net::TcpListener};
    use tower_service::Service;

    use super::*;

    /// An API server that answers lists with a body that never ends, and does not answer other requests.
    #[derive(Clone)]
    struct Silent;

    impl Service<Request<Body>> for Silent {
        type Response = Response<StreamBody<futures::stream::Pending<Result<hyper::body::Frame<Bytes>, Infallible>>>>;
        type Error = BoxError;
        type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let answers = request.uri().path().ends_with("/configmaps");
            Box::pin(async move {
                if !answers {
                    std::future::pending::<()>().await;
                }
                Ok(Response::new(StreamBody::new(futures::stream::pending())))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_operators_client_names_itself_and_waits_no_longer_for_an_api_server_that_accepts_and_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let maps: Api<ConfigMap> = Api::namespaced(connect(config, &ApiRequests::new("operator").unwrap()).unwrap(), "default");
        let server = async {
            let mut connection = listener.accept().await.unwrap().0;
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(connection.read_buf(&mut request).await.unwrap() > 0);
            }
            (connection, String::from_utf8(request).unwrap())
        };
        let began = tokio::time::Instant::now();
        let (answer, (_connection, request)) = tokio::join!(maps.get("mine"), server);
        let error = sahasra_service::causes(&answer.unwrap_err()).to_string();
        assert!(error.contains("API server timed out after 15 s"), "{error}");
        assert_eq!(began.elapsed().as_secs(), CALL_TIMEOUT.as_secs());
        let name = format!("user-agent: sahasra-operator/{}\r\n", env!("CARGO_PKG_VERSION"));
        assert!(request.contains(&name), "{request}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_complete_answer_times_out_and_a_watch_does_not() {
        let maps: Api<ConfigMap> = Api::namespaced(timely(Client::new(Silent, "default")), "default");
        for error in [
            maps.get("mine").await.unwrap_err(),
            maps.list(&Default::default()).await.unwrap_err(),
        ] {
            assert!(
                sahasra_service::causes(&error)
                    .to_string()
                    .contains("API server timed out after 15 s"),
                "{error:?}"
            );
        }
        let parameters = WatchParams::default();
        let mut events = maps.watch(&parameters, "0").await.unwrap().boxed();
        let next = tokio::time::timeout(4 * CALL_TIMEOUT, events.next()).await;
        assert!(next.is_err(), "its events may take their time");
    }
}
