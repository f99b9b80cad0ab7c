//! Errors of requests, as metav1 `Status` objects with the API server's messages.

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use serde_json::Value;

use crate::object;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    Required,
    Duplicate,
    Invalid,
    TypeInvalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
}

impl Mistake {
    /// Reason of the cause in metav1, and beginning of its message.
    fn reason_and_text(self) -> (&'static str, &'static str) {
        match self {
            Self::Required => ("FieldValueRequired", "Required value"),
            Self::Duplicate => ("FieldValueDuplicate", "Duplicate value"),
            Self::Invalid => ("FieldValueInvalid", "Invalid value"),
            Self::TypeInvalid => ("FieldValueTypeInvalid", "Invalid value"),
            Self::NotSupported => ("FieldValueNotSupported", "Unsupported value"),
            Self::Forbidden => ("FieldValueForbidden", "Forbidden"),
            Self::TooLong => ("FieldValueTooLong", "Too long"),
            Self::TooMany => ("FieldValueTooMany", "Too many"),
        }
    }

    /// Whether rules are skipped after this type of error, because they could not be evaluated.
    pub(crate) fn blocks_rules(self) -> bool {
        matches!(
            self,
            Self::NotSupported | Self::Required | Self::TooLong | Self::TooMany | Self::TypeInvalid
        )
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    pub mistake: Mistake,
    pub field: String,
    pub value: Value,
    pub detail: String,
}

impl FieldError {
    pub(crate) fn new(mistake: Mistake, field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self {
            mistake,
            field: field.into(),
            value: value.into(),
            detail: detail.into(),
        }
    }

    pub(crate) fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(Mistake::Invalid, field, value, detail)
    }

    pub(crate) fn each(field: &str, value: &str, wrongs: Vec<String>) -> impl Iterator<Item = Self> {
        wrongs.into_iter().map(move |wrong| Self::invalid(field, value, wrong))
    }

    pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Mistake::Required, field, "", detail)
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Mistake::Forbidden, field, "", detail)
    }

    pub(crate) fn too_long(field: impl Into<String>, limit: i64) -> Self {
        let unit = if limit == 1 { "byte" } else { "bytes" };
        Self::new(Mistake::TooLong, field, "", format!("may not be more than {limit} {unit}"))
    }

    pub(crate) fn too_many(field: impl Into<String>, count: usize, limit: i64) -> Self {
        let unit = if limit == 1 { "item" } else { "items" };
        Self::new(Mistake::TooMany, field, count, format!("must have at most {limit} {unit}"))
    }

    pub(crate) fn body(&self) -> String {
        let mut text = self.mistake.reason_and_text().1.to_owned();
        let shows_value = !matches!(self.mistake, Mistake::Required | Mistake::Forbidden | Mistake::TooLong);
        if shows_value {
            let shown = match &self.value {
                Value::String(value) => object::quoted(value),
                Value::Number(value) => object::number(value),
                other => object::go_json(other),
            };
            text = format!("{text}: {shown}");
        }
        if !self.detail.is_empty() {
            text = format!("{text}: {}", self.detail);
        }
        text
    }

    fn cause(&self) -> StatusCause {
        cause(self.mistake.reason_and_text().0, self.body(), &self.field)
    }
}

pub(crate) fn cause(reason: &str, message: String, field: &str) -> StatusCause {
    StatusCause {
        reason: Some(reason.to_owned()),
        message: Some(message),
        field: Some(field.to_owned()),
    }
}

/// Details of a status about an object. `kind` is the plural for most errors, the kind for invalid objects, like in the API server.
pub(crate) fn about(group: &str, kind: &str, name: &str) -> StatusDetails {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    StatusDetails {
        group: given(group),
        kind: given(kind),
        name: given(name),
        ..StatusDetails::default()
    }
}

/// The object in messages: `plural.group "name"`, or `plural "name"` for the core group.
pub(crate) fn subject(about: &StatusDetails) -> String {
    let kind = about.kind.as_deref().unwrap_or_default();
    let group = about.group.as_ref().map(|group| format!(".{group}")).unwrap_or_default();
    format!("{kind}{group} {}", object::quoted(about.name.as_deref().unwrap_or_default()))
}

/// A request that fails, and the status in the answer to it.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[error("{}", .0.message.as_deref().unwrap_or_default())]
pub(crate) struct Refusal(pub Box<Status>);

impl Refusal {
    pub(crate) fn new(code: StatusCode, reason: &str, message: impl Into<String>, details: impl Into<Option<StatusDetails>>) -> Self {
        Self(Box::new(Status {
            code: Some(code.as_u16().into()),
            details: details.into(),
            message: Some(message.into()),
            reason: Some(reason.to_owned()),
            status: Some("Failure".to_owned()),
            ..Status::default()
        }))
    }

    pub(crate) fn not_found(about: StatusDetails) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("{} not found", subject(&about)), about)
    }

    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message, StatusDetails::default())
    }

    pub(crate) fn conflict(about: StatusDetails, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {}: {why}", subject(&about));
        Self::new(StatusCode::CONFLICT, "Conflict", message, about)
    }

    pub(crate) fn invalid(about: StatusDetails, errors: &[FieldError]) -> Self {
        let mut said: Vec<String> = Vec::new();
        for error in errors {
            let text = format!("{}: {}", error.field, error.body());
            if !said.contains(&text) {
                said.push(text);
            }
        }
        let list = match said.as_slice() {
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("{} is invalid: {list}", subject(&about));
        let causes = Some(errors.iter().map(FieldError::cause).collect());
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            message,
            StatusDetails { causes, ..about },
        )
    }

    pub(crate) fn forbidden(about: StatusDetails, why: &str) -> Self {
        let message = format!("{} is forbidden: {why}", subject(&about));
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message, about)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message, None)
    }

    /// With a continue token, the client can fetch the rest of an inconsistent list.
    pub(crate) fn expired(message: impl Into<String>, continue_token: Option<String>) -> Self {
        let mut refusal = Self::new(StatusCode::GONE, "Expired", message, None);
        refusal.0.metadata.continue_ = continue_token;
        refusal
    }

    pub(crate) fn too_large_resource_version(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let cause = StatusCause {
            reason: Some("ResourceVersionTooLarge".to_owned()),
            message: Some("Too large resource version".to_owned()),
            field: None,
        };
        let details = StatusDetails {
            causes: Some(vec![cause]),
            retry_after_seconds: Some(1),
            ..StatusDetails::default()
        };
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message, details)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            message,
            StatusDetails::default(),
        )
    }

    pub(crate) fn unknown_media_type() -> Self {
        let message = "415: Unsupported Media Type";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message, None)
    }

    /// An error that the API server returns without a reason.
    pub(crate) fn plain(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message, None)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.0.reason.as_deref() == Some("NotFound")
    }
}
