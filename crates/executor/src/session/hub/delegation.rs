//! Delegation of a connection's reading to the engine's thread, which reads the connection itself while it is otherwise idle.
//!
//! ```text
//!  reader: a question came, nothing after it ──► delegates ──► engine: answers, polls, reads, ...
//!  reader: resumes  ◄── the engine has nothing to read for a while, or is busy, or more comes than it should read
//! ```

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Hub, Inner, Peer, Waiting};

/// If the engine has not read a delegated connection for this time, it is busy, and the reader resumes.
const BUSY: Duration = Duration::from_millis(1);
/// Time that the engine polls without sleeping, if the previous wait of the same kind was shorter: waking an idle processor costs up to 50
/// µs, and a short step would pay for that twice.
const POLL: Duration = Duration::from_micros(250);
/// Time that the engine polls before it lets other threads use its processor between two polls. A short question follows sooner than that,
/// and each yield takes as long as two polls.
const POLL_ALONE: Duration = Duration::from_micros(20);
/// If a delegated connection is silent for this time, it returns to its reader.
const QUIET: Duration = Duration::from_millis(5);

/// Which connection the engine's thread may read, and how it does.
#[derive(Debug, Default)]
pub(super) struct Delegation {
    pub(super) connection: Option<u64>,
    /// Whether the engine is in [`Hub::read`].
    pub(super) is_reading: bool,
    /// Number of calls of [`Hub::read`].
    reads: u64,
    /// Duration of the last wait of each kind ([`Awaited`]).
    took: [Option<Duration>; 3],
}

/// Event that the engine waits for while it reads. A loop that waits for each result goes through all three, each with its own duration.
#[derive(Clone, Copy)]
enum Awaited {
    /// An operation while nothing runs: the client is computing.
    Idle,
    /// An operation while an execution runs: the operation is on its way.
    Executing,
    /// The end of an execution whose result was requested.
    Result,
}

/// Ends a poll of another thread.
pub(super) struct Waker {
    /// Set before the socket is written, for a thread that polls without sleeping.
    is_woken: AtomicBool,
    /// `None` if the process had no descriptors left.
    sockets: Option<(UnixStream, UnixStream)>,
}

impl Waker {
    /// Creates the socket pair. If that fails, connections are never delegated.
    pub(super) fn new() -> Self {
        let pair = || -> io::Result<_> {
            let (sender, receiver) = UnixStream::pair()?;
            sender.set_nonblocking(true)?;
            receiver.set_nonblocking(true)?;
            Ok((sender, receiver))
        };
        Self {
            is_woken: AtomicBool::new(false),
            sockets: pair().ok(),
        }
    }

    pub(super) fn wake(&self) {
        self.is_woken.store(true, Ordering::Release);
        if let Some((sender, _)) = &self.sockets {
            // A full buffer holds bytes that wake the poll already.
            let _ = (&*sender).write(&[0]);
        }
    }

    fn clear(&self) {
        self.is_woken.store(false, Ordering::Relaxed);
        if let Some((_, receiver)) = &self.sockets {
            let _ = (&*receiver).read(&mut [0; 16]);
        }
    }
}

impl Inner {
    /// The delegated connection, if it is still the client's.
    pub(super) fn delegated(&self) -> Option<Arc<dyn Peer>> {
        let number = self.delegation.connection?;
        self.current.clone().filter(|current| current.number() == number)
    }
}

impl Hub {
    /// Whether the engine can be woken while it reads a connection.
    pub(crate) fn can_delegate(&self) -> bool {
        self.waker.sockets.is_some()
    }

    /// Blocks the reader of a delegated connection until the engine no longer reads it.
    pub(crate) fn wait_while_delegated(&self, connection: u64) {
        let mut inner = self.inner.lock();
        while inner.delegation.connection == Some(connection) {
            let reads = inner.delegation.reads;
            let is_delegated = |inner: &mut Inner| inner.delegation.connection == Some(connection);
            self.readers.wait_while_for(&mut inner, is_delegated, BUSY);
            if inner.delegation.connection == Some(connection) && inner.delegation.reads == reads && !inner.delegation.is_reading {
                inner.delegation.connection = None;
            }
        }
    }

    /// Sleeps like the engine, and meanwhile reads the delegated connection.
    pub(super) fn read(&self, inner: &mut MutexGuard<'_, Inner>, connection: &Arc<dyn Peer>, waiting: Waiting) {
        inner.delegation.is_reading = true;
        inner.delegation.reads += 1;
        let awaited = match self.running.load(Ordering::Relaxed) {
            _ if waiting.is_asked => Awaited::Result,
            0 => Awaited::Idle,
            _ => Awaited::Executing,
        } as usize;
        let polls = !waiting.is_compiling && inner.delegation.took[awaited].is_some_and(|took| took < POLL);
        let longest = if polls { POLL } else { Duration::ZERO };
        let began = Instant::now();
        let ended = MutexGuard::unlocked(inner, || self.poll(connection.as_ref(), began, longest));
        let took = began.elapsed();
        let is_operation = matches!(ended, PollEnd::Bytes);
        // From here on `Waker::wake` is not called.
        inner.is_engine_asleep = false;
        let keeps = MutexGuard::unlocked(inner, || match ended {
            PollEnd::Woken => {
                self.waker.clear();
                true
            }
            PollEnd::Bytes => connection.process_now(self),
            PollEnd::Silent => false,
        });
        inner.delegation.is_reading = false;
        // Neither a compilation nor operations that arrive meanwhile say how long a result takes.
        let is_measured = !waiting.is_asked || !is_operation;
        if is_measured && !waiting.is_compiling {
            inner.delegation.took[awaited] = Some(took);
        }
        if !keeps && inner.delegation.connection == Some(connection.number()) {
            inner.delegation.connection = None;
            self.readers.notify_all();
        }
    }

    /// Polls the connection for `longest` without sleeping, then sleeps up to `QUIET`.
    fn poll(&self, connection: &dyn Peer, began: Instant, longest: Duration) -> PollEnd {
        let Some((_, receiver)) = &self.waker.sockets else {
            return PollEnd::Silent;
        };
        let receive = || match connection.receive_now(self) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Ok(0) | Err(_) => Some(PollEnd::Silent),
            Ok(_) => Some(PollEnd::Bytes),
        };
        loop {
            if let Some(end) = receive() {
                return end;
            }
            if self.waker.is_woken.load(Ordering::Acquire) {
                return PollEnd::Woken;
            }
            let polling = began.elapsed();
            if polling >= longest {
                break;
            }
            if polling >= POLL_ALONE {
                thread::yield_now();
            }
        }
        let quiet = Timespec {
            tv_sec: 0,
            tv_nsec: QUIET.subsec_nanos().into(),
        };
        let mut polled = [
            PollFd::new(connection.stream(), PollFlags::IN),
            PollFd::new(receiver, PollFlags::IN),
        ];
        match poll(&mut polled, Some(&quiet)) {
            Err(Errno::INTR) => PollEnd::Woken,
            Ok(ready) if ready > 0 => match polled[1].revents().is_empty() {
                false => PollEnd::Woken,
                true => receive().unwrap_or(PollEnd::Silent),
            },
            _ => PollEnd::Silent,
        }
    }
}

enum PollEnd {
    Woken,
    Bytes,
    /// No bytes arrived, or the connection is at its end.
    Silent,
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use sahasra_executor_protocol::session::status_page::StatusPage;

    use super::super::super::engine::Description;
    use super::*;

    /// A connection that keeps what it receives, and whose frames end with a zero byte.
    struct Bytes(UnixStream, Mutex<Vec<u8>>);

    impl Peer for Bytes {
        fn number(&self) -> u64 {
            1
        }

        fn stream(&self) -> &UnixStream {
            &self.0
        }

        fn shut_down(&self) {}

        fn write_now(&self, _: &Hub) -> bool {
            false
        }

        fn receive_now(&self, _: &Hub) -> io::Result<usize> {
            let mut bytes = [0; 16];
            let read = (&self.0).read(&mut bytes)?;
            self.1.lock().extend(&bytes[..read]);
            Ok(read)
        }

        fn process_now(&self, _: &Hub) -> bool {
            self.1.lock().ends_with(&[0])
        }
    }

    /// A hub with a delegated connection, that connection, and the client's end of it.
    fn delegated() -> (Hub, Arc<Bytes>, UnixStream) {
        let description = Description {
            engine: sahasra_names::Engine::Ptx,
            ..Description::default()
        };
        let hub = Hub::new(StatusPage::create().unwrap().0, description, 1 << 20);
        let (client, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let connection = Arc::new(Bytes(stream, Mutex::default()));
        {
            let mut inner = hub.inner.lock();
            inner.current = Some(Arc::<Bytes>::clone(&connection));
            inner.delegation.connection = Some(1);
        }
        (hub, connection, client)
    }

    /// Reads once as the engine's thread, and returns whether the connection is still delegated.
    fn reads(hub: &Hub, connection: &Arc<Bytes>) -> bool {
        let connection: Arc<dyn Peer> = Arc::<Bytes>::clone(connection);
        let mut inner = hub.inner.lock();
        hub.read(&mut inner, &connection, Waiting::default());
        inner.delegation.connection.is_some()
    }

    #[test]
    fn the_engine_keeps_a_connection_until_it_has_part_of_a_frame() {
        let (hub, connection, mut client) = delegated();
        client.write_all(b"whole\0").unwrap();
        assert!(reads(&hub, &connection));
        client.write_all(b"pa").unwrap();
        assert!(!reads(&hub, &connection), "its reader receives the rest");
        assert_eq!(*connection.1.lock(), b"whole\0pa");
    }

    #[test]
    fn a_wake_for_an_earlier_poll_ends_one_poll_and_loses_no_bytes() {
        let (hub, connection, mut client) = delegated();
        // The engine has received bytes meanwhile, so it did not see that it was woken.
        hub.waker.wake();
        client.write_all(b"one\0").unwrap();
        assert!(reads(&hub, &connection));
        assert!(hub.waker.is_woken.load(Ordering::Relaxed));
        assert!(reads(&hub, &connection), "woken");
        assert!(!hub.waker.is_woken.load(Ordering::Relaxed));
        client.write_all(b"two\0").unwrap();
        assert!(reads(&hub, &connection));
        assert_eq!(*connection.1.lock(), b"one\0two\0");
        assert!(!reads(&hub, &connection), "not woken again, and silent");
    }

    #[test]
    fn a_connection_at_its_end_returns_to_its_reader_after_its_last_bytes() {
        let (hub, connection, mut client) = delegated();
        client.write_all(b"last\0").unwrap();
        drop(client);
        assert!(reads(&hub, &connection));
        assert!(!reads(&hub, &connection));
        assert_eq!(*connection.1.lock(), b"last\0");
        // Its reader does not wait.
        hub.wait_while_delegated(1);
    }
}
