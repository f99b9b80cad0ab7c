//! Operations of a session of the engine `cuda`, as messages: [`sahasra_wire::cuda`] documents them.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use sahasra_memory::shared::{Slot, SlotPool};
use sahasra_wire::{
    cuda::{Batch, Discard, Load, Loaded, PinnedPlace, Read, Wait, Waited, Write},
    session::client_frame::Kind,
};

use super::Session;
use crate::{
    Error,
    core::{Array, Wanted},
    pending::Pending,
    state::{Arrived, Waiting},
};

/// The name of a slot in a message.
fn named(slot: &Slot) -> Option<sahasra_wire::cuda::Slot> {
    Some(sahasra_wire::cuda::Slot {
        index: slot.index(),
        serial: slot.serial(),
    })
}

impl Session {
    /// Sends operations of a context, encoded as the payload of a [`Batch`]. Blocks while the queue is full. Fails with the error that
    /// ended the session.
    pub fn cuda_batch(&self, context: u64, operations: Bytes) -> Result<(), Error> {
        self.cuda_submit(Kind::CudaBatch(Batch { context }), operations)
    }

    /// Sends a write, whose bytes fit into one frame. Blocks and fails like [`Self::cuda_batch`].
    pub fn cuda_write(&self, write: Write, bytes: Bytes) -> Result<(), Error> {
        self.cuda_submit(Kind::CudaWrite(write), bytes)
    }

    /// Frees everything of a context. Blocks and fails like [`Self::cuda_batch`].
    pub fn cuda_discard(&self, context: u64) -> Result<(), Error> {
        self.shared().lock().printed.remove(&context);
        self.cuda_submit(Kind::CudaDiscard(Discard { context }), Bytes::new())
    }

    fn cuda_submit(&self, kind: Kind, payload: Bytes) -> Result<(), Error> {
        self.shared().submit(|state| {
            state.work.submit();
            state.core.submit(kind, payload);
        })
    }

    /// Requests rows of `bytes` bytes. [`Read::request`] is set here.
    pub fn cuda_read(&self, read: Read, bytes: u64) -> Pending<Array> {
        let kind = |request| Kind::CudaRead(Read { request, ..read });
        self.shared()
            .ask(Wanted::Array(Some(bytes)), Waiting::Read, |_, request| kind(request))
    }

    /// Memory that this client shares with the session's executor, if there is any. What is in its slots reaches the device by
    /// [`Self::cuda_write_shared`], and what is on the device reaches them by [`Self::cuda_read_shared`].
    pub fn shared_memory(&self) -> Option<&Arc<SlotPool>> {
        self.shared().memory.get()
    }

    /// Sends a write whose bytes are at the beginning of a slot, which the executor frees. [`Write::slot`] is set here. Blocks and fails like
    /// [`Self::cuda_batch`].
    pub fn cuda_write_shared(&self, write: Write, slot: Slot) -> Result<(), Error> {
        let named = named(&slot);
        // Before the executor can free it.
        slot.lend();
        self.cuda_submit(Kind::CudaWrite(Write { slot: named, ..write }), Bytes::new())
    }

    /// Requests rows, which are at the beginning of the slot once the answer has arrived. [`Read::request`] and [`Read::slot`] are set here. The slot
    /// must not be dropped before the answer.
    pub fn cuda_read_shared(&self, read: Read, slot: &Slot) -> Pending<()> {
        let slot = named(slot);
        let kind = |request| Kind::CudaRead(Read { request, slot, ..read });
        self.shared().ask(Wanted::Done, Waiting::ReadShared, |_, request| kind(request))
    }

    /// Sends a write whose bytes are at a place in the pinned memory that this client shares. They must not change before the write has been
    /// executed. [`Write::place`] is set here. Blocks and fails like [`Self::cuda_batch`].
    pub fn cuda_write_pinned(&self, write: Write, offset: u64) -> Result<(), Error> {
        let place = Some(PinnedPlace { offset });
        self.cuda_submit(Kind::CudaWrite(Write { place, ..write }), Bytes::new())
    }

    /// Requests rows, which are at a place in the pinned memory once the answer has arrived. [`Read::request`] and [`Read::place`] are set here.
    pub fn cuda_read_pinned(&self, read: Read, offset: u64) -> Pending<()> {
        let place = Some(PinnedPlace { offset });
        let kind = |request| Kind::CudaRead(Read { request, place, ..read });
        self.shared().ask(Wanted::Done, Waiting::ReadShared, |_, request| kind(request))
    }

    /// Requests that texts be loaded. [`Load::request`] is set here.
    pub fn cuda_load(&self, load: Load, texts: Bytes) -> Pending<Loaded> {
        let kind = |request| Kind::CudaLoad(Load { request, ..load });
        self.shared()
            .ask_with(Wanted::Loaded, Waiting::Loaded, texts, |_, request| kind(request))
    }

    /// Waits for the first `operations` operations of a context. `arrived` is called with the answer before anybody can take it, because an
    /// answer has no marks that one before had: a thread that takes an answer can be faster than one that takes an earlier one.
    pub fn cuda_wait(&self, context: u64, operations: u64, arrived: Arrived) -> Pending<Waited> {
        let kind = |request| {
            Kind::CudaWait(Wait {
                context,
                operations,
                request,
            })
        };
        let waiting = |promise| Waiting::Waited(arrived, promise);
        self.shared().ask(Wanted::Waited, waiting, |_, request| kind(request))
    }

    /// Removes and returns what kernels of a context printed.
    pub fn cuda_printed(&self, context: u64) -> Vec<u8> {
        self.shared().lock().printed.remove(&context).unwrap_or_default()
    }

    /// Whether the session has ended.
    pub fn has_ended(&self) -> bool {
        self.shared().has_ended.load(Ordering::Acquire)
    }
}
