//! The transport of calls and streams to agents: the trait [`Transport`], and [`Http2`], its implementation over the network.

use std::{
    convert::Infallible,
    fmt::Debug,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{
    StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use http::{HeaderValue, Method, Request, StatusCode, Uri, uri::Scheme};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream, ResolveServerName};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::pki_types::ServerName;
use sahasra_service::{
    causes,
    tls::{Connector, fault},
};
use sahasra_wire::{
    CONTENT_TYPE, MAX_ANSWER_BYTES,
    burst::{ClientFrame, ServerFrame},
    frame, path,
};
use tokio::net::TcpStream;
use tower_service::Service;

use super::error::{AgentError, StreamError};

/// Timeout of connecting to an agent. On a cluster's network, a connection that takes longer never succeeds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of bytes of a rejection's body that are reported.
const REJECTION_BYTES: usize = 256;

/// Frames that an agent sends on a stream, in order, until the stream ends or breaks.
pub type Incomings = BoxStream<'static, Result<ServerFrame, StreamError>>;

/// Carries messages between the operator and the agents.
pub trait Transport: Debug + Send + Sync {
    /// Calls `path` with an encoded message and returns the encoded response. Has no timeout of its own.
    fn call<'a>(&'a self, endpoint: &'a str, path: &'static str, message: Bytes) -> BoxFuture<'a, Result<Bytes, AgentError>>;

    /// Opens a burst stream, which sends `frames` in order for as long as the returned stream of incoming frames is not dropped. Resolves
    /// once the agent has accepted the stream.
    fn stream<'a>(&'a self, endpoint: &'a str, frames: BoxStream<'static, ClientFrame>) -> BoxFuture<'a, Result<Incomings, StreamError>>;
}

type Body = UnsyncBoxBody<Bytes, Infallible>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Transport over HTTP/2, with prior knowledge or by ALPN. Each agent has one connection for calls and one for streams: a connection
/// carries only as many concurrent requests as the agent allows, and all of them share its flow control. On a shared connection, many
/// streams, or one stream whose results are not read, could delay a renewal, and all grants of that agent would expire.
#[derive(Clone, Debug)]
pub struct Http2 {
    calls: Client<Agents, Body>,
    streams: Client<Agents, Body>,
    /// Whether the certificates of agents can be verified.
    has_authority: bool,
    authorization: Option<HeaderValue>,
}

impl Default for Http2 {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Http2 {
    /// Creates a transport that uses `tls` for agents with an `https` endpoint. Without `tls`, calls to these agents fail.
    pub fn new(tls: Option<Connector>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let has_authority = tls.is_some();
        let agents = Agents { tcp: connector, tls };
        // A client uses one connection for all its requests to an agent.
        let client = || {
            Client::builder(TokioExecutor::new())
                .http2_only(true)
                .timer(TokioTimer::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(Duration::from_secs(300))
                .http2_initial_stream_window_size(1 << 20)
                .http2_initial_connection_window_size(8 << 20)
                // Detects within ten seconds that an agent has vanished without closing the connection, if any request to it is open.
                .http2_keep_alive_interval(Duration::from_secs(5))
                .http2_keep_alive_timeout(Duration::from_secs(5))
                .build(agents.clone())
        };
        Self {
            calls: client(),
            streams: client(),
            has_authority,
            authorization: None,
        }
    }

    /// Sends `token` as the bearer token of every request. For agents that run in the same process as the operator.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.authorization = HeaderValue::from_str(&format!("Bearer {token}")).ok().map(|mut header| {
            header.set_sensitive(true);
            header
        });
        self
    }

    /// Sends a request. Returns the body of a response with status 200.
    async fn request(&self, http: &Client<Agents, Body>, endpoint: &str, path: &str, body: Body) -> Result<Incoming, AgentError> {
        let method = match path {
            path::INVENTORY | path::LOAD => Method::GET,
            _ => Method::POST,
        };
        let mut request = Request::builder();
        if let Some(authorization) = &self.authorization {
            request = request.header(http::header::AUTHORIZATION, authorization);
        }
        let request = request
            .method(method)
            .uri(format!("{}{path}", endpoint.trim_end_matches('/')))
            .header(http::header::CONTENT_TYPE, CONTENT_TYPE)
            .body(body)
            .map_err(|_| AgentError::Endpoint(endpoint.to_owned()))?;
        if request.uri().scheme() == Some(&Scheme::HTTPS) && !self.has_authority {
            return Err(AgentError::NoAuthority);
        }
        let response = http.request(request).await.map_err(|error| match fault(&error) {
            Some(fault) => AgentError::Tls(fault),
            None => AgentError::Unreachable(error.into()),
        })?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response.into_body());
        }
        let text = beginning(response.into_body()).await;
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => AgentError::Forbidden(text),
            _ => AgentError::Status(status, text),
        })
    }
}

/// Connects to agents, through TLS if their URL is `https`. Each connection uses the certificates that are current when it is opened.
#[derive(Clone, Debug)]
struct Agents {
    tcp: HttpConnector,
    tls: Option<Connector>,
}

/// Resolves server names as [`Connector`] does.
struct Names(Connector);

impl ResolveServerName for Names {
    fn resolve(&self, uri: &Uri) -> Result<ServerName<'static>, BoxError> {
        Ok(self.0.server_name(uri.host().unwrap_or_default())?)
    }
}

impl Service<Uri> for Agents {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Some(tls) = self.tls.as_ref().filter(|_| uri.scheme() == Some(&Scheme::HTTPS)) else {
            let connecting = self.tcp.call(uri);
            return Box::pin(async move { Ok(MaybeHttpsStream::Http(connecting.await?)) });
        };
        let mut tcp = self.tcp.clone();
        tcp.enforce_http(false);
        HttpsConnector::new(tcp, tls.config(), true, Arc::new(Names(tls.clone()))).call(uri)
    }
}

impl Transport for Http2 {
    fn call<'a>(&'a self, endpoint: &'a str, path: &'static str, message: Bytes) -> BoxFuture<'a, Result<Bytes, AgentError>> {
        Box::pin(async move {
            let body = self.request(&self.calls, endpoint, path, Full::new(message).boxed_unsync()).await?;
            whole(body).await.map_err(AgentError::Body)
        })
    }

    fn stream<'a>(&'a self, endpoint: &'a str, frames: BoxStream<'static, ClientFrame>) -> BoxFuture<'a, Result<Incomings, StreamError>> {
        Box::pin(async move {
            let frames = frames.flat_map(|frame| stream::iter(frame::pieces(&frame)).map(|piece| Ok(Frame::data(piece))));
            let body = StreamBody::new(frames).boxed_unsync();
            let incoming = self.request(&self.streams, endpoint, path::BURSTS, body).await?;
            let state = (incoming, frame::Decoder::default());
            let frames = stream::unfold(state, |(mut incoming, mut decoder)| async move {
                let next = read(&mut incoming, &mut decoder).await.transpose()?;
                Some((next, (incoming, decoder)))
            });
            Ok(frames.boxed())
        })
    }
}

/// Reads the next frame of a response body; `None` at the end of the body.
async fn read(incoming: &mut Incoming, decoder: &mut frame::Decoder) -> Result<Option<ServerFrame>, StreamError> {
    loop {
        if let Some(message) = decoder.next_message::<ServerFrame>()? {
            return Ok(Some(message));
        }
        let Some(part) = incoming.frame().await else { return Ok(None) };
        let part = part.map_err(|error| StreamError::Cut(error.into()))?;
        if let Ok(data) = part.into_data() {
            decoder.extend(data);
        }
    }
}

/// Reads a response body of at most [`MAX_ANSWER_BYTES`].
async fn whole(body: Incoming) -> Result<Bytes, BoxError> {
    Ok(Limited::new(body, MAX_ANSWER_BYTES).collect().await?.to_bytes())
}

/// Reads the beginning of a rejection's body, and why the rest could not be read.
async fn beginning(mut body: Incoming) -> String {
    let (mut read, mut fault) = (Vec::new(), String::new());
    while read.len() < REJECTION_BYTES
        && let Some(frame) = body.frame().await
    {
        match frame {
            Ok(frame) => read.extend_from_slice(frame.data_ref().map_or(&[], Bytes::as_ref)),
            Err(error) => {
                fault = format!(" (failed to read the body: {})", causes(&error));
                break;
            }
        }
    }
    read.truncate(REJECTION_BYTES);
    format!("{}{fault}", String::from_utf8_lossy(&read).trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::AgentClient;
    use http::Response;
    use sahasra_service::server::{self, Cleartext, Limits};
    use sahasra_wire::{Message, inventory::Inventory};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    /// An agent whose streams never end.
    #[derive(Clone)]
    struct Agent;

    /// An agent that rejects every request with this body, which breaks soon after it if it is `true`.
    #[derive(Clone)]
    struct Rejecting(Vec<u8>, bool);

    impl Service<Request<Incoming>> for Rejecting {
        type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Incoming>) -> Self::Future {
            // The status and the text are sent before the fault.
            let fault = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err("a fault of the agent".into())
            };
            let text = stream::iter([Ok(Frame::data(self.0.clone().into()))]);
            let faults = stream::once(fault).take(usize::from(self.1));
            let mut response = Response::new(StreamBody::new(text.chain(faults)).boxed_unsync());
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            std::future::ready(Ok(response))
        }
    }

    #[tokio::test]
    async fn a_rejection_has_the_beginning_of_its_body_or_why_it_was_not_read() {
        for (body, is_broken, wanted) in [
            (b" full \n".to_vec(), false, "full".to_owned()),
            (vec![b'a'; 20 << 20], false, "a".repeat(256)),
            (b"fu".to_vec(), true, "fu (failed to read the body: error reading a body".to_owned()),
            (Vec::new(), true, "(failed to read the body: error reading a body".to_owned()),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint = format!("http://{}", listener.local_addr().unwrap());
            let (agent, stop) = (Rejecting(body, is_broken), CancellationToken::new());
            let server = tokio::spawn(server::serve(listener, Cleartext, agent, Limits::default(), stop.clone()));
            let transport = Http2::default();
            let call = transport.call(&endpoint, path::INVENTORY, Bytes::new()).await.unwrap_err();
            let stream = transport
                .stream(&endpoint, stream::pending().boxed())
                .await
                .err()
                .expect("rejected");
            for error in [call, AgentError::Unreachable(stream.into())] {
                let said = causes(&error);
                assert!(said.contains("503") && said.contains(&wanted), "{said}");
            }
            stop.cancel();
            drop(server);
        }
    }

    impl Service<Request<Incoming>> for Agent {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Incoming>) -> Self::Future {
            let body = match request.uri().path() {
                path::BURSTS => StreamBody::new(stream::pending()).boxed_unsync(),
                _ => Full::new(Bytes::from(Inventory::default().encode_to_vec())).boxed_unsync(),
            };
            std::future::ready(Ok(Response::new(body)))
        }
    }

    #[tokio::test]
    async fn calls_succeed_with_more_streams_than_a_connection_carries() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let limits = Limits {
            streams: 256,
            ..Limits::default()
        };
        let server = tokio::spawn(server::serve(listener, Cleartext, Agent, limits, stop.clone()));
        let transport = Arc::new(Http2::default());
        // Opens a stream, and returns it with the sender of its outgoing frames.
        let open = || {
            let (transport, endpoint) = (Arc::clone(&transport), endpoint.clone());
            let (frames, outgoing) = futures::channel::mpsc::unbounded::<ClientFrame>();
            async move { Ok::<_, StreamError>((transport.stream(&endpoint, outgoing.boxed()).await?, frames)) }
        };
        let streams = futures::future::try_join_all((0..256).map(|_| open())).await.unwrap();
        let waiting = tokio::spawn(open());
        let client = AgentClient::over(transport);
        for _ in 0..3 {
            client.inventory(&endpoint).await.unwrap();
        }
        assert!(!waiting.is_finished(), "the 257th stream waits for another to end");
        drop(streams);
        drop(waiting.await.unwrap().unwrap());
        stop.cancel();
        drop(server);
    }
}
