//! [`Polled`], the receiving half of a TCP connection.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustix::{io::Errno, net::RecvFlags};
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::tcp::OwnedReadHalf,
    task::coop,
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
        // So that a task whose bytes keep coming lets others run.
        let budget = ready!(coop::poll_proceed(context));
        // SAFETY: nothing becomes uninitialised: the system only writes to the memory.
        let unfilled = unsafe { into.unfilled_mut() };
        match rustix::net::recv(self.0.as_ref(), unfilled, RecvFlags::DONTWAIT) {
            Ok((_, read)) => {
                // SAFETY: the system has written this many bytes.
                unsafe { into.assume_init(read) };
                into.advance(read);
                budget.made_progress();
                Poll::Ready(Ok(()))
            }
            Err(Errno::AGAIN | Errno::INTR) => Poll::Pending,
            Err(error) => {
                budget.made_progress();
                Poll::Ready(Err(error.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Future, poll_fn},
        pin::pin,
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        runtime::Builder,
    };

    use super::*;

    /// Runs a test with a polled connection and its peer.
    fn connected(test: impl AsyncFnOnce(Polled, TcpStream)) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (peer, _) = listener.accept().await.unwrap();
            let (read, write) = dialled.into_split();
            write.forget();
            test(Polled(read), peer).await;
        });
    }

    /// What a thread that polls reads at once: bytes, or `None` if there are none yet.
    async fn polled(connection: &mut Polled) -> Option<Vec<u8>> {
        let mut bytes = [0; 8];
        let mut into = ReadBuf::new(&mut bytes);
        let read = poll_fn(|context| Poll::Ready(runtime::polling(|| Pin::new(&mut *connection).poll_read(context, &mut into)))).await;
        match read {
            Poll::Ready(outcome) => {
                outcome.unwrap();
                Some(into.filled().to_vec())
            }
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_thread_that_polls_reads_what_the_driver_has_not_seen() {
        connected(async |mut connection, peer| {
            assert_eq!(polled(&mut connection).await, None);
            peer.try_write(b"abc").unwrap();
            // Nothing has run the driver since.
            assert_eq!(polled(&mut connection).await.as_deref(), Some(&b"abc"[..]));
            assert_eq!(polled(&mut connection).await, None);
            drop(peer);
            assert_eq!(
                polled(&mut connection).await.as_deref(),
                Some(&b""[..]),
                "the end of the connection"
            );
        });
    }

    #[test]
    fn the_driver_reads_what_comes_after_a_poll() {
        connected(async |mut connection, mut peer| {
            peer.write_all(b"ab").await.unwrap();
            let mut byte = [0; 1];
            connection.read_exact(&mut byte).await.unwrap();
            assert_eq!(polled(&mut connection).await.as_deref(), Some(&b"b"[..]));
            let writes = async {
                tokio::task::yield_now().await;
                peer.write_all(b"c").await.unwrap();
            };
            let (read, ()) = tokio::join!(connection.read_exact(&mut byte), writes);
            assert_eq!((read.unwrap(), byte), (1, *b"c"));
        });
    }

    #[test]
    fn a_poll_ends_though_bytes_keep_coming() {
        connected(async |mut connection, mut peer| {
            peer.write_all(&[7; 4096]).await.unwrap();
            let mut reads = 0;
            let everything = async {
                let mut byte = [0; 1];
                while connection.read(&mut byte).await.unwrap() > 0 {
                    reads += 1;
                }
            };
            let mut everything = pin!(everything);
            let poll = poll_fn(|context| Poll::Ready(runtime::polling(|| everything.as_mut().poll(context)))).await;
            assert!(poll.is_pending());
            assert!((1..4096).contains(&reads), "{reads}");
        });
    }
}
