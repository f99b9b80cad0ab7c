//! Metrics and user agent of requests to the API server.

use http::{HeaderValue, Response, StatusCode};
use prometheus::{IntCounterVec, Opts, Registry};
use tower::util::MapResultLayer;

/// Values of the label `result`: the outcomes of a request.
const RESULTS: [&str; 8] = [
    "ok",
    "not_found",
    "conflict",
    "forbidden",
    "invalid",
    "throttled",
    "server_error",
    "unreachable",
];

/// Value of the header `User-Agent` for requests of a component, such as `sahasra-operator/0.1.0`. Shown in audit logs and in the API
/// server's metrics.
pub fn user_agent(program: &'static str) -> HeaderValue {
    let text = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("sahasra"))
}

type Answered<R, E> = Result<Response<R>, E>;

/// Counters of requests to the API server by result.
#[derive(Clone, Debug)]
pub struct ApiRequests {
    requests: IntCounterVec,
}

impl ApiRequests {
    /// Creates the counters of all results of a component, such as `operator`, at 0.
    pub fn new(component: &str) -> Result<Self, prometheus::Error> {
        let options = Opts::new(
            format!("sahasra_{component}_api_requests_total"),
            "Requests to the API server, by result; unreachable if there was no response.",
        );
        let requests = IntCounterVec::new(options, &["result"])?;
        for result in RESULTS {
            requests.with_label_values(&[result]);
        }
        Ok(Self { requests })
    }

    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.requests.clone()))
    }

    /// Layer that counts the requests to a service.
    pub fn layer<R, E>(&self) -> MapResultLayer<impl Fn(Answered<R, E>) -> Answered<R, E> + Clone + use<R, E>> {
        let requests = self.requests.clone();
        MapResultLayer::new(move |answer: Answered<R, E>| {
            let result = result(answer.as_ref().ok().map(Response::status));
            requests.with_label_values(&[result]).inc();
            answer
        })
    }
}

fn result(status: Option<StatusCode>) -> &'static str {
    match status.map(|status| status.as_u16()) {
        None => "unreachable",
        Some(..=399) => "ok",
        Some(404 | 410) => "not_found",
        Some(409) => "conflict",
        Some(401 | 403) => "forbidden",
        Some(429) => "throttled",
        Some(400..=499) => "invalid",
        Some(_) => "server_error",
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::ready,
        task::{Context, Poll},
    };

    use http::Request;
    use tower::{Layer, Service};

    use super::*;

    /// Responds with the status code in the request's path, or with an error if the path contains no number.
    #[derive(Clone)]
    struct Echo;

    impl Service<Request<()>> for Echo {
        type Response = Response<()>;
        type Error = String;
        type Future = std::future::Ready<Result<Response<()>, String>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<()>) -> Self::Future {
            let status = request.uri().path().trim_start_matches('/').parse::<u16>();
            ready(match status {
                Ok(status) => Ok(Response::builder().status(status).body(()).unwrap()),
                Err(_) => Err("no answer".to_owned()),
            })
        }
    }

    #[tokio::test]
    async fn requests_are_counted_by_result_and_every_counter_exists_from_the_start() {
        let requests = ApiRequests::new("test").unwrap();
        let registry = Registry::new();
        requests.register(&registry).unwrap();
        let counts = || RESULTS.map(|result| requests.requests.with_label_values(&[result]).get());
        assert_eq!(registry.gather()[0].get_metric().len(), RESULTS.len());
        let mut client = requests.layer().layer(Echo);
        for status in ["200", "201", "404", "410", "409", "401", "403", "422", "429", "500", "503", "none"] {
            let request = Request::get(format!("/{status}")).body(()).unwrap();
            let _ = client.call(request).await;
        }
        assert_eq!(counts(), [2, 2, 1, 2, 1, 1, 2, 1]);
    }

    #[test]
    fn the_user_agent_is_the_program_and_its_version() {
        let name = user_agent("sahasra-operator");
        assert_eq!(name, format!("sahasra-operator/{}", env!("CARGO_PKG_VERSION")));
    }
}
