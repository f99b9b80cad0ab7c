//! Memory that the executor shares with its client, if both are on one machine.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_cuda_device::Extent;
use sahasra_executor_protocol::session::status_page::secret_digest;
use sahasra_memory::shared::{self, Layout, SharedMemory};
use sahasra_wire::cuda::{Read, Write};
use sahasra_wire::session::{Attached, client_frame};

use super::{Hub, Inner};
use crate::session::link::same;
use crate::session::payload::Payload;

/// Number and size of the slots: enough for both sides to copy at the same time, and so few that they stay in the processor's caches.
const SLOTS: u32 = 16;
const SLOT_BYTES: u64 = 1 << 20;
/// Maximum size of the pinned memory in bytes. Below it, there is as much as the session has of the device.
const MAX_PINNED_BYTES: u64 = 64 << 30;
const PAGE_BYTES: u64 = 4096;

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

pub(super) struct ClientMemory {
    memory: Arc<SharedMemory>,
    file: OwnedFd,
}

impl ClientMemory {
    fn create(limit_bytes: u64) -> io::Result<Self> {
        let (memory, file) = SharedMemory::create(Layout {
            slots: SLOTS,
            slot_bytes: SLOT_BYTES,
            pinned_bytes: limit_bytes.min(MAX_PINNED_BYTES).next_multiple_of(PAGE_BYTES),
        })?;
        Ok(Self {
            memory: Arc::new(memory),
            file,
        })
    }
}

impl Inner {
    /// The payload of a new operation: its slot or its place in the pinned memory, if it names one.
    ///
    /// # Errors
    /// The reason why the operation is malformed.
    pub(super) fn payload(&self, kind: &client_frame::Kind, payload: Payload) -> Result<Payload, String> {
        let (slot, place, extent) = match kind {
            client_frame::Kind::CudaWrite(Write { slot, place, extent, .. })
            | client_frame::Kind::CudaRead(Read { slot, place, extent, .. }) => (slot, place, Extent::from(*extent)),
            _ => return Ok(payload),
        };
        let memory = || self.memory.as_ref().ok_or("it names shared memory, and none is shared");
        let bytes = extent.bytes();
        let loan = match (slot, place) {
            (None, None) => return Ok(payload),
            _ if !payload.is_empty() => return Err("it has both a payload and a slot or place".to_owned()),
            (Some(_), Some(_)) => return Err("it has both a slot and a place".to_owned()),
            (Some(slot), None) => {
                let memory = &memory()?.memory;
                let loan = bytes.and_then(|bytes| memory.loan_slot(slot.index, slot.serial, bytes));
                loan.ok_or_else(|| format!("slot {} does not exist, is smaller than the rows, or is in use", slot.index))
            }
            (None, Some(place)) => {
                let memory = &memory()?.memory;
                let loan = bytes.and_then(|bytes| memory.loan_pinned(place.offset, bytes));
                loan.ok_or_else(|| format!("rows at {} are not all within the pinned memory", place.offset))
            }
        };
        loan.map(Payload::Lent)
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
                none => none.insert(ClientMemory::create(self.limit_bytes)?),
            };
            let layout = client.memory.layout();
            let attached = Attached {
                slots: layout.slots,
                slot_bytes: layout.slot_bytes,
                pinned_bytes: layout.pinned_bytes,
            };
            Ok((attached, client.file.try_clone()?))
        };
        Some(share())
    }
}
