//! The API as a tower service: `http::Request` in, `http::Response` out. Clients within the process and the HTTPS server use the same
//! service.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tokio::time::timeout;

use crate::control_plane::Shared;
use crate::handle;
use crate::refusal::Refusal;
use crate::watch::Watch;

/// Maximum size of a request body in bytes, the same as the API server's.
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// Timeout for receiving a request's body if a token is required, the same as the gateway's.
const BODY_WITHIN: Duration = Duration::from_secs(20);

/// Body of a response: a single chunk, or the events of a watch.
pub type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) type ApiResponse = Response<ResponseBody>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
pub struct ApiService {
    shared: Arc<Shared>,
    token: Option<Arc<str>>,
}

impl ApiService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, token: None }
    }

    /// Requires this token for all requests except health checks.
    pub fn guarded(mut self, token: &str) -> Self {
        self.token = Some(token.into());
        self
    }

    async fn answer(self, request: http::Request<impl Body<Data = Bytes, Error: Into<BoxError>>>) -> ApiResponse {
        let (parts, body) = request.into_parts();
        let body = match &self.token {
            None => read(body).await,
            Some(token) if admits(token, &parts) => timeout(BODY_WITHIN, read(body)).await.unwrap_or_else(|_| {
                let message = format!("timed out after {} s waiting for the body", BODY_WITHIN.as_secs());
                Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message, None))
            }),
            Some(_) => Err(Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized", None)),
        };
        let answer = body.and_then(|body| handle::handle(&self.shared, &parts, &body));
        answer.unwrap_or_else(|refusal| refused(&refusal))
    }
}

fn admits(token: &str, request: &Parts) -> bool {
    if matches!(request.uri.path(), "/healthz" | "/readyz" | "/livez") {
        return true;
    }
    has_token(&request.headers, token)
}

/// Whether a request with these headers has the bearer token.
pub fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|given| given.strip_prefix(b"Bearer ")).unwrap_or_default();
    // Constant-time comparison: the duration of a rejection must not reveal the token.
    given.ct_eq(token.as_bytes()).into()
}

async fn read(body: impl Body<Data = Bytes, Error: Into<BoxError>>) -> Result<Bytes, Refusal> {
    match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("Request entity too large: limit is {BODY_LIMIT}");
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message, None))
        }
        Err(error) => Err(Refusal::bad_request(format!("the body could not be read: {error}"))),
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> tower_service::Service<http::Request<B>> for ApiService {
    type Response = ApiResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.answer(request).await) })
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: ResponseBody) -> ApiResponse {
    let mut answer = ApiResponse::new(body);
    *answer.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(header::CONTENT_TYPE, content_type);
    answer
}

pub(crate) fn json(status: StatusCode, value: &Value) -> ApiResponse {
    respond(status, "application/json", Full::from(value.to_string()).boxed_unsync())
}

pub(crate) fn ok(content_type: &'static str, body: impl Into<Bytes>) -> ApiResponse {
    respond(StatusCode::OK, content_type, Full::new(body.into()).boxed_unsync())
}

/// Sends the events of a watch as they occur, one JSON object after the other.
pub(crate) fn events(watch: Watch) -> ApiResponse {
    let events = watch.events().map(|event| Ok(Frame::data(event)));
    respond(StatusCode::OK, "application/json", StreamBody::new(events).boxed_unsync())
}

fn refused(refusal: &Refusal) -> ApiResponse {
    let code = refusal.0.code.and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok());
    json(code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &json!(refusal.0))
}
