//! Entry of clients to a session: an HTTP/1.1 request for the session's stream, upgraded to the session protocol.
//!
//! The agent checks with the caller's token whether the caller may open the stream ([`sahasra_access`]). A client that reconnects shows the
//! secret that the session's executor gave it instead: the secret proves that the client was authorised before, and its check needs no API
//! server. After the response `101` the agent passes the connection's descriptor to the session's executor and sees none of its bytes any
//! more. A TLS connection cannot be passed: the executor gets one end of a socket pair, and the agent [`relay`]s the bytes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::upgrade::downcast;
use sahasra_access::{Access, AccessError, bearer};
use sahasra_error_chain::causes;
use sahasra_service::{
    answer::{self, Answer},
    server::Handshake,
    tasks,
    tls::Acceptor,
};
use sahasra_wire::{
    path,
    session::{HELLO_ACCEPTED, HELLO_HEADER, PROTOCOL, RESUME_ACCEPTED, RESUME_HEADER, hello_frame, resume_secret},
};
use tokio::net::TcpStream;
use tracing::Instrument;
use warp::{Filter, Rejection, path::FullPath};

use super::relay;
use crate::agent::{Agent, sessions::ConnectError};
use crate::session_executors::{process::Process, registry::Session};

/// Route of session streams; `access` decides who may open them.
pub(super) fn route(agent: Arc<Agent>, access: Access) -> impl Filter<Extract = (Answer,), Error = Rejection> + Clone {
    warp::path::full()
        .and_then(async |path: FullPath| match path::session_of(path.as_str()) {
            Some((namespace, name)) => Ok((namespace.to_owned(), name.to_owned())),
            None => Err(warp::reject::not_found()),
        })
        .and(warp::method())
        .and(warp::header::headers_cloned())
        .and(warp::ext::optional())
        .then(move |(namespace, name): (String, String), method, headers, upgrade| {
            let span = tracing::info_span!("session_stream", session = name, namespace);
            let call = Call {
                agent: Arc::clone(&agent),
                namespace,
                name,
                method,
                headers,
                upgrade,
            };
            let access = access.clone();
            let answer = async move {
                call.open(&access).await.unwrap_or_else(|refusal| {
                    tracing::debug!(%refusal, "rejected a session stream");
                    refusal.answer()
                })
            };
            answer.instrument(span)
        })
}

/// Reason why a stream is not opened.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("invalid method: expected GET")]
    Method,
    #[error("session {0} does not run on this worker: it has ended, or status.endpoint of the GpuSession names another worker")]
    NoSession(String),
    #[error("expected an HTTP/1.1 upgrade: send `Connection: Upgrade` and `Upgrade: {PROTOCOL}`")]
    NoUpgrade,
    #[error("session {0} cannot be resumed: its process has ended")]
    NothingToResume(String),
    #[error("the worker is shutting down")]
    ShuttingDown,
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Access(error) => error.status(),
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoSession(_) | Self::Connect(ConnectError::Ended) => StatusCode::NOT_FOUND,
            Self::NoUpgrade => StatusCode::UPGRADE_REQUIRED,
            Self::NothingToResume(_) => StatusCode::GONE,
            Self::ShuttingDown | Self::Connect(ConnectError::Launch(_)) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn answer(&self) -> Answer {
        let status = self.status();
        let text = match self {
            Self::Connect(ConnectError::Launch(error)) => causes(error),
            other => other.to_string(),
        };
        let mut answer = answer::text(status, text + "\n");
        let headers = answer.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
        }
        answer
    }
}

/// A request for a session's stream.
struct Call {
    agent: Arc<Agent>,
    namespace: String,
    name: String,
    method: Method,
    headers: HeaderMap,
    upgrade: Option<OnUpgrade>,
}

impl Call {
    async fn open(self, access: &Access) -> Result<Answer, Refusal> {
        let resumed = self.resumed();
        if resumed.is_none() {
            access.check_stream(bearer(&self.headers)?, &self.namespace, &self.name).await?;
        }
        if self.method != Method::GET {
            return Err(Refusal::Method);
        }
        if self.agent.parts.draining.is_cancelled() {
            return Err(Refusal::ShuttingDown);
        }
        let name = format!("{}/{}", self.namespace, self.name);
        let Some(session) = self.agent.sessions.find(&self.namespace, &self.name) else {
            return Err(Refusal::NoSession(name));
        };
        let upgrade = self.upgrade.filter(|_| asks_for_upgrade(&self.headers)).ok_or(Refusal::NoUpgrade)?;
        let accepted = resumed.is_some();
        let process = match resumed {
            Some(process) => process,
            // The client's resume grace may have expired, in which case the executor rejects the client. A new executor would know nothing
            // of it.
            None if self.headers.contains_key(RESUME_HEADER) => session.process().ok_or(Refusal::NothingToResume(name))?,
            None => started(&self.agent, session).await?,
        };
        let hello = self.headers.get(HELLO_HEADER).and_then(|value| hello_frame(value.as_bytes()));
        let has_hello = hello.is_some();
        tasks::spawn(hand_over(upgrade, process, hello.unwrap_or_default()));
        let mut answer = Answer::default();
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
        if accepted {
            // Tells a gateway not to count this as a new stream.
            headers.insert(RESUME_HEADER, HeaderValue::from_static(RESUME_ACCEPTED));
        }
        if has_hello {
            headers.insert(HELLO_HEADER, HeaderValue::from_static(HELLO_ACCEPTED));
        }
        Ok(answer)
    }

    /// Returns the session's executor if the request shows the secret of the session's client.
    fn resumed(&self) -> Option<Arc<Process>> {
        let secret = resume_secret(self.headers.get(RESUME_HEADER)?.as_bytes())?;
        let process = self.agent.sessions.find(&self.namespace, &self.name)?.process()?;
        process.status_page().is_secret(&secret).then_some(process)
    }
}

/// Returns the session's executor, and starts one if none runs.
async fn started(agent: &Arc<Agent>, session: Arc<Session>) -> Result<Arc<Process>, Refusal> {
    let agent = Arc::clone(agent);
    // A separate task completes the start even when the client disconnects meanwhile: otherwise nobody would own a half-started process.
    let starting = tasks::spawn(async move { agent.executor_of(&session).await });
    Ok(starting.await.map_err(|_| Refusal::ShuttingDown)??)
}

/// Returns whether the request asks to upgrade the connection to a session stream (RFC 9110 §7.8).
fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let lists = |name: header::HeaderName, wanted: &str| {
        let mut values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.any(|value| value.split(',').any(|word| word.trim().eq_ignore_ascii_case(wanted)))
    };
    lists(header::CONNECTION, "upgrade") && lists(header::UPGRADE, PROTOCOL)
}

/// Hands the connection over to the executor, with the client's first frame if the request had it. A connection that the executor does not
/// accept is closed; the client then reconnects.
async fn hand_over(upgrade: OnUpgrade, process: Arc<Process>, hello: Vec<u8>) {
    let upgraded = match upgrade.await {
        Ok(upgraded) => upgraded,
        Err(error) => return tracing::debug!(%error, "connection closed before the upgrade"),
    };
    let number = process.id();
    let handed = match downcast::<TokioIo<TcpStream>>(upgraded) {
        Ok(parts) => match descriptor(parts.io.into_inner()) {
            Ok(connection) => process.adopt(connection, after(hello, parts.read_buf)).await,
            Err(error) => Err(error),
        },
        Err(upgraded) => match downcast::<TokioIo<<Acceptor as Handshake>::Stream>>(upgraded) {
            Ok(parts) => relay::through_tls(parts.io.into_inner(), after(hello, parts.read_buf), process).await,
            Err(_) => Err(std::io::Error::other("invalid connection: expected a socket, or TLS on a socket")),
        },
    };
    if let Err(error) = handed {
        tracing::info!(process = number, %error, "failed to pass a stream to the session's executor");
    }
}

/// Returns the bytes that were read from the connection after those of the first frame.
fn after(mut hello: Vec<u8>, read: Bytes) -> Bytes {
    hello.extend_from_slice(&read);
    hello.into()
}

/// Returns the descriptor of the connection in blocking mode, because the executor reads it without an async runtime.
fn descriptor(stream: TcpStream) -> std::io::Result<OwnedFd> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_is_asked_for_by_both_headers_in_any_case_and_list() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            headers
        };
        assert!(asks_for_upgrade(&headers(&[("connection", "Upgrade"), ("upgrade", PROTOCOL)])));
        assert!(asks_for_upgrade(&headers(&[
            ("connection", "keep-alive, UPGRADE"),
            ("upgrade", "h2c, Sahasra-Session.v1")
        ])));
        assert!(!asks_for_upgrade(&headers(&[("connection", "upgrade"), ("upgrade", "websocket")])));
        assert!(!asks_for_upgrade(&headers(&[("connection", "close"), ("upgrade", PROTOCOL)])));
        assert!(!asks_for_upgrade(&headers(&[("upgrade", PROTOCOL)])));
    }
}
