//! Reads the API server's audit log: which user wrote which object.
//!
//! The audit policy of the control plane logs the metadata of every `create`, `update`, `patch`, `delete` and `deletecollection` after the
//! answer, rejected requests included; reads are not logged.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Audit policy of the control planes that this crate starts (audit.k8s.io/v1).
pub(crate) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
    {"level": "None"}
  ]
}
"#;

/// The audit log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("read the audit log {}", path.display())]
    Read {
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// A line is not an audit event.
    #[error("line {line} of the audit log is no event")]
    Line {
        /// Line number, from 1.
        line: usize,
        source: serde_json::Error,
    },
    /// A marker was written but did not appear in the log in time.
    #[error("the audit log has not caught up within {within:?}")]
    Behind {
        /// Time waited.
        within: std::time::Duration,
    },
}

/// A write request that the API server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// Authenticated user: `system:serviceaccount:NAMESPACE:NAME`, or the common name of a client certificate.
    pub user: String,
    pub user_agent: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural resource name: `burstjobs`.
    pub resource: String,
    /// Subresource, such as `status` or `token`; empty for the object itself.
    pub subresource: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name of the object; empty if the server generated it (`generateName`).
    pub name: String,
    /// HTTP status code of the answer.
    pub code: u16,
    /// Time of the request (RFC 3339, UTC, microseconds), which sorts as text.
    pub received: String,
    /// Whether the request had `dryRun`, so that nothing was stored.
    pub dry_run: bool,
}

impl Write {
    /// Whether the request changed an object: it succeeded, was not a dry run, and was not a query in the form of a `create` (TokenReview,
    /// SubjectAccessReview, TokenRequest).
    #[must_use]
    pub fn is_stored(&self) -> bool {
        let asks = matches!(self.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io") || self.subresource == "token";
        (200..300).contains(&self.code) && !self.dry_run && !asks
    }

    /// Whether the request was made by this ServiceAccount.
    #[must_use]
    pub fn is_by(&self, namespace: &str, service_account: &str) -> bool {
        self.user
            .strip_prefix("system:serviceaccount:")
            .and_then(|rest| rest.split_once(':'))
            == Some((namespace, service_account))
    }

    /// Whether the request wrote a `coordination.k8s.io` Lease, for a heartbeat or for leader election.
    #[must_use]
    pub fn is_heartbeat(&self) -> bool {
        self.group == "coordination.k8s.io" && self.resource == "leases"
    }

    /// Resource and subresource, such as `burstjobs` or `burstjobs/status`.
    #[must_use]
    pub fn target(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// Number of writes by user, verb and resource; displayed as a table for failure messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<(String, String, String), usize>);

impl Tally {
    #[must_use]
    pub fn of(writes: &[Write]) -> Self {
        let mut tally = Self::default();
        for write in writes {
            *tally.0.entry((write.user.clone(), write.verb.clone(), write.target())).or_default() += 1;
        }
        tally
    }

    /// Total number of writes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.values().sum()
    }

    /// Number of writes by any user with this verb to this resource (`burstjobs/status` for a subresource).
    #[must_use]
    pub fn count(&self, verb: &str, target: &str) -> usize {
        self.0
            .iter()
            .filter(|((_, v, t), _)| v == verb && t == target)
            .map(|(_, count)| count)
            .sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((user, verb, target), count) in &self.0 {
            writeln!(formatter, "{count:>6}  {verb:<8} {target:<28} {user}")?;
        }
        write!(formatter, "{:>6}  in all", self.total())
    }
}

/// The audit log of a control plane.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
}

impl AuditLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Path of the log file, which has one JSON event a line.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the writes answered so far that `wanted` accepts, in the order of the log.
    ///
    /// An event is logged just after its answer is sent: `ControlPlane::audited_writes` waits until every write answered so far is in the
    /// log.
    ///
    /// # Errors
    /// When the log cannot be read or parsed.
    pub fn writes(&self, wanted: impl Fn(&Write) -> bool) -> Result<Vec<Write>, AuditError> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => {
                return Err(AuditError::Read {
                    path: self.path.clone(),
                    source,
                });
            }
        };
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut writes = Vec::new();
        for (index, line) in whole.lines().enumerate() {
            let event: Event = serde_json::from_str(line).map_err(|source| AuditError::Line { line: index + 1, source })?;
            let write = Write::from(event);
            if wanted(&write) {
                writes.push(write);
            }
        }
        Ok(writes)
    }
}

/// The fields of an audit.k8s.io/v1 Event that are used here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    #[serde(default)]
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectReference,
    #[serde(default)]
    response_status: ResponseStatus,
    #[serde(rename = "requestURI", default)]
    request_uri: String,
    #[serde(default)]
    request_received_timestamp: String,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectReference {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

impl From<Event> for Write {
    fn from(event: Event) -> Self {
        Self {
            verb: event.verb,
            user: event.user.username,
            user_agent: event.user_agent,
            group: event.object_ref.api_group,
            resource: event.object_ref.resource,
            subresource: event.object_ref.subresource,
            namespace: event.object_ref.namespace,
            name: event.object_ref.name,
            code: event.response_status.code,
            received: event.request_received_timestamp,
            dry_run: event.request_uri.contains("dryRun="),
        }
    }
}
