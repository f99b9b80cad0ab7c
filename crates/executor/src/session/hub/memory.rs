//! Memory that the executor shares with its client, if both are on one machine.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use sahasra_cuda_device::Extent;
use sahasra_executor_protocol::session::status_page::secret_digest;
use sahasra_memory::shared::SharedMemory;
use sahasra_wire::cuda::{Read, Write};
use sahasra_wire::session::{Attached, client_frame};

use super::{Hub, Inner};
use crate::session::link::same;
use crate::session::payload::Payload;

/// Number and size of the slots: enough for both sides to copy at the same time, and so few that they stay in the processor's caches.
const SLOTS: u32 = 16;
const SLOT_BYTES: u64 = 1 << 20;

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
    /// Returns the memory of the client that has this secret, which is created if there is none; `None` if there is no such client.
    pub(crate) fn share(&self, secret: &[u8]) -> Option<io::Result<(Attached, OwnedFd)>> {
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
