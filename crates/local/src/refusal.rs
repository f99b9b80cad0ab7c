//! Errors of requests, as metav1 `Status` objects with the API server's messages.

use http::StatusCode;
use serde_json::{Value, json};

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
    pub value: Option<Value>,
    pub detail: String,
}

impl FieldError {
    pub fn new(mistake: Mistake, field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self {
            mistake,
            field: field.into(),
            value: Some(value.into()),
            detail: detail.into(),
        }
    }

    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(Mistake::Invalid, field, value, detail)
    }

    pub fn each(field: &str, value: &str, wrongs: Vec<String>) -> impl Iterator<Item = Self> {
        wrongs.into_iter().map(move |wrong| Self::invalid(field, value, wrong))
    }

    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Mistake::Required, field, "", detail)
    }

    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Mistake::Forbidden, field, "", detail)
    }

    pub fn too_long(field: impl Into<String>, limit: i64) -> Self {
        let unit = if limit == 1 { "byte" } else { "bytes" };
        Self::new(Mistake::TooLong, field, "", format!("may not be more than {limit} {unit}"))
    }

    pub fn too_many(field: impl Into<String>, count: usize, limit: i64) -> Self {
        let unit = if limit == 1 { "item" } else { "items" };
        Self::new(Mistake::TooMany, field, count, format!("must have at most {limit} {unit}"))
    }

    pub fn body(&self) -> String {
        let mut text = self.mistake.reason_and_text().1.to_owned();
        let shows_value = !matches!(self.mistake, Mistake::Required | Mistake::Forbidden | Mistake::TooLong);
        if let (true, Some(value)) = (shows_value, &self.value) {
            let shown = match value {
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

    fn cause(&self) -> Value {
        json!({"reason": self.mistake.reason_and_text().0, "message": self.body(), "field": self.field})
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct About {
    pub group: String,
    /// The plural for most errors, the kind for `Invalid`, like the API server.
    pub kind: String,
    pub name: String,
}

impl About {
    pub fn options(kind: &str) -> Self {
        Self {
            group: "meta.k8s.io".to_owned(),
            kind: kind.to_owned(),
            name: String::new(),
        }
    }

    /// Resource in messages: `plural.group`, or `plural` for the core group.
    fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.kind.clone()
        } else {
            format!("{}.{}", self.kind, self.group)
        }
    }

    fn details(&self) -> Value {
        let mut details = json!({});
        for (key, value) in [("name", &self.name), ("group", &self.group), ("kind", &self.kind)] {
            if !value.is_empty() {
                details[key] = json!(value);
            }
        }
        details
    }
}

#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub(crate) enum Refusal {
    #[error("{} {} not found", about.qualified(), object::quoted(&about.name))]
    NotFound { about: About },
    #[error("the server could not find the requested resource")]
    NoSuchPath,
    #[error("{prefix}{} {} already exists{suffix}", about.qualified(), object::quoted(&about.name))]
    AlreadyExists {
        about: About,
        prefix: &'static str,
        suffix: &'static str,
    },
    #[error("Operation cannot be fulfilled on {} {}: {why}", about.qualified(), object::quoted(&about.name))]
    Conflict { about: About, why: String },
    #[error("{message}")]
    ApplyConflict { message: String, causes: Vec<(String, String)> },
    #[error("{}", invalid_message(about, errors))]
    Invalid { about: About, errors: Vec<FieldError> },
    #[error("{} {} is forbidden: {why}", about.qualified(), object::quoted(&about.name))]
    Forbidden {
        about: About,
        why: String,
        cause: Option<Box<(&'static str, String, &'static str)>>,
    },
    #[error("{0}")]
    BadRequest(String),
    #[error("Unauthorized")]
    Unauthorized,
    #[error("{message}")]
    Expired { message: String, continue_token: String },
    #[error("Timeout: Too large resource version: {asked}, current: {current}")]
    TooLargeResourceVersion { asked: u64, current: u64 },
    #[error("the server does not allow this method on the requested resource")]
    MethodNotAllowed,
    #[error("the body of the request was in an unknown format - accepted media types include: {accepted}")]
    UnsupportedMediaType { accepted: &'static str },
    #[error("415: Unsupported Media Type")]
    UnknownMediaType,
    #[error("Request entity too large: limit is {limit}")]
    TooLarge { limit: usize },
    #[error("timed out after {} s waiting for the body", .0.as_secs())]
    TooSlow(std::time::Duration),
    /// An error that the API server returns without a reason.
    #[error("{0}")]
    Plain(String),
}

fn invalid_message(about: &About, errors: &[FieldError]) -> String {
    let mut said: Vec<String> = Vec::new();
    for error in errors {
        let text = format!("{}: {}", error.field, error.body());
        if !said.contains(&text) {
            said.push(text);
        }
    }
    let list = if said.len() == 1 {
        said.remove(0)
    } else {
        format!("[{}]", said.join(", "))
    };
    format!("{} {} is invalid: {list}", about.qualified(), object::quoted(&about.name))
}

impl Refusal {
    pub fn invalid(about: About, error: FieldError) -> Self {
        let errors = vec![error];
        Self::Invalid { about, errors }
    }

    pub fn code(&self) -> StatusCode {
        self.code_and_reason().0
    }

    fn code_and_reason(&self) -> (StatusCode, &'static str) {
        match self {
            Self::NotFound { .. } | Self::NoSuchPath => (StatusCode::NOT_FOUND, "NotFound"),
            Self::AlreadyExists { .. } => (StatusCode::CONFLICT, "AlreadyExists"),
            Self::Conflict { .. } | Self::ApplyConflict { .. } => (StatusCode::CONFLICT, "Conflict"),
            Self::Invalid { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            Self::Forbidden { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Expired { .. } => (StatusCode::GONE, "Expired"),
            Self::TooLargeResourceVersion { .. } => (StatusCode::GATEWAY_TIMEOUT, "Timeout"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::UnsupportedMediaType { .. } | Self::UnknownMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType"),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"),
            Self::TooSlow(_) => (StatusCode::REQUEST_TIMEOUT, "Timeout"),
            Self::Plain(_) => (StatusCode::INTERNAL_SERVER_ERROR, ""),
        }
    }

    fn details(&self) -> Value {
        match self {
            Self::NotFound { about } | Self::Conflict { about, .. } => about.details(),
            Self::AlreadyExists { about, suffix, .. } => {
                let mut details = about.details();
                if !suffix.is_empty() {
                    details["retryAfterSeconds"] = json!(1);
                }
                details
            }
            Self::Forbidden { about, cause, .. } => {
                let mut details = about.details();
                if let Some((reason, message, field)) = cause.as_deref() {
                    details["causes"] = json!([{"reason": reason, "message": message, "field": field}]);
                }
                details
            }
            Self::Invalid { about, errors } => {
                let mut details = about.details();
                details["causes"] = errors.iter().map(FieldError::cause).collect();
                details
            }
            Self::ApplyConflict { causes, .. } => {
                let causes: Vec<Value> = causes
                    .iter()
                    .map(|(message, field)| json!({"reason": "FieldManagerConflict", "message": message, "field": field}))
                    .collect();
                json!({ "causes": causes })
            }
            Self::TooLargeResourceVersion { .. } => json!({
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            }),
            Self::NoSuchPath | Self::MethodNotAllowed | Self::UnsupportedMediaType { .. } => json!({}),
            _ => Value::Null,
        }
    }

    pub fn status(&self) -> Value {
        let mut metadata = json!({});
        if let Self::Expired { continue_token, .. } = self
            && !continue_token.is_empty()
        {
            metadata["continue"] = json!(continue_token);
        }
        let (code, reason) = self.code_and_reason();
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.to_string(),
            "reason": reason,
            "code": code.as_u16(),
        });
        let details = self.details();
        if !details.is_null() {
            status["details"] = details;
        }
        status
    }
}
