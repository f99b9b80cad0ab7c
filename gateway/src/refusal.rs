//! Why a request is refused, as a metav1 `Status`: the sentence, the field where there is one, and what to do.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::service::Answer;

/// Seconds after which a caller who holds its share may find more room.
const SHARE_AFTER: u32 = 5;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No token came with it.
    #[error("no token: send it as `Authorization: Bearer TOKEN` (`kubectl create token NAME` makes one)")]
    NoToken,
    /// What came as a token is none.
    #[error("the token holds characters that no token has: send it as `Authorization: Bearer TOKEN`")]
    NoSuchToken,
    /// The path leads nowhere.
    #[error("there is nothing at this path: /openapi.json lists what there is")]
    NoSuchPath,
    /// Another method is meant.
    #[error("this path takes {allowed} alone")]
    MethodNotAllowed {
        /// For the `Allow` header.
        allowed: &'static str,
    },
    /// A part of the path, the query or the body is wrong.
    #[error("{field}: {problem}")]
    Field {
        /// Its path.
        field: String,
        /// What is wrong and what to write instead.
        problem: String,
    },
    /// The body is no JSON.
    #[error("the body has to be application/json, an object with `metadata` and `spec`: {0}")]
    NoJson(String),
    /// The body is of another type.
    #[error("the body has to be application/json: send `Content-Type: application/json`")]
    MediaType,
    /// The body is too large.
    #[error("the body has more than {limit} bytes: keep kernels in a ConfigMap or a store, and name them")]
    TooLarge {
        /// In bytes.
        limit: usize,
    },
    /// The body did not come in time.
    #[error("the body did not come within {seconds} s")]
    TooSlow {
        /// That long.
        seconds: u64,
    },
    /// The body broke off.
    #[error("the body broke off")]
    BrokenBody,
    /// Too much is under way.
    #[error("too many {what} at the same time: try again in {after} s")]
    Busy {
        /// What there is too much of.
        what: &'static str,
        /// When to try again, in seconds.
        after: u32,
    },
    /// The caller has its share of the streams.
    #[error(
        "you hold {own} of this gateway's {limit} streams, and only {free} are free for other callers: close one, or retry in {SHARE_AFTER} s"
    )]
    Share {
        /// Streams of the caller.
        own: usize,
        /// Streams of all callers, at most.
        limit: usize,
        /// Streams that are free.
        free: usize,
    },
    /// The API server did not answer.
    #[error("the API server cannot be asked: {0}")]
    ApiServer(String),
    /// The API server took too long.
    #[error("the API server did not answer within {seconds} s: try again")]
    ApiServerTimeout {
        /// That long.
        seconds: u64,
    },
    /// The API server's answer cannot be parsed.
    #[error("the API server answered what cannot be read: {0}")]
    ApiServerAnswer(String),
    /// `--operator` is not set.
    #[error("this gateway does not know the operator: start it with --operator URL")]
    NoOperator,
    /// The operator does not answer.
    #[error("the operator cannot be asked: {0}")]
    Operator(String),
    /// The object is not as it has to be for this.
    #[error("{problem}")]
    NotYet {
        /// A word for programs.
        reason: &'static str,
        /// What is missing and what to do.
        problem: String,
        /// Where it says so.
        field: &'static str,
        /// What stands there.
        value: String,
    },
    /// What the operator wrote has been changed, or is lost in part.
    #[error("{0}")]
    Damaged(String),
    /// The cluster's RBAC does not allow the request.
    #[error("{0}")]
    Forbidden(String),
    /// The API server does not know the token.
    #[error("{0}")]
    Unauthorized(String),
    /// A stream was asked for without a WebSocket.
    #[error("this path is a WebSocket: connect with `Upgrade: websocket` and the subprotocol `sahasra-session.v1`")]
    UpgradeRequired,
    /// The worker said no, or nothing.
    #[error("{problem}")]
    Worker {
        /// What the client is answered.
        code: StatusCode,
        /// What the worker said, or why it said nothing.
        problem: String,
    },
    /// The worker takes no connections: what sessions had there is gone.
    #[error("{problem}")]
    WorkerGone {
        /// Which, and how that shows.
        problem: String,
    },
    /// This process ends.
    #[error("this gateway is shutting down: connect again")]
    ShuttingDown,
    /// The API server refused, in its own words.
    #[error("the API server answered {}", .0.status())]
    Passed(Box<Answer>),
}

impl Refusal {
    /// A wrong field.
    pub fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field {
            field: field.into(),
            problem: problem.into(),
        }
    }

    fn code(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::NoSuchToken | Self::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NoSuchPath => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Field { .. } | Self::NoJson(_) | Self::BrokenBody => StatusCode::BAD_REQUEST,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::Share { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Busy { .. } | Self::NoOperator | Self::ApiServer(_) | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::ApiServerTimeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::ApiServerAnswer(_) | Self::Operator(_) | Self::WorkerGone { .. } => StatusCode::BAD_GATEWAY,
            Self::NotYet { .. } => StatusCode::CONFLICT,
            Self::Damaged(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::UpgradeRequired => StatusCode::UPGRADE_REQUIRED,
            Self::Worker { code, .. } => *code,
            Self::Passed(answer) => answer.status(),
        }
    }

    fn reason(&self) -> &'static str {
        if let Self::NotYet { reason, .. } = self {
            return reason;
        }
        if let Self::WorkerGone { .. } = self {
            return "WorkerGone";
        }
        match self.code() {
            StatusCode::UNAUTHORIZED => "Unauthorized",
            StatusCode::FORBIDDEN => "Forbidden",
            StatusCode::NOT_FOUND => "NotFound",
            StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
            StatusCode::BAD_REQUEST => "BadRequest",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "UnsupportedMediaType",
            StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => "Timeout",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
            StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
            StatusCode::CONFLICT => "Conflict",
            StatusCode::UPGRADE_REQUIRED => "UpgradeRequired",
            _ => "InternalError",
        }
    }

    /// The metav1 `Status`.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.to_string(),
            "reason": self.reason(),
            "code": self.code().as_u16(),
        });
        match self {
            Self::Field { field, problem } => {
                status["details"] = json!({"causes": [{"reason": "FieldValueInvalid", "field": field, "message": problem}]});
            }
            Self::NotYet { field, value, .. } => {
                status["details"] = json!({"causes": [{"reason": "FieldValueInvalid", "field": field, "message": value}]});
            }
            Self::Busy { after, .. } => status["details"] = json!({"retryAfterSeconds": after}),
            Self::Share { .. } => status["details"] = json!({"retryAfterSeconds": SHARE_AFTER}),
            _ => {}
        }
        status
    }

    /// The answer to the request.
    pub fn answer(self) -> Answer {
        let extra = match &self {
            Self::NoToken | Self::NoSuchToken | Self::Unauthorized(_) => {
                Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            Self::MethodNotAllowed { allowed } => Some((header::ALLOW, HeaderValue::from_static(allowed))),
            Self::UpgradeRequired => Some((header::UPGRADE, HeaderValue::from_static("websocket"))),
            Self::Busy { after, .. } => Some((header::RETRY_AFTER, HeaderValue::from(*after))),
            Self::Share { .. } => Some((header::RETRY_AFTER, HeaderValue::from(SHARE_AFTER))),
            // The body may not have been read to its end: no other request can follow on this connection.
            Self::TooLarge { .. } | Self::TooSlow { .. } => Some((header::CONNECTION, HeaderValue::from_static("close"))),
            _ => None,
        };
        let mut answer = match self {
            Self::Passed(answer) => return *answer,
            other => {
                let text = Bytes::from(format!("{}\n", other.status()));
                let mut answer = Response::new(Full::new(text).map_err(|never| match never {}).boxed_unsync());
                *answer.status_mut() = other.code();
                answer
            }
        };
        let json = HeaderValue::from_static("application/json");
        answer.headers_mut().insert(header::CONTENT_TYPE, json);
        if let Some((name, value)) = extra {
            answer.headers_mut().insert(name, value);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_status_with_code_field_and_remedy() {
        let refusal = Refusal::field("query.timeoutSeconds", "write a whole number from 1 to 300");
        let status = refusal.status();
        assert_eq!(
            (status["code"].as_u64(), status["reason"].as_str()),
            (Some(400), Some("BadRequest"))
        );
        assert_eq!(status["details"]["causes"][0]["field"], "query.timeoutSeconds");
        assert_eq!(status["message"], "query.timeoutSeconds: write a whole number from 1 to 300");
        let answer = Refusal::MethodNotAllowed { allowed: "GET, POST" }.answer();
        assert_eq!(
            (answer.status(), &answer.headers()["allow"]),
            (StatusCode::METHOD_NOT_ALLOWED, &HeaderValue::from_static("GET, POST"))
        );
        assert_eq!(Refusal::NoToken.answer().headers()["www-authenticate"], "Bearer");
    }
}
