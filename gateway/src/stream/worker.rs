//! Connection to the worker of a session: an HTTP/1.1 Upgrade at its agent with the client's token, after which the connection carries bytes
//! alone.

use std::{io, time::Duration};

use http::{StatusCode, Uri};
use sahasra_service::{
    causes,
    tls::{Connector, TlsFault, fault},
};
use sahasra_upgrade::{Request, UpgradeError, Upgraded, upgrade};
use sahasra_wire::session::{PROTOCOL, keepalive::Keepalive};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::websocket::Opening;
use crate::{refusal::Refusal, route::Object, token::Token};

/// Connect timeout: a worker inside the cluster answers a SYN at once or not at all.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Timeout of the agent's answer. The agent checks the caller with the API server, and may have to start an executor.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

pub(super) type Connection = Either<TcpStream, Box<TlsStream<TcpStream>>>;
pub(super) type Worker = Upgraded<Connection>;

/// Opens the stream of a session at its agent; `connector` is for agents that speak TLS. Fails with the agent's own rejection if the caller
/// can act on it, with status 502 or 504 otherwise.
pub(super) async fn connect(
    connector: Option<&Connector>,
    endpoint: &str,
    session: &Object,
    token: &Token,
    opening: &Opening,
) -> Result<Worker, Refusal> {
    let failed = |code, problem: String| Refusal::Worker {
        code,
        problem: format!("the worker at {endpoint} {problem}"),
    };
    let broken = |problem| failed(StatusCode::BAD_GATEWAY, problem);
    let late = |problem| failed(StatusCode::GATEWAY_TIMEOUT, problem);
    let uri: Uri = endpoint.parse().map_err(|_| broken("has an invalid URL".to_owned()))?;
    let (port, tls) = match (uri.scheme_str(), connector) {
        (Some("http"), _) => (80, None),
        (Some("https"), Some(connector)) => (443, Some(connector)),
        (Some("https"), None) => return Err(broken(NO_AUTHORITY.to_owned())),
        _ => {
            return Err(broken(
                "has a URL of an unsupported scheme: expected http:// or https://".to_owned(),
            ));
        }
    };
    let authority = uri.authority().ok_or_else(|| broken("has a URL without a host".to_owned()))?;
    let connecting = TcpStream::connect((authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(port)));
    let connection = match timeout(CONNECT_WITHIN, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(Refusal::WorkerUnreachable {
                problem: format!("the worker at {endpoint} refused the connection: it has ended, and its sessions with it"),
            });
        }
        Ok(Err(error)) => {
            return Err(broken(format!(
                "is unreachable ({error}): the session's conditions say whether it is lost"
            )));
        }
        Err(_) => return Err(late("timed out: the session's conditions say whether it is lost".to_owned())),
    };
    let watched = connection.set_nodelay(true).and_then(|()| Keepalive::CLUSTER.watch(&connection));
    watched.map_err(|error| broken(format!("closed the connection ({error})")))?;
    let connection: Connection = match tls {
        None => Either::Left(connection),
        Some(connector) => match timeout(CONNECT_WITHIN, connector.connect(authority.host(), connection)).await {
            Ok(Ok(connection)) => Either::Right(Box::new(connection)),
            Ok(Err(error)) => return Err(broken(untrusted(&error))),
            Err(_) => {
                return Err(broken(format!(
                    "timed out in the TLS handshake after {} s",
                    CONNECT_WITHIN.as_secs()
                )));
            }
        },
    };
    let path = sahasra_wire::path::stream(&session.namespace, &session.name);
    let request = Request {
        authority: authority.as_str(),
        path: &path,
        authorization: Some(token.header()),
        resume: opening.resume.clone(),
        hello: opening.hello.clone(),
        timeout: ANSWER_WITHIN,
    };
    match upgrade(connection, request).await {
        Ok(worker) => Ok(worker),
        Err(UpgradeError::Rejected { status, body }) => Err(refusal(endpoint, status, &body)),
        Err(UpgradeError::Protocol) => Err(broken(format!("does not support {PROTOCOL}"))),
        Err(UpgradeError::Timeout) => Err(late(format!("timed out after {} s", ANSWER_WITHIN.as_secs()))),
        Err(error) => Err(broken(format!("closed the connection ({})", causes(&error)))),
    }
}

/// Problem of a worker that speaks TLS when no certificate authority is configured.
const NO_AUTHORITY: &str = "uses TLS, but no CA is set to verify its certificate: start this gateway with --worker-ca-file FILE, the CA \
                            that signed it";

/// Describes why a TLS handshake failed, and the remedy.
fn untrusted(error: &io::Error) -> String {
    match fault(error) {
        Some(TlsFault::Name(problem)) => {
            format!(
                "has a certificate for another name ({problem}): start this gateway with --worker-server-name NAME, a name in the certificate"
            )
        }
        Some(TlsFault::Certificate(problem)) => {
            format!("has a certificate that is not trusted ({problem}): set --worker-ca-file to the CA that signed it")
        }
        Some(problem) => format!("failed the TLS handshake ({problem})"),
        None => format!("closed the connection during the TLS handshake ({error})"),
    }
}

/// Converts an answer of the agent other than 101 into a rejection.
fn refusal(endpoint: &str, code: StatusCode, body: &[u8]) -> Refusal {
    let sentence = sentence(body);
    match code {
        StatusCode::UNAUTHORIZED => Refusal::Unauthorized(sentence),
        StatusCode::FORBIDDEN => Refusal::Forbidden(sentence),
        StatusCode::NOT_FOUND
        | StatusCode::CONFLICT
        | StatusCode::GONE
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE => Refusal::Worker { code, problem: sentence },
        other => Refusal::Worker {
            code: StatusCode::BAD_GATEWAY,
            problem: format!("the worker at {endpoint} responded with {other}: {sentence}"),
        },
    }
}

/// Returns the message of a `Status`, or the text itself, without control characters.
fn sentence(body: &[u8]) -> String {
    let status: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = status.as_ref().and_then(|status| status["message"].as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    let text: String = text.trim().chars().filter(|character| !character.is_control()).collect();
    if text.is_empty() {
        "the worker gave no reason".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_rejection_keeps_its_message() {
        assert_eq!(sentence(b"no such session here\n"), "no such session here");
        assert_eq!(sentence(br#"{"kind": "Status", "message": "you may not"}"#), "you may not");
        assert_eq!(sentence(b"\x1b[31mred"), "[31mred");
        assert_eq!(sentence(b""), "the worker gave no reason");
    }
}
