//! What was written to the API server, by whom: its audit log, read back.
//!
//! The control plane's audit policy logs the metadata of every `create`, `update`, `patch`, `delete` and
//! `deletecollection` once it is answered, including refused ones; reads are not logged.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The audit policy of the control planes that this crate starts (audit.k8s.io/v1).
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

/// Why the audit log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file could not be read.
    #[error("read the audit log {}", path.display())]
    Read {
        /// The audit log.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A line is no audit event.
    #[error("line {line} of the audit log is no event")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// A marker that was written did not show up in the log.
    #[error("the audit log has not caught up within {within:?}")]
    Behind {
        /// How long it was waited for.
        within: std::time::Duration,
    },
}

/// One write request that the API server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// Who asked: `system:serviceaccount:NAMESPACE:NAME`, or a certificate's common name.
    pub user: String,
    /// The client's `User-Agent`.
    pub user_agent: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural resource name: `burstjobs`.
    pub resource: String,
    /// `status`, `token`, ... or empty.
    pub subresource: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Object's name; empty where the server made it up (`generateName`).
    pub name: String,
    /// HTTP status code of the answer.
    pub code: u16,
    /// When the request came (RFC 3339, UTC, microseconds): comparable as text.
    pub received: String,
    /// Asked with `dryRun`: nothing was stored.
    pub dry_run: bool,
}

impl Write {
    /// Whether it stored something: answered with success, not a dry run, and not one of the requests that only ask
    /// (TokenReview, SubjectAccessReview, TokenRequest).
    #[must_use]
    pub fn is_stored(&self) -> bool {
        let asks = matches!(self.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io") || self.subresource == "token";
        (200..300).contains(&self.code) && !self.dry_run && !asks
    }

    /// Whether it was made by this ServiceAccount.
    #[must_use]
    pub fn is_by(&self, namespace: &str, service_account: &str) -> bool {
        self.user
            .strip_prefix("system:serviceaccount:")
            .and_then(|rest| rest.split_once(':'))
            == Some((namespace, service_account))
    }

    /// Whether it wrote a `coordination.k8s.io` Lease: a heartbeat or a leader's claim.
    #[must_use]
    pub fn is_heartbeat(&self) -> bool {
        self.group == "coordination.k8s.io" && self.resource == "leases"
    }

    /// `burstjobs` or `burstjobs/status`.
    #[must_use]
    pub fn target(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// Writes counted by user, verb and resource; its `Display` is a table for a failure message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<(String, String, String), usize>);

impl Tally {
    /// Counts `writes`.
    #[must_use]
    pub fn of(writes: &[Write]) -> Self {
        let mut tally = Self::default();
        for write in writes {
            *tally.0.entry((write.user.clone(), write.verb.clone(), write.target())).or_default() += 1;
        }
        tally
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.values().sum()
    }

    /// Those of a verb to a resource (`burstjobs/status` for a subresource), by anyone.
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

    /// The file: one JSON event a line.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The writes answered so far that `wanted` accepts, in the order of the log.
    ///
    /// An event is logged just after its answer is sent: call `ControlPlane::audited_writes` to be sure that every write
    /// already answered is there.
    ///
    /// # Errors
    /// When the log cannot be read or understood.
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
        // The last line may still be being written.
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

/// The part of an audit.k8s.io/v1 Event that is read here.
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
