//! Messages between the operator and a worker-agent, and between a client and its session.
//!
//! Protocol Buffers (prost, defined in Rust: fields may be added, tags are never reused) over HTTP/2. Five unary calls
//! and one long-lived stream, all served by the agent:
//!
//! | Call | Request → response | For |
//! |---|---|---|
//! | `GET  /v1/inventory` | → [`inventory::Inventory`] | boot id, devices, load, every grant |
//! | `GET  /v1/load` | → [`inventory::Inventory`] | the same without the grants |
//! | `POST /v1/acquire` | [`grants::AcquireRequest`] → [`grants::AcquireResponse`] | up to k slices of one device, atomically |
//! | `POST /v1/renew` | [`grants::RenewRequest`] → [`grants::RenewResponse`] | extend grants of many owners at once |
//! | `POST /v1/release` | [`grants::ReleaseRequest`] → [`grants::ReleaseResponse`] | give grants back |
//! | `POST /v1/bursts` | [`burst::ClientFrame`]s ⇄ [`burst::ServerFrame`]s | chunks out, results in |
//!
//! Every request that acts for an owner carries the **term** of its coordinator; an agent that has seen a higher one
//! answers [`grants::RefusalCode::StaleTerm`] (fencing). Every grant is named by the agent's boot id and a counter, so
//! that nothing of an earlier boot is ever taken for one of this boot.
//!
//! Stream bodies are [`frame`]s: a length and a message. The stream between a client and its [`session`] is its own protocol,
//! carried by an upgraded HTTP/1.1 connection or a WebSocket.

pub mod burst;
pub mod frame;
pub mod grants;
pub mod inventory;
pub mod session;

pub use prost::Message;

/// Media type of every body.
pub const CONTENT_TYPE: &str = "application/x-protobuf";

/// Paths on the agent.
pub mod path {
    /// [`crate::inventory::Inventory`].
    pub const INVENTORY: &str = "/v1/inventory";
    /// [`crate::inventory::Inventory`] without the grants: for who only looks at the load.
    pub const LOAD: &str = "/v1/load";
    /// [`crate::grants::AcquireRequest`].
    pub const ACQUIRE: &str = "/v1/acquire";
    /// [`crate::grants::RenewRequest`].
    pub const RENEW: &str = "/v1/renew";
    /// [`crate::grants::ReleaseRequest`].
    pub const RELEASE: &str = "/v1/release";
    /// [`crate::burst::ClientFrame`] and [`crate::burst::ServerFrame`].
    pub const BURSTS: &str = "/v1/bursts";

    /// The stream of a session: a connection upgraded to [`crate::session::PROTOCOL`].
    pub fn stream(namespace: &str, name: &str) -> String {
        format!("/v1/namespaces/{namespace}/sessions/{name}/stream")
    }

    /// Namespace and name of the session whose [`stream`] has this path.
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
