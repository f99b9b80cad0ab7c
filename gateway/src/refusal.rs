//! Rejections of requests, answered as a metav1 `Status`: the message, the invalid field if any, and a remedy.

use http::{HeaderValue, StatusCode, header};
use sahasra_service::answer::{self, Answer};
use serde_json::{Value, json};

/// Seconds after which a caller that holds its share of streams should retry.
const SHARE_AFTER: u32 = 5;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("no token: send it as `Authorization: Bearer TOKEN` (`kubectl create token NAME` creates one)")]
    NoToken,
    #[error("invalid characters in the token: send it as `Authorization: Bearer TOKEN`")]
    NoSuchToken,
    #[error("path not found: /openapi.json lists the paths")]
    NoSuchPath,
    #[error("method not allowed: this path supports {allowed}")]
    MethodNotAllowed {
        /// Value of the `Allow` header.
        allowed: &'static str,
    },
    #[error("{field}: {problem}")]
    Field {
        /// Path of the field, such as `query.limit`.
        field: String,
        problem: String,
    },
    #[error("invalid body: expected application/json, an object with `metadata` and `spec`: {0}")]
    NoJson(String),
    #[error("unsupported media type: send `Content-Type: application/json`")]
    MediaType,
    #[error("the body exceeds {limit} bytes: put kernels into a ConfigMap or a store, and refer to them")]
    TooLarge { limit: usize },
    #[error("timed out reading the body after {seconds} s")]
    TooSlow { seconds: u64 },
    #[error("connection lost while reading the body")]
    BrokenBody,
    #[error("too many concurrent {what}: retry in {after} s")]
    Busy { what: &'static str, after: u32 },
    #[error(
        "you hold {own} of this gateway's {limit} streams, and only {free} are free for other callers: close one, or retry in \
         {SHARE_AFTER} s"
    )]
    Share { own: usize, limit: usize, free: usize },
    /// The API server could not be reached; with the error chain.
    #[error("API server unreachable: {0}")]
    ApiServer(String),
    #[error("API server timed out after {seconds} s: retry")]
    ApiServerTimeout { seconds: u64 },
    #[error("failed to decode the response of the API server: {0}")]
    ApiServerAnswer(String),
    #[error("operator URL not set: start this gateway with --operator-url URL")]
    NoOperator,
    #[error("operator unreachable: {0}")]
    Operator(String),
    /// The object is not in the state that this request needs.
    #[error("{problem}")]
    NotYet {
        /// Machine-readable `reason` of the `Status`.
        reason: &'static str,
        problem: String,
        /// Path of the field that shows the object's state.
        field: &'static str,
        value: String,
    },
    /// Data that the operator wrote was modified or is partly lost.
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    Unauthorized(String),
    #[error("this path is a WebSocket: connect with `Upgrade: websocket` and the subprotocol `sahasra-session.v1`")]
    UpgradeRequired,
    #[error("{problem}")]
    Worker { code: StatusCode, problem: String },
    /// The worker accepts no connections, so its sessions have ended.
    #[error("{problem}")]
    WorkerUnreachable {
        /// Endpoint of the worker, and how its end was detected.
        problem: String,
    },
    #[error("this gateway is shutting down: connect again")]
    ShuttingDown,
    /// An answer of the API server with another status than 200, passed on unchanged.
    #[error("the API server responded with {}", .0.status())]
    Passed(Box<Answer>),
}

impl Refusal {
    pub(crate) fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field {
            field: field.into(),
            problem: problem.into(),
        }
    }

    pub(crate) fn not_yet(reason: &'static str, field: &'static str, value: impl Into<String>, problem: String) -> Self {
        Self::NotYet {
            reason,
            problem,
            field,
            value: value.into(),
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
            Self::ApiServerAnswer(_) | Self::Operator(_) | Self::WorkerUnreachable { .. } => StatusCode::BAD_GATEWAY,
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
        if let Self::WorkerUnreachable { .. } = self {
            return "WorkerUnreachable";
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

    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.to_string(),
            "reason": self.reason(),
            "code": self.code().as_u16(),
        });
        let about = |field: &str, message: &str| json!({"causes": [{"reason": "FieldValueInvalid", "field": field, "message": message}]});
        match self {
            Self::Field { field, problem } => status["details"] = about(field, problem),
            Self::NotYet { field, value, .. } => status["details"] = about(field, value),
            Self::Busy { after, .. } => status["details"] = json!({"retryAfterSeconds": after}),
            Self::Share { .. } => status["details"] = json!({"retryAfterSeconds": SHARE_AFTER}),
            _ => {}
        }
        status
    }

    pub(crate) fn answer(self) -> Answer {
        let extra = match &self {
            Self::NoToken | Self::NoSuchToken | Self::Unauthorized(_) => {
                Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            Self::MethodNotAllowed { allowed } => Some((header::ALLOW, HeaderValue::from_static(allowed))),
            Self::UpgradeRequired => Some((header::UPGRADE, HeaderValue::from_static("websocket"))),
            Self::Busy { after, .. } => Some((header::RETRY_AFTER, HeaderValue::from(*after))),
            Self::Share { .. } => Some((header::RETRY_AFTER, HeaderValue::from(SHARE_AFTER))),
            // Part of the body may be unread, so no further request can follow on this connection.
            Self::TooLarge { .. } | Self::TooSlow { .. } => Some((header::CONNECTION, HeaderValue::from_static("close"))),
            _ => None,
        };
        let mut answer = match self {
            Self::Passed(answer) => return *answer,
            other => answer::json(other.code(), format!("{}\n", other.status())),
        };
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
    fn a_rejection_is_a_status_with_code_field_and_remedy() {
        let refusal = Refusal::field("query.timeoutSeconds", "expected a whole number from 1 to 300");
        let status = refusal.status();
        assert_eq!(
            (status["code"].as_u64(), status["reason"].as_str()),
            (Some(400), Some("BadRequest"))
        );
        assert_eq!(status["details"]["causes"][0]["field"], "query.timeoutSeconds");
        assert_eq!(status["message"], "query.timeoutSeconds: expected a whole number from 1 to 300");
        let answer = Refusal::MethodNotAllowed { allowed: "GET, POST" }.answer();
        assert_eq!(
            (answer.status(), &answer.headers()["allow"]),
            (StatusCode::METHOD_NOT_ALLOWED, &HeaderValue::from_static("GET, POST"))
        );
        assert_eq!(Refusal::NoToken.answer().headers()["www-authenticate"], "Bearer");
    }
}
