//! A context at the far end of a session stream.

mod rows;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use sahasra_client::{Arrived, Error, FailureCode, Pending, Session};
use sahasra_cuda_device::{
    Extent, Failure, FailureKind, HostBlock, LoadFailure, ModuleDescription, ModuleId, Operation, Queue, Region, Ticket,
};
use sahasra_wire::cuda::{Load, Waited};
use sahasra_wire::session::frame::MAX_PAYLOAD_BYTES;

use crate::contexts::Contexts;
use crate::failure;
use crate::mirrors::{self, Guard, Mirrors};
use crate::outbox::Outbox;
use crate::pinned::PinnedBlocks;
use crate::progress::{self, Progress};
use crate::statistics::Asked;

pub(crate) use slots::LEAST_PINNED_BYTES;

/// Largest write that is part of a batch, in bytes.
const LITTLE_BYTES: usize = 16 << 10;
/// Size of a row in bytes from which it is sent from the caller's memory, if a round trip takes at most [`LENDING_TRIP`]: a part of the time that
/// copying the row would take.
const LENT_BYTES: usize = 2 << 20;
const LENDING_TRIP: Duration = Duration::from_micros(200);

/// A [context](self).
pub(crate) struct RemoteQueue {
    outbox: Arc<Outbox>,
    contexts: Arc<Contexts>,
    /// Number of the context.
    context: u64,
    submitted: AtomicU64,
    progress: Arc<Progress>,
    /// Passes answers to waits to the progress.
    arrived: Arrived,
    /// Number of operations whose failure is known, too, if they have failed.
    settled: AtomicU64,
    /// Whether the session was told that the context is gone. Changes while the order is fixed.
    is_closed: AtomicBool,
    /// The sticky failure.
    failure: OnceLock<Failure>,
    /// A failure that is not sticky and met a call that reports none: the next one that waits does.
    unreported: Mutex<Option<Failure>>,
    mirrors: Mirrors,
    /// Locked while a block is being shared.
    sharing: Mutex<()>,
    /// Whether the last write that needed a slot of shared memory found none.
    has_no_slots: AtomicBool,
    /// Pinned memory that the session reads.
    pinned: PinnedBlocks,
}

impl RemoteQueue {
    /// The context with this number, which is counted.
    pub(crate) fn new(outbox: Arc<Outbox>, contexts: Arc<Contexts>, context: u64) -> Self {
        let progress = Arc::<Progress>::default();
        let of_answers = Arc::clone(&progress);
        Self {
            outbox,
            contexts,
            context,
            submitted: AtomicU64::new(0),
            progress,
            arrived: Arc::new(move |waited| of_answers.arrive(waited)),
            settled: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            failure: OnceLock::new(),
            unreported: Mutex::default(),
            mirrors: Mirrors::default(),
            sharing: Mutex::default(),
            has_no_slots: AtomicBool::new(false),
            pinned: PinnedBlocks::default(),
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Counts an operation while the order is fixed, or returns `None` if the queue is closed: the session would take it for one of a new context.
    fn count(&self) -> Option<Ticket> {
        (!self.is_closed()).then(|| Ticket(self.submitted.fetch_add(1, Ordering::Relaxed) + 1))
    }

    /// Calls `ask`, which requests an answer, after everything that was submitted. Returns the answer and the time of the request. If the queue is
    /// closed, the answer is that.
    fn request<T>(&self, ask: impl FnOnce(&Session) -> Pending<T>) -> (Instant, Pending<T>) {
        self.outbox.ask_after_all(|session| match self.is_closed() {
            true => Pending::ready(Err(closed())),
            false => ask(session),
        })
    }

    /// The failure for an error of the session, which is kept if it is sticky.
    fn failed(&self, error: &Error) -> Failure {
        let failure = failure(error);
        if !failure.is_sticky() {
            return failure;
        }
        self.failure.get_or_init(|| failure).clone()
    }

    fn add(&self, operation: Operation) -> Ticket {
        self.outbox
            .add(self.context, operation, || self.count())
            .unwrap_or_else(|| self.last())
    }

    fn check(&self) -> Result<(), Failure> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Reports the failure that no call has reported.
    fn check_unreported(&self) -> Result<(), Failure> {
        self.unreported.lock().take().map_or(Ok(()), Err)
    }

    /// Asks which operations have been executed, once the operation of `ticket` has.
    fn ask(&self, ticket: Ticket) -> Result<(), Failure> {
        self.check()?;
        self.ask_in_any_case(ticket)
    }

    /// Asks like [`ask`](Self::ask), also after a failure.
    fn ask_in_any_case(&self, ticket: Ticket) -> Result<(), Failure> {
        let mut ticket = ticket;
        loop {
            let answer = self.outbox.statistics().wait(self.ask_progress(ticket));
            let waited = answer.map_err(|error| self.failed(&error))?;
            self.settled.fetch_max(ticket.0, Ordering::Release);
            if progress::is_complete(&waited) {
                return Ok(());
            }
            ticket = Ticket(0);
        }
    }

    /// Requests an answer once the operation of a ticket has been executed, and the times of marks. The progress has both when the answer has
    /// arrived, whether somebody takes it or not.
    fn ask_progress(&self, ticket: Ticket) -> (Instant, Pending<Waited>) {
        self.progress.request();
        self.request(|session| session.cuda_wait(self.context, ticket.0, Arc::clone(&self.arrived)))
    }

    /// Waits for everything, and copies the blocks that kernels may have written back.
    fn take_back(&self) -> Result<(), Failure> {
        self.mirrors.to_host(|blocks| {
            let sent = Instant::now();
            let asked = blocks
                .iter()
                .map(|block| self.ask_for(Region::linear(block.pointer() as u64), Extent::linear(block.bytes() as u64)));
            let asked: Vec<_> = asked.collect();
            // The answer to this request arrives after theirs: all take one round trip.
            self.ask(self.last())?;
            let asked = Asked { sent, answers: asked };
            let statistics = self.outbox.statistics();
            let overwritten = statistics.wait_for_all(asked, |index, array| blocks[index].overwrite(&array.data));
            overwritten.map_err(|error| self.failed(&error))
        })
    }

    /// Copies the blocks back before memory is unmapped.
    fn take_back_before_unmap(&self) {
        let Err(failure) = self.take_back() else { return };
        if failure.is_sticky() {
            return;
        }
        self.unreported.lock().get_or_insert(failure);
        // The failure of an operation was reported in place of a block, once. Now the blocks come.
        if let Err(failure) = self.take_back()
            && !failure.is_sticky()
        {
            self.unreported.lock().get_or_insert(failure);
        }
    }

    /// Sends the blocks of this process's memory that the next operation may access. No other thread takes them back before the guard is
    /// dropped, after that operation was submitted.
    fn send_blocks(&self) -> Option<Guard<'_>> {
        self.mirrors.to_device(|block| {
            let bytes = block.to_vec();
            self.write_rows(Region::linear(block.pointer() as u64), Extent::linear(bytes.len() as u64), &bytes);
        })
    }

    /// Sends the blocks like [`send_blocks`](Self::send_blocks) if these rows of the device are within one of them.
    fn send_blocks_at(&self, region: &Region, extent: &Extent) -> Option<Guard<'_>> {
        let is_apart = extent.span(region).is_some_and(|bytes| !self.mirrors.touch(region.address, bytes));
        if is_apart { None } else { self.send_blocks() }
    }

    fn is_known_done(&self, ticket: Ticket) -> bool {
        self.progress.executed() >= ticket
    }
}

/// Answer to requests of a queue that was closed.
fn closed() -> Error {
    Error::Failed(sahasra_client::Failure {
        code: FailureCode::Ended,
        sequence: 0,
        operation: "a request of a context".to_owned(),
        message: Failure::closed().message,
    })
}

impl Drop for RemoteQueue {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue for RemoteQueue {
    fn submit(&self, operation: Operation) -> Ticket {
        match operation {
            Operation::Unmap { address } => {
                if self.mirrors.are_on_device() {
                    self.take_back_before_unmap();
                }
                let address = self.mirrors.remove(address).unwrap_or(address);
                self.add(Operation::Unmap { address })
            }
            Operation::Mark(mark) => {
                let ticket = self.outbox.add(self.context, operation, || {
                    let ticket = self.count()?;
                    self.progress.submit(mark, ticket);
                    Some(ticket)
                });
                if self.progress.is_request_due() {
                    // No call waits for the answer.
                    drop(self.ask_progress(Ticket(0)));
                }
                ticket.unwrap_or_else(|| self.last())
            }
            Operation::Write { to, extent, bytes }
                if bytes.len() > LITTLE_BYTES && bytes.len() <= MAX_PAYLOAD_BYTES && self.memory_for(bytes.len()).is_none() =>
            {
                let _guard = self.send_blocks_at(&to, &extent);
                self.write_frame(to, extent, bytes)
            }
            Operation::Write { to, extent, bytes } => self.write(to, extent, &bytes),
            Operation::Launch(_) | Operation::Replay(_) | Operation::Copy { .. } | Operation::Fill { .. } => {
                let _guard = self.send_blocks();
                self.add(operation)
            }
            _ => self.add(operation),
        }
    }

    fn write_in_place(&self, to: u64, block: &Arc<HostBlock>, offset: usize, bytes: usize) -> Option<Ticket> {
        let start = block.pointer().wrapping_add(offset);
        // A wait for the write would bring all blocks back that kernels access.
        let place = self.place_of(start, bytes).filter(|_| !self.mirrors.has_any())?;
        self.pinned.release(self.progress.executed());
        let ticket = self.write_pinned(to, place, bytes);
        self.pinned.keep(block, ticket);
        Some(ticket)
    }

    fn share(&self, block: &Arc<HostBlock>) -> Result<(), Failure> {
        let _one_at_a_time = self.sharing.lock();
        if self.mirrors.has(block) {
            return Ok(());
        }
        if self.mirrors.overlaps(block) {
            let message = "memory of the host that kernels access must not be within 256 bytes of other such memory";
            return Err(Failure::new(FailureKind::OutOfMemory, message));
        }
        self.check_unreported()?;
        let (address, bytes) = mirrors::span(block);
        let ticket = self.add(Operation::Map { address, bytes });
        self.ask(ticket).inspect_err(|_| {
            self.add(Operation::Unmap { address });
        })?;
        self.mirrors.add(Arc::clone(block));
        Ok(())
    }

    fn write(&self, to: Region, extent: Extent, bytes: &[u8]) -> Ticket {
        let _guard = self.send_blocks_at(&to, &extent);
        let is_row = extent.height == 1 && extent.depth == 1;
        let is_shared = self.memory_for(bytes.len()).is_some();
        if is_row && !is_shared && bytes.len() >= LENT_BYTES && self.outbox.statistics().answers_within(LENDING_TRIP) {
            return self.write_lent(to.address, bytes);
        }
        self.write_rows(to, extent, bytes)
    }

    fn read(&self, from: Region, extent: Extent, into: &mut [u8]) -> Result<(), Failure> {
        self.check()?;
        if extent.bytes() != Some(into.len() as u64) {
            return Err(Failure::new(FailureKind::Protocol, "the target does not have the size of the rows"));
        }
        self.check_unreported()?;
        drop(self.send_blocks_at(&from, &extent));
        let before = self.last();
        let read = match self.read_shared(from, extent, into) {
            Some(read) => read,
            None => self.read_frames(from, extent, into),
        };
        read.map_err(|error| self.failed(&error))?;
        // A wait asks for the times of marks that have not arrived.
        let known = self.progress.arrive_without_marks(before);
        self.settled.fetch_max(known.0, Ordering::Release);
        self.pinned.release(self.progress.executed());
        // Everything before has been executed, as after a wait.
        if self.mirrors.are_on_device() {
            self.take_back()?;
        }
        Ok(())
    }

    fn load(&self, module: ModuleId, images: &[&[u8]]) -> Result<ModuleDescription, LoadFailure> {
        self.check()?;
        let bytes: usize = images.iter().map(|image| image.len()).sum();
        if bytes > MAX_PAYLOAD_BYTES {
            let message = format!("a module of {bytes} bytes exceeds the limit of {MAX_PAYLOAD_BYTES}");
            return Err(LoadFailure::Unsupported(message));
        }
        self.check_unreported()?;
        let load = Load {
            context: self.context,
            module: module.0,
            text_bytes: images.iter().map(|image| image.len() as u64).collect(),
            request: 0,
        };
        let images = Bytes::from(images.concat());
        let answer = self.request(|session| session.cuda_load(load, images));
        match self.outbox.statistics().wait(answer) {
            Ok(loaded) => Ok(loaded.into()),
            Err(Error::Failed(failed)) => {
                let failure = LoadFailure::from_code(failed.code, failed.message.clone());
                Err(match failure {
                    LoadFailure::Failed(_) => self.failed(&Error::Failed(failed)).into(),
                    refused => refused,
                })
            }
            Err(error) => Err(self.failed(&error).into()),
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Failure> {
        if self.mirrors.are_on_device() {
            self.take_back()?;
        } else if self.settled.load(Ordering::Acquire) >= ticket.0 {
            self.check()?;
        } else {
            self.ask(ticket)?;
        }
        self.pinned.release(self.progress.executed());
        self.check_unreported()
    }

    fn executed(&self) -> Result<Ticket, Failure> {
        if !self.is_known_done(self.last()) {
            self.ask(Ticket(0))?;
        }
        self.check()?;
        self.pinned.release(self.progress.executed());
        Ok(self.progress.executed())
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, Failure> {
        if !self.is_known_done(ticket) {
            self.ask(Ticket(0))?;
        }
        self.check()?;
        self.pinned.release(self.progress.executed());
        let is_done = self.is_known_done(ticket);
        // What later operations may still write comes back with a wait.
        if is_done && self.mirrors.are_on_device() && self.is_known_done(self.last()) {
            self.take_back()?;
        }
        Ok(is_done)
    }

    fn has_host_memory(&self) -> bool {
        self.mirrors.are_on_device()
    }

    fn last(&self) -> Ticket {
        Ticket(self.submitted.load(Ordering::Relaxed))
    }

    fn failure(&self) -> Option<Failure> {
        if let Some(failure) = self.failure.get() {
            return Some(failure.clone());
        }
        if !self.outbox.session().has_ended() {
            return None;
        }
        let error = self.outbox.session().ended()?;
        Some(self.failed(&error))
    }

    fn marked(&self, mark: u64) -> Option<Duration> {
        self.progress.time(mark)
    }

    fn forget(&self, mark: u64) {
        self.progress.forget(mark);
    }

    fn close(&self) {
        self.failure.get_or_init(Failure::closed);
        let close = || self.is_closed.swap(true, Ordering::Relaxed);
        self.outbox.after_all(close, |session, was_closed| {
            if !was_closed {
                // After the end of the session there is nothing to free.
                let _: Result<(), Error> = session.cuda_discard(self.context);
                self.contexts.remove();
            }
        });
    }

    fn printed(&self) -> Vec<u8> {
        self.outbox.session().cuda_printed(self.context)
    }
}
