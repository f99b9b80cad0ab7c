//! HTTP server: accept loop, limits and graceful shutdown.

use std::{collections::HashMap, convert::Infallible, io, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::causes;

/// Interval of HTTP/2 pings, and timeout of their answers. A peer that vanished is detected within both together.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Limits of a server. The defaults suit both the operator and the agent.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of simultaneous connections. Further connections wait in the listen queue.
    pub connections: usize,
    /// Maximum number of simultaneous connections of one address. Further connections are closed.
    pub connections_per_address: usize,
    /// Maximum number of simultaneous requests on one HTTP/2 connection. Further requests wait at the client.
    pub streams: u32,
    /// Timeout of the TLS handshake, of the first request, and of the head of an HTTP/1.1 request. A slower client is disconnected.
    pub header_timeout: Duration,
    /// Maximum duration of open requests after the shutdown has begun.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_address: 1024,
            streams: 256,
            header_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// Turns an accepted TCP connection into the stream for HTTP: unchanged, or by a TLS handshake.
pub trait Handshake: Clone + Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Performs the handshake. An error closes this connection only.
    fn handshake(&self, stream: TcpStream) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Whether the client presented a certificate that was verified. Requests of such a client have the extension [`Certified`].
    fn is_certified(_stream: &Self::Stream) -> bool {
        false
    }
}

/// Request extension: the client presented a certificate of the authority that the server is configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certified;

/// No TLS: for loopback and for networks that policies isolate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cleartext;

impl Handshake for Cleartext {
    type Stream = TcpStream;
    async fn handshake(&self, stream: TcpStream) -> io::Result<TcpStream> {
        Ok(stream)
    }
}

/// Numbers of open connections by address.
#[derive(Clone, Debug, Default)]
struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection of an address, which counts until this is dropped.
struct Counted {
    addresses: Addresses,
    address: IpAddr,
}

impl Addresses {
    /// Counts a connection, unless its address has `limit` already.
    fn count(&self, address: IpAddr, limit: usize) -> Option<Counted> {
        let mut open = self.0.lock();
        let count = open.entry(address).or_default();
        (*count < limit).then(|| {
            *count += 1;
            let addresses = self.clone();
            Counted { addresses, address }
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.addresses.0.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// Returns when the time is over in which no request has arrived.
async fn silence(first: &Notify, time: Duration) {
    if tokio::time::timeout(time, first.notified()).await.is_ok() {
        std::future::pending().await
    }
}

/// Serves `service`, such as that of [`warp::service`], on `listener` until `shutdown` is cancelled, then waits for open requests for up to
/// [`Limits::drain_timeout`]. Speaks HTTP/1.1 and HTTP/2 with prior knowledge on the same port.
pub async fn serve<S, B, H>(listener: TcpListener, handshake: H, service: S, limits: Limits, shutdown: CancellationToken)
where
    S: tower_service::Service<http::Request<Incoming>, Response = http::Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    H: Handshake,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        // A result stream is as fast as the operator reads: 1 MiB per stream covers the round trip in a cluster or over loopback.
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .max_concurrent_streams(limits.streams);
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(limits.connections));
    let addresses = Addresses::default();
    loop {
        let slot = tokio::select! {
            slot = slots.clone().acquire_owned() => slot.expect("the semaphore is never closed"),
            () = shutdown.cancelled() => break,
        };
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The process ran out of file descriptors, or the client disconnected: neither is a reason to stop serving.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = shutdown.cancelled() => break,
        };
        let Some(counted) = addresses.count(peer.ip().to_canonical(), limits.connections_per_address) else {
            tracing::debug!(%peer, "connection closed: its address has too many");
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (builder, handshake, service, watcher) = (builder.clone(), handshake.clone(), service.clone(), graceful.watcher());
        let header_timeout = limits.header_timeout;
        tokio::spawn(async move {
            let _counted = (slot, counted);
            let request_arrived = Arc::new(Notify::new());
            let first = Arc::clone(&request_arrived);
            let stream = match tokio::time::timeout(header_timeout, handshake.handshake(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => return tracing::debug!("TLS handshake timed out"),
            };
            let is_certified = H::is_certified(&stream);
            let service = service.map_request(move |mut request: http::Request<Incoming>| {
                request_arrived.notify_one();
                if is_certified {
                    request.extensions_mut().insert(Certified);
                }
                request
            });
            let connection = builder
                // A connection upgraded by a route (status 101) belongs to that route from then on and no longer occupies a slot.
                .serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service))
                .into_owned();
            tokio::select! {
                ended = watcher.watch(connection) => if let Err(error) = ended {
                    tracing::debug!(error = %causes(&*error), "connection ended");
                },
                () = silence(&first, header_timeout) => tracing::debug!("no request arrived in time"),
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(limits.drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::info!("drain timeout expired, closing open requests");
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;
    use http_body_util::Empty;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use warp::Filter;

    async fn start(shutdown: CancellationToken, limits: Limits) -> (std::net::SocketAddr, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = warp::service(warp::path("hello").map(|| "hello"));
        (address, tokio::spawn(serve(listener, Cleartext, service, limits, shutdown)))
    }

    #[tokio::test]
    async fn a_server_answers_until_shutdown() {
        let shutdown = CancellationToken::new();
        let (address, server) = start(shutdown.clone(), Limits::default()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
        shutdown.cancel();
        server.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// Upgrades every connection and sends back the first four bytes.
    #[derive(Clone)]
    struct Echo;

    impl tower_service::Service<http::Request<Incoming>> for Echo {
        type Response = http::Response<Empty<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Incoming>) -> Self::Future {
            tokio::spawn(async move {
                let mut taken = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
                let mut said = [0; 4];
                taken.read_exact(&mut said).await.unwrap();
                taken.write_all(&said).await.unwrap();
            });
            let answer = http::Response::builder().status(101).header("connection", "upgrade");
            std::future::ready(Ok(answer.header("upgrade", "echo").body(Empty::new()).unwrap()))
        }
    }

    #[tokio::test]
    async fn a_route_can_take_a_connection_over() {
        let shutdown = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Cleartext, Echo, Limits::default(), shutdown.clone()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let asked = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nping";
        stream.write_all(asked).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 101") && answer.ends_with("ping"), "{answer}");
        shutdown.cancel();
        server.await.unwrap();
    }

    /// Connections of clients that send requests and accept no answer.
    #[derive(Clone)]
    struct Deaf;

    impl Handshake for Deaf {
        type Stream = tokio::io::Join<TcpStream, tokio::io::DuplexStream>;

        async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
            let (closed, _) = tokio::io::duplex(1);
            Ok(tokio::io::join(stream, closed))
        }
    }

    #[derive(Clone, Default)]
    struct Log(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_logged_with_its_cause() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
        let _logged = tracing::subscriber::set_default(subscriber.with_writer(move || writer.clone()).finish());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let service = warp::service(warp::path("hello").map(|| "hello"));
        let _server = tokio::spawn(serve(listener, Deaf, service, Limits::default(), CancellationToken::new()));
        stream.write_all(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
        let logged = String::from_utf8(log.0.lock().clone()).unwrap();
        let ended = logged.lines().find(|line| line.contains("connection ended")).unwrap_or(&logged);
        assert!(ended.contains("broken pipe"), "{ended}");
    }

    #[tokio::test]
    async fn a_client_that_sends_no_request_is_cut_off() {
        let shutdown = CancellationToken::new();
        let limits = Limits {
            header_timeout: Duration::from_millis(50),
            ..Limits::default()
        };
        let (address, _server) = start(shutdown.clone(), limits).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /hello HTTP/1.1\r\n").await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.read_to_end(&mut answer).await.unwrap();
        shutdown.cancel();
    }

    #[tokio::test]
    async fn connections_of_an_address_are_limited_and_room_is_made_by_their_end() {
        let limits = Limits {
            connections_per_address: 1,
            ..Limits::default()
        };
        let (address, _server) = start(CancellationToken::new(), limits).await;
        let request = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n";
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(request).await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'H');
        let mut second = TcpStream::connect(address).await.unwrap();
        let _ = second.write_all(request).await;
        assert!(second.read_u8().await.is_err());
        drop(first);
        loop {
            let mut third = TcpStream::connect(address).await.unwrap();
            let _ = third.write_all(request).await;
            if let Ok(first) = third.read_u8().await {
                assert_eq!(first, b'H');
                break;
            }
        }
    }
}
