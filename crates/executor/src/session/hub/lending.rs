//! Lending of a connection by its reader thread to the engine's thread, which then reads the connection itself while it is otherwise idle.
//!
//! ```text
//!  reader: a question came, nothing after it ──► lends ──► engine: answers, polls, reads, ...
//!  reader: goes on  ◄── the engine has nothing to read for a while, or is busy, or more comes than it should read
//! ```

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Hub, Inner, Peer, Waiting};

/// If the engine has not read a lent connection for this time, it is busy, and the reader resumes.
const BUSY: Duration = Duration::from_millis(1);
/// Time that the engine polls without sleeping, if the previous wait of the same kind was shorter: waking an idle processor costs up to 50
/// µs, and a short step would pay for that twice.
const POLL: Duration = Duration::from_micros(250);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// If a lent connection is silent for this time, it returns to its reader.
const QUIET: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// Which connection is lent, and how the engine uses it.
#[derive(Debug, Default)]
pub(super) struct Lending {
    pub(super) connection: Option<u64>,
    /// Whether the engine is in [`Hub::read`].
    pub(super) is_reading: bool,
    /// Number of calls of [`Hub::read`].
    reads: u64,
    /// Duration of the last wait of each kind ([`For`]).
    took: [Option<Duration>; 3],
}

/// Event that the engine waits for while it reads. A loop that waits for each result goes through all three, each with its own duration.
#[derive(Clone, Copy)]
enum For {
    /// An operation while nothing runs: the client is computing.
    Idle,
    /// An operation while an execution runs: the operation is on its way.
    Executing,
    /// The end of an execution whose result was requested.
    Result,
}

/// Socket pair through which another thread ends a poll. `None` if the process had no descriptors left.
pub(super) struct Call(Option<(UnixStream, UnixStream)>);

impl Call {
    /// Creates the socket pair. If that fails, connections are never lent.
    pub(super) fn new() -> Self {
        let pair = || -> io::Result<_> {
            let (ring, rung) = UnixStream::pair()?;
            ring.set_nonblocking(true)?;
            rung.set_nonblocking(true)?;
            Ok((ring, rung))
        };
        Self(pair().ok())
    }

    pub(super) fn ring(&self) {
        if let Some((ring, _)) = &self.0 {
            // A full buffer holds bytes that wake the poll already.
            let _ = (&*ring).write(&[0]);
        }
    }

    fn answer(&self) {
        if let Some((_, rung)) = &self.0 {
            let _ = (&*rung).read(&mut [0; 16]);
        }
    }
}

impl Inner {
    /// The lent connection, if it is still the client's.
    pub(super) fn lent(&self) -> Option<Arc<dyn Peer>> {
        let number = self.lending.connection?;
        self.current.clone().filter(|current| current.number() == number)
    }
}

impl Hub {
    /// Whether the engine can be woken while it reads a connection.
    pub(crate) fn can_lend(&self) -> bool {
        self.call.0.is_some()
    }

    /// Blocks the reader of a lent connection until the engine no longer reads it.
    pub(crate) fn lent(&self, connection: u64) {
        let mut inner = self.inner.lock();
        while inner.lending.connection == Some(connection) {
            let reads = inner.lending.reads;
            let is_lent = |inner: &mut Inner| inner.lending.connection == Some(connection);
            self.readers.wait_while_for(&mut inner, is_lent, BUSY);
            if inner.lending.connection == Some(connection) && inner.lending.reads == reads && !inner.lending.is_reading {
                inner.lending.connection = None;
            }
        }
    }

    /// Sleeps like the engine, and meanwhile reads the lent connection.
    pub(super) fn read(&self, inner: &mut MutexGuard<'_, Inner>, connection: &Arc<dyn Peer>, waiting: Waiting) {
        inner.lending.is_reading = true;
        inner.lending.reads += 1;
        let awaited = match self.running.load(Ordering::Relaxed) {
            _ if waiting.is_asked => For::Result,
            0 => For::Idle,
            _ => For::Executing,
        } as usize;
        let polls = !waiting.is_compiling && inner.lending.took[awaited].is_some_and(|took| took < POLL);
        let longest = if polls { POLL } else { Duration::ZERO };
        let began = Instant::now();
        let came = MutexGuard::unlocked(inner, || self.poll(connection.as_ref(), began + longest));
        let took = began.elapsed();
        let is_operation = matches!(came, Came::Bytes);
        // From here on nobody calls `Call::ring`.
        inner.is_engine_asleep = false;
        let keeps = MutexGuard::unlocked(inner, || match came {
            Came::Call => {
                self.call.answer();
                true
            }
            Came::Bytes => connection.read_now(self),
            Came::Nothing => false,
        });
        inner.lending.is_reading = false;
        // Neither a compilation nor operations that arrive meanwhile say how long a result takes.
        let is_measured = !waiting.is_asked || !is_operation;
        if is_measured && !waiting.is_compiling {
            inner.lending.took[awaited] = Some(took);
        }
        if !keeps && inner.lending.connection == Some(connection.number()) {
            inner.lending.connection = None;
            self.readers.notify_all();
        }
    }

    /// Polls the connection without sleeping until `until`, then sleeps up to `QUIET`.
    fn poll(&self, connection: &dyn Peer, until: Instant) -> Came {
        let Some((_, rung)) = &self.call.0 else {
            return Came::Nothing;
        };
        let mut polled = [PollFd::new(connection.stream(), PollFlags::IN), PollFd::new(rung, PollFlags::IN)];
        let ready = loop {
            match poll(&mut polled, Some(&NOW)) {
                Ok(0) if Instant::now() < until => thread::yield_now(),
                Ok(0) => break poll(&mut polled, Some(&QUIET)),
                ready => break ready,
            }
        };
        match ready {
            Err(Errno::INTR) => Came::Call,
            Ok(ready) if ready > 0 => match polled[1].revents().is_empty() {
                false => Came::Call,
                true => Came::Bytes,
            },
            _ => Came::Nothing,
        }
    }
}

/// Event that ended a poll.
enum Came {
    Call,
    Bytes,
    Nothing,
}
