//! Tensors that are sent directly from their memory. If such a tensor is deleted, its memory stays in use until the client has received it.

use std::rc::{Rc, Weak as Named};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use super::{State, Tensor};
use crate::session::engine::Engine;

/// Timeout for waiting for memory that is being sent. A disconnected client may come back much later.
pub(super) const SENDING_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of tensors that were sent completely. A thread that waits for their memory checks again whenever the number grows.
#[derive(Debug, Default)]
pub(super) struct Sent {
    count: Mutex<u64>,
    grown: Condvar,
}

impl Sent {
    pub(super) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until the number exceeds `known` or the time `until` is reached. Returns whether it exceeds `known`.
    pub(super) fn wait(&self, known: u64, until: Instant) -> bool {
        let mut count = self.count.lock();
        self.grown.wait_while_until(&mut count, |count| *count == known, until);
        *count > known
    }
}

/// Guard of a tensor that is being sent, held as long as a connection has some of its bytes.
#[derive(Debug)]
pub(super) struct Sending(Arc<Sent>);

impl Drop for Sending {
    fn drop(&mut self) {
        *self.0.count.lock() += 1;
        self.0.grown.notify_all();
    }
}

/// Bytes of a tensor. The field order makes `data` drop first.
struct Held {
    data: Bytes,
    _sending: Arc<Sending>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// A tensor that is or was being sent.
pub(super) struct Watched<E: Engine> {
    sending: Weak<Sending>,
    tensor: Named<Tensor<E>>,
    bytes: u64,
}

impl<E: Engine> State<E> {
    /// Wraps the bytes of a download. If they are the tensor's own memory, records how long that memory is in use.
    pub(super) fn watched(&mut self, tensor: &Rc<Tensor<E>>, data: Bytes) -> Bytes {
        if !self.engine.is_shared(&tensor.array) {
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

    /// Bytes of device memory of deleted tensors that are still being sent.
    pub(super) fn unsent(&self) -> u64 {
        let gone = self.sending.iter().filter(|watched| watched.tensor.strong_count() == 0);
        gone.filter(|watched| watched.sending.strong_count() > 0)
            .map(|watched| watched.bytes)
            .sum()
    }
}
