//! Operations of all queues on their way to the session: encoded into batches, in one order.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::{Condvar, Mutex};
use sahasra_client::{Error, Session};
use sahasra_cuda_device::{Operation, wire};

use crate::statistics::Statistics;

/// Time after a request in which operations are likely to be followed by another request, which takes them along.
const LINGER: Duration = Duration::from_millis(1);
/// Time for which operations wait for a request then.
const PAUSE: Duration = Duration::from_micros(100);
/// Size of a batch in bytes at which the thread that fills it sends it.
const BATCH_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct Filling {
    /// Context of the operations in the batch.
    context: u64,
    batch: BytesMut,
    is_sender_asleep: bool,
    is_closed: bool,
    /// Time of the last request that waits for an answer.
    asked: Option<Instant>,
}

impl Filling {
    /// Whether a thread asked for an answer so recently that it is likely to send the next operations with another request.
    fn is_asked(&self) -> bool {
        self.asked.is_some_and(|asked| asked.elapsed() < LINGER)
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= BATCH_BYTES
    }

    fn take(&mut self) -> Option<(u64, Bytes)> {
        (!self.batch.is_empty()).then(|| (self.context, self.batch.split().freeze()))
    }
}

/// The [outbox](self) of a device.
#[derive(Debug)]
pub(crate) struct Outbox {
    session: Session,
    statistics: Statistics,
    /// Locked by the thread that sends, before it takes a batch: batches are sent in the order in which they were filled.
    sending: Mutex<()>,
    filling: Mutex<Filling>,
    filled: Condvar,
}

impl Outbox {
    /// Starts the thread that sends batches.
    pub(crate) fn start(session: Session) -> io::Result<Arc<Self>> {
        let outbox = Arc::new(Self {
            session,
            statistics: Statistics::default(),
            sending: Mutex::default(),
            filling: Mutex::default(),
            filled: Condvar::new(),
        });
        let sender = Arc::clone(&outbox);
        let builder = std::thread::Builder::new().name("sahasra-cuda".to_owned());
        builder.spawn(move || sender.run())?;
        Ok(outbox)
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Ends the thread, once it has sent what there is.
    pub(crate) fn close(&self) {
        self.filling.lock().is_closed = true;
        self.filled.notify_all();
    }

    /// Adds an operation of a context. `count` is called while the order is fixed: nothing is added if it returns `None`. Sends the batch
    /// if it is full: it is larger than that by one operation at most, whatever the number of threads that add some.
    pub(crate) fn add<T>(&self, context: u64, operation: Operation, count: impl FnOnce() -> Option<T>) -> Option<T> {
        let mut filling = self.filling.lock();
        while filling.is_full() || (filling.context != context && !filling.batch.is_empty()) {
            drop(filling);
            self.flush();
            filling = self.filling.lock();
        }
        let counted = count()?;
        filling.context = context;
        wire::encode(operation, &mut filling.batch);
        self.statistics.add_operation();
        let is_full = filling.is_full();
        let wakes = !is_full && std::mem::take(&mut filling.is_sender_asleep);
        drop(filling);
        if is_full {
            self.flush();
        } else if wakes {
            self.filled.notify_one();
        }
        Some(counted)
    }

    /// Calls `ask`, which requests an answer, like [`after_all`](Self::after_all). Returns the answer and the time of the request.
    pub(crate) fn ask_after_all<T>(&self, ask: impl FnOnce(&Session) -> T) -> (Instant, T) {
        let sent = Instant::now();
        let answer = self.after_all(|| (), |session, ()| ask(session));
        self.filling.lock().asked = Some(sent);
        (sent, answer)
    }

    /// Sends the batch, if there is one. A failure to send ends the session, which each queue reports.
    pub(crate) fn flush(&self) {
        self.after_all(|| (), |_, ()| ());
    }

    /// Calls `send` after all operations that were added have been sent. `order` is called while the order is fixed: operations that were
    /// added before are sent before.
    pub(crate) fn after_all<O, T>(&self, order: impl FnOnce() -> O, send: impl FnOnce(&Session, O) -> T) -> T {
        let _in_order = self.sending.lock();
        let (taken, place) = {
            let mut filling = self.filling.lock();
            (filling.take(), order())
        };
        if let Some((context, batch)) = taken {
            self.statistics.add_frame();
            let _: Result<(), Error> = self.session.cuda_batch(context, batch);
        }
        send(&self.session, place)
    }

    fn run(&self) {
        loop {
            self.flush();
            let mut filling = self.filling.lock();
            while filling.batch.is_empty() {
                if filling.is_closed {
                    return;
                }
                if filling.is_asked() {
                    // Nobody wakes this thread now: that would cost more than the operation.
                    self.filled.wait_for(&mut filling, PAUSE);
                    continue;
                }
                filling.is_sender_asleep = true;
                self.filled.wait(&mut filling);
                filling.is_sender_asleep = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use sahasra_cuda_device::{Extent, Region};
    use sahasra_wire::session::client_frame::Kind;

    use super::*;
    use crate::tests::Far;

    #[test]
    fn a_batch_does_not_grow_with_the_number_of_threads_while_it_cannot_be_sent() {
        const THREADS: usize = 100;
        const BYTES: usize = 16 << 10;
        let (session, mut far) = Far::connect();
        let outbox = Outbox::start(session).unwrap();
        let added = AtomicUsize::new(0);
        thread::scope(|scope| {
            let sending = outbox.sending.lock();
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let write = Operation::Write {
                        to: Region::linear(0),
                        extent: Extent::linear(BYTES as u64),
                        bytes: Bytes::from(vec![0; BYTES]),
                    };
                    outbox.add(1, write, || Some(added.fetch_add(1, Ordering::Relaxed)));
                });
            }
            while !outbox.filling.lock().is_full() {
                thread::yield_now();
            }
            // Time for the others, which must not add anything.
            for _ in 0..10_000 {
                thread::yield_now();
            }
            drop(sending);
        });
        outbox.close();
        let mut arrived = 0;
        while arrived < THREADS {
            let (kind, batch) = far.next();
            assert!(matches!(kind, Kind::CudaBatch(_)), "{kind:?}");
            assert!(batch.len() < BATCH_BYTES + BYTES + 64, "{}", batch.len());
            arrived += batch.len() / BYTES;
        }
        assert_eq!(arrived, added.load(Ordering::Relaxed));
    }
}
