//! Messages between the operator and a worker-agent, and between a client and its session.
//!
//! All messages are Protocol Buffers: `proto/` defines and documents them, and prost writes their types. Fields may be added; tags are never
//! reused. The operator calls the agent over HTTP/2: five unary calls and one long-lived stream.
//!
//! | Call | Request → response | Purpose |
//! |---|---|---|
//! | `GET  /v1/inventory` | → [`inventory::Inventory`] | boot id, devices, load and all grants |
//! | `GET  /v1/load` | → [`inventory::Inventory`] | the same without the grants |
//! | `POST /v1/acquire` | [`grants::AcquireRequest`] → [`grants::AcquireResponse`] | acquire up to k slices of one device, atomically |
//! | `POST /v1/renew` | [`grants::RenewRequest`] → [`grants::RenewResponse`] | extend grants of several owners in one call |
//! | `POST /v1/release` | [`grants::ReleaseRequest`] → [`grants::ReleaseResponse`] | release grants |
//! | `POST /v1/bursts` | [`burst::ClientFrame`]s ⇄ [`burst::ServerFrame`]s | submit chunks, receive results |
//!
//! Every request on behalf of an owner carries the **term** of the owner's coordinator. An agent that has seen a higher term rejects the
//! request with [`grants::RejectionCode::StaleTerm`] (fencing). A grant is identified by the agent's boot id and a counter, so that a grant
//! of an earlier boot is never mistaken for one of the current boot.
//!
//! Stream bodies consist of [`frame`]s: a length and a message. The stream between a client and its [`session`] has a protocol of its own
//! and runs over an upgraded HTTP/1.1 connection or a WebSocket.

/// Implements the list of an enum's codes, and their names for status fields, metrics and messages.
macro_rules! labelled {
    ($name:path { $($code:ident)* }) => {
        impl $name {
            pub fn all() -> impl Iterator<Item = Self> {
                [$(Self::$code),*].into_iter()
            }

            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$code => stringify!($code),)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.label())
            }
        }
    };
}

pub mod burst;
/// Operations and answers of a session of the engine `cuda`.
pub mod cuda {
    include!(concat!(env!("OUT_DIR"), "/sahasra.cuda.rs"));

    /// Maximum number of contexts of a client at a time.
    pub const MAX_CONTEXTS: usize = 64;
    /// Maximum number of marks in a [`Waited`], which keeps it far below the limit of a message. One with as many may have left marks out.
    pub const MARKS_AT_ONCE: usize = 16_384;
}
pub mod frame;
pub mod grants;
/// Inventory of an agent: its devices, grants and sessions.
pub mod inventory {
    include!(concat!(env!("OUT_DIR"), "/sahasra.inventory.rs"));
}
pub mod session;

// Names of codes, and times as [`Duration`]s.
include!(concat!(env!("OUT_DIR"), "/methods.rs"));

use std::time::Duration;

pub use prost::Message;

/// The whole milliseconds of a time, for a field of a message.
pub fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Media type of all request and response bodies.
pub const CONTENT_TYPE: &str = "application/x-protobuf";

/// Maximum size of an answer of an agent or the operator: enough for an inventory of a hundred thousand grants, or for the list of the
/// workers of every real cluster at about 200 bytes each.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Paths of the agent's HTTP API.
pub mod path {
    pub const INVENTORY: &str = "/v1/inventory";
    /// Path of the call that returns an [`crate::inventory::Inventory`] without the grants, for callers that need only the load.
    pub const LOAD: &str = "/v1/load";
    pub const ACQUIRE: &str = "/v1/acquire";
    pub const RENEW: &str = "/v1/renew";
    pub const RELEASE: &str = "/v1/release";
    /// Path of the burst stream: [`crate::burst::ClientFrame`]s in the request body, [`crate::burst::ServerFrame`]s in the response body.
    pub const BURSTS: &str = "/v1/bursts";

    /// Returns the path of a session's stream, a connection upgraded to [`crate::session::PROTOCOL`].
    pub fn stream(namespace: &str, name: &str) -> String {
        format!("/v1/namespaces/{namespace}/sessions/{name}/stream")
    }

    /// Returns the namespace and name of the session whose [`stream`] has this path, or `None` if the path is not of a session's stream.
    pub fn session_of(path: &str) -> Option<(&str, &str)> {
        let (namespace, rest) = path.strip_prefix("/v1/namespaces/")?.split_once('/')?;
        let name = rest.strip_prefix("sessions/")?.strip_suffix("/stream")?;
        let is_name = |text: &str| !text.is_empty() && !text.contains('/');
        (is_name(namespace) && is_name(name)).then_some((namespace, name))
    }
}

#[cfg(test)]
mod tests {
    use super::path::{session_of, stream};

    #[test]
    fn the_path_of_a_stream_names_the_session() {
        assert_eq!(session_of(&stream("team", "mine")), Some(("team", "mine")));
        for other in [
            "/v1/namespaces/team/sessions/mine",
            "/v1/namespaces//sessions/mine/stream",
            "/v1/namespaces/team/sessions//stream",
            "/v1/namespaces/team/sessions/a/b/stream",
            "/v1/inventory",
        ] {
            assert_eq!(session_of(other), None, "{other}");
        }
    }
}
