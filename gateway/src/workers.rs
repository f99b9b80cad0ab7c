//! Route `/workers`: the operator's list of workers, for callers that may list `GpuWorker` objects.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use sahasra_service::{
    answer::{self, Answer},
    causes,
};
use sahasra_wire::MAX_ANSWER_BYTES;
use tokio::time::timeout;

use crate::{
    api::{Caller, accepted},
    refusal::Refusal,
};

/// Timeout of the operator's answer. The operator queries its agents, for at most a quarter of a second.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Request that only callers with the right to `list gpuworkers` may send; one object is enough to check this.
const ALLOWED: &str = "/apis/sahasra.dev/v1alpha1/gpuworkers?limit=1";

#[derive(Clone, Debug)]
pub struct Operator {
    client: Client<HttpConnector, Empty<Bytes>>,
    url: Uri,
}

#[derive(Debug, thiserror::Error)]
#[error("invalid --operator-url {0}: expected http://HOST:PORT")]
pub struct OperatorError(Uri);

impl Operator {
    /// Fails unless `url` is a plain `http://` URL of a host.
    pub fn new(url: &Uri) -> Result<Self, OperatorError> {
        if url.scheme_str() != Some("http") || url.authority().is_none() || url.path().len() > 1 {
            return Err(OperatorError(url.clone()));
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(ANSWER_WITHIN));
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_max_idle_per_host(4);
        Ok(Self {
            client: builder.build(connector),
            url: url.clone(),
        })
    }

    async fn workers(&self) -> Result<Bytes, Refusal> {
        let wrong = |error: &(dyn std::error::Error + 'static)| Refusal::Operator(causes(error));
        let url = format!("{}workers", self.url);
        let request = Request::get(url).body(Empty::new()).map_err(|error| wrong(&error))?;
        let asked = async {
            let answer = self.client.request(request).await.map_err(|error| wrong(&error))?;
            if answer.status() != StatusCode::OK {
                return Err(Refusal::Operator(format!("it responded with {}", answer.status())));
            }
            let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
            Ok(body.map_err(|error| Refusal::Operator(error.to_string()))?.to_bytes())
        };
        let late = |_| Refusal::Operator(format!("timed out after {} s", ANSWER_WITHIN.as_secs()));
        timeout(ANSWER_WITHIN, asked).await.map_err(late)?
    }
}

/// Returns the workers and their load to a caller that may list workers.
pub(crate) async fn get(caller: &Caller<'_>, operator: Option<&Operator>) -> Result<Answer, Refusal> {
    caller.query(&[])?;
    accepted(caller.send(Method::GET, ALLOWED, None).await?)?;
    let workers = operator.ok_or(Refusal::NoOperator)?.workers().await?;
    Ok(answer::json(StatusCode::OK, workers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_url_is_checked_at_the_start() {
        for right in ["http://operator:8080", "http://127.0.0.1:8080/"] {
            assert!(Operator::new(&right.parse().unwrap()).is_ok(), "{right}");
        }
        for wrong in ["operator:8080", "https://operator", "http://operator/workers"] {
            assert!(Operator::new(&wrong.parse().unwrap()).is_err(), "{wrong}");
        }
    }
}
