//! Tensors that are sent from where they lie: one that is gone meanwhile keeps its memory in use until the client has received it.

use std::rc::{Rc, Weak as Named};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{State, Tensor};
use crate::session_executor::engine::Engine;

/// How long memory is waited for that is on its way to the client. A client that has gone away may come back much later.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How many tensors have been sent altogether: who waits for their memory looks again whenever that grows.
#[derive(Debug, Default)]
pub(super) struct Sent {
    count: Mutex<u64>,
    grown: Condvar,
}

impl Sent {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> u64 {
        *self.lock()
    }

    /// Waits until there are more than so many. Gives whether there are.
    pub(super) fn wait(&self, known: u64, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.grown.wait_timeout_while(self.lock(), left, |count| *count == known);
        *waited.unwrap_or_else(PoisonError::into_inner).0 > known
    }
}

/// One that is being sent, for as long as some of its bytes are with a connection.
#[derive(Debug)]
pub(super) struct Sending(Arc<Sent>);

impl Drop for Sending {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.grown.notify_all();
    }
}

/// Its bytes. They go first.
struct Held {
    data: Bytes,
    _sending: Arc<Sending>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// A tensor that was seen to be sent.
pub(super) struct Watched<E: Engine> {
    sending: Weak<Sending>,
    tensor: Named<Tensor<E>>,
    bytes: u64,
}

impl<E: Engine> State<E> {
    /// The bytes of a download; where they are the tensor's own memory it is known until when they are in use.
    pub(super) fn watched(&mut self, tensor: &Rc<Tensor<E>>, data: Bytes) -> Bytes {
        if !self.engine.is_lent(&tensor.array) {
            return data;
        }
        let known = tensor.sending.borrow().upgrade();
        let sending = known.unwrap_or_else(|| {
            let sending = Arc::new(Sending(Arc::clone(&self.sent)));
            tensor.sending.replace(Arc::downgrade(&sending));
            self.sending.retain(|watched| watched.sending.strong_count() > 0);
            self.sending.push(Watched {
                sending: Arc::downgrade(&sending),
                tensor: Rc::downgrade(tensor),
                bytes: self.engine.stored_bytes(&tensor.array),
            });
            sending
        });
        Bytes::from_owner(Held { data, _sending: sending })
    }

    /// Bytes of device memory of tensors that are gone and not sent yet.
    pub(super) fn unsent(&self) -> u64 {
        let gone = self.sending.iter().filter(|watched| watched.tensor.strong_count() == 0);
        gone.filter(|watched| watched.sending.strong_count() > 0)
            .map(|watched| watched.bytes)
            .sum()
    }
}
