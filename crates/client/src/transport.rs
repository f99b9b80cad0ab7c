//! Connections that carry the session stream: an upgraded HTTP/1.1 connection to the worker, or a WebSocket through a gateway, each with or
//! without TLS.

use std::{
    collections::VecDeque,
    fs,
    io::{self, IoSlice},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt, future::ready, stream::SplitSink};
use http::{HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use rustls::{CertificateError, ClientConfig, RootCertStore, pki_types::ServerName};
use sahasra_memory::Filling;
use sahasra_upgrade::UpgradeError;
use sahasra_wire::session::{HELLO_ACCEPTED, HELLO_HEADER, PROTOCOL, RESUME_HEADER, hex_value, keepalive::Keepalive};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Join},
    net::{TcpStream, tcp::OwnedWriteHalf},
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, Message, client::IntoClientRequest, protocol::WebSocketConfig},
};
use tokio_util::io::{InspectReader, StreamReader};
use url::Url;

use crate::{
    Error,
    credentials::{Token, is_here},
};

mod tcp;

use self::tcp::Polled;

/// Timeout for establishing a connection, including TLS and the upgrade.
const CONNECT: Duration = Duration::from_secs(10);
/// Number of pieces per system call. Linux accepts 1,024.
const GATHERED: usize = 64;
/// Maximum length of a sent WebSocket message in bytes. A gateway accepts at most 16 MiB and holds each message in memory until it is
/// complete.
const MESSAGE_BYTES: usize = 1 << 20;

/// Time at which bytes last arrived on a connection, be it data of the stream or only a pong; before that, the time of its creation.
#[derive(Debug)]
pub(crate) struct Pulse(Mutex<std::time::Instant>);

impl Pulse {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(std::time::Instant::now())))
    }

    pub(crate) fn last_received(&self) -> std::time::Instant {
        *self.0.lock()
    }
}

pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub url: Url,
    tls: Option<Arc<ClientConfig>>,
    /// Name for which the peer's certificate must be valid. `None`: the host of the URL.
    server_name: Option<ServerName<'static>>,
}

impl Peer {
    /// An `https` peer is verified with the CA certificates in `authorities_pem`, or with those of the system if there are none.
    pub(crate) fn new(url: &str, authorities_pem: Option<&str>) -> Result<Self, Error> {
        let url = gateway_url(url)?;
        let tls = match url.scheme() {
            "https" => Some(Arc::new(tls_config(authorities_pem)?)),
            _ => None,
        };
        Ok(Self {
            url,
            tls,
            server_name: None,
        })
    }

    pub(crate) fn named(mut self, name: &str) -> Result<Self, Error> {
        let parsed = ServerName::try_from(name.to_owned());
        self.server_name = Some(parsed.map_err(|error| Error::Configuration(format!("invalid server name {name:?}: {error}")))?);
        Ok(self)
    }

    /// Whether what is sent to the peer leaves this machine unencrypted.
    pub(crate) fn is_exposed(&self) -> bool {
        self.tls.is_none() && !is_here(&self.url)
    }

    fn host(&self) -> &str {
        // [`Url::host_str`] encloses an IPv6 address in brackets.
        self.url
            .host_str()
            .unwrap_or_default()
            .trim_start_matches('[')
            .trim_end_matches(']')
    }

    /// Returns the host, with the port if the URL has one, for messages and for the `Host` header.
    pub(crate) fn authority(&self) -> String {
        match self.url.port() {
            Some(port) => format!("{}:{port}", self.url.host_str().unwrap_or_default()),
            None => self.url.host_str().unwrap_or_default().to_owned(),
        }
    }

    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.url.path().trim_end_matches('/'))
    }

    async fn tcp(&self) -> io::Result<Join<Polled, OwnedWriteHalf>> {
        let port = self.url.port_or_known_default().unwrap_or(80);
        let stream = TcpStream::connect((self.host(), port)).await?;
        stream.set_nodelay(true)?;
        // Keepalive is optional: a system may lack these socket options.
        let _ = Keepalive::CLIENT.watch(&stream);
        let (read, write) = stream.into_split();
        Ok(tokio::io::join(Polled(read), write))
    }

    pub(crate) async fn connect(&self) -> Result<Box<dyn Io>, Error> {
        let authority = self.authority();
        let failed = |source| Error::unreachable(authority.clone(), source);
        let stream = self.tcp().await.map_err(failed)?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(self.host().to_owned())
                .map_err(|error| Error::Configuration(format!("failed to verify {}: {error}", self.host())))?,
        };
        match TlsConnector::from(tls.clone()).connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(untrusted(&authority, &error).unwrap_or_else(|| failed(error))),
        }
    }
}

/// Returns an error with a remedy if the TLS handshake failed because of the peer's certificate.
fn untrusted(authority: &str, error: &io::Error) -> Option<Error> {
    let rustls::Error::InvalidCertificate(problem) = error.get_ref()?.downcast_ref::<rustls::Error>()? else {
        return None;
    };
    let remedy = match problem {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "set server_name to a name in the certificate"
        }
        _ => "set authority, SAHASRA_CA_FILE or --ca-file to the certificate of the CA that signed it",
    };
    Some(Error::Configuration(format!(
        "the certificate of {authority} is not accepted: {problem}; {remedy}"
    )))
}

/// Parses the URL of a gateway or of a worker. Fails with [`Error::Configuration`] unless its scheme is `http` or `https` and it has a host.
pub fn gateway_url(url: &str) -> Result<Url, Error> {
    let wrong = |why: String| Error::Configuration(format!("invalid URL {url}: {why}"));
    if !url.contains("://") {
        return Err(wrong(format!("expected http:// or https://, as in http://{url}")));
    }
    let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
    if parsed.host_str().is_none() {
        return Err(wrong("expected a host".to_owned()));
    }
    match parsed.scheme() {
        "http" | "https" => Ok(parsed),
        other => Err(wrong(format!("scheme {other} is neither http nor https"))),
    }
}

/// Checks that a text has CA certificates in PEM format. Fails with [`Error::Configuration`] if it has none.
pub fn check_authorities(pem: &str) -> Result<(), Error> {
    roots(pem).map(|_| ())
}

/// Reads a file with CA certificates in PEM format. Fails with [`Error::Configuration`] if it cannot be read, or has none.
pub fn read_authorities(path: &Path) -> Result<String, Error> {
    let read = fs::read_to_string(path).map_err(|error| Error::Configuration(format!("failed to read the file: {error}")));
    read.and_then(|pem| check_authorities(&pem).map(|()| pem))
}

/// The CA certificates in a text in PEM format, at least one.
fn roots(pem: &str) -> Result<RootCertStore, Error> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| Error::Configuration(format!("failed to read the CA certificate: {error}")))?;
        roots
            .add(certificate)
            .map_err(|error| Error::Configuration(format!("invalid CA certificate: {error}")))?;
    }
    if roots.is_empty() {
        return Err(Error::Configuration("no CA certificate in PEM format".to_owned()));
    }
    Ok(roots)
}

fn tls_config(authorities_pem: Option<&str>) -> Result<ClientConfig, Error> {
    let roots = match authorities_pem {
        Some(pem) => roots(pem)?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    if roots.is_empty() {
        return Err(Error::Configuration("no CA certificate to verify the peer".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Configuration(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// HTTP/1.1 upgrade at the worker.
    Direct,
    /// WebSocket through a gateway.
    WebSocket,
}

pub(crate) struct Reader(Box<dyn AsyncRead + Send + Unpin>);

pub(crate) enum Writer {
    Bytes(Box<dyn AsyncWrite + Send + Unpin>),
    WebSocket(SplitSink<WebSocketStream<Box<dyn Io>>, Message>),
}

/// An open stream of a session.
pub(crate) struct Opened {
    pub reader: Reader,
    pub writer: Writer,
    /// Whether the peer took the client's first frame from the request.
    pub greeted: bool,
}

/// Headers of the request for a stream.
struct Headers {
    authorization: Option<HeaderValue>,
    resume: Option<HeaderValue>,
    hello: Option<HeaderValue>,
}

/// Opens the stream of a session. `resume` is the secret from the broken connection, or empty; `hello` is the client's first frame. Received
/// bytes are recorded in `pulse`.
pub(crate) async fn open(
    peer: &Peer,
    route: &Route,
    token: &Token,
    path: &str,
    (resume, hello): (&[u8], &[u8]),
    pulse: &Arc<Pulse>,
) -> Result<Opened, Error> {
    let resume = (!resume.is_empty()).then(|| header_value(hex_value(resume)));
    let headers = Headers {
        authorization: token.bearer()?,
        resume: resume.transpose()?,
        hello: Some(header_value(hex_value(hello))?),
    };
    let deadline = Instant::now() + CONNECT;
    let late = |_| Error::unreachable(peer.authority(), io::ErrorKind::TimedOut.into());
    let stream = timeout_at(deadline, peer.connect()).await.map_err(late)??;
    let pulse = pulse.clone();
    let stream: Box<dyn Io> = Box::new(InspectReader::new(stream, move |read| {
        if !read.is_empty() {
            *pulse.0.lock() = std::time::Instant::now();
        }
    }));
    match route {
        Route::Direct => direct(peer, stream, path, headers, deadline).await,
        Route::WebSocket => {
            let opening = web_socket(peer, stream, path, headers);
            timeout_at(deadline, opening).await.map_err(late)?
        }
    }
}

async fn direct(peer: &Peer, stream: Box<dyn Io>, path: &str, headers: Headers, deadline: Instant) -> Result<Opened, Error> {
    let authority = peer.authority();
    let request = sahasra_upgrade::Request {
        authority: &authority,
        path: &peer.path(path),
        authorization: headers.authorization,
        resume: headers.resume,
        hello: headers.hello,
        timeout: deadline.saturating_duration_since(Instant::now()),
    };
    let upgraded = sahasra_upgrade::upgrade(stream, request).await.map_err(|error| match error {
        UpgradeError::Request(error) => Error::Configuration(error.to_string()),
        UpgradeError::Rejected { status, body } => Error::http(status, &body),
        UpgradeError::Connection(error) => Error::unreachable(authority.clone(), io::Error::other(error)),
        UpgradeError::Timeout => Error::unreachable(authority.clone(), io::ErrorKind::TimedOut.into()),
        error @ UpgradeError::Protocol => Error::unreachable(authority.clone(), io::Error::other(error)),
    })?;
    let (read, write) = tokio::io::split(upgraded.stream);
    let read = AsyncReadExt::chain(io::Cursor::new(upgraded.read), read);
    Ok(Opened {
        reader: Reader(Box::new(read)),
        writer: Writer::Bytes(Box::new(write)),
        greeted: upgraded.greeted,
    })
}

fn header_value(text: String) -> Result<HeaderValue, Error> {
    HeaderValue::try_from(text).map_err(|error| Error::Configuration(error.to_string()))
}

async fn web_socket(peer: &Peer, stream: Box<dyn Io>, path: &str, sent: Headers) -> Result<Opened, Error> {
    let scheme = if peer.url.scheme() == "https" { "wss" } else { "ws" };
    let request = format!("{scheme}://{}{}", peer.authority(), peer.path(path)).into_client_request();
    let mut request = request.map_err(|error| Error::Configuration(error.to_string()))?;
    let headers = request.headers_mut();
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    let optional = [
        (header::AUTHORIZATION, sent.authorization),
        (HeaderName::from_static(RESUME_HEADER), sent.resume),
        (HeaderName::from_static(HELLO_HEADER), sent.hello),
    ];
    headers.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let config = WebSocketConfig::default()
        .max_message_size(Some(128 << 20))
        .max_frame_size(Some(128 << 20))
        .write_buffer_size(0)
        .read_buffer_size(256 << 10);
    match tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await {
        Ok((stream, response)) => {
            let (write, read) = stream.split();
            let read = StreamReader::new(read.filter_map(|message| ready(data(message))));
            Ok(Opened {
                reader: Reader(Box::new(read)),
                writer: Writer::WebSocket(write),
                greeted: response.headers().get(HELLO_HEADER).is_some_and(|value| value == HELLO_ACCEPTED),
            })
        }
        Err(tungstenite::Error::Http(response)) => {
            let status = response.status();
            Err(Error::http(status, response.body().as_deref().unwrap_or_default()))
        }
        Err(error) => Err(Error::unreachable(peer.authority(), broken(error))),
    }
}

impl Reader {
    /// Appends the next bytes, at least one and about `most` at most.
    pub(crate) async fn read(&mut self, into: &mut BytesMut, most: usize) -> io::Result<()> {
        into.reserve(most);
        match (&mut self.0).take(most as u64).read_buf(into).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Appends exactly `bytes` bytes, for which `into` must have room.
    pub(crate) async fn fill(&mut self, into: &mut Filling, bytes: usize) -> io::Result<()> {
        let mut limited = (&mut self.0).take(bytes as u64);
        while limited.limit() > 0 {
            if limited.read_buf(into).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// Returns the data of a message, or `None` for a message without data.
fn data(message: Result<Message, tungstenite::Error>) -> Option<io::Result<Bytes>> {
    match message {
        Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
        Ok(Message::Close(Some(close))) => Some(Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            format!("the gateway closed the connection ({}): {}", u16::from(close.code), close.reason),
        ))),
        Ok(Message::Text(_)) => Some(Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected text message"))),
        Ok(_) => None,
        Err(error) => Some(Err(broken(error))),
    }
}

fn broken(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        error => io::Error::other(error),
    }
}

impl Writer {
    pub(crate) async fn write(&mut self, pieces: &mut VecDeque<Bytes>) -> io::Result<()> {
        match self {
            Self::Bytes(stream) => {
                let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                let mut unwritten = slices.as_mut_slice();
                while !unwritten.is_empty() {
                    match stream.write_vectored(&unwritten[..unwritten.len().min(GATHERED)]).await? {
                        0 => return Err(io::ErrorKind::WriteZero.into()),
                        written => IoSlice::advance_slices(&mut unwritten, written),
                    }
                }
                pieces.clear();
                stream.flush().await
            }
            Self::WebSocket(sink) => {
                while let Some(mut piece) = pieces.pop_front() {
                    while piece.len() > MESSAGE_BYTES {
                        let message = Message::Binary(piece.split_to(MESSAGE_BYTES));
                        sink.feed(message).await.map_err(broken)?;
                    }
                    sink.feed(Message::Binary(piece)).await.map_err(broken)?;
                }
                sink.flush().await.map_err(broken)
            }
        }
    }

    /// Pings the peer of a WebSocket. Does nothing on other connections, which rely on TCP keepalive.
    pub(crate) async fn ping(&mut self) -> io::Result<()> {
        match self {
            Self::Bytes(_) => Ok(()),
            Self::WebSocket(sink) => sink.send(Message::Ping(Bytes::new())).await.map_err(io::Error::other),
        }
    }

    /// Closes the connection. For a WebSocket, this sends a close frame.
    pub(crate) async fn close(&mut self) {
        // Errors do not matter, because the connection is closed in any case.
        let _ = match self {
            Self::Bytes(stream) => stream.shutdown().await,
            Self::WebSocket(sink) => sink.close().await.map_err(io::Error::other),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lost_peer_is_detected_although_data_is_in_flight() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = Peer::new(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
        let stream = peer.tcp().await.unwrap();
        assert_eq!(rustix::net::sockopt::tcp_user_timeout(stream.writer().as_ref()).unwrap(), 60_000);
    }

    #[test]
    fn an_unusable_address_is_reported_with_the_remedy() {
        let told = |url: &str| Peer::new(url, None).unwrap_err().to_string();
        for bare in ["127.0.0.1:8000", "localhost:8000", "gateway"] {
            assert!(told(bare).contains(&format!("as in http://{bare}")), "{}", told(bare));
        }
        assert!(told("ftp://gateway").contains("neither http nor https"));
        assert!(told("http://").contains("host"));
        assert!(Peer::new("http://127.0.0.1:8000/", None).is_ok());
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let told = || read_authorities(&path).unwrap_err().to_string();
        assert!(told().contains("failed to read the file"), "{}", told());
        fs::write(&path, "nothing").unwrap();
        assert!(told().contains("no CA certificate in PEM format"), "{}", told());
        fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        assert!(told().contains("invalid CA certificate"), "{}", told());
    }
}
