//! Memory that the executor shares with its client, if both are on one machine.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_cuda_device::Extent;
use sahasra_executor_protocol::session::status_page::secret_digest;
use sahasra_memory::shared::{self, SharedMemory};
use sahasra_wire::cuda::{Read, Write};
use sahasra_wire::session::{Attached, client_frame};

use super::{Hub, Inner};
use crate::session::link::same;
use crate::session::payload::Payload;

/// Number and size of the slots: enough for both sides to copy at the same time, and so few that they stay in the processor's caches.
const SLOTS: u32 = 16;
const SLOT_BYTES: u64 = 1 << 20;

/// Time in which a client must take the descriptor. One that is not taken counts against the limit of open files of the agent and all
/// executors, which have one user.
const TAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the executor looks whether it was taken.
const TAKE_INTERVAL: Duration = Duration::from_millis(1);

/// Where clients get the memory.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    /// Name of the agent's abstract Unix socket.
    pub socket: String,
    /// Boot id of this machine's kernel.
    pub kernel_boot_id: String,
}

impl Offer {
    /// The offer to the client whose stream has the secret `resume`.
    pub(super) fn to_client(&self, resume: &[u8]) -> Box<sahasra_wire::session::SharedMemory> {
        Box::new(sahasra_wire::session::SharedMemory {
            socket: Bytes::copy_from_slice(self.socket.as_bytes()),
            kernel_boot_id: self.kernel_boot_id.clone(),
            user: rustix::process::geteuid().as_raw(),
            secret: Bytes::copy_from_slice(&secret_digest(resume)),
        })
    }
}

/// Memory of a client.
pub(super) struct ClientMemory {
    memory: Arc<SharedMemory>,
    file: OwnedFd,
}

impl ClientMemory {
    fn create() -> io::Result<Self> {
        let (memory, file) = SharedMemory::create(SLOTS, SLOT_BYTES)?;
        Ok(Self {
            memory: Arc::new(memory),
            file,
        })
    }
}

impl Inner {
    /// The payload of a new operation: its slot, if it names one.
    ///
    /// # Errors
    /// The reason why the operation is malformed.
    pub(super) fn payload(&self, kind: &client_frame::Kind, payload: Payload) -> Result<Payload, String> {
        let (slot, extent) = match kind {
            client_frame::Kind::CudaWrite(Write {
                slot: Some(slot), extent, ..
            })
            | client_frame::Kind::CudaRead(Read {
                slot: Some(slot), extent, ..
            }) => (slot, Extent::from(*extent)),
            _ => return Ok(payload),
        };
        if !payload.is_empty() {
            return Err("it has both a slot and a payload".to_owned());
        }
        let memory = self.memory.as_ref().ok_or("it names a slot, and no memory is shared")?;
        let loan = extent.bytes().and_then(|bytes| memory.memory.loan(slot.index, slot.serial, bytes));
        let invalid = || format!("slot {} does not exist, is smaller than the rows, or is in use", slot.index);
        loan.map(Payload::Slot).ok_or_else(invalid)
    }
}

impl Hub {
    /// Sends the memory of the client that has this secret, with the message that `message` makes of its description. Returns `false` if
    /// there is no such client, or one has not taken its memory.
    ///
    /// # Errors
    /// Errors of the operating system. If the client does not take the memory in time, the session shares none any more.
    pub(crate) fn send_memory(
        &self,
        secret: &[u8],
        stream: &UnixStream,
        message: impl FnOnce(Attached) -> io::Result<Bytes>,
    ) -> io::Result<bool> {
        let Some(client) = self.share(secret) else { return Ok(false) };
        let (attached, file) = client?;
        let message = message(attached)?;
        let mut is_untaken = self.is_memory_untaken.lock();
        if *is_untaken {
            return Ok(false);
        }
        shared::send(stream, &message, &file)?;
        let end = Instant::now() + TAKE_TIMEOUT;
        while shared::unread_bytes(stream)? > 0 {
            if Instant::now() >= end {
                *is_untaken = true;
                return Err(io::Error::other(
                    "a client did not take its memory: the session shares none any more",
                ));
            }
            std::thread::sleep(TAKE_INTERVAL);
        }
        Ok(true)
    }

    /// Returns the memory of the client that has this secret, which is created if there is none; `None` if there is no such client.
    fn share(&self, secret: &[u8]) -> Option<io::Result<(Attached, OwnedFd)>> {
        self.offer.as_ref()?;
        let mut inner = self.inner.lock();
        let resume = inner.link.secret()?;
        if !same(&secret_digest(resume), secret) {
            return None;
        }
        let mut share = || -> io::Result<_> {
            let client = match &mut inner.memory {
                Some(client) => client,
                none => none.insert(ClientMemory::create()?),
            };
            let attached = Attached {
                slots: client.memory.slots(),
                slot_bytes: client.memory.slot_bytes() as u64,
            };
            Ok((attached, client.file.try_clone()?))
        };
        Some(share())
    }
}
