//! Time of the last sign of life on a connection.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Io;

/// Time at which bytes last arrived on a connection, be it data of the stream or only a pong.
#[derive(Debug)]
pub(crate) struct Pulse {
    start: Instant,
    /// Milliseconds between `start` and the last received bytes.
    last_received: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            last_received: AtomicU64::new(0),
        })
    }

    fn beat(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_received.store(now, Ordering::Relaxed);
    }

    /// Returns the time of the last received bytes, or the creation time if none have been received.
    pub(crate) fn last_received(&self) -> Instant {
        self.start + Duration::from_millis(self.last_received.load(Ordering::Relaxed))
    }
}

/// Stream that records received bytes in a [`Pulse`].
pub(super) struct Recorded {
    stream: Box<dyn Io>,
    pulse: Arc<Pulse>,
}

impl Recorded {
    pub(super) fn new(stream: Box<dyn Io>, pulse: Arc<Pulse>) -> Self {
        Self { stream, pulse }
    }
}

impl AsyncRead for Recorded {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if into.filled().len() > before {
            self.pulse.beat();
        }
        read
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
