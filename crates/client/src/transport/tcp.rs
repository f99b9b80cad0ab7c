//! [`Tcp`], the connection below TLS and WebSockets.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use rustix::{io::Errno, net::RecvFlags};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::runtime;

/// TCP connection. A thread that polls for an answer reads it at once ([`runtime::is_polling`]); the runtime's driver takes longer to learn
/// that it is readable.
#[derive(Debug)]
pub(super) struct Tcp(pub(super) TcpStream);

impl AsyncRead for Tcp {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self(stream) = self.get_mut();
        if !runtime::is_polling() {
            return Pin::new(stream).poll_read(context, into);
        }
        // SAFETY: nothing becomes uninitialised: the system only writes to the memory.
        let unfilled = unsafe { into.unfilled_mut() };
        match rustix::net::recv(&*stream, unfilled, RecvFlags::DONTWAIT) {
            Ok((_, read)) => {
                // SAFETY: the system has written this many bytes.
                unsafe { into.assume_init(read) };
                into.advance(read);
                Poll::Ready(Ok(()))
            }
            Err(Errno::AGAIN | Errno::INTR) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
