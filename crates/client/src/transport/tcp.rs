//! [`Polled`], the receiving half of a TCP connection.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use rustix::{io::Errno, net::RecvFlags};
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::tcp::OwnedReadHalf,
};

use crate::runtime;

/// The receiving half of a TCP connection. A thread that polls for an answer ([`runtime::is_polling`]) reads it without waiting for the
/// runtime's driver, which takes longer to find that it is readable.
#[derive(Debug)]
pub(super) struct Polled(pub(super) OwnedReadHalf);

impl AsyncRead for Polled {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !runtime::is_polling() {
            return Pin::new(&mut self.0).poll_read(context, into);
        }
        // SAFETY: nothing becomes uninitialised: the system only writes to the memory.
        let unfilled = unsafe { into.unfilled_mut() };
        match rustix::net::recv(self.0.as_ref(), unfilled, RecvFlags::DONTWAIT) {
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
