//! Copies through the memory that this process shares with the session: in slots, or from and to pinned memory that is in it already.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use sahasra_client::{Error, Pending, Session, Slot, SlotPool};
use sahasra_cuda_device::{Extent, Queue, Region, Ticket};
use sahasra_wire::cuda::Write;

use super::RemoteQueue;

/// Size of rows in bytes from which they go through a slot. Smaller ones are not faster there.
const LEAST_BYTES: usize = 64 << 10;
/// Time for which a copy waits for a free slot before its bytes go over the connection: a kernel that runs holds up the writes behind it.
const WAIT: Duration = Duration::from_millis(20);
/// Poll interval for a free slot: far less than the session takes to empty all of them.
const PAUSE: Duration = Duration::from_micros(50);
/// Number of pieces of a read that are asked for at a time: the session copies one while this process copies another.
const IN_FLIGHT: usize = 4;
/// Size in bytes from which rows in the pinned memory are copied from there. Smaller ones are faster in a slot, as no answer is awaited for them.
pub(crate) const LEAST_PINNED_BYTES: usize = 256 << 10;
/// Size of the pieces in which rows in the pinned memory are copied, in bytes: the session does nothing else meanwhile.
const PINNED_PIECE_BYTES: usize = 64 << 20;

/// A piece of a read that was asked for.
struct Asked<'a> {
    slot: Slot,
    answer: Pending<()>,
    into: &'a mut [u8],
}

impl RemoteQueue {
    /// The shared memory for rows of this size.
    pub(super) fn memory_for(&self, bytes: usize) -> Option<&Arc<SlotPool>> {
        self.outbox.session().shared_memory().filter(|_| bytes >= LEAST_BYTES)
    }

    /// A slot for a write of this size. If none is free, waits for one, unless the last wait found none.
    fn slot_for(&self, bytes: usize) -> Option<Slot> {
        let memory = self.memory_for(bytes).filter(|memory| bytes <= memory.slot_bytes())?;
        // Reads do not wait for a slot, and the writes before them can have all others until a kernel has ended.
        let rest = IN_FLIGHT.min(memory.slots() / 4);
        let mut slot = memory.take_leaving(rest);
        if slot.is_none() && !self.has_no_slots.load(Ordering::Relaxed) {
            let until = Instant::now() + WAIT;
            while slot.is_none() && Instant::now() < until {
                thread::sleep(PAUSE);
                slot = memory.take_leaving(rest);
            }
        }
        self.has_no_slots.store(slot.is_none(), Ordering::Relaxed);
        slot
    }

    /// Sends a write in a slot. Returns `None` if there is no slot for it.
    pub(super) fn write_shared(&self, to: Region, extent: Extent, bytes: &[u8]) -> Option<Ticket> {
        let mut slot = self.slot_for(bytes.len())?;
        slot.fill(bytes);
        self.outbox.statistics().add_shared(bytes.len());
        Some(self.send_write(to, extent, |session: &Session, write: Write| session.cuda_write_shared(write, slot)))
    }

    /// Place of bytes of this process in the pinned memory, if it is better to copy them there.
    pub(super) fn place_of(&self, start: *const u8, bytes: usize) -> Option<u64> {
        let memory = self.memory_for(bytes).filter(|_| bytes >= LEAST_PINNED_BYTES)?;
        memory.pinned_offset(start, bytes)
    }

    /// Sends the write of a row that is in the pinned memory.
    pub(super) fn write_pinned(&self, to: u64, place: u64, bytes: usize) -> Ticket {
        self.outbox.statistics().add_shared(bytes);
        let mut ticket = self.last();
        for start in (0..bytes).step_by(PINNED_PIECE_BYTES) {
            let extent = Extent::linear((bytes - start).min(PINNED_PIECE_BYTES) as u64);
            let place = place + start as u64;
            let send = |session: &Session, write: Write| session.cuda_write_pinned(write, place);
            ticket = self.send_write(Region::linear(to + start as u64), extent, send);
        }
        ticket
    }

    /// Reads a row to a place in the pinned memory.
    fn read_pinned(&self, from: u64, place: u64, bytes: usize) -> Result<(), Error> {
        for start in (0..bytes).step_by(PINNED_PIECE_BYTES) {
            let extent = Extent::linear((bytes - start).min(PINNED_PIECE_BYTES) as u64);
            let read = self.read_message(Region::linear(from + start as u64), extent);
            self.request(|session| session.cuda_read_pinned(read, place + start as u64))
                .1
                .wait()?;
        }
        self.outbox.statistics().add_shared(bytes);
        Ok(())
    }

    /// Reads rows through shared memory. Returns `None` if they do not fit: then nothing was read.
    pub(super) fn read_shared(&self, from: Region, extent: Extent, into: &mut [u8]) -> Option<Result<(), Error>> {
        let memory = self.memory_for(into.len())?;
        let is_row = extent.height == 1 && extent.depth == 1;
        if is_row && let Some(place) = self.place_of(into.as_ptr(), into.len()) {
            let read = || self.read_pinned(from.address, place, into.len());
            return Some(self.outbox.statistics().wait_by(Instant::now(), true, read));
        }
        let most = memory.slot_bytes();
        if !is_row && into.len() > most {
            return None;
        }
        let first = memory.take()?;
        let starts = (from.address..).step_by(most);
        let pieces = into.chunks_mut(most).zip(starts).map(|(piece, start)| match is_row {
            true => (Region::linear(start), Extent::linear(piece.len() as u64), piece),
            false => (from, extent, piece),
        });
        let read = || self.read_pieces(memory, first, pieces);
        Some(self.outbox.statistics().wait_by(Instant::now(), true, read))
    }

    /// Reads pieces, the first of them through this slot.
    fn read_pieces<'a>(
        &self,
        memory: &Arc<SlotPool>,
        first: Slot,
        pieces: impl Iterator<Item = (Region, Extent, &'a mut [u8])>,
    ) -> Result<(), Error> {
        let mut pieces = pieces.peekable();
        let mut asked = VecDeque::new();
        let mut spare = Some(first);
        let mut outcome = Ok(());
        loop {
            while outcome.is_ok() && asked.len() < IN_FLIGHT && pieces.peek().is_some() {
                let Some(slot) = spare.take().or_else(|| memory.take()) else {
                    break;
                };
                asked.extend(pieces.next().map(|piece| self.ask_shared(slot, piece)));
            }
            if let Some(Asked { slot, answer, into }) = asked.pop_front() {
                match answer.wait() {
                    Ok(()) if outcome.is_ok() => {
                        slot.copy_to(into);
                        self.outbox.statistics().add_shared(into.len());
                    }
                    Ok(()) => {}
                    // The session has answered, and does not use the slot any more.
                    Err(error @ Error::Failed(_)) => outcome = outcome.and(Err(error)),
                    Err(error) => {
                        slot.forget();
                        outcome = outcome.and(Err(error));
                    }
                }
            } else if outcome.is_ok()
                && let Some((from, extent, into)) = pieces.next()
            {
                // Other reads have all slots.
                let answer = self.ask_for(from, extent).wait();
                outcome = answer.map(|array| into.copy_from_slice(&array.data));
            } else {
                return outcome;
            }
        }
    }

    fn ask_shared<'a>(&self, slot: Slot, (from, extent, into): (Region, Extent, &'a mut [u8])) -> Asked<'a> {
        let read = self.read_message(from, extent);
        let (_, answer) = self.request(|session| session.cuda_read_shared(read, &slot));
        Asked { slot, answer, into }
    }
}
