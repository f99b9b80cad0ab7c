//! Rows that are read and written, in frames or within batches.

use std::time::Instant;

use bytes::Bytes;
use sahasra_client::{Array, Error, Pending, Session};
use sahasra_cuda_device::{Extent, Operation, Queue, Region, Ticket};
use sahasra_wire::cuda::{Read, Write};
use sahasra_wire::session::frame::MAX_PAYLOAD_BYTES;

use super::{LITTLE_BYTES, RemoteQueue};
use crate::lent;
use crate::statistics::Asked;

/// Size of the pieces in which a long row is read, in bytes.
const READ_BYTES: usize = 4 << 20;
/// Size of the pieces in which a long row is written, in bytes: small enough that sending a piece overlaps with copying the next one.
const PIECE_BYTES: usize = 1 << 20;

impl RemoteQueue {
    /// Message that requests rows. The session sets the number of the request, and the slot or place if there is one.
    pub(super) fn read_message(&self, from: Region, extent: Extent) -> Read {
        Read {
            context: self.context,
            from: from.into(),
            extent: extent.into(),
            request: 0,
            slot: None,
            place: None,
        }
    }

    /// Requests rows, after everything that was submitted before.
    pub(super) fn ask_for(&self, from: Region, extent: Extent) -> Pending<Array> {
        let bytes = extent.bytes().unwrap_or(u64::MAX);
        let read = self.read_message(from, extent);
        self.request(|session| session.cuda_read(read, bytes)).1
    }

    /// Reads rows that arrive in frames.
    pub(super) fn read_frames(&self, from: Region, extent: Extent, into: &mut [u8]) -> Result<(), Error> {
        // The pieces of a long row are on their way while earlier ones are copied.
        let is_long = extent.height == 1 && extent.depth == 1 && into.len() > READ_BYTES;
        let sent = Instant::now();
        let asked: Vec<_> = match is_long {
            false => vec![self.ask_for(from, extent)],
            true => {
                let starts = (from.address..).step_by(READ_BYTES);
                let pieces = into.chunks(READ_BYTES).zip(starts);
                let ask = |(piece, start): (&[u8], u64)| self.ask_for(Region::linear(start), Extent::linear(piece.len() as u64));
                pieces.map(ask).collect()
            }
        };
        let mut pieces = into.chunks_mut(if is_long { READ_BYTES } else { usize::MAX });
        let asked = Asked { sent, answers: asked };
        self.outbox.statistics().wait_for_all(asked, |_, array: Array| {
            let piece = pieces.next().unwrap_or_default();
            piece.copy_from_slice(&array.data);
        })
    }

    pub(super) fn write_rows(&self, to: Region, extent: Extent, bytes: &[u8]) -> Ticket {
        if bytes.len() <= LITTLE_BYTES {
            let bytes = Bytes::copy_from_slice(bytes);
            return self.add(Operation::Write { to, extent, bytes });
        }
        if extent.height == 1 && extent.depth == 1 {
            let mut ticket = self.last();
            for (piece, start) in bytes.chunks(PIECE_BYTES).zip((to.address..).step_by(PIECE_BYTES)) {
                let extent = Extent::linear(piece.len() as u64);
                ticket = self.write_piece(Region::linear(start), extent, piece);
            }
            return ticket;
        }
        if bytes.len() <= MAX_PAYLOAD_BYTES {
            return self.write_piece(to, extent, bytes);
        }
        // Rows one by one, each in pieces.
        let mut ticket = self.last();
        let width = usize::try_from(extent.width).unwrap_or(usize::MAX);
        for ((row, slice), bytes) in extent.rows().zip(bytes.chunks(width)) {
            // A row beyond the address space is outside every allocation, like the address 0.
            let address = to.row(row, slice).unwrap_or(0);
            ticket = self.write_rows(Region::linear(address), Extent::linear(extent.width), bytes);
        }
        ticket
    }

    /// Sends a row from the caller's memory, and waits until the session has it. A failure is reported by the next call that waits for the
    /// write itself.
    pub(super) fn write_lent(&self, address: u64, bytes: &[u8]) -> Ticket {
        lent::lend(bytes, |bytes| {
            let mut ticket = self.last();
            for start in (0..bytes.len()).step_by(PIECE_BYTES) {
                let piece = bytes.slice(start..bytes.len().min(start + PIECE_BYTES));
                let extent = Extent::linear(piece.len() as u64);
                ticket = self.write_frame(Region::linear(address + start as u64), extent, piece);
            }
            // The answer confirms all frames before it, which are then sent no more. Another thread may have learned of a failure: the
            // session confirms the frames all the same.
            if self.ask_in_any_case(Ticket(0)).is_err() {
                // Also where the queue was closed, whose context is not asked any more.
                let _ = self.outbox.ask_after_all(Session::load).1.wait();
            }
            ticket
        })
    }

    /// Sends a write through shared memory, if there is any, or with the frame.
    fn write_piece(&self, to: Region, extent: Extent, bytes: &[u8]) -> Ticket {
        let shared = self.write_shared(to, extent, bytes);
        shared.unwrap_or_else(|| self.write_frame(to, extent, Bytes::copy_from_slice(bytes)))
    }

    /// Sends a write in a frame of its own.
    pub(super) fn write_frame(&self, to: Region, extent: Extent, bytes: Bytes) -> Ticket {
        self.send_write(to, extent, |session, write| session.cuda_write(write, bytes))
    }

    /// Calls `send` with a write, in the order of the queue.
    pub(super) fn send_write(&self, to: Region, extent: Extent, send: impl FnOnce(&Session, Write) -> Result<(), Error>) -> Ticket {
        let write = Write {
            context: self.context,
            to: to.into(),
            extent: extent.into(),
            slot: None,
            place: None,
        };
        self.outbox.statistics().add_operation();
        self.outbox.statistics().add_frame();
        let send = |session: &Session, ticket: Option<Ticket>| {
            if ticket.is_some() {
                // The queue reports the end of the session.
                let _: Result<(), Error> = send(session, write);
            }
            ticket
        };
        self.outbox.after_all(|| self.count(), send).unwrap_or_else(|| self.last())
    }
}
