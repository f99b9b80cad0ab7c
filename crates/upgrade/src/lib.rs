//! Client of a session's stream at its agent: an HTTP/1.1 request that upgrades a connection, after which the connection carries the bytes
//! of the stream alone (`docs/protocol.md`).
//!
//! The caller connects, with TLS or without.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures::future::{Either, select};
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use sahasra_wire::session::{HELLO_ACCEPTED, HELLO_HEADER, PROTOCOL, RESUME_ACCEPTED, RESUME_HEADER};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

/// Maximum size of a rejection, which is a sentence or a `metav1.Status`. The body of a larger one counts as empty.
const REJECTION_BYTES: usize = 64 << 10;
/// Timeout for the body of a rejection, which otherwise has none: a part of a JSON text says nothing.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Host of the agent, with its port, for the header `Host`.
    pub authority: &'a str,
    pub path: &'a str,
    pub authorization: Option<HeaderValue>,
    /// Secret of an earlier connection to the session, as the value of [`RESUME_HEADER`].
    pub resume: Option<HeaderValue>,
    /// The client's first frame, as the value of [`HELLO_HEADER`].
    pub hello: Option<HeaderValue>,
    /// Timeout for the head of the response.
    pub timeout: Duration,
}

#[derive(Debug)]
pub struct Upgraded<S> {
    pub stream: S,
    /// Bytes of the stream that were read together with the head of the response.
    pub read: Bytes,
    /// Whether the agent recognised the secret in [`Request::resume`].
    pub resumed: bool,
    /// Whether the agent took the frame in [`Request::hello`] as the first one of the stream.
    pub greeted: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    #[error("invalid request")]
    Request(#[from] http::Error),
    #[error("connection lost")]
    Connection(#[from] hyper::Error),
    #[error("rejected with status {status}")]
    Rejected { status: StatusCode, body: Bytes },
    #[error("no response in time")]
    Timeout,
    #[error("the peer does not support {PROTOCOL}")]
    Protocol,
}

/// Requests a stream on a connection to an agent. An error closes the connection.
pub async fn upgrade<S: AsyncRead + AsyncWrite + Unpin>(stream: S, request: Request<'_>) -> Result<Upgraded<S>, UpgradeError> {
    let (resumes, greets) = (request.resume.is_some(), request.hello.is_some());
    let within = request.timeout;
    let mut head = http::Request::get(request.path)
        .header(header::HOST, request.authority)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, PROTOCOL);
    let optional = [
        (header::AUTHORIZATION.as_str(), request.authorization),
        (RESUME_HEADER, request.resume),
        (HELLO_HEADER, request.hello),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            head = head.header(name, value);
        }
    }
    let head = head.body(Empty::<Bytes>::new())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let asking = async move {
        let response = timeout(within, sender.send_request(head)).await;
        let response = response.map_err(|_| UpgradeError::Timeout)??;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let body = rejection(response.into_body()).await;
            return Err(UpgradeError::Rejected { status, body });
        }
        let has = |name: &str, wanted: &str| response.headers().get(name).is_some_and(|value| value == wanted);
        if !has(header::UPGRADE.as_str(), PROTOCOL) {
            return Err(UpgradeError::Protocol);
        }
        Ok((
            resumes && has(RESUME_HEADER, RESUME_ACCEPTED),
            greets && has(HELLO_HEADER, HELLO_ACCEPTED),
        ))
    };
    // The connection must be polled for the request to make progress, and ends once it has been upgraded.
    let ((resumed, greeted), parts) = match select(pin!(asking), pin!(connection.without_shutdown())).await {
        Either::Left((accepted, connection)) => (accepted?, connection.await?),
        Either::Right((parts, asking)) => (asking.await?, parts?),
    };
    Ok(Upgraded {
        stream: parts.io.into_inner(),
        read: parts.read_buf,
        resumed,
        greeted,
    })
}

/// Reads the body of a rejection; empty if it is too large, its connection is lost, or it takes longer than [`REJECTION_TIMEOUT`].
async fn rejection(body: Incoming) -> Bytes {
    match timeout(REJECTION_TIMEOUT, Limited::new(body, REJECTION_BYTES).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) | Err(_) => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    const REQUEST: Request<'static> = Request {
        authority: "agent:8471",
        path: "/v1/namespaces/team/sessions/mine/stream",
        authorization: None,
        resume: None,
        hello: None,
        timeout: Duration::from_secs(20),
    };

    /// Requests a stream from a peer that gives `answer`. Returns the outcome, the head of the request, and the peer's end.
    async fn ask(request: Request<'_>, answer: &'static str) -> (Result<Upgraded<DuplexStream>, UpgradeError>, String, DuplexStream) {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let peer = async {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(far.read_u8().await.unwrap());
            }
            far.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(head).unwrap()
        };
        let (outcome, head) = tokio::join!(upgrade(near, request), peer);
        (outcome, head, far)
    }

    #[tokio::test]
    async fn the_bytes_after_the_head_belong_to_the_stream() {
        let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: sahasra-session.v1\r\n\r\nfirst";
        let (upgraded, head, mut far) = ask(REQUEST, answer).await;
        let mut upgraded = upgraded.unwrap();
        assert!(
            head.starts_with("GET /v1/namespaces/team/sessions/mine/stream HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains("host: agent:8471\r\n") && head.contains("upgrade: sahasra-session.v1\r\n"),
            "{head}"
        );
        assert_eq!((&upgraded.read[..], upgraded.resumed), (&b"first"[..], false));
        far.write_all(b"more").await.unwrap();
        let mut more = [0; 4];
        upgraded.stream.read_exact(&mut more).await.unwrap();
        upgraded.stream.write_all(b"back").await.unwrap();
        let mut back = [0; 4];
        far.read_exact(&mut back).await.unwrap();
        assert_eq!((&more, &back), (b"more", b"back"));
    }

    #[tokio::test]
    async fn a_stream_is_resumed_only_with_a_secret_that_the_agent_accepts() {
        let accepted = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: sahasra-session.v1\r\n\
                        sahasra-resume: accepted\r\n\r\n";
        let resume = Request {
            authorization: Some(HeaderValue::from_static("Bearer a")),
            resume: Some(HeaderValue::from_static("00ff")),
            ..REQUEST
        };
        let (upgraded, head, _far) = ask(resume, accepted).await;
        assert!(upgraded.unwrap().resumed);
        assert!(
            head.contains("sahasra-resume: 00ff\r\n") && head.contains("authorization: Bearer a\r\n"),
            "{head}"
        );
        let (upgraded, ..) = ask(REQUEST, accepted).await;
        assert!(!upgraded.unwrap().resumed);
    }

    #[tokio::test]
    async fn a_first_frame_is_sent_once_if_the_agent_accepts_it() {
        let accepted = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: sahasra-session.v1\r\n\
                        sahasra-hello: accepted\r\n\r\n";
        let hello = Request {
            hello: Some(HeaderValue::from_static("0a0b")),
            ..REQUEST
        };
        let (upgraded, head, _far) = ask(hello.clone(), accepted).await;
        assert!(upgraded.unwrap().greeted);
        assert!(head.contains("sahasra-hello: 0a0b\r\n"), "{head}");
        let older = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: sahasra-session.v1\r\n\r\n";
        for (request, answer) in [(hello, older), (REQUEST, accepted)] {
            let (upgraded, ..) = ask(request, answer).await;
            assert!(!upgraded.unwrap().greeted);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rejection_whose_body_stalls_keeps_its_status() {
        let answer = ask(REQUEST, "HTTP/1.1 403 Forbidden\r\ncontent-length: 30\r\n\r\nyou may");
        let (rejected, ..) = timeout(REQUEST.timeout, answer).await.expect("it does not wait for the rest");
        assert!(matches!(rejected, Err(UpgradeError::Rejected { status: StatusCode::FORBIDDEN, body }) if body.is_empty()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_answer_is_an_error() {
        let (silent, ..) = ask(REQUEST, "").await;
        assert!(matches!(silent, Err(UpgradeError::Timeout)));
    }

    #[tokio::test]
    async fn a_peer_that_opens_no_stream_is_an_error() {
        let (rejected, ..) = ask(REQUEST, "HTTP/1.1 403 Forbidden\r\ncontent-length: 3\r\n\r\nno\n").await;
        assert!(matches!(rejected, Err(UpgradeError::Rejected { status: StatusCode::FORBIDDEN, body }) if body == "no\n"));
        let (other, ..) = ask(
            REQUEST,
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        )
        .await;
        assert!(matches!(other, Err(UpgradeError::Protocol)));
        let (garbled, ..) = ask(REQUEST, "SSH-2.0\r\n\r\n").await;
        assert!(matches!(garbled, Err(UpgradeError::Connection(_))));
    }
}
